//! The conventions of the command line: exit status, where errors go, what `--json` prints.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::process::{Command, Output};

use clearway_graph::testkit::skip;
use serde_json::Value;

const SHAPES: [&str; 6] =
    ["smollm2-135m", "llama-1b", "llama-8b", "qwen3-0.6b", "qwen3-30b-a3b", "moe-16l-shared"];

fn clearway(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_clearway")).args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = clearway(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    assert!(output.stdout.is_empty(), "errors go to stderr alone");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_shape_is_inspected_with_as_many_groups_as_its_longest_chain() {
    for shape in SHAPES {
        for tokens in ["1", "512"] {
            let report = json(&["inspect", "--shape", shape, "--tokens", tokens, "--json"]);
            assert_eq!(report["groups"], report["longest_chain"], "{shape} at {tokens}");
            assert_eq!(report["false_barriers"], 0, "{shape} at {tokens}");
            assert_eq!(report["arena_bytes"], report["arena_lower_bound"], "{shape} at {tokens}");
            for key in ["dispatches", "barriers", "fusions", "arena_bytes"] {
                assert!(report[key].as_u64().unwrap() > 0, "{shape}: {key}");
            }
            assert!(report["moved"].is_u64());
        }
    }
}

#[test]
fn every_switch_changes_what_it_says() {
    let with = |switch: &[&str]| {
        let mut args = vec!["inspect", "--shape", "moe-16l-shared", "--json"];
        args.extend(switch);
        json(&args)
    };
    let (all, no_fuse, no_elide) = (with(&[]), with(&["--no-fuse"]), with(&["--no-elide"]));
    assert_eq!(no_fuse["fusions"], 0);
    assert_eq!(no_fuse["dispatches"], no_fuse["recorded"]);
    assert_eq!(no_elide["barriers"], no_elide["dispatches"]);
    assert!(no_elide["groups"].as_u64() > all["groups"].as_u64());
    let no_reuse = with(&["--no-reuse"]);
    assert!(no_reuse["arena_bytes"].as_u64() > all["arena_bytes"].as_u64());
    let no_reorder = with(&["--no-reorder", "--no-fuse"]);
    assert_eq!(no_reorder["moved"], 0);
    assert!(no_reorder["groups"].as_u64() > no_fuse["groups"].as_u64());
}

#[test]
fn plan_prints_our_figures_beside_those_of_others() {
    let plan = json(&["plan", "--shape", "qwen3-30b-a3b", "--tokens", "512", "--json"]);
    assert_eq!(plan["groups"], plan["longest_chain"]);
    assert_eq!(plan["false_barriers"], 0);
    assert_eq!(plan["arena_bytes"], plan["arena_lower_bound"]);
    for other in ["node_order", "free_list"] {
        assert!(plan[other]["arena_bytes"].as_u64() >= plan["arena_bytes"].as_u64(), "{other}");
        assert!(plan[other]["groups"].as_u64() >= plan["groups"].as_u64(), "{other}");
    }
}

