//! What is printed, and who reads it: closed pipes, terminals, files that are no plain files.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

mod common;
use common::{
    Folder, clearway, command, failure, fifo, on_terminal, stderr, stdout, tiny_model,
    tiny_model_with, wait, with_input,
};

use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::process::{Command, Stdio};

/// A folder with `m.gguf`, and the path of it.
fn model(test: &str) -> (Folder, String) {
    let folder = Folder::new(test);
    let path = folder.path("m.gguf");
    tiny_model(&path, "llama", true);
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn a_closed_pipe_ends_every_command_quietly() {
    let (folder, m) = model("pipe");
    let rows = folder.path("rows.csv");
    std::fs::write(&rows, "id,lower,upper,size\na,0,3,4\nb,2,5,4\n").unwrap();
    let rows = rows.to_str().unwrap();
    let shape = ["--shape", "smollm2-135m"];
    let cases: [&[&str]; 15] = [
        &["plan", rows],
        &["plan", rows, "-o", "/dev/stdout"],
        &["plan", shape[0], shape[1]],
        &["plan", shape[0], shape[1], "--json"],
        &["inspect", shape[0], shape[1]],
        &["inspect", shape[0], shape[1], "--json"],
        &["inspect", shape[0], shape[1], "--list"],
        &["devices"],
        &["show", &m],
        &["tokenize", "-m", &m, "Hi"],
        &["eval", "-m", &m, "--tokens", "1 2"],
        &["bench", "-m", &m, "-p", "4", "-n", "2", "-r", "1"],
        &["run", "-m", &m, "-p", "Hi", "-n", "50"],
        &["chat", "-m", &m, "-n", "4"],
        &["run", "--help"],
    ];
    for args in cases {
        // Once with standard error apart, to see what is said, once with both in the closed pipe.
        for apart in [true, false] {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let mut command = command(args);
            command.stdin(Stdio::piped()).stdout(writer.try_clone().unwrap());
            match apart {
                true => command.stderr(Stdio::piped()),
                false => command.stderr(writer),
            };
            let mut child = command.spawn().unwrap();
            let _ = child.stdin.take().unwrap().write_all(b"/help\n/help\nHi\n/help\n");
            let mut said = String::new();
            if let Some(mut errors) = child.stderr.take() {
                errors.read_to_string(&mut said).unwrap();
            }
            let (status, _) = wait(&mut child);
            assert_eq!(status.code(), Some(0), "{args:?}: {said}");
            assert!(!said.contains("panicked") && !said.contains("error"), "{args:?}: {said}");
        }
    }
}

#[test]
fn what_is_no_plain_file_is_written_and_stays() {
    let (folder, m) = model("fifo");
    let shape = "smollm2-135m";
    let rows = folder.path("rows.csv");
    std::fs::write(&rows, "id,lower,upper,size\na,0,3,4\n").unwrap();
    let rows = rows.to_str().unwrap();
    let pipe = folder.path("pipe");
    fifo(&pipe);
    let p = pipe.to_str().unwrap();
    let save = format!("/save {p}\n");
    let cases: [(&[&str], &str, &str); 7] = [
        (&["plan", rows, "-o", p], "", "id,lower"),
        (&["plan", "--shape", shape, "--svg", p], "", "<svg"),
        (&["inspect", "--shape", shape, "--html", p], "", "<!doctype html>"),
        (&["inspect", "--shape", shape, "--trace", p], "", "{"),
        (&["inspect", "--shape", shape, "--json", "-o", p], "", "{"),
        (&["synth", shape, "q4_0", p], "", "GGUF"),
        (&["chat", "-m", &m, "-n", "2", "--system", "Be brief."], &save, "system: Be brief."),
    ];
    for (args, input, start) in cases {
        let from = pipe.clone();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            std::fs::File::open(from).unwrap().read_to_end(&mut all).unwrap();
            all
        });
        let output = with_input(args, input);
        // Before anything that may fail: a reader without a writer would wait forever.
        let kept = pipe.metadata().unwrap().file_type().is_fifo();
        assert!(kept, "{args:?} replaced the pipe");
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        let all = reader.join().unwrap();
        let text = String::from_utf8_lossy(&all[..all.len().min(100)]).to_lowercase();
        assert!(text.starts_with(&start.to_lowercase()), "{args:?}: {text:?}");
    }
    let names = folder.files().len();
    assert_eq!(names, 3, "{:?}", folder.files());
}

