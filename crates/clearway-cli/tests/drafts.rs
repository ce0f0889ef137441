//! `--spec` and `--draft` of the commands that write texts, on a tiny model.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

mod common;
use common::{Folder, clearway, failure, stderr, stdout, tiny_model, with_input};

use serde_json::Value;

#[test]
fn drafts_change_no_text_and_are_told_of() {
    let folder = Folder::new("drafts");
    let path = folder.path("m.gguf");
    tiny_model(&path, "llama", true);
    let m = path.to_str().unwrap();
    for row in [["--temp", "0"], ["--temp", "1.1"], ["--repeat-penalty", "1.2"]] {
        let base = [&["run", "-m", m, "-p", "one two one two one", "-n", "60"], &row[..]].concat();
        let plain = clearway(&base);
        assert!(!stderr(&plain).contains("drafts"), "{}", stderr(&plain));
        for spec in [&["--spec", "ngram"][..], &["--draft", m], &["--spec", "draft", "--draft", m]]
        {
            let drafted = clearway(&[&base[..], spec].concat());
            assert_eq!(stdout(&drafted), stdout(&plain), "{row:?} {spec:?}");
            let notes = stderr(&drafted);
            assert!(notes.contains("kept") && notes.contains("tokens per step"), "{notes}");
        }
    }
    let chat = |spec: &str| {
        let args = ["chat", "-m", m, "-n", "12", "--temp", "0.9", "--spec", spec];
        stdout(&with_input(&args, "Hello\nAgain\nHello\n"))
    };
    assert_eq!(chat("ngram"), chat("off"));
}

#[test]
fn bench_answers_with_and_without_drafts_in_turns() {
    let folder = Folder::new("bench_drafts");
    let (path, text) = (folder.path("m.gguf"), folder.path("text.txt"));
    tiny_model(&path, "llama", true);
    std::fs::write(&text, "a b c a b c").unwrap();
    let m = path.to_str().unwrap();
    let base = ["bench", "-m", m, "--device", "cpu", "--spec", "ngram", "-n", "20", "-r", "2"];
    let found = clearway(&[&base[..], &["-f", text.to_str().unwrap(), "--json"]].concat());
    let found: Value = serde_json::from_str(&stdout(&found)).unwrap();
    assert_eq!(found.as_array().unwrap().len(), 1);
    assert_eq!((&found[0]["text"], &found[0]["same_text"]), (&"file".into(), &true.into()));
    assert_eq!(found[0]["seconds"].as_array().unwrap().len(), 2);
    assert!(found[0]["ratio"].as_f64().unwrap() > 0.0, "{found}");
    let table = stdout(&clearway(&base));
    assert!(table.contains("| quote |") && table.contains("| free  |"), "{table}");
}

#[test]
fn drafts_fare_as_a_trace_says() {
    let folder = Folder::new("traced_drafts");
    let [path, text, trace] = ["m.gguf", "text.txt", "trace.json"].map(|name| folder.path(name));
    tiny_model(&path, "llama", true);
    std::fs::write(&text, "a b c a b c").unwrap();
    let [m, text, trace_file] = [&path, &text, &trace].map(|path| path.to_str().unwrap());
    let base = ["bench", "-m", m, "--device", "cpu", "-r", "1", "--json"];
    let write = ["--spec", "ngram", "-n", "20", "-f", text, "--write-trace", trace_file];
    stdout(&clearway(&[&base[..], &write].concat()));
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
    assert!(written[0]["drafts"].as_array().unwrap().len() > 2, "{written}");
    // Half of each draft is right.
    let drafts = [&[Value::Null][..], &vec![serde_json::json!([3, 6, 3]); 11]].concat();
    let half = serde_json::json!([{ "text": "half", "prompt": 9, "drafts": drafts }]);
    std::fs::write(&trace, half.to_string()).unwrap();
    let found = stdout(&clearway(&[&base[..], &["--trace", trace_file]].concat()));
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!((&found[0]["text"], &found[0]["same_text"]), (&"half".into(), &true.into()));
    // How long a draft is, and whether there is any, depends on what steps take.
    let [drafted, kept] = ["drafted", "kept"].map(|key| found[0][key].as_u64().unwrap());
    assert!(kept <= drafted && (drafted == 0 || kept > 0), "{found}");

    let message = failure(&clearway(&[&base[..], &["--trace", m]].concat()));
    assert!(message.contains(m), "{message}");
    let message = failure(&clearway(&[&base[..], &["--write-trace", trace_file]].concat()));
    assert!(message.contains("--spec ngram"), "{message}");
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    let folder = Folder::new("odd_drafts");
    let (path, dumb) = (folder.path("m.gguf"), folder.path("dumb.gguf"));
    tiny_model(&path, "llama", true);
    tiny_model(&dumb, "llama", false);
    let (m, dumb) = (path.to_str().unwrap(), dumb.to_str().unwrap());
    let run = ["run", "-m", m, "-p", "x"];
    for usage in [&["--spec", "draft"][..], &["--spec", "guess"]] {
        let output = clearway(&[&run[..], usage].concat());
        assert_eq!(output.status.code(), Some(2), "{usage:?}");
    }
    for (flags, words) in [
        (&["--spec", "ngram", "--draft", m][..], "--spec draft"),
        (&["--draft", dumb], "no vocabulary"),
        (&["--draft", "absent.gguf"], "absent.gguf"),
    ] {
        let message = failure(&clearway(&[&run[..], flags].concat()));
        assert!(message.contains(words), "{flags:?}: {message}");
    }
    for flags in [&["-f", m][..], &["--spec", "ngram", "-d", "4"], &["--spec", "ngram", "-n", "0"]]
    {
        let message = failure(&clearway(&[&["bench", "-m", m], flags].concat()));
        assert!(message.contains("--spec"), "{flags:?}: {message}");
    }
}
