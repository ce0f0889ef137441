//! The page of `clearway inspect` in a real browser: clicked, searched, switched, compared with the JSON, and
//! without a word on the console.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

#[path = "browser/devtools.rs"]
mod devtools;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clearway::cpu::CpuDevice;
use clearway::{ComputeGraph, DType, Device, KernelRegistry, Ops, Recorder};
use clearway_graph::testkit::{say, skip};
use clearway_inspect::{InspectOptions, inspect};
use clearway_llm::fetch::{Cache, ModelName};
use devtools::Browser;
use serde_json::{Value, json};

const SHAPES: [&str; 7] = [
    "smollm2-135m",
    "llama-1b",
    "llama-8b",
    "qwen3-0.6b",
    "qwen3-30b-a3b",
    "moe-16l-shared",
    "gemma3-4b",
];

/// Figures of the summary.
const FIGURES: [&str; 10] = [
    "dispatches",
    "groups",
    "barriers",
    "longest_chain",
    "fusions",
    "moved",
    "arena_bytes",
    "arena_lower_bound",
    "phases_per_layer",
    "estimated_ns",
];

/// A name that would be markup, a script, an attribute and a right-to-left line at once.
const HOSTILE: &str = "blk.0.</script><script>window.hurt=1</script><img src=x onerror=window.hurt=2>\"'&amp;\u{202e}\u{5d0}\u{5d1}";

