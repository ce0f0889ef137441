//! `clearway inspect`: where each form goes, what it holds, and what is refused.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

mod common;

use std::path::Path;

use common::{Folder, command};
use serde_json::Value;

fn run(args: &[&str]) -> std::process::Output {
    command(args).output().unwrap()
}

fn succeed(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn parsed(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn each_form_goes_where_it_was_asked_to() {
    let folder = Folder::new("inspect-forms");
    let [html, trace, data] =
        ["page.html", "trace.json", "report.json"].map(|name| folder.path(name));
    let [h, t, d] = [&html, &trace, &data].map(|path| path.to_str().unwrap());
    let shape = ["inspect", "--shape", "moe-16l-shared"];
    let silent = succeed(&[&shape[..], &["--html", h, "--trace", t, "--json", "-o", d]].concat());
    assert_eq!(silent, "", "files were asked for, nothing is printed");
    let report = parsed(&data);
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("moe-16l-shared"));
    let slices = |phase: &str| {
        let events = parsed(&trace);
        let events = events["traceEvents"].as_array().unwrap();
        events.iter().filter(|event| event["ph"] == phase).count() as u64
    };
    assert_eq!(Some(slices("B")), report["dispatches"].as_u64());
    assert_eq!(Some(slices("i")), report["barriers"].as_u64());

    let printed: Value =
        serde_json::from_str(&succeed(&[&shape[..], &["--json"]].concat())).unwrap();
    for key in ["dispatches", "groups", "barriers", "arena_bytes", "estimated_ns", "dispatch_list"]
    {
        assert_eq!(printed[key], report[key], "{key}");
    }
    let plain = succeed(&shape);
    assert!(plain.contains("groups, longest chain") && plain.contains("without fusion"), "{plain}");
    let both = succeed(&[&shape[..], &["--text", "--html", h]].concat());
    assert_eq!(both.lines().count(), plain.lines().count());
}

#[test]
fn a_model_is_inspected_and_measured_on_the_cpu() {
    let folder = Folder::new("inspect-model");
    let (model, data) = (folder.path("tiny.gguf"), folder.path("report.json"));
    common::tiny_model(&model, "llama", true);
    let (m, d) = (model.to_str().unwrap(), data.to_str().unwrap());
    let text = succeed(&["inspect", "-m", m, "-c", "64", "--measure", "--text", "--json", "-o", d]);
    assert!(text.contains("serialised") && text.contains("most time lost"), "{text}");
    let report = parsed(&data);
    assert_eq!(report["device"], "cpu");
    assert!(report["measured_ns"].as_u64().unwrap() > 0);
    assert_eq!(report["measured"]["clock"], "cpu");
    let groups = report["group_list"].as_array().unwrap();
    assert!(groups.iter().all(|group| group["measured_ns"].is_u64()));
    let rows = report["dispatch_list"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["serialised_ns"].is_u64()));
    assert!(report["measured"]["top_lost"].as_array().unwrap().len() <= 10);
}

#[test]
fn what_cannot_be_done_says_why() {
    let folder = Folder::new("inspect-errors");
    let missing = folder.path("nowhere/page.html");
    let missing = missing.to_str().unwrap();
    for form in ["--html", "--trace"] {
        let output = run(&["inspect", "--shape", "llama-1b", form, missing]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains(missing), "the file is named");
    }
    let too_large = run(&["inspect", "--shape", "qwen3-30b-a3b", "-c", "8000000", "--measure"]);
    assert_eq!(too_large.status.code(), Some(1));
    let message = String::from_utf8_lossy(&too_large.stderr).into_owned();
    assert!(message.contains("leave --measure away"), "{message}");
    for usage in [
        &["inspect", "--shape", "llama-1b", "-o", "x.json"][..],
        &["inspect", "--shape", "llama-1b", "--device", "toaster"],
        &["inspect", "--shape", "llama-1b", "--json", "--list"],
    ] {
        assert_eq!(run(usage).status.code(), Some(2), "{usage:?}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = command(&["inspect", "--shape", "qwen3-30b-a3b", "--json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