#[test]
fn plan_places_a_file_checks_it_and_writes_offsets() {
    let dir = std::env::temp_dir().join(format!("clearway-plan-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (input, output) = (dir.join("in.csv"), dir.join("out.csv"));
    std::fs::write(&input, "id,lower,upper,size\na,0,3,4\nb,2,5,4\nc,3,9,4\n").unwrap();
    let (input, output) = (input.to_str().unwrap(), output.to_str().unwrap());
    let plan = json(&["plan", input, "-o", output, "--json"]);
    assert_eq!((&plan["height"], &plan["lower_bound"]), (&Value::from(8), &Value::from(8)));
    assert_eq!((&plan["valid"], &plan["complete"]), (&Value::from(true), &Value::from(true)));
    let written = std::fs::read_to_string(output).unwrap();
    assert!(written.starts_with("id,lower,upper,size,offset\n"), "{written}");
    assert_eq!(written.lines().count(), 4);

    let tight = clearway(&["plan", input, "--capacity", "7"]);
    assert_eq!(tight.status.code(), Some(1), "a capacity that cannot be met is a failure");
    let small = clearway(&["plan", input, "--capacity", "3"]);
    assert_eq!(small.status.code(), Some(1));
    assert!(stderr(&small).contains("capacity 3"));
    std::fs::write(input, "id,lower,upper,size\na,0,3,4\nb,5,2,4\n").unwrap();
    let inverted = clearway(&["plan", input]);
    assert_eq!(inverted.status.code(), Some(1));
    assert!(stderr(&inverted).contains("line 3"), "the line is named");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_missing_file_is_an_error_that_names_it() {
    let output = clearway(&["plan", "/nowhere/values.csv"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/nowhere/values.csv"));
}

#[test]
fn usage_errors_have_status_2_and_say_what_there_is() {
    let unknown_shape = clearway(&["inspect", "--shape", "gpt-9"]);
    assert_eq!(unknown_shape.status.code(), Some(2));
    let message = stderr(&unknown_shape);
    assert!(SHAPES.iter().all(|shape| message.contains(shape)), "{message}");
    for args in [
        &["inspect", "--shape", "llama-8b", "--frob"][..],
        &["inspect", "--shape", "llama-8b", "--tokens", "0"],
        &["plan"],
        &["nonsense"],
    ] {
        assert_eq!(clearway(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn devices_lists_the_cpu() {
    let devices = json(&["devices", "--json"]);
    assert_eq!(devices["devices"][0]["name"], "cpu");
    let text = clearway(&["devices"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("cpu"));
}

/// What wgpu does to a list is priced beside Vulkan's figures.
#[test]
fn devices_of_wgpu_show_their_barriers_and_bytes() {
    let devices = json(&["devices", "--json"]);
    let devices = devices["devices"].as_array().unwrap();
    let is_wgpu = |device: &&Value| device["name"].as_str().unwrap().starts_with("wgpu");
    for device in devices.iter().filter(|device| !is_wgpu(device)) {
        assert!(device["price"].is_null(), "{device}");
    }
    let Some(wgpu) = devices.iter().find(is_wgpu) else {
        return skip("vulkan", "wgpu finds no adapter");
    };
    let figure = |row: usize, key: &str| wgpu["price"]["rows"][row][key].as_u64().unwrap();
    assert_eq!(figure(0, "groups"), figure(1, "groups"));
    assert!(figure(0, "groups") > 100 && figure(0, "barriers") <= figure(0, "groups"));
    assert!(figure(1, "barriers") + 1 >= figure(1, "groups"), "{wgpu}");
    assert!(figure(1, "slabs") > figure(0, "slabs") && figure(0, "slabs") == 1);
    assert!(figure(1, "arena_bytes") > figure(0, "arena_bytes"));
    let text = clearway(&["devices"]);
    let text = String::from_utf8_lossy(&text.stdout);
    let line = format!("{} for the {} groups", figure(1, "barriers"), figure(1, "groups"));
    assert!(text.contains(&line), "{text}");
}

/// The figures of Vulkan stand beside those of wgpu.
#[test]
fn inspect_shows_the_barriers_of_vulkan_and_wgpu() {
    let shape = ["inspect", "--shape", "smollm2-135m"];
    let report = json(&[&shape[..], &["--json"]].concat());
    let rows = report["tracked"].as_array().unwrap();
    let keys: Vec<&str> = rows.iter().map(|row| row["key"].as_str().unwrap()).collect();
    let ways = ["own_barriers", "one_buffer", "writes_apart", "groups_apart", "values_apart"];
    assert_eq!(keys, ways);
    assert!(rows.iter().all(|row| row["groups"] == report["groups"]));
    assert_eq!(rows[0]["barriers"], report["barriers"]);
    assert_eq!(rows[0]["arena_bytes"], report["arena_bytes"]);
    let barriers = |row: usize| rows[row]["barriers"].as_u64().unwrap();
    // Whoever follows whole buffers has more to keep apart than there is; buffers of their own make it less.
    assert!(barriers(1) > barriers(0) && barriers(4) < barriers(1), "{rows:?}");
    assert!(rows[4]["arena_bytes"].as_u64() > rows[1]["arena_bytes"].as_u64());
    let text = clearway(&shape);
    let text = String::from_utf8_lossy(&text.stdout);
    let vulkan = text.lines().find(|line| line.trim_start().starts_with("Vulkan ")).unwrap();
    assert!(vulkan.contains(&format!("{} barriers for", barriers(0))), "{text}");
    for (row, way) in ways.iter().enumerate().skip(1) {
        let start = format!("wgpu, {}", way.replace('_', " "));
        let line = text.lines().find(|line| line.trim_start().starts_with(&start)).unwrap();
        assert!(line.contains(&format!("{} barriers for", barriers(row))), "{line}");
    }
}

#[test]
fn every_command_shows_examples() {
    for command in ["devices", "inspect", "plan"] {
        let help = clearway(&[command, "--help"]);
        assert!(String::from_utf8_lossy(&help.stdout).contains("Examples:"), "{command}");
    }
}

#[test]
fn the_list_shows_a_reason_for_every_barrier() {
    let output = clearway(&["inspect", "--shape", "smollm2-135m", "--list"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let barriers: Vec<_> = text.lines().filter(|line| line.starts_with("-- barrier")).collect();
    assert!(barriers.len() > 200);
    for barrier in barriers {
        assert!(["RAW", "WAR", "WAW"].iter().any(|kind| barrier.contains(kind)), "{barrier}");
    }
}

#[test]
fn completions_and_the_manual_page_name_every_command() {
    let printed = |args: &[&str]| String::from_utf8(clearway(args).stdout).unwrap();
    let page = printed(&["man"]);
    assert!(page.contains(".TH clearway 1"), "{page}");
    for shell in ["bash", "zsh", "fish"] {
        let script = printed(&["completions", shell]);
        for command in ["run", "serve", "bench", "inspect"] {
            assert!(script.contains(command), "{shell}: {command}");
            assert!(page.to_lowercase().contains(&format!("clearway {command}")), "{command}");
        }
        assert!(script.contains("--api-key-file") || script.contains("api-key-file"), "{shell}");
    }
    assert_eq!(clearway(&["completions", "ash"]).status.code(), Some(2));
}
