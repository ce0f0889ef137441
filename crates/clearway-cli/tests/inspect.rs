//! `clearway inspect`: where each form goes, what it holds, and what is refused.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

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
    assert_eq!(report["no_waits"], "this backend has no counters");
    let groups = report["group_list"].as_array().unwrap();
    assert!(groups.iter().all(|group| group["measured_ns"].is_u64()));
    let rows = report["dispatch_list"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["serialised_ns"].is_u64()));
    assert!(report["measured"]["top_lost"].as_array().unwrap().len() <= 10);
}

/// The list of the many-sequence engine: attention goes through a table of blocks, and every sequence gets logits.
#[test]
fn a_step_of_several_sequences_is_inspected_and_measured() {
    let folder = Folder::new("inspect-parallel");
    let (model, data) = (folder.path("tiny.gguf"), folder.path("report.json"));
    common::tiny_model(&model, "llama", true);
    let (m, d) = (model.to_str().unwrap(), data.to_str().unwrap());
    let base = ["inspect", "-m", m, "-c", "80", "--device", "cpu", "--measure", "--json", "-o", d];
    succeed(&[&base[..], &["--parallel", "3"]].concat());
    let report = parsed(&data);
    assert_eq!(report["tokens"], 3);
    assert!(text(&report, "name").contains("a step of 3 sequences"), "{}", report["name"]);
    let through_blocks = |report: &Value| {
        let rows = report["dispatch_list"].as_array().unwrap();
        let attention = rows.iter().filter(|row| text(row, "op") == "attention");
        attention
            .filter(|row| row["kernels"].to_string().contains("b_blocks read: u32[3x3]"))
            .count()
    };
    assert_eq!(through_blocks(&report), 2, "both layers");
    let last = report["dispatch_list"].as_array().unwrap().last().unwrap();
    assert!(text(last, "shape").starts_with("f32[3x"), "a row of logits for each: {last}");
    assert!(report["measured_ns"].as_u64().unwrap() > 0);
    succeed(&base);
    let alone = parsed(&data);
    assert_eq!(through_blocks(&alone), 0);
    assert_eq!(
        run(&["inspect", "--shape", "llama-1b", "--parallel", "2", "--tokens", "2"]).status.code(),
        Some(2)
    );
}

/// On a driver that runs dispatches one after another nobody waits, but everything else is as on a card.
#[cfg(feature = "vulkan")]
#[test]
fn dispatches_with_counters_are_measured_and_traced() {
    if !run(&["inspect", "--shape", "llama-1b", "--device", "vulkan"]).status.success() {
        return clearway_graph::testkit::skip("vulkan", "no device can be opened");
    }
    let folder = Folder::new("inspect-waits");
    let [model, data, trace] =
        ["tiny.gguf", "report.json", "trace.json"].map(|name| folder.path(name));
    common::tiny_model(&model, "llama", true);
    let [m, d, t] = [&model, &data, &trace].map(|path| path.to_str().unwrap());
    let base = ["inspect", "-m", m, "-c", "64", "--device", "vulkan", "--measure", "--text"];
    let forms = ["--force-counters", "--json", "-o", d, "--trace", t];
    let printed = succeed(&[&base[..], &forms].concat());
    assert!(printed.contains("with counters") && printed.contains("longest waits"), "{printed}");
    let report = parsed(&data);
    let waits = &report["waits"];
    assert!(waits["waiting_groups"].as_u64().unwrap() >= 2, "{waits}");
    assert!(
        waits["run_ns"].as_f64().unwrap() > 0.0 && waits["clock_step_ns"].as_f64().unwrap() > 0.0
    );
    let rows = report["dispatch_list"].as_array().unwrap();
    let mut waiting = std::collections::BTreeSet::new();
    for row in rows.iter().filter(|row| row["waits"]["waits_for"].is_u64()) {
        let before = &rows[row["waits"]["waits_for"].as_u64().unwrap() as usize];
        let [earlier, later] = [before, row].map(|row| row["group"].as_u64().unwrap());
        assert_eq!(earlier + 1, later, "a group waits for the one before it");
        let [earlier_end, end] = [before, row].map(|row| row["waits"]["end_ns"].as_u64().unwrap());
        assert!(earlier_end <= end, "{before} {row}");
        waiting.insert(later);
    }
    assert_eq!(Some(waiting.len() as u64), waits["waiting_groups"].as_u64());
    let events = parsed(&trace);
    let slices = events["traceEvents"].as_array().unwrap().iter();
    let slices = slices.filter(|event| event["pid"] == 4 && event["ph"] == "B");
    let runs = slices.filter(|event| event["args"]["workgroups"].is_u64()).count();
    assert_eq!(runs, rows.iter().filter(|row| row["waits"].is_object()).count());
}

/// The lines of an index or of a text's comments that belong to one dispatch.
fn entries(text: &str) -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        match line.starts_with('#') {
            true => all.push(vec![line.to_owned()]),
            false => all.last_mut().into_iter().for_each(|last| last.push(line.trim().to_owned())),
        }
    }
    all
}

