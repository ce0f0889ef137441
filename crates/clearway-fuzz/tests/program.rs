//! The program around the targets: what it says, keeps and refuses.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::process::{Command, Output};

fn fuzz(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clearway-fuzz"));
    command.args(args).env("CLEARWAY_SEED", "7").output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn every_target_runs_for_its_time_and_says_how_much_it_tried() {
    let output = fuzz(&["--seconds", "1"]);
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    for target in ["gguf", "tokenizer", "template", "plan", "hub"] {
        let line = format!("fuzz {target}: CLEARWAY_SEED=7, ");
        let cases = said.lines().find_map(|said| said.strip_prefix(&line)?.strip_suffix(" cases"));
        assert!(cases.unwrap().parse::<u64>().unwrap() > 10, "{said}");
    }
}

#[test]
fn seeds_are_written_and_can_be_tried() {
    let folder = std::env::temp_dir().join(format!("clearway-fuzz-{}", std::process::id()));
    assert!(fuzz(&["seeds", folder.to_str().unwrap()]).status.success());
    let seed = folder.join("plan/seed-0");
    assert!(folder.join("gguf/seed-5").is_file() && folder.join("hub.dict").is_file());
    let output = fuzz(&["try", "plan", seed.to_str().unwrap()]);
    assert!(output.status.success() && said(&output).ends_with("accepted\n"), "{}", said(&output));
    std::fs::remove_dir_all(folder).unwrap();
    for wrong in [&["run", "nothing"][..], &["--seconds", "x"], &["x"]] {
        assert_eq!(fuzz(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
