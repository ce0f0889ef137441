//! `clearway plan --shape`: budgets, the front of bytes against groups, the picture.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::process::{Command, Output};

use serde_json::Value;

const SHAPE: [&str; 5] = ["plan", "--shape", "qwen3-30b-a3b", "--tokens", "512"];

fn clearway(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_clearway")).args(args).output().unwrap()
}

fn plan(more: &[&str]) -> Output {
    clearway(&[&SHAPE, more].concat())
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_budget_that_fits_is_printed_with_the_front_down_to_it() {
    let free = json(&plan(&["--json"]));
    assert!(free.get("front").is_none() && free.get("budget").is_none());
    let bytes = free["arena_bytes"].as_u64().unwrap().to_string();
    let fitted = json(&plan(&["--budget", &bytes, "--json"]));
    assert_eq!(fitted["budget"], free["arena_bytes"]);
    assert_eq!(fitted["false_barriers"], 0);
    let front = fitted["front"].as_array().unwrap();
    let last = front.last().unwrap();
    for key in ["arena_bytes", "groups"] {
        assert_eq!((&last[key], &fitted[key]), (&fitted[key], &free[key]), "{key}");
    }
    assert!(last["estimated_ns"].as_f64().unwrap() > 0.0);
    let text = plan(&["--budget", &bytes]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    let point = text.lines().last().unwrap();
    assert!(text.contains("bytes against groups"), "{text}");
    assert!(point.contains(&bytes) && point.contains(&free["groups"].to_string()), "{text}");
}

#[test]
fn a_budget_that_cannot_be_met_states_the_smallest_reachable_size() {
    let output = plan(&["--budget", "1000", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("1000 bytes cannot be met"), "{error}");
    let smallest = error.split("arena found has ").nth(1).unwrap();
    let smallest = smallest.split(' ').next().unwrap();
    // What it states can be reached, and a byte less cannot.
    assert!(plan(&["--budget", smallest, "--json"]).status.success(), "{smallest}");
    let less = (smallest.parse::<u64>().unwrap() - 1).to_string();
    assert_eq!(plan(&["--budget", &less]).status.code(), Some(1));
}

#[test]
fn a_budget_and_a_picture_are_of_a_shape() {
    for args in [&["--budget", "5"][..], &["--svg", "b.svg"]] {
        let output = clearway(&[&["plan", "values.csv"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn the_picture_shows_every_value_and_is_the_same_on_every_run() {
    let dir = std::env::temp_dir().join(format!("clearway-svg-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let draw = |name: &str| {
        let path = dir.join(name);
        let drawn = clearway(&["plan", "--shape", "smollm2-135m", "--svg", path.to_str().unwrap()]);
        assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
        std::fs::read_to_string(path).unwrap()
    };
    let (first, second) = (draw("a.svg"), draw("b.svg"));
    assert_eq!(first, second);
    assert!(first.starts_with("<svg ") && first.ends_with("</svg>\n"));
    assert!(first.matches("M").count() > 200, "one box for each value");
    let nowhere = clearway(&["plan", "--shape", "smollm2-135m", "--svg", "/nowhere/a.svg"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nowhere.stderr).contains("/nowhere/a.svg"));
    std::fs::remove_dir_all(&dir).unwrap();
}
