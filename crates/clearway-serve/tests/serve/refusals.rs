//! What other requests get: a status, and words that name what is wrong.

use serde_json::{Value, json};

use crate::server::{MODEL, Running, Setup};

#[test]
fn what_is_not_supported_is_refused_by_its_name() {
    let server = Running::new();
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    for (path, body, name) in [
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "web_search_options": {} }),
            "web_search_options",
        ),
        ("/v1/chat/completions", json!({ "messages": messages, "functions": [] }), "functions"),
        ("/v1/chat/completions", json!({ "messages": messages, "store": true }), "store"),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }] }),
            "messages[0].content[0].type",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": "a", "weight": 1 }] }),
            "messages[0].weight",
        ),
        ("/v1/chat/completions", json!({ "messages": messages, "user": {} }), "user"),
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "include_reasoning": false }),
            "include_reasoning",
        ),
        (
            "/v1/completions",
            json!({ "prompt": "a", "skip_special_tokens": false }),
            "skip_special_tokens",
        ),
        ("/v1/chat/completions", json!({ "messages": "Hi" }), "messages"),
        ("/v1/chat/completions", json!({ "messages": [] }), "messages"),
        ("/v1/chat/completions", json!({ "messages": [null] }), "messages[0]"),
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "temperature": "hot" }),
            "temperature",
        ),
        ("/v1/chat/completions", json!({ "messages": messages, "temperature": 3 }), "temperature"),
        ("/v1/chat/completions", json!({ "messages": messages, "n": 0 }), "n"),
        ("/v1/chat/completions", json!({ "messages": messages, "max_tokens": 0 }), "max_tokens"),
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "max_tokens": 1, "max_completion_tokens": 2 }),
            "max_tokens",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "top_logprobs": 3 }),
            "top_logprobs",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "stream_options": {} }),
            "stream_options",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "logit_bias": { "x": 1 } }),
            "logit_bias",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "tool_choice": "required" }),
            "tool_choice",
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "response_format": { "type": "xml" } }),
            "response_format.type",
        ),
        ("/v1/completions", json!({ "prompt": "a", "best_of": 3 }), "best_of"),
        ("/v1/completions", json!({ "prompt": "a", "suffix": "b" }), "suffix"),
        ("/v1/completions", json!({ "prompt": { "a": 1 } }), "prompt"),
        ("/v1/completions", json!({ "prompt": [1, 99_999_999] }), "prompt"),
        ("/v1/completions", json!({ "prompt": [-1] }), "prompt"),
        (
            "/v1/responses",
            json!({ "input": "a", "previous_response_id": "x" }),
            "previous_response_id",
        ),
        ("/v1/responses", json!({ "input": "a", "store": true }), "store"),
        (
            "/v1/responses",
            json!({ "input": "a", "tools": [{ "type": "web_search" }] }),
            "tools[0].type",
        ),
        ("/tokenize", json!({}), "content"),
        ("/detokenize", json!({ "tokens": [4_000_000_000_u32] }), "tokens"),
    ] {
        let answer = server.client.post(path, &body);
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], name, "{body}: {answer:?}");
        assert!(answer.error().contains(name), "{answer:?}");
    }
    let anthropic = server
        .client
        .post("/v1/messages", &json!({ "model": MODEL, "max_tokens": 1, "messages": [], "x": 1 }));
    assert_eq!(
        (anthropic.status, &anthropic.json()["error"]["type"]),
        (400, &json!("invalid_request_error"))
    );
    assert_eq!(anthropic.json()["type"], "error");
}

#[test]
fn bodies_paths_and_methods_that_are_none() {
    let mut setup = Setup::default();
    setup.config.max_body = 10_000;
    let server = setup.start();
    server.wait();
    let send = |body: &[u8]| server.client.send("POST", "/v1/chat/completions", &[], body);
    let deep = format!("{{\"messages\":{}{}}}", "[".repeat(2000), "]".repeat(2000));
    for body in
        [&b""[..], b"{", b"null", b"[]", b"\xff\xfe", b"{\"messages\": \"\xff\"}", deep.as_bytes()]
    {
        assert_eq!(send(body).status, 400, "{:?}", String::from_utf8_lossy(body));
    }
    assert_eq!(send(&vec![b' '; 10_001]).status, 413);
    let status = |method: &str, path: &str| server.client.send(method, path, &[], b"").status;
    assert_eq!(status("GET", "/nothing"), 404);
    assert_eq!(status("GET", "/v1/chat/completions"), 405);
    assert_eq!(status("DELETE", "/health"), 405);
    let other = json!({ "model": "gpt-5", "messages": [{ "role": "user", "content": "a" }] });
    let other = server.client.post("/v1/chat/completions", &other);
    assert_eq!((other.status, &other.json()["error"]["code"]), (404, &json!("model_not_found")));
    assert!(other.error().contains(MODEL));
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_its_numbers() {
    let server = Running::new();
    let long = "many words here ".repeat(1000);
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": long })),
        ("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": long }] })),
    ] {
        let answer = server.client.post(path, &body);
        assert_eq!(answer.status, 400, "{answer:?}");
        let error = answer.json()["error"].clone();
        assert_eq!(error["code"], "context_length_exceeded");
        assert!(error["n_prompt_tokens"].as_u64().unwrap() > 1024 && error["n_ctx"] == 1024);
    }
}

#[test]
fn too_many_at_once_are_told_to_come_later() {
    let server = Setup { queue: 2, parallel: 1, ..Setup::default() }.start();
    server.wait();
    let body = json!({ "prompt": "a", "max_tokens": 700, "ignore_eos": true });
    let statuses: Vec<(u16, Option<String>, Value)> = std::thread::scope(|scope| {
        let ask = || {
            let answer = server.client.post("/v1/completions", &body);
            (answer.status, answer.header("retry-after").map(str::to_owned), answer.json())
        };
        let asked: Vec<_> = (0..12).map(|_| scope.spawn(ask)).collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(statuses.iter().all(|(status, ..)| [200, 429].contains(status)), "{statuses:?}");
    let refused: Vec<_> = statuses.iter().filter(|(status, ..)| *status == 429).collect();
    assert!(!refused.is_empty() && refused.len() < 12, "{}", refused.len());
    for (_, retry, body) in refused {
        assert!(retry.as_ref().unwrap().parse::<u64>().unwrap() >= 1);
        assert_eq!(body["error"]["type"], "rate_limit_error");
    }
    for (status, _, body) in &statuses {
        assert!(*status != 200 || body["usage"]["completion_tokens"] == 700, "{body}");
    }
    server.wait_idle();
}
