//! `/v1/embeddings`.

use std::sync::Arc;

use clearway::cpu::CpuDevice;
use clearway_llm::engine::EngineOptions;
use clearway_llm::{Model, Options};
use serde_json::{Value, json};

use crate::server::{CONTEXT, MODEL, Running, model};

const PATH: &str = "/v1/embeddings";

fn numbers(answer: &Value, index: usize) -> Vec<f32> {
    serde_json::from_value(answer["data"][index]["embedding"].clone()).unwrap()
}

fn product(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn vectors_are_those_of_the_engine() {
    let server = Running::new();
    let engine = EngineOptions { context: Some(CONTEXT), ..EngineOptions::default() };
    let device = Some(Arc::new(CpuDevice::new()) as _);
    let options = Options { device, engine, ..Options::default() };
    let mut alone = Model::load(model(), options).unwrap();
    let texts = ["Hello there", "An entirely different text", "x"];
    let answer = server.client.post(PATH, &json!({ "model": MODEL, "input": texts, "user": "me" }));
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!(MODEL)));
    let mut tokens = 0;
    for (index, text) in texts.iter().enumerate() {
        let one = &answer["data"][index];
        assert_eq!((&one["object"], &one["index"]), (&json!("embedding"), &json!(index)));
        let (found, expected) = (numbers(&answer, index), alone.embed(text).unwrap());
        assert_eq!(found.len(), 64);
        assert!(product(&found, &expected) > 0.9999, "{text}");
        let ids = server.client.post("/tokenize", &json!({ "prompt": text })).json();
        tokens += ids["count"].as_u64().unwrap();
        // The same as tokens, alone.
        let same = server.client.post(PATH, &json!({ "input": ids["tokens"], "dimensions": 64 }));
        assert!(product(&numbers(&same.json(), 0), &expected) > 0.9999, "{text}");
    }
    assert!(product(&numbers(&answer, 0), &numbers(&answer, 1)) < 0.99);
    assert_eq!(answer["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
    let lists = server.client.post(PATH, &json!({ "input": [[5, 6], [7]] })).json();
    let expected = alone.embed_tokens(&[7]).unwrap();
    assert!(product(&numbers(&lists, 1), &expected) > 0.9999);
}

#[test]
fn base64_has_the_same_numbers() {
    let server = Running::new();
    let ask = |format: &str| {
        server.client.post(PATH, &json!({ "input": "Hello", "encoding_format": format })).json()
    };
    let text = ask("base64")["data"][0]["embedding"].as_str().unwrap().to_owned();
    let letter = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("{other}"),
    };
    let mut bytes = Vec::new();
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = four.iter().fold(0_u32, |bits, &byte| bits << 6 | u32::from(letter(byte)));
        let bits = bits << (6 * (4 - four.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    let found: Vec<f32> =
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(found, numbers(&ask("float"), 0));
}

#[test]
fn texts_are_written_beside_vectors() {
    let server = Running::new();
    let long = "word ".repeat(100);
    let ask = json!({ "prompt": "Once", "max_tokens": 300, "ignore_eos": true });
    std::thread::scope(|scope| {
        let text = scope.spawn(|| server.client.post("/v1/completions", &ask));
        let vectors: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| server.client.post(PATH, &json!({ "input": [&long, "x"] }))))
            .collect();
        let vectors: Vec<Value> = vectors.into_iter().map(|v| v.join().unwrap().json()).collect();
        assert!(
            vectors.iter().all(|one| one["data"].as_array().is_some_and(|data| data.len() == 2))
        );
        assert!(product(&numbers(&vectors[0], 0), &numbers(&vectors[3], 0)) > 0.9999);
        assert_eq!(text.join().unwrap().json()["usage"]["completion_tokens"], 300);
    });
    server.wait_idle();
}

#[test]
fn wrong_requests_are_refused_by_name() {
    let server = Running::new();
    for (body, words) in [
        (json!({}), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": [[]] }), "input"),
        (json!({ "input": 5 }), "input"),
        (json!({ "input": [1_000_000] }), "input"),
        (json!({ "input": vec!["a"; 2049] }), "2048"),
        (json!({ "input": "a", "dimensions": 63 }), "64"),
        (json!({ "input": "a", "encoding_format": "int8" }), "encoding_format"),
        (json!({ "input": "a", "nonsense": 1 }), "nonsense"),
        (json!({ "input": vec![1; CONTEXT + 1] }), "context"),
    ] {
        let answer = server.client.post(PATH, &body);
        assert_eq!(answer.status, 400, "{body} {answer:?}");
        assert!(answer.error().contains(words), "{}", answer.error());
    }
    assert_eq!(server.client.post(PATH, &json!({ "input": "a", "model": "b" })).status, 404);
    assert_eq!(server.client.get(PATH).status, 405);
}
