//! Many clients at once, most of them badly behaved. Every good request is answered, and nothing is left behind.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use clearway_graph::testkit::{Rng, Run};
use serde_json::json;

use crate::server::{Running, Setup};

/// Open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

#[test]
fn clients_that_misbehave_harm_nobody() {
    // In a soak 10,000.
    let Run { seed, cases } = Run::from_env("clients that misbehave", 2);
    let server = Setup { queue: 64, ..Setup::default() }.start();
    server.wait();
    let before = descriptors();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let server = &server;
            scope.spawn(move || {
                let mut random = Rng::new(seed.wrapping_add(thread));
                for _ in 0..cases / 8 {
                    one(server, &mut random);
                }
            });
        }
    });
    server.wait_idle();
    crate::server::until("no request in flight", || {
        let metrics = server.client.get("/metrics").body;
        // The scrape itself is one.
        metrics.contains("clearway_http_requests_in_flight{model_name=\"tiny\"} 1")
            && metrics.contains("clearway_panics_total{model_name=\"tiny\"} 0")
    });
    crate::server::until("closed descriptors", || descriptors() <= before + 2);
    assert_eq!(server.client.post("/v1/completions", &json!({ "prompt": "a" })).status, 200);
}

/// One request of some kind.
fn one(server: &Running, random: &mut Rng) {
    let tokens = 1 + random.below(12);
    let streams = random.below(2) == 0;
    let good = json!({ "prompt": "Once upon", "max_tokens": tokens, "ignore_eos": true, "stream": streams }).to_string();
    let mut stream = server.client.open();
    let path = "/v1/completions";
    match random.below(9) {
        // A good one, which must be answered.
        0..=2 => {
            let answer = server.client.send("POST", path, &[], good.as_bytes());
            match answer.status {
                200 if streams => assert!(answer.body.ends_with("data: [DONE]\n\n"), "{answer:?}"),
                200 => assert_eq!(answer.json()["usage"]["completion_tokens"], tokens),
                429 => std::thread::sleep(Duration::from_millis(20)),
                other => panic!("{other}: {answer:?}"),
            }
        }
        // Gone after the request.
        3 => {
            server.client.write(&mut stream, "POST", path, &[], good.as_bytes());
            std::thread::sleep(Duration::from_millis(random.below(20)));
        }
        // Gone in the middle of the answer.
        4 => {
            server.client.write(&mut stream, "POST", path, &[], good.as_bytes());
            let mut some = [0; 40];
            let _ = stream.read(&mut some);
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Half a body.
        5 => {
            let half = &good.as_bytes()[..good.len() / 2];
            let head = format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
                good.len()
            );
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(half));
        }
        // Bytes that are no HTTP.
        6 => {
            let bytes: Vec<u8> = (0..200).map(|_| random.below(256) as u8).collect();
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read(&mut [0; 64]);
        }
        // A body that is wrong somewhere.
        7 => {
            let mut bytes = good.into_bytes();
            let place = random.below(bytes.len() as u64) as usize;
            bytes[place] = random.below(256) as u8;
            let answer = server.client.send("POST", path, &[], &bytes);
            assert!([200, 400, 429].contains(&answer.status), "{answer:?}");
        }
        // A reader that takes its time.
        _ => {
            server.client.write(&mut stream, "POST", path, &[], good.as_bytes());
            let mut byte = [0];
            for _ in 0..random.below(60) {
                if !matches!(stream.read(&mut byte), Ok(1)) {
                    break;
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
}
