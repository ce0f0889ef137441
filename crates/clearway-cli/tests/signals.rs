//! Signals end commands, with the status shells expect.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

mod common;
use common::{Folder, command, fifo, signal, terminal, tiny_model, wait};

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Names and statuses of the signals that end every command.
const ENDS: [(&str, i32); 2] = [("TERM", 143), ("HUP", 129)];
/// Options of an answer that is under way however late a signal comes: the likeliest tokens go in circles.
const ENDLESS: [&str; 6] = ["-n", "100000", "-c", "100000", "--temp", "0"];
/// How long a command may take to end. The limit is a second; a busy machine is given some more.
const SOON: Duration = Duration::from_millis(1500);

/// A folder with `m.gguf`, and the path of it.
fn model(test: &str) -> (Folder, String) {
    let folder = Folder::new(test);
    let path = folder.path("m.gguf");
    tiny_model(&path, "llama", true);
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

/// Starts a command that does not ignore SIGHUP, whoever runs the tests; it has sent its first byte.
fn start(args: &[&str], input: &str) -> Child {
    let mut child = spawn("--default-signal=HUP", args);
    child.stdin.as_mut().unwrap().write_all(input.as_bytes()).unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    child
}

/// Starts a command through `env`, which sets what becomes of a signal.
fn spawn(signals: &str, args: &[&str]) -> Child {
    let inner = command(args);
    let mut outer = Command::new("env");
    outer.arg(signals).arg(inner.get_program()).args(args);
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    outer.spawn().unwrap()
}

/// Sends a signal and expects the end.
fn ends_with(mut child: Child, name: &str, status: i32, what: &str) {
    signal(name, child.id());
    // Nobody may wait for a reader.
    let mut out = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
    let (ended, took) = wait(&mut child);
    assert_eq!(ended.code(), Some(status), "{what}, SIG{name}: {ended}");
    assert!(took < SOON, "{what}, SIG{name}: {took:?}");
    reader.join().unwrap().unwrap();
}

#[test]
fn run_and_bench_end() {
    let (_folder, m) = model("signals-run");
    for (name, status) in ENDS {
        let run = start(&[&["run", "-m", &m, "-p", "Hi", "--raw"], &ENDLESS[..]].concat(), "");
        ends_with(run, name, status, "run");
        // The head of the table is there; the prompt takes minutes.
        let bench = start(&["bench", "-m", &m, "-p", "60000", "-n", "0", "-r", "1"], "");
        ends_with(bench, name, status, "bench");
    }
    let bench = start(&["bench", "-m", &m, "-p", "60000", "-n", "0", "-r", "1"], "");
    ends_with(bench, "INT", 130, "bench");
}

#[test]
fn a_chat_ends_in_an_answer_and_at_its_prompt() {
    let (_folder, m) = model("signals-chat");
    let chat = [&["chat", "-m", &m], &ENDLESS[..]].concat();
    for (name, status) in ENDS {
        ends_with(start(&chat, "Hi\n"), name, status, "an answer");
        ends_with(start(&chat, "/help\n"), name, status, "a prompt");
    }
}

#[test]
fn ctrl_c_ends_an_answer_and_keeps_the_chat() {
    let (_folder, m) = model("signals-keep");
    let mut chat = start(&[&["chat", "-m", &m], &ENDLESS[..]].concat(), "Hi\n");
    signal("INT", chat.id());
    let mut input = chat.stdin.take().unwrap();
    input.write_all(b"/help\n/exit\n").unwrap();
    let mut out = chat.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        out.read_to_end(&mut said).unwrap();
        said
    });
    assert_eq!(wait(&mut chat).0.code(), Some(0));
    let said = String::from_utf8_lossy(&reader.join().unwrap()).into_owned();
    assert!(said.contains("/clear"), "the commands were shown");
}

#[test]
fn a_process_that_ignores_hangups_goes_on() {
    let (_folder, m) = model("signals-nohup");
    let mut chat = spawn("--ignore-signal=HUP", &["chat", "-m", &m]);
    let mut input = chat.stdin.take().unwrap();
    input.write_all(b"/help\n").unwrap();
    chat.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    signal("HUP", chat.id());
    std::thread::sleep(Duration::from_millis(700));
    input.write_all(b"/exit\n").unwrap();
    assert_eq!(wait(&mut chat).0.code(), Some(0));
}

#[test]
fn commands_that_never_look_at_signals_end_too() {
    let folder = Folder::new("signals-others");
    let pipe = folder.path("pipe");
    fifo(&pipe);
    let page = ["inspect", "--shape", "smollm2-135m", "--html", pipe.to_str().unwrap()];
    for (name, status) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        // It waits for a reader of the pipe.
        let mut inspect = spawn("--default-signal=HUP", &page);
        std::thread::sleep(Duration::from_millis(500));
        assert!(inspect.try_wait().unwrap().is_none());
        ends_with(inspect, name, status, "inspect");
    }
}

#[test]
fn a_file_that_is_not_complete_disappears() {
    for (name, status) in ENDS {
        let folder = Folder::new(&format!("signals-synth-{name}"));
        let file = folder.path("big.gguf");
        let args = ["synth", "llama-8b", "f16", file.to_str().unwrap()];
        let mut synth = spawn("--default-signal=HUP", &args);
        while folder.files().is_empty() {
            assert!(synth.try_wait().unwrap().is_none(), "16 GB are not written yet");
            std::thread::sleep(Duration::from_millis(2));
        }
        ends_with(synth, name, status, "synth");
        assert!(folder.files().is_empty(), "{:?}", folder.files());
    }
}

#[test]
fn a_terminal_gets_its_settings_back() {
    use rustix::termios::{LocalModes, tcgetattr};
    let (_folder, m) = model("signals-terminal");
    let (ours, theirs) = terminal();
    let before = tcgetattr(&theirs).unwrap().local_modes;
    assert!(before.contains(LocalModes::ICANON | LocalModes::ECHO));
    let mut chat = command(&["chat", "-m", &m]);
    chat.stdin(theirs.try_clone().unwrap()).stdout(theirs.try_clone().unwrap());
    chat.stderr(theirs.try_clone().unwrap());
    let mut chat = chat.spawn().unwrap();
    // What is printed is read, or the terminal would be full.
    let mut screen = ours.try_clone().unwrap();
    std::thread::spawn(move || while let Ok(1..) = screen.read(&mut [0; 256]) {});
    let started = std::time::Instant::now();
    while tcgetattr(&theirs).unwrap().local_modes.contains(LocalModes::ICANON) {
        assert!(started.elapsed() < common::LONG, "the prompt reads keys");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal("TERM", chat.id());
    assert_eq!(wait(&mut chat).0.code(), Some(143));
    assert_eq!(tcgetattr(&theirs).unwrap().local_modes, before);
}
