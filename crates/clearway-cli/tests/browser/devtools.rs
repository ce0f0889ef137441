//! A headless Chromium and its DevTools protocol, over a pipe: no port, no socket, no further crate.
//!
//! The browser reads commands from descriptor 3 and answers on 4, JSON with a zero byte after each. A shell
//! hands it our two pipes under those numbers.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longest wait for any answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// One browser with one page.
pub struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<Value>,
    session: String,
    next: u64,
    events: VecDeque<Value>,
    /// What the page printed or threw, with the address of the page.
    pub complaints: Vec<String>,
}

/// The Chromium of this machine.
pub fn find() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    })
}

impl Browser {
    /// Starts a browser that keeps its files in `profile`.
    pub fn start(program: &str, profile: &Path) -> Self {
        let mut child = Command::new("sh")
            .args([
                "-c",
                r#"exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null"#,
                "sh",
                program,
            ])
            // A container has no user namespaces for the sandbox; the pages are our own.
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-extensions", "--disable-background-networking"])
            .args(["--hide-scrollbars", "--force-device-scale-factor=1", "--window-size=1400,1000"])
            .args(["--remote-debugging-pipe", &format!("--user-data-dir={}", profile.display())])
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = child.stdin.take().unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            while answers.read_until(0, &mut bytes).is_ok_and(|read| read > 0) {
                bytes.pop();
                let Ok(message) = serde_json::from_slice(&bytes) else { break };
                if sender.send(message).is_err() {
                    break;
                }
                bytes.clear();
            }
        });
        let mut browser = Self {
            child,
            commands,
            answers: receiver,
            session: String::new(),
            next: 0,
            events: VecDeque::new(),
            complaints: Vec::new(),
        };
        let targets = browser.call("Target.getTargets", json!({}));
        let page = targets["targetInfos"].as_array().unwrap();
        let page = page.iter().find(|target| target["type"] == "page").unwrap();
        let attached = browser.call(
            "Target.attachToTarget",
            json!({ "targetId": page["targetId"], "flatten": true }),
        );
        attached["sessionId"].as_str().unwrap().clone_into(&mut browser.session);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Sends a command and waits for its answer.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.commands.write_all(&bytes).unwrap();
        self.commands.flush().unwrap();
        loop {
            let answer = self.receive(method);
            if answer["id"] == id {
                assert!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.note(answer);
        }
    }

    /// Opens a file and waits until it is loaded.
    #[allow(dead_code)] // one of the tests that share this has no files
    pub fn open(&mut self, file: &Path) {
        self.open_address(&format!("file://{}", file.display()));
    }

    /// Opens an address and waits until it is loaded.
    pub fn open_address(&mut self, address: &str) {
        self.events.clear();
        let answer = self.call("Page.navigate", json!({ "url": address }));
        assert!(answer.get("errorText").is_none(), "{answer}");
        let started = Instant::now();
        while !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            assert!(started.elapsed() < PATIENCE, "{address} does not load");
            let event = self.receive("Page.loadEventFired");
            self.note(event);
        }
        assert_eq!(self.eval("document.documentElement.dataset.ready"), "true", "{address}");
    }

    /// The value of an expression in the page; promises are waited for.
    pub fn eval(&mut self, expression: &str) -> Value {
        let answer = self.call(
            "Runtime.evaluate",
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true }),
        );
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// As text.
    pub fn text(&mut self, expression: &str) -> String {
        self.eval(expression).as_str().unwrap_or_default().to_owned()
    }

    /// Brings an element into sight and gives its left, top, width and height in the window.
    pub fn place(&mut self, selector: &str) -> [f64; 4] {
        let found = self.eval(&format!(
            "(() => {{ const e = document.querySelector({}); e.scrollIntoView({{ block: 'center', behavior: 'instant' }}); \
             const r = e.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; }})()",
            json!(selector)
        ));
        std::array::from_fn(|at| found[at].as_f64().unwrap())
    }

    /// Clicks a point of the window with the mouse.
    pub fn click_at(&mut self, x: f64, y: f64) {
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let params = json!({ "type": kind, "x": x, "y": y, "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", params);
        }
    }

    /// Clicks the middle of an element.
    pub fn click(&mut self, selector: &str) {
        let [left, top, width, height] = self.place(selector);
        self.click_at(left + width / 2.0, top + height / 2.0);
    }

    /// Presses a key.
    pub fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({ "type": kind, "key": key, "code": key }));
        }
    }

    fn receive(&mut self, what: &str) -> Value {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => panic!("the browser does not answer: {what}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the browser has gone away: {what}"),
        }
    }

    fn note(&mut self, event: Value) {
        let method = event["method"].as_str().unwrap_or_default();
        if ["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"]
            .contains(&method)
        {
            self.complaints.push(event["params"].to_string());
        }
        self.events.push_back(event);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
