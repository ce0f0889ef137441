//! `--gpu-layers` and `--device-memory`: what lies where, and what is refused.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

mod common;
use common::{Folder, clearway, command, failure, stderr, stdout, tiny_model};

use clearway_graph::testkit::skip;
use serde_json::Value;

/// A folder with a model of two layers, and the path of it.
fn model(test: &str) -> (Folder, String) {
    let folder = Folder::new(test);
    let path = folder.path("m.gguf");
    tiny_model(&path, "llama", true);
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&clearway(args))).unwrap()
}

#[test]
fn the_cpu_alone_has_all_layers() {
    let (_folder, m) = model("layers-cpu");
    let eval = ["eval", "-m", &m, "--device", "cpu", "--tokens", "72 105", "-n", "4", "--json"];
    let expected = json(&eval);
    for layers in ["auto", "0"] {
        assert_eq!(json(&[&eval[..], &["--gpu-layers", layers]].concat()), expected, "{layers}");
    }
    let error = failure(&clearway(&[&eval[..], &["--gpu-layers", "2"]].concat()));
    assert!(error.contains("--gpu-layers 2 needs a device beside the CPU"), "{error}");
    let error = failure(&command(&eval).env("CLEARWAY_DEVICE_MEMORY", "9K").output().unwrap());
    assert!(error.contains("too large for `cpu`") && error.contains("has 9.0 KiB"), "{error}");
    for (flag, value) in [("--gpu-layers", "most"), ("--device-memory", "8GB")] {
        let wrong = clearway(&[&eval[..], &[flag, value]].concat());
        assert_eq!(wrong.status.code(), Some(2));
        assert!(stderr(&wrong).contains(flag), "{}", stderr(&wrong));
    }

    let shown = json(&["show", &m, "--device", "cpu", "-c", "64", "--json"]);
    let placement = &shown["memory"]["placement"];
    assert_eq!(placement["devices"][0]["layers"], 2);
    assert_eq!(placement["devices"][0]["weight_bytes"], shown["memory"]["weight_bytes"]);
    let number = |value: &Value| value.as_f64().unwrap();
    let device = &placement["devices"][0];
    let rate = 1e9 * number(&device["read_gb_s"]) / number(&device["bytes_per_token"]);
    assert!((number(&placement["tokens_per_second"]) / rate - 1.0).abs() < 1e-9, "{placement}");
}

#[test]
fn what_runs_many_texts_wants_one_device() {
    let (_folder, m) = model("layers-many");
    let serve = ["serve", "-m", &m, "--port", "0"];
    let error = failure(&clearway(&[&serve[..], &["--gpu-layers", "1"]].concat()));
    assert!(error.contains("`serve` needs all layers on one device"), "{error}");
    let bench = ["bench", "-m", &m, "-p", "8", "-n", "8", "-r", "1", "--parallel", "2"];
    let error = failure(&clearway(&[&bench[..], &["--gpu-layers", "1"]].concat()));
    assert!(error.contains("--gpu-layers 1 is not possible"), "{error}");
    stdout(&clearway(&[&bench[..], &["--gpu-layers", "0"]].concat()));
}

#[test]
fn layers_that_do_not_fit_run_on_the_cpu() {
    let devices = json(&["devices", "--json"]);
    let is_vulkan = |device: &Value| device["name"].as_str().unwrap().starts_with("vulkan:");
    if !devices["devices"].as_array().unwrap().iter().any(is_vulkan) {
        return skip("vulkan", "there is no Vulkan device");
    }
    let (_folder, m) = model("layers-card");
    let eval = ["eval", "-m", &m, "-c", "64", "--tokens", "72 105 33", "-n", "6", "--json"];
    let on = |more: &[&str]| clearway(&[&eval[..], more].concat());
    let read =
        |output: &std::process::Output| -> Value { serde_json::from_str(&stdout(output)).unwrap() };
    let cpu = read(&on(&["--device", "cpu"]));
    let sum = |eval: &Value| eval["logsumexp"].as_f64().unwrap();
    for (more, note) in [
        (&["--gpu-layers", "2"][..], None),
        (&["--gpu-layers", "1"], Some("layers: 1 of 2 and the head on vulkan:0")),
        (&["--gpu-layers", "0"], None),
        // Values of steps of 64 tokens take 161 KiB, a layer and the head 75 KiB, the other layer 41 KiB.
        (&["--device-memory", "260K"], Some("layers: 1 of 2 and the head on vulkan:0")),
        (&["--device-memory", "100K"], Some("so all run on the CPU")),
    ] {
        let output = on(&[&["--device", "vulkan"], more].concat());
        let (found, notes) = (read(&output), stderr(&output));
        assert!((sum(&found) - sum(&cpu)).abs() < 1e-3, "{more:?}: {found} {cpu}");
        assert_eq!(found["greedy"], cpu["greedy"], "{more:?}");
        match note {
            Some(note) => assert!(notes.contains(note), "{more:?}: {notes}"),
            None => assert!(!notes.contains("layers:"), "{more:?}: {notes}"),
        }
    }
    let capped = ["--device", "vulkan", "--device-memory", "70K"];
    let error = failure(&on(&[&capped[..], &["--gpu-layers", "1"]].concat()));
    assert!(
        error.contains("--gpu-layers is too large") && error.contains("0 layers fit"),
        "{error}"
    );
    let error = failure(&clearway(&[&["serve", "-m", &m, "--port", "0"], &capped[..]].concat()));
    assert!(error.contains("--gpu-layers 0 takes the CPU"), "{error}");

    let show = ["show", &m, "-c", "64", "--device", "vulkan", "--device-memory", "260K"];
    let shown = json(&[&show[..], &["--json"]].concat());
    let parts = shown["memory"]["placement"]["devices"].as_array().unwrap();
    let names: Vec<_> = parts.iter().map(|part| (&part["device"], &part["layers"])).collect();
    assert_eq!(names, [(&"cpu".into(), &1.into()), (&"vulkan:0".into(), &1.into())]);
    let text = stdout(&clearway(&show));
    assert!(text.contains("layers and the head") && text.contains("of 260.0 KiB"), "{text}");
}