#[test]
fn the_page_works_in_a_browser() {
    let Some(program) = devtools::find() else {
        let why = "there is no chromium on this machine; `cargo xtask test` installs it";
        return skip("browser", why);
    };
    let dir = std::env::temp_dir().join(format!("clearway-browser-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut browser = Browser::start(program, &dir.join("profile"));
    for shape in SHAPES {
        for tokens in ["1", "512"] {
            let (page, report) = make(&dir, &["--shape", shape, "--tokens", tokens]);
            look(&mut browser, &page, &report, &format!("{shape} at {tokens}"));
        }
    }
    match default_model() {
        Some(model) => {
            let model = ["-m", model.to_str().unwrap()];
            let (page, report) = make(&dir, &model);
            look(&mut browser, &page, &report, "the default model");
            let (page, report) = make(&dir, &[&model[..], &["--measure"]].concat());
            look(&mut browser, &page, &report, "the default model, measured");
            let measured =
                browser.text("document.querySelector('[data-key=measured_ns]').dataset.value");
            assert_eq!(measured, report["measured_ns"].to_string());
            assert_eq!(
                browser.eval("document.querySelectorAll('#lost-table tbody tr').length"),
                10
            );
        }
        None => skip("golden", "the default model is not in the cache, its page was not made"),
    }
    hostile_names(&mut browser, &dir);
    long_list(&mut browser, &dir);
    drop(browser);
    // A process of the browser may still write to its profile; what is left is the system's to clean up.
    let _ = std::fs::remove_dir_all(&dir);
}

/// Opens a page and uses it.
fn look(browser: &mut Browser, page: &Path, report: &Value, what: &str) {
    browser.open(page);
    for key in FIGURES {
        let shown =
            browser.text(&format!("document.querySelector('[data-key={key}]').dataset.value"));
        let (shown, expected) = (shown.parse::<f64>().unwrap(), report[key].as_f64().unwrap());
        // Readers of JSON differ in the last bit of a fraction.
        assert!((shown - expected).abs() <= 1e-12 * expected, "{what}: {key} {shown} {expected}");
    }
    click_a_barrier(browser, report, what);
    search_a_dispatch(browser, report, what);
    switch_the_view(browser, report, what);
    let rows = "document.querySelectorAll('#tracked-table tbody tr')";
    assert_eq!(browser.eval(&format!("{rows}.length")), 5, "{what}");
    let first = browser.text(&format!("{rows}[0].textContent"));
    assert!(first.starts_with("Vulkan"), "{what}: {first}");
    assert!(browser.complaints.is_empty(), "{what}: {:?}", browser.complaints);
}

/// A click on the mark of a barrier in the canvas shows its reason.
fn click_a_barrier(browser: &mut Browser, report: &Value, what: &str) {
    let barriers = report["barrier_list"].as_array().unwrap();
    let number = barriers.iter().position(|row| row["reason"] == "hazard").unwrap();
    let barrier = &barriers[number];
    browser.click("#zoom-fit");
    while scale(browser) < 60.0 {
        browser.click("#zoom-in");
        frame(browser);
    }
    browser.eval("document.querySelector('#lanes').focus()");
    browser.press("Home");
    frame(browser);
    let [left, top, ..] = browser.place("#lanes");
    let x: f64 = browser.text("document.querySelector('#lanes').dataset.x").parse().unwrap();
    let at = barrier["after_group"].as_f64().unwrap() * scale(browser) - x;
    browser.click_at(left + at, top + 14.0);
    let title = browser.text("document.querySelector('#detail h3').textContent");
    let hazard = barrier["hazard"].as_str().unwrap();
    assert_eq!(title, format!("Barrier {number}: {hazard}"), "{what}");
    let reason = browser.text("document.querySelector('#barrier-reason').textContent");
    let name = |end: &str| {
        let row = &report["dispatch_list"][barrier[end].as_u64().unwrap() as usize];
        format!("{} {}", row["op"].as_str().unwrap(), row["label"].as_str().unwrap())
    };
    let (second, first) = match hazard {
        "RAW" => ("reads", "writes"),
        "WAR" => ("overwrites", "reads"),
        _ => ("overwrites", "writes"),
    };
    let words = format!("{} {second} what {} {first}: ", name("later"), name("earlier"));
    let [p0, p1] = ["p0", "p1"].map(|key| grouped(barrier[key].as_u64().unwrap()));
    assert!(reason.starts_with(&words), "{what}: {reason}");
    assert!(reason.contains(&format!("bytes {p0} to {p1} (")), "{what}: {reason}");
}

fn search_a_dispatch(browser: &mut Browser, report: &Value, what: &str) {
    let rows = report["dispatch_list"].as_array().unwrap();
    let label = rows[rows.len() / 2]["label"].as_str().unwrap();
    let found = rows.iter().filter(|row| row["label"].as_str().unwrap().contains(label)).count();
    browser.click("#query");
    browser.eval("document.querySelector('#query').value = ''");
    browser.call("Input.insertText", json!({ "text": label }));
    assert_eq!(
        browser.text("document.querySelector('#hits').textContent"),
        format!("{found} found"),
        "{what}"
    );
    browser.press("Enter");
    let title = browser.text("document.querySelector('#detail h3').textContent");
    assert!(title.ends_with(label), "{what}: {title}");
    assert_eq!(
        browser.text("document.querySelector('#hits').textContent"),
        format!("1 of {found}")
    );
    let row = rows.iter().find(|row| row["label"].as_str().unwrap().contains(label)).unwrap();
    shows_wgsl(browser, report, row, what);
}

/// What is chosen shows its kernels, or why it has none for the default target.
fn shows_wgsl(browser: &mut Browser, report: &Value, row: &Value, what: &str) {
    let detail = browser.text("document.querySelector('#detail').textContent");
    let Some(uses) = row["kernels"].as_array() else {
        let reason = row["no_kernel"].as_str().unwrap();
        assert!(detail.contains(reason), "{what}: {detail}");
        return;
    };
    let shown = browser.eval("document.querySelectorAll('#detail .wgsl').length");
    assert_eq!(shown, uses.len(), "{what}");
    let kernel = &report["kernel_list"][uses[0]["kernel"].as_u64().unwrap() as usize];
    let text = browser.text("document.querySelector('#detail .wgsl pre').textContent");
    assert_eq!(text, kernel["source"].as_str().unwrap(), "{what}");
    assert!(detail.contains(kernel["file"].as_str().unwrap()), "{what}: {detail}");
    for binding in uses[0]["bindings"].as_array().unwrap() {
        assert!(detail.contains(binding.as_str().unwrap()), "{what}: {binding} in {detail}");
    }
    let seen = browser.eval("document.querySelector('#detail .wgsl pre').clientHeight > 0");
    assert_eq!(seen, true, "{what}: the text is in sight without another click");
}

fn switch_the_view(browser: &mut Browser, report: &Value, what: &str) {
    for key in ["in_order", "without_fusion", "compiled"] {
        browser.click(&format!("#views [data-key={key}]"));
        assert_eq!(browser.text("document.querySelector('#lanes').dataset.view"), key, "{what}");
        let views = report["views"].as_array().unwrap();
        let figures = views.iter().find(|view| view["key"] == key).unwrap_or(report);
        let label = browser.text("document.querySelector('#lanes').getAttribute('aria-label')");
        for (key, word) in
            [("dispatches", "dispatches"), ("groups", "groups"), ("barriers", "barriers")]
        {
            let number = grouped(figures[key].as_u64().unwrap());
            assert!(label.contains(&format!("{number} {word}")), "{what}: {label}, {key} {number}");
        }
    }
    let differing = browser.text("document.querySelector('#compare-strips').dataset.differing");
    assert_eq!(differing, in_other_company(report).to_string(), "{what}");
    browser.click("#right-view [data-key=without_reuse]");
    let cell = browser.text("document.querySelector('#compare-table tbody tr:nth-child(2) td:nth-child(3)').textContent");
    let other =
        report["views"].as_array().unwrap().iter().find(|v| v["key"] == "without_reuse").unwrap();
    assert_eq!(cell, grouped(other["groups"].as_u64().unwrap()), "{what}");
}

/// Dispatches that run beside others in the recorded order than in the compiled one.
fn in_other_company(report: &Value) -> usize {
    let numbers = |list: &Value| -> Vec<u64> {
        list.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
    };
    let views = report["views"].as_array().unwrap();
    let view = views.iter().find(|view| view["key"] == "in_order").unwrap();
    let (order, other) = (numbers(&view["order"]), numbers(&view["group"]));
    let rows = report["dispatch_list"].as_array().unwrap();
    let group: Vec<u64> = rows.iter().map(|row| row["group"].as_u64().unwrap()).collect();
    let mut second = vec![0; rows.len()];
    for (&row, &group) in order.iter().zip(&other) {
        second[row as usize] = group;
    }
    let beside = |groups: &[u64], row: usize| -> Vec<usize> {
        (0..rows.len()).filter(|&at| groups[at] == groups[row]).collect()
    };
    (0..rows.len()).filter(|&row| beside(&group, row) != beside(&second, row)).count()
}

/// Names from outside are text: seen as they are, run by nobody.
fn hostile_names(browser: &mut Browser, dir: &Path) {
    let long = "x".repeat(100_000);
    let mut pass = Recorder::default();
    let x = pass.external(HOSTILE, DType::F32, &[4, 64]).unwrap();
    pass.set_label(HOSTILE);
    let a = pass.silu(x).unwrap();
    pass.set_label(&long);
    let b = pass.scale(a, 2.0).unwrap();
    pass.set_label("");
    let y = pass.add(a, b).unwrap();
    pass.mark_output(y).unwrap();
    let page = page_of(&pass.into_parts().0, HOSTILE, &dir.join("hostile.html"));
    browser.open(&page);
    browser.eval("document.querySelector('#lanes').focus()");
    browser.press("Home");
    let title = browser.text("document.querySelector('#detail h3').textContent");
    assert_eq!(title, format!("silu {HOSTILE}"));
    browser.press("ArrowRight");
    assert!(browser.text("document.querySelector('#detail h3').textContent").ends_with("xxxx"));
    assert_eq!(browser.eval("typeof window.hurt"), "undefined");
    assert_eq!(browser.eval("document.querySelectorAll('img, script[src]').length"), 0);
    let wide = browser.eval("document.documentElement.scrollWidth <= innerWidth");
    assert_eq!(wide, true, "a long name does not make the page wider than the window");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

/// 20,000 dispatches: each step is timed by the browser's own clock, and reported.
fn long_list(browser: &mut Browser, dir: &Path) {
    let mut pass = Recorder::default();
    let mut x = pass.external("x", DType::F32, &[1, 64]).unwrap();
    for layer in 0..5_000 {
        pass.set_label(&format!("blk.{layer}.step"));
        let (a, b) = (pass.silu(x).unwrap(), pass.scale(x, 0.5).unwrap());
        pass.gelu(x).unwrap();
        x = pass.add(a, b).unwrap();
    }
    pass.mark_output(x).unwrap();
    let graph = pass.into_parts().0;
    assert_eq!(graph.dispatch_count(), 20_000);
    let page = page_of(&graph, "20,000 dispatches", &dir.join("long.html"));
    let opened = Instant::now();
    browser.open(&page);
    let opened = opened.elapsed();
    let steps = browser.text(
        "(async () => {
            const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            const timed = async (run) => { await frame(); const start = performance.now(); run(); document.body.getBoundingClientRect(); await new Promise(requestAnimationFrame); return performance.now() - start; };
            const click = (id) => () => document.getElementById(id).click();
            const query = (text) => () => { const q = document.getElementById('query'); q.value = text; q.dispatchEvent(new Event('input')); };
            const steps = { 'zoom in': [], 'zoom out': [], search: [], fit: [] };
            for (let n = 0; n < 8; n += 1) steps['zoom in'].push(await timed(click('zoom-in')));
            for (let n = 0; n < 8; n += 1) steps['zoom out'].push(await timed(click('zoom-out')));
            for (const text of ['b', 'blk.4', 'blk.4999.step', 'gelu']) steps.search.push(await timed(query(text)));
            steps.fit.push(await timed(click('zoom-fit')));
            return Object.entries(steps).map(([name, times]) => `${name} ${Math.max(...times).toFixed(1)} ms`).join(', ');
        })()",
    );
    assert_eq!(browser.text("document.querySelector('#hits').textContent"), "5,000 found");
    say(&format!(
        "browser: 20,000 dispatches open in {:.1} s; slowest step: {steps}",
        opened.as_secs_f64()
    ));
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

/// The page and the JSON of one command.
fn make(dir: &Path, args: &[&str]) -> (PathBuf, Value) {
    let (page, data) = (dir.join("page.html"), dir.join("page.json"));
    let started = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_clearway"))
        .arg("inspect")
        .args(args)
        .args(["--html", page.to_str().unwrap(), "--json", "-o", data.to_str().unwrap()])
        .output()
        .unwrap();
    let seconds = started.elapsed().as_secs_f64();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let bytes = std::fs::metadata(&page).unwrap().len();
    say(&format!("browser: {} in {seconds:.2} s, {} KiB", args.join(" "), bytes / 1024));
    (page, serde_json::from_slice(&std::fs::read(&data).unwrap()).unwrap())
}

fn page_of(graph: &ComputeGraph, name: &str, path: &Path) -> PathBuf {
    let device = CpuDevice::with_threads(1);
    let device: &(dyn Device + 'static) = &device;
    let options = InspectOptions::default();
    let mut report = inspect(graph, &mut KernelRegistry::new(), device, &options).unwrap();
    name.clone_into(&mut report.name);
    std::fs::write(path, report.to_html().unwrap()).unwrap();
    path.to_owned()
}

/// The default model, if it was fetched.
fn default_model() -> Option<PathBuf> {
    let given = std::env::var_os("CLEARWAY_GOLDEN_MODEL").map(PathBuf::from);
    given.or_else(|| Cache::of_user().ok()?.find(&ModelName::default()))
}

fn scale(browser: &mut Browser) -> f64 {
    browser.text("document.querySelector('#lanes').dataset.scale").parse().unwrap()
}

/// Waits until the page has drawn.
fn frame(browser: &mut Browser) {
    browser.eval(
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))",
    );
}

/// A number as the page writes it.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
