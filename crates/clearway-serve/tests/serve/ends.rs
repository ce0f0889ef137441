//! Loading, draining, and clients that go away.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use clearway_serve::Ended;
use serde_json::{Value, json};

use crate::client;
use crate::server::{Running, Setup, until};

/// A text that takes a while.
fn long(tokens: usize) -> Value {
    json!({ "prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": true, "stream": true })
}

fn metric(server: &Running, name: &str) -> f64 {
    let metrics = server.client.get("/metrics").body;
    let line =
        metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn while_the_model_is_loaded_requests_are_told_to_come_later() {
    let server = Setup { load: Duration::from_millis(700), ..Setup::default() }.start();
    let health = server.client.get("/health");
    assert_eq!((health.status, &health.json()["status"]), (503, &json!("loading")));
    let answer = server.client.post("/v1/completions", &json!({ "prompt": "a" }));
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("2")));
    assert_eq!(server.client.get("/metrics").status, 200);
    server.wait();
    assert_eq!(server.client.post("/v1/completions", &json!({ "prompt": "a" })).status, 200);
    assert_eq!(server.end(), Ended::Complete);
}

#[test]
fn requests_under_way_are_finished_and_new_ones_refused() {
    let server = Running::new();
    // A request of which the server has only a part, and a text that is written.
    let mut halved = server.client.open();
    let body = long(20).to_string();
    let (front, back) = body.split_at(body.len() / 2);
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{front}",
        body.len()
    );
    halved.write_all(head.as_bytes()).unwrap();
    until("a request in flight", || metric(&server, "clearway_http_requests_in_flight") >= 2.0);
    let mut running = server.client.open();
    let whole = long(900).to_string();
    server.client.write(&mut running, "POST", "/v1/completions", &[], whole.as_bytes());
    until("a text", || metric(&server, "clearway_prompt_tokens_total") > 0.0);
    let client = server.client.clone();
    server.tell();
    until("draining", || client.post("/v1/completions", &json!({ "prompt": "a" })).status == 503);
    assert_eq!(client.get("/health").json()["status"], "draining");
    halved.write_all(back.as_bytes()).unwrap();
    for stream in [running, halved] {
        let answer = client::read(stream).unwrap();
        assert!(answer.body.ends_with("data: [DONE]\n\n"), "{answer:?}");
    }
    assert_eq!(server.end(), Ended::Complete);
}

#[test]
fn what_is_not_finished_at_the_deadline_is_cut_off() {
    let mut setup = Setup { parallel: 1, ..Setup::default() };
    setup.config.drain = Duration::from_millis(50);
    let server = setup.start();
    server.wait();
    let streams: Vec<_> = (0..6)
        .map(|_| {
            let mut stream = server.client.open();
            server.client.write(
                &mut stream,
                "POST",
                "/v1/completions",
                &[],
                long(1000).to_string().as_bytes(),
            );
            stream
        })
        .collect();
    until("requests", || server.client.get("/slots").json()["waiting"].as_u64() > Some(2));
    let start = Instant::now();
    assert_eq!(server.end(), Ended::CutOff);
    assert!(start.elapsed() < Duration::from_secs(5));
    drop(streams);
}

#[test]
fn a_client_that_goes_away_frees_its_slot() {
    let server = Setup { parallel: 1, ..Setup::default() }.start();
    server.wait();
    for streams in [true, false] {
        let mut body = long(980);
        body["stream"] = json!(streams);
        let mut stream = server.client.open();
        server.client.write(
            &mut stream,
            "POST",
            "/v1/completions",
            &[],
            body.to_string().as_bytes(),
        );
        until("running", || server.client.get("/slots").json()["running"] == 1);
        let before = metric(&server, "clearway_generated_tokens_total");
        drop(stream);
        server.wait_idle();
        let written = metric(&server, "clearway_generated_tokens_total") - before;
        assert!(written < 960.0, "{written} tokens for nobody");
    }
    // One that waits goes away without running at all.
    let mut running = server.client.open();
    server.client.write(
        &mut running,
        "POST",
        "/v1/completions",
        &[],
        long(900).to_string().as_bytes(),
    );
    let mut waiting = server.client.open();
    server.client.write(
        &mut waiting,
        "POST",
        "/v1/completions",
        &[],
        long(900).to_string().as_bytes(),
    );
    until("waiting", || server.client.get("/slots").json()["waiting"] == 1);
    drop((running, waiting));
    server.wait_idle();
    assert_eq!(server.client.post("/v1/completions", &json!({ "prompt": "a" })).status, 200);
}

#[test]
fn a_text_may_not_take_for_ever() {
    let mut setup = Setup::default();
    setup.config.timeout = Duration::from_millis(30);
    let server = setup.start();
    server.wait();
    let mut body = long(1000);
    let answer = server.client.post("/v1/completions", &body);
    let last = answer.events().pop().unwrap();
    assert_eq!(last["error"]["code"], "timeout", "{last}");
    body["stream"] = json!(false);
    let answer = server.client.post("/v1/completions", &body);
    assert_eq!(answer.status, 504);
    server.wait_idle();
}

#[test]
fn a_head_that_never_ends_is_given_up() {
    let server = Running::new();
    let mut stream = server.client.open();
    let _ = stream.write_all(b"GET /health HTTP/1.1\r\n");
    let line = format!("X-Long: {}\r\n", "a".repeat(1000));
    // More than the server reads of a head.
    for _ in 0..200 {
        if stream.write_all(line.as_bytes()).is_err() {
            break;
        }
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(server.client.get("/health").status, 200);
}
