//! Many clients at once, most of them badly behaved. Every good request is answered, and nothing is left behind.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clearway_graph::testkit::{Rng, Run};
use clearway_serve::Ended;
use serde_json::json;

use crate::client;
use crate::server::{CONTEXT, Running, Setup};

/// Largest body that the server takes.
const MAX_BODY: usize = 64 << 10;
/// Bytes that memory may grow by in the second half of the run, beside what other tests take.
const GROWTH: u64 = 96 << 20;

/// Open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Bytes of memory that this process has.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

/// What became of good requests.
#[derive(Default)]
struct Count {
    answered: AtomicUsize,
    refused: AtomicUsize,
}

#[test]
fn clients_that_misbehave_harm_nobody() {
    // In a soak 10,000.
    let Run { seed, cases } = Run::from_env("clients that misbehave", 2);
    let mut setup = Setup { queue: 16, ..Setup::default() };
    setup.config.max_body = MAX_BODY;
    let server = setup.start();
    server.wait();
    let before = descriptors();
    let count = Count::default();
    let mut half = 0;
    for part in 0..2 {
        half = memory();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (server, count) = (&server, &count);
                scope.spawn(move || {
                    let mut random = Rng::new(seed.wrapping_add(8 * part + thread));
                    for _ in 0..cases / 16 {
                        one(server, &mut random, count);
                    }
                });
            }
        });
    }
    // Of a crowd some are answered and some are told to come later.
    crowd(&server, &count);
    server.wait_idle();
    let Count { answered, refused } = count;
    assert!(answered.into_inner() > 0 && refused.into_inner() > 0);
    let grown = memory().saturating_sub(half);
    assert!(grown < GROWTH, "memory grew by {grown} bytes");
    crate::server::until("free blocks", || {
        server.client.get("/slots").json()["cache_blocks_used"] == 0
    });
    crate::server::until("no request in flight", || {
        let metrics = server.client.get("/metrics").body;
        // The scrape itself is one.
        metrics.contains("clearway_http_requests_in_flight{model_name=\"tiny\"} 1")
            && metrics.contains("clearway_panics_total{model_name=\"tiny\"} 0")
    });
    crate::server::until("closed descriptors", || descriptors() <= before + 2);
    assert_eq!(server.client.post("/v1/completions", &json!({ "prompt": "a" })).status, 200);
}

/// More requests at once than may wait. Their texts are long, so that few have ended when the last one comes.
fn crowd(server: &Running, count: &Count) {
    let body = json!({ "prompt": "Once upon", "max_tokens": 400, "ignore_eos": true }).to_string();
    let streams: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = server.client.open();
            server.client.write(&mut stream, "POST", "/v1/completions", &[], body.as_bytes());
            stream
        })
        .collect();
    for stream in streams {
        let answer = client::read(stream).unwrap();
        match answer.status {
            200 => count.answered.fetch_add(1, Ordering::Relaxed),
            429 => {
                assert!(answer.header("retry-after").is_some(), "{answer:?}");
                count.refused.fetch_add(1, Ordering::Relaxed)
            }
            other => panic!("{other}: {answer:?}"),
        };
    }
}

#[test]
fn an_end_in_the_middle_of_a_crowd_loses_nobody() {
    let server = Setup { queue: 256, parallel: 4, ..Setup::default() }.start();
    server.wait();
    let client = server.client.clone();
    let told = std::sync::Mutex::new(None::<Instant>);
    let over = AtomicBool::new(false);
    let finished = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (client, told, over, finished) = (&client, &told, &over, &finished);
            scope.spawn(move || {
                let body = json!({ "prompt": format!("Once {thread}"), "max_tokens": 40, "ignore_eos": true });
                while !over.load(Ordering::SeqCst) {
                    let Ok(mut stream) = TcpStream::connect(&client.address) else { continue };
                    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                    let sent = Instant::now();
                    let bytes = body.to_string();
                    client.write(&mut stream, "POST", "/v1/completions", &[], bytes.as_bytes());
                    let answer = client::read(stream);
                    let told = *told.lock().unwrap();
                    // What came well before the word must be answered.
                    let early = told.is_none_or(|told| sent + Duration::from_millis(500) < told);
                    match answer.as_ref().map(|answer| answer.status) {
                        Some(200) => {
                            let usage = &answer.unwrap().json()["usage"];
                            assert_eq!(usage["completion_tokens"], 40);
                            finished.fetch_add(1, Ordering::SeqCst);
                        }
                        Some(503) | None if !early => std::thread::sleep(Duration::from_millis(5)),
                        _ => panic!("{answer:?}"),
                    }
                }
            });
        }
        crate::server::until("some texts", || finished.load(Ordering::SeqCst) >= 16);
        *told.lock().unwrap() = Some(Instant::now());
        assert_eq!(server.end(), Ended::Complete);
        over.store(true, Ordering::SeqCst);
    });
}

/// One request of some kind.
fn one(server: &Running, random: &mut Rng, count: &Count) {
    let tokens = 1 + random.below(12);
    let streams = random.below(2) == 0;
    let good = json!({ "prompt": "Once upon", "max_tokens": tokens, "ignore_eos": true, "stream": streams }).to_string();
    let mut stream = server.client.open();
    let path = "/v1/completions";
    match random.below(11) {
        // A good one, which must be answered.
        0..=2 => {
            let answer = server.client.send("POST", path, &[], good.as_bytes());
            match answer.status {
                200 if streams => assert!(answer.body.ends_with("data: [DONE]\n\n"), "{answer:?}"),
                200 => assert_eq!(answer.json()["usage"]["completion_tokens"], tokens),
                429 => {
                    count.refused.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(20));
                    return;
                }
                other => panic!("{other}: {answer:?}"),
            }
            count.answered.fetch_add(1, Ordering::Relaxed);
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
        // A prompt that does not fit the context.
        8 => {
            let prompt = vec![1 + random.below(99); CONTEXT + random.below(99) as usize];
            let answer = server.client.post(path, &json!({ "prompt": prompt }));
            assert_eq!(answer.status, 400, "{answer:?}");
            assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
        }
        // A body that is too large, said at once or found out on the way.
        9 => {
            let body = vec![b' '; MAX_BODY + 1];
            server.client.write(&mut stream, "POST", path, &[], &body);
            // The connection may be closed before all of it is sent.
            if let Some(answer) = client::read(stream) {
                assert_eq!(answer.status, 413, "{answer:?}");
            }
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