#[test]
fn kernels_are_written_with_bindings_and_workgroups() {
    for (shape, tokens) in [("smollm2-135m", "1"), ("qwen3-30b-a3b", "1"), ("gemma3-4b", "64")] {
        let folder = Folder::new(&format!("inspect-kernels-{shape}"));
        let (texts, data) = (folder.path("wgsl"), folder.path("report.json"));
        let (t, d) = (texts.to_str().unwrap(), data.to_str().unwrap());
        // Of an earlier list: what is no kernel of this one goes, what is no kernel stays.
        std::fs::create_dir_all(&texts).unwrap();
        for name in ["index.txt", "999-old.wgsl", "notes.md"] {
            std::fs::write(texts.join(name), "old").unwrap();
        }
        let printed = succeed(&[
            "inspect",
            "--shape",
            shape,
            "--tokens",
            tokens,
            "--kernels",
            t,
            "--json",
            "-o",
            d,
        ]);
        assert_eq!(printed, "");
        let report = parsed(&data);
        let index = std::fs::read_to_string(texts.join("index.txt")).unwrap();
        let listed = entries(&index);
        let rows = report["dispatch_list"].as_array().unwrap();
        assert_eq!(listed.len(), rows.len(), "{index}");
        let mut used = std::collections::BTreeMap::<String, Vec<Vec<String>>>::new();
        for (entry, row) in listed.iter().zip(rows) {
            let [title, file, rest @ ..] = &entry[..] else { panic!("{entry:?}") };
            let name = format!("#{} {} {}", row["id"], text(row, "op"), text(row, "label"));
            assert_eq!(title, &name);
            let file = file.strip_prefix("file ").unwrap_or_else(|| panic!("{entry:?}"));
            let groups = rest[0].strip_prefix("workgroups ").unwrap();
            let counts = groups.split(", ").next().unwrap().split(" x ");
            assert!(counts.map(|n| n.parse::<u32>().unwrap()).all(|n| n > 0), "{entry:?}");
            assert!(rest.len() > 2 && rest[1].starts_with("binding 0 b_"), "{entry:?}");
            let head = std::iter::once(title).chain(rest).cloned().collect();
            used.entry(file.to_owned()).or_default().push(head);
        }
        let mut names: Vec<String> = std::fs::read_dir(&texts)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let expected: Vec<&str> =
            used.keys().map(String::as_str).chain(["index.txt", "notes.md"]).collect();
        assert_eq!(names, expected);
        let mut sources = std::collections::BTreeSet::new();
        for (name, heads) in used {
            let file = std::fs::read_to_string(texts.join(&name)).unwrap();
            let head: Vec<&str> = file.lines().map_while(|line| line.strip_prefix("// ")).collect();
            assert_eq!(entries(&head.join("\n")), heads, "{name}");
            let source = file.lines().skip(head.len()).collect::<Vec<_>>().join("\n");
            assert!(source.contains("fn main("), "{name}");
            // The numbers are those of the text.
            for line in heads.iter().flatten().filter(|line| line.starts_with("binding ")) {
                let words: Vec<&str> = line.split(' ').collect();
                let declared = source
                    .lines()
                    .filter(|line| line.contains(&format!("@binding({})", words[1])))
                    .any(|line| line.contains(&format!(" {}:", words[2])));
                assert!(declared, "{name}: {line}");
            }
            assert!(sources.insert(source), "{name} is the text of another file, too");
        }
        assert!(sources.len() < rows.len() / 3, "layers share their kernels");
    }
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap()
}

#[test]
fn page_and_json_have_the_kernels() {
    let folder = Folder::new("inspect-page-kernels");
    let (page, data) = (folder.path("page.html"), folder.path("report.json"));
    let (p, d) = (page.to_str().unwrap(), data.to_str().unwrap());
    let shape = ["inspect", "--shape", "llama-1b", "--json", "-o", d];
    succeed(&[&shape[..], &["--html", p]].concat());
    let report = parsed(&data);
    let kernels = report["kernel_list"].as_array().unwrap();
    assert!(kernels.len() > 3 && kernels.iter().all(|k| text(k, "source").contains("fn main(")));
    assert!(text(&report, "kernel_target").contains("default target"));
    for row in report["dispatch_list"].as_array().unwrap() {
        let uses = row["kernels"].as_array();
        assert!(uses.is_some_and(|uses| uses.len() == 1) != row["no_kernel"].is_string(), "{row}");
    }
    assert!(std::fs::read_to_string(&page).unwrap().contains("fn main("));
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
    let file = folder.path("file");
    std::fs::write(&file, "").unwrap();
    let taken = run(&["inspect", "--shape", "llama-1b", "--kernels", file.to_str().unwrap()]);
    assert_eq!(taken.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&taken.stderr).contains("cannot make the folder"));
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
