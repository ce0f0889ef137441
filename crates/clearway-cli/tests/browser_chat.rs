//! The page of `clearway serve` in a real browser: talked to, stopped, used by keys, in light and dark, without a word on
//! the console and without a request to anybody else.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise
#![cfg(unix)]

mod common;
#[path = "browser/devtools.rs"]
mod devtools;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use clearway_graph::testkit::skip;
use devtools::Browser;
use serde_json::json;

/// Waits in the page until an expression is true.
fn wait(browser: &mut Browser, expression: &str) {
    let started = Instant::now();
    while browser.eval(expression) != true {
        assert!(started.elapsed() < Duration::from_secs(60), "never came: {expression}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_page_talks_with_the_model() {
    let Some(program) = devtools::find() else {
        let why = "there is no chromium on this machine; `cargo xtask test` installs it";
        return skip("browser", why);
    };
    let folder = common::Folder::new("browser-chat");
    let model = folder.path("tiny.gguf");
    common::tiny_model(&model, "llama", true);
    let arguments = ["serve", "-m", model.to_str().unwrap(), "--device", "cpu", "--port", "0"];
    let mut command = common::command(&arguments);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let server = Server(child);
    let address =
        lines.find_map(|line| Some(line.split_once("listening on ")?.1.to_owned())).unwrap();
    lines.find(|line| line.starts_with("ready")).unwrap();
    std::thread::spawn(move || lines.for_each(drop));

    let mut browser = Browser::start(program, &folder.path("profile"));
    browser.call("Network.enable", json!({}));
    browser.open_address(&format!("{address}/"));
    wait(&mut browser, "document.querySelector('#model').textContent === 'tiny'");
    assert_eq!(browser.eval("document.activeElement.id"), "input", "typing can begin at once");
    say(&mut browser, "Hello");
    wait(
        &mut browser,
        "document.querySelector('#stop').disabled && document.querySelectorAll('article.assistant').length === 1",
    );
    assert_eq!(browser.text("document.querySelector('article.user .body').textContent"), "Hello");
    let usage = browser.text("document.querySelector('#usage').textContent");
    assert!(usage.contains("written"), "{usage}");
    let first = browser.text("document.querySelector('article.assistant .body').textContent");

    // Another answer to the same message.
    browser.click("#again");
    wait(&mut browser, "document.querySelector('#stop').disabled");
    assert_eq!(browser.eval("document.querySelectorAll('article').length"), 2);
    let second = browser.text("document.querySelector('article.assistant .body').textContent");
    assert_ne!(first, second, "another seed");

    // Escape stops; what was written stays.
    browser.eval("document.querySelector('#parameters').open = true");
    browser.eval("for (const [id, value] of [['max_tokens', 100000], ['temperature', 2], ['top_k', 0], ['top_p', 1], ['min_p', 0]]) document.getElementById(id).value = value");
    say(&mut browser, "More");
    // Any token may be the first one, and one in some hundred ends the answer.
    let text =
        "document.querySelector('article.assistant:last-child .body')?.textContent.length > 0";
    let ended = "document.querySelector('#stop').disabled";
    wait(&mut browser, &format!("{text} || {ended}"));
    while browser.eval(text) != true {
        browser.click("#again");
        wait(&mut browser, &format!("{text} || {ended}"));
    }
    browser.press("Escape");
    wait(&mut browser, "document.querySelector('#stop').disabled");
    assert_eq!(browser.eval("document.querySelector('#problem').hidden"), true);
    wait(&mut browser, "document.querySelector('#running').textContent.startsWith('0 of')");

    markdown(&mut browser);
    looks(&mut browser);

    // A refusal is shown in the server's words.
    browser.eval("document.querySelector('#temperature').value = 9");
    say(&mut browser, "Too hot");
    wait(&mut browser, "!document.querySelector('#problem').hidden");
    let problem = browser.text("document.querySelector('#problem').textContent");
    assert!(problem.contains("temperature"), "{problem}");
    browser.click("#clear");
    assert_eq!(browser.eval("document.querySelectorAll('article').length"), 0);
    let others = browser.eval("performance.getEntriesByType('resource').filter((entry) => !entry.name.startsWith(location.origin)).length");
    assert_eq!(others, 0, "the page asks nobody else");
    // The refused request is the only thing a browser complains about.
    browser.complaints.retain(|complaint| !complaint.contains("400 (Bad Request)"));
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    drop(server);
}

/// Types a message and sends it with the key.
fn say(browser: &mut Browser, text: &str) {
    browser.eval("document.querySelector('#input').focus()");
    browser.call("Input.insertText", json!({ "text": text }));
    let enter =
        json!({ "type": "keyDown", "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13 });
    browser.call("Input.dispatchKeyEvent", enter);
}

/// Markdown becomes elements, and markup in it stays text.
fn markdown(browser: &mut Browser) {
    let text = "# Head\n\nA **b** `c` <img src=x onerror=window.hurt=1> [l](https://example.com)\n- one\n- two\n\n```js\n<script>window.hurt=2</script>\n```\n[x](javascript:alert(1))";
    let shown = browser.eval(&format!(
        "(() => {{ const e = document.createElement('div'); e.append(markdown({})); document.body.append(e); const found = \
         ['h2', 'strong', 'code', 'li', 'pre', 'a', 'img', 'script'].map((name) => e.querySelectorAll(name).length); \
         const text = e.textContent; e.remove(); return [...found, text.includes('onerror'), text.includes('javascript:')]; }})()",
        json!(text)
    ));
    assert_eq!(shown, json!([1, 1, 2, 2, 1, 1, 0, 0, true, true]));
    assert_eq!(browser.eval("window.hurt === undefined"), true);
}

/// Both colour schemes have contrast, and everything has a name.
fn looks(browser: &mut Browser) {
    for scheme in ["light", "dark"] {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        browser.call("Emulation.setEmulatedMedia", json!({ "features": features }));
        let contrast = browser.eval(
            "(() => { const light = (rgb) => { const [r, g, b] = rgb.match(/[0-9.]+/g).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); \
             return 0.2126 * r + 0.7152 * g + 0.0722 * b; }; const style = getComputedStyle(document.body); \
             const [a, b] = [light(style.color), light(style.backgroundColor)].sort((x, y) => y - x); return (a + 0.05) / (b + 0.05); })()",
        );
        assert!(contrast.as_f64().unwrap() > 7.0, "{scheme}: {contrast}");
    }
    let nameless = browser.eval(
        "[...document.querySelectorAll('button, input, textarea')].filter((e) => !(e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label'))).length",
    );
    assert_eq!(nameless, 0);
}
