//! `clearway serve` as a process: what it refuses to start with, how soon it answers, how it ends.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise
#![cfg(unix)]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(folder: &common::Folder, more: &[&str]) -> Server {
    let model = folder.path("tiny.gguf");
    common::tiny_model(&model, "llama", true);
    let mut arguments =
        vec!["serve", "-m", model.to_str().unwrap(), "--device", "cpu", "--port", "0"];
    arguments.extend(more);
    let mut child = common::command(&arguments).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let address =
        lines.find_map(|line| Some(line.split_once("listening on http://")?.1.to_owned()));
    lines.find(|line| line.starts_with("ready")).unwrap();
    std::thread::spawn(move || lines.for_each(drop));
    Server { child, address: address.unwrap() }
}

fn send(server: &Server, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    stream
}

fn read(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn addresses_of_others_need_a_key_or_an_explicit_word() {
    let folder = common::Folder::new("serve-doors");
    let model = folder.path("tiny.gguf");
    common::tiny_model(&model, "llama", true);
    let model = model.to_str().unwrap();
    let serve = |more: &[&str]| {
        common::failure(&common::clearway(&[&["serve", "-m", model][..], more].concat()))
    };
    let open = serve(&["--host", "0.0.0.0", "--port", "0"]);
    assert!(open.contains("--api-key") && open.contains("--no-api-key"), "{open}");
    let empty = folder.path("keys");
    std::fs::write(&empty, "\n  \n").unwrap();
    assert!(serve(&["--api-key-file", empty.to_str().unwrap()]).contains("no key"));
    assert!(serve(&["--api-key", &"k".repeat(300)]).contains("256"));
    assert!(serve(&["--host", "nowhere.invalid"]).contains("nowhere.invalid"));
    let certificate = folder.path("none.pem");
    let certificate = certificate.to_str().unwrap();
    assert!(
        serve(&["--port", "0", "--tls-cert", certificate, "--tls-key", certificate])
            .contains("none.pem")
    );
}

#[test]
fn it_answers_soon_and_a_signal_ends_it_when_all_is_answered() {
    let folder = common::Folder::new("serve-signals");
    let started = Instant::now();
    let mut server = start(&folder, &["--parallel", "2"]);
    let answer = read(send(&server, r#"{"prompt":"a","max_tokens":3}"#));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    // The first byte says that the request is taken.
    let mut stream =
        send(&server, r#"{"prompt":"a","max_tokens":30,"ignore_eos":true,"stream":true}"#);
    let mut first = [0];
    stream.read_exact(&mut first).unwrap();
    common::signal("TERM", server.child.id());
    let rest = read(stream);
    assert!(rest.contains("data: [DONE]"), "{rest}");
    let (status, took) = common::wait(&mut server.child);
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(10), "{took:?}");
}
