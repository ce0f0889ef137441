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

/// A request for so many tokens.
fn long(tokens: usize, stream: bool) -> String {
    format!(r#"{{"prompt":"a","max_tokens":{tokens},"ignore_eos":true,"stream":{stream}}}"#)
}

/// What a GET request is answered.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    read(stream)
}

/// Waits for something.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < common::LONG, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// HTTP requests under way.
fn in_flight(address: &str) -> usize {
    let metrics = get(address, "/metrics");
    let mut lines = metrics.lines();
    let line = lines.find(|line| line.starts_with("clearway_http_requests_in_flight{")).unwrap();
    // The question is under way itself.
    line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap() - 1
}

/// Whether a new request is turned away, as it must be from the signal on: 503, or no connection at all.
fn is_turned_away(address: &str) -> Option<&'static str> {
    let body = long(1, false);
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut answer = String::new();
    let asked = TcpStream::connect(address).and_then(|mut stream| {
        stream.write_all(head.as_bytes())?;
        stream.read_to_string(&mut answer)
    });
    match asked {
        Err(_) => Some("no connection"),
        // The process ended between the connection and the answer.
        Ok(0) => Some("no connection"),
        Ok(_) if answer.starts_with("HTTP/1.1 503") && answer.contains("draining") => Some("503"),
        Ok(_) => None,
    }
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

#[test]
fn sigterm_loses_no_request_that_was_taken_and_turns_new_ones_away() {
    let folder = common::Folder::new("serve-drain");
    let mut server = start(&folder, &["--parallel", "2", "--drain", "50", "--log", "none"]);
    // Two are written and the others wait; every second one is a stream.
    let taken: Vec<(bool, TcpStream)> =
        (0..12).map(|index| (index % 2 == 0, send(&server, &long(200, index % 2 == 0)))).collect();
    // A connection that says nothing holds nobody up.
    let idle = TcpStream::connect(&server.address).unwrap();
    until("all are under way", || in_flight(&server.address) == taken.len());
    common::signal("TERM", server.child.id());
    let signalled = Instant::now();
    let address = server.address.clone();
    until("it drains", || get(&address, "/health").contains("draining"));
    let probing = std::thread::spawn(move || {
        let mut refusals = Vec::new();
        while refusals.last() != Some(&"no connection") {
            let refusal = is_turned_away(&address);
            refusals.push(refusal.unwrap_or_else(|| panic!("taken after {refusals:?}")));
            std::thread::sleep(Duration::from_millis(5));
        }
        refusals
    });
    for (streams, stream) in taken {
        let answer = read(stream);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        match streams {
            true => assert!(answer.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"), "{answer}"),
            false => assert!(answer.contains(r#""completion_tokens":200"#), "{answer}"),
        }
    }
    let (status, _) = common::wait(&mut server.child);
    assert_eq!(status.code(), Some(0));
    assert!(signalled.elapsed() < Duration::from_secs(50), "{:?}", signalled.elapsed());
    let refusals = probing.join().unwrap();
    assert!(refusals.contains(&"503"), "{refusals:?}");
    drop(idle);
}

#[test]
fn what_sigterm_cannot_finish_is_cut_off_at_the_deadline() {
    let folder = common::Folder::new("serve-deadline");
    let mut server = start(&folder, &["--parallel", "1", "--drain", "1", "-c", "200000"]);
    let mut stream = send(&server, &long(190_000, true));
    stream.read_exact(&mut [0]).unwrap();
    common::signal("TERM", server.child.id());
    let (status, took) = common::wait(&mut server.child);
    assert_eq!(status.code(), Some(143));
    assert!(took > Duration::from_millis(900) && took < Duration::from_secs(6), "{took:?}");
    let mut rest = Vec::new();
    // It may end with an error of the connection.
    let _ = stream.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"));
}