#[test]
fn outputs_follow_links_and_go_to_standard_output() {
    let (folder, m) = model("links");
    let (target, link) = (folder.path("target"), folder.path("link"));
    std::fs::write(&target, "old").unwrap();
    symlink(&target, &link).unwrap();
    let l = link.to_str().unwrap();
    stdout(&clearway(&["plan", "--shape", "smollm2-135m", "--svg", l]));
    assert!(std::fs::read_to_string(&target).unwrap().starts_with("<svg"));
    stdout(&with_input(&["chat", "-m", &m, "-n", "2"], &format!("/save {l}\n")));
    assert!(!std::fs::read_to_string(&target).unwrap().starts_with("<svg"));
    stdout(&clearway(&["synth", "smollm2-135m", "q4_0", l]));
    assert!(std::fs::read(&target).unwrap().starts_with(b"GGUF"));
    assert!(link.symlink_metadata().unwrap().is_symlink(), "the link stays");

    // A file that is our standard output is not replaced behind our back: what is printed later comes later.
    let all = folder.path("all");
    let rows = folder.path("rows.csv");
    std::fs::write(&rows, "id,lower,upper,size\na,0,3,4\n").unwrap();
    let mut plan = command(&["plan", rows.to_str().unwrap(), "-o", "/dev/stdout"]);
    assert!(plan.stdout(std::fs::File::create(&all).unwrap()).status().unwrap().success());
    let text = std::fs::read_to_string(&all).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("id,") && lines[2].starts_with("height 4"), "{text}");
}

#[test]
fn an_output_that_fails_leaves_the_old_file() {
    let folder = Folder::new("halfway");
    let page = folder.path("page.html");
    std::fs::write(&page, "old").unwrap();
    let command = command(&[]);
    // Files of this process end after 512 or 1024 bytes.
    let script = format!(
        "trap '' XFSZ; ulimit -f 1; exec {} inspect --shape smollm2-135m --html {}",
        command.get_program().to_str().unwrap(),
        page.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(failure(&output).contains("cannot write"), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "old");
    assert_eq!(folder.files().len(), 1, "{:?}", folder.files());

    let full = clearway(&["inspect", "--shape", "smollm2-135m", "--html", "/dev/full"]);
    assert!(failure(&full).contains("cannot write /dev/full"), "{}", stderr(&full));
    assert!(std::fs::metadata("/dev/full").unwrap().file_type().is_char_device());
}

#[test]
fn text_of_files_commands_no_terminal() {
    let folder = Folder::new("escapes");
    let harm = "\u{1b}[2J\u{9b}31m\u{7}\u{202e}";
    let write = |name: &str, architecture: &str, texts: &[(&str, &str)]| {
        let path = folder.path(name);
        tiny_model_with(&path, architecture, true, texts, &|_, _| ());
        path.to_str().unwrap().to_owned()
    };
    let odd = write("odd.gguf", &format!("odd{harm}"), &[]);
    let name = format!("tiny {harm}");
    let key = format!("general.{harm}");
    let named = write("named.gguf", "llama", &[("general.name", &name), (&key, harm)]);
    let template = format!("{{{{ raise_exception('no {harm} here') }}}}");
    let broken = write("broken.gguf", "llama", &[("tokenizer.chat_template", &template)]);
    let cases: [&[&str]; 9] = [
        &["show", &odd],
        &["run", "-m", &odd, "-p", "Hi"],
        &["show", &named],
        &["show", &named, "--json"],
        &["inspect", "-m", &named],
        &["inspect", "-m", &named, "--json"],
        &["bench", "-m", &named, "-p", "4", "-n", "0", "-r", "1"],
        &["tokenize", "-m", &named, harm],
        &["run", "-m", &broken, "-p", "Hi"],
    ];
    for args in cases {
        let output = clearway(args);
        for text in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(text);
            let bad = text.chars().find(|&c| (c.is_control() && c != '\n') || c == '\u{202e}');
            assert_eq!(bad, None, "{args:?}: {text:?}");
        }
        if args.contains(&"--json") {
            let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert!(json.is_object(), "{args:?}");
        }
    }
    let message = failure(&clearway(&["run", "-m", &broken, "-p", "Hi"]));
    assert!(message.contains("no \\u{1b}[2J"), "it is still said: {message:?}");
}

#[test]
fn a_terminal_gets_an_answer_without_control_characters() {
    let (_folder, m) = model("answer");
    // Tokens of this model are bytes, and these are drawn almost evenly.
    let is_bad = |c: char| c.is_control() && !"\n\t".contains(c);
    let (mut bad, mut characters, mut raw_bad) = (0, 0, 0);
    for seed in (0..6).map(|seed| seed.to_string()) {
        let run = ["run", "-m", &m, "-p", "Hi", "-n", "300", "--temp", "9", "--top-k", "0"];
        let run = [&run[..], &["--top-p", "1", "--min-p", "0", "-s", &seed]].concat();
        let piped = stdout(&clearway(&run));
        bad += piped.chars().filter(|&c| is_bad(c)).count();
        characters += piped.chars().filter(|&c| c > '\u{a0}' && c != '\u{fffd}').count();
        // A terminal turns each line end into two characters.
        let shown = on_terminal(&run).replace("\r\n", "\n");
        let expected: String = piped
            .chars()
            .flat_map(|c| if is_bad(c) { c.escape_default().collect() } else { vec![c] })
            .collect();
        assert_eq!(shown, expected);
        let raw = [&run[..], &["--raw"]].concat();
        let (piped, shown) = (stdout(&clearway(&raw)), on_terminal(&raw).replace("\r\n", "\n"));
        assert_eq!(shown, piped, "--raw gets the bytes");
        raw_bad += piped.chars().filter(|&c| is_bad(c)).count();
    }
    assert!(bad > 0 && raw_bad > 0, "there were characters to replace");
    assert!(characters > 0, "tokens joined to characters");
}
