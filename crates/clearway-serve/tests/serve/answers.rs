//! What good requests get.

use serde_json::{Value, json};

use crate::server::{CONTEXT, MODEL, Running};

fn chat(more: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "Hello there" }], "max_tokens": 8, "seed": 1, "ignore_eos": true });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_stream_says_the_same_as_a_whole_answer() {
    let server = Running::new();
    let whole = server.client.post("/v1/chat/completions", &chat(json!({})));
    assert_eq!(whole.status, 200, "{whole:?}");
    let whole = whole.json();
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["model"], MODEL);
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 8);
    let options = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let stream = server.client.post("/v1/chat/completions", &chat(options));
    assert_eq!(stream.header("content-type"), Some("text/event-stream"));
    assert!(stream.body.ends_with("data: [DONE]\n\n"));
    let events = stream.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    let pieces = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(pieces.collect::<String>(), text);
    let [.., last, usage] = &events[..] else { panic!("{events:?}") };
    assert_eq!(
        (&last["choices"][0]["finish_reason"], &last["choices"][0]["delta"]),
        (&json!("length"), &json!({}))
    );
    assert_eq!(usage["choices"], json!([]));
    let prompt = whole["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(usage["usage"]["prompt_tokens"], prompt);
    assert!(events.iter().all(|event| event["id"] == events[0]["id"]));
}

#[test]
fn the_same_seed_gives_the_same_text_and_n_gives_several() {
    let server = Running::new();
    let ask = |more: Value| server.client.post("/v1/chat/completions", &chat(more)).json();
    let text = |answer: &Value, at: usize| answer["choices"][at]["message"]["content"].clone();
    let (one, two) = (ask(json!({})), ask(json!({ "n": 3 })));
    assert_eq!(text(&one, 0), text(&two, 0));
    assert_ne!(text(&two, 1), text(&two, 0));
    assert_eq!(text(&ask(json!({ "seed": 2 })), 0), text(&two, 1));
    assert_eq!(two["usage"]["completion_tokens"], 24);
    let stream = server
        .client
        .post("/v1/chat/completions", &chat(json!({ "n": 3, "stream": true })))
        .events();
    for index in 0..3 {
        let own = stream.iter().filter(|event| event["choices"][0]["index"] == index);
        let pieces = own.filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
        assert_eq!(json!(pieces.collect::<String>()), text(&two, index));
    }
}

#[test]
fn stop_strings_biases_and_log_probabilities_act() {
    let server = Running::new();
    let ask = |more: Value| server.client.post("/v1/chat/completions", &chat(more)).json();
    let whole = ask(json!({ "logprobs": true, "top_logprobs": 2, "return_token_ids": true }));
    let choice = &whole["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    let entries = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(entries.len(), 8);
    for entry in entries {
        assert!(
            entry["logprob"].as_f64().unwrap() <= 0.0
                && entry["top_logprobs"].as_array().unwrap().len() == 2
        );
    }
    let stop: String = text.chars().skip(3).take(2).collect();
    let stopped = ask(json!({ "stop": stop }));
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert_eq!(stopped["choices"][0]["message"]["content"], text.split_once(&stop).unwrap().0);
    let first = choice["token_ids"][0].to_string();
    let biased = ask(json!({ "logit_bias": { first.as_str(): -100 }, "return_token_ids": true }));
    let ids = biased["choices"][0]["token_ids"].as_array().unwrap();
    assert!(ids.iter().all(|id| *id != first));
    let forced =
        ask(json!({ "logit_bias": { "65": 100 }, "temperature": 0, "return_token_ids": true }));
    assert_eq!(forced["choices"][0]["token_ids"], json!([65, 65, 65, 65, 65, 65, 65, 65]));
}

#[test]
fn completions_take_texts_and_tokens() {
    let server = Running::new();
    let tokens = server.client.post("/tokenize", &json!({ "prompt": "Hello there" })).json();
    let ask = |prompt: Value| {
        let body = json!({ "prompt": prompt, "max_tokens": 6, "seed": 3, "ignore_eos": true, "logprobs": 0 });
        let answer = server.client.post("/v1/completions", &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    };
    let of_text = ask(json!("Hello there"));
    let of_tokens = ask(tokens["tokens"].clone());
    assert_eq!(of_text["choices"][0]["text"], of_tokens["choices"][0]["text"]);
    let both = ask(json!(["Hello there", "Another"]));
    assert_eq!(both["choices"][0]["text"], of_text["choices"][0]["text"]);
    assert_eq!(both["choices"].as_array().unwrap().len(), 2);
    assert_eq!(of_text["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), 6);
    let echo = json!({ "prompt": "Hello there", "max_tokens": 6, "seed": 3, "ignore_eos": true, "echo": true });
    let echo = server.client.post("/v1/completions", &echo).json();
    let text = of_text["choices"][0]["text"].as_str().unwrap();
    assert_eq!(echo["choices"][0]["text"], format!("Hello there{text}"));
}

#[test]
fn other_dialects_say_the_same() {
    let server = Running::new();
    let text = server.client.post("/v1/chat/completions", &chat(json!({}))).json();
    let text = text["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let body =
        json!({ "input": "Hello there", "max_output_tokens": 8, "seed": 1, "ignore_eos": true });
    let response = server.client.post("/v1/responses", &body);
    assert_eq!(response.status, 200, "{response:?}");
    let response = response.json();
    assert_eq!(response["output"][0]["content"][0]["text"], text);
    assert_eq!(
        (&response["status"], &response["usage"]["output_tokens"]),
        (&json!("incomplete"), &json!(8))
    );
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let events = server.client.post("/v1/responses", &streamed).events();
    let numbers: Vec<u64> =
        events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    assert_eq!(deltas.map(|event| event["delta"].as_str().unwrap()).collect::<String>(), text);
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["output"][0]["content"][0]["text"], text);

    let turns = json!([{ "role": "user", "content": [{ "type": "text", "text": "Hello there" }] }]);
    let body = json!({ "model": MODEL, "messages": turns, "max_tokens": 8, "seed": 1, "ignore_eos": true });
    let message = server.client.post("/v1/messages", &body);
    assert_eq!(message.status, 200, "{message:?}");
    let message = message.json();
    assert_eq!(
        (&message["content"][0]["text"], &message["stop_reason"]),
        (&json!(text), &json!("max_tokens"))
    );
    let count = server
        .client
        .post("/v1/messages/count_tokens", &json!({ "model": MODEL, "messages": turns }))
        .json();
    let usage = &message["usage"];
    let read = usage["input_tokens"].as_u64().unwrap()
        + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(count["input_tokens"], read);
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let events = server.client.post("/v1/messages", &streamed).events();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!((kinds[0], kinds[1]), ("message_start", "content_block_start"));
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let deltas = events.iter().filter_map(|event| event["delta"]["text"].as_str());
    assert_eq!(deltas.collect::<String>(), text);
}

#[test]
fn a_prompt_that_was_read_before_is_not_read_again() {
    let server = Running::new();
    let body = json!({ "prompt": "the same words again ".repeat(30), "max_tokens": 4, "ignore_eos": true, "temperature": 0 });
    let ask = || server.client.post("/v1/completions", &body).json();
    let (first, second) = (ask(), ask());
    let cached = |answer: &Value| {
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(cached(&first), 0);
    assert!(cached(&second) + 64 >= prompt && cached(&second) < prompt, "{second}");
    assert_eq!(first["choices"][0]["text"], second["choices"][0]["text"]);
}

#[test]
fn tokens_go_there_and_back() {
    let server = Running::new();
    let post = |path: &str, body: Value| server.client.post(path, &body).json();
    let tokens = post("/tokenize", json!({ "content": "Grüße, 世界!", "with_pieces": false }));
    assert_eq!(
        (&tokens["max_model_len"], &tokens["count"]),
        (&json!(CONTEXT), &json!(tokens["tokens"].as_array().unwrap().len()))
    );
    let text = post("/detokenize", json!({ "tokens": tokens["tokens"] }));
    assert_eq!(
        (&text["content"], &text["prompt"]),
        (&json!("Grüße, 世界!"), &json!("Grüße, 世界!"))
    );
    let prompt =
        post("/apply-template", json!({ "messages": [{ "role": "user", "content": "Hi" }] }));
    assert!(prompt["prompt"].as_str().unwrap().contains("Hi"));
}

#[test]
fn the_server_tells_about_itself() {
    let server = Running::new();
    server
        .client
        .post("/v1/completions", &json!({ "prompt": "a", "max_tokens": 3, "ignore_eos": true }));
    let models = server.client.get("/v1/models").json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["max_model_len"]),
        (&json!(MODEL), &json!(CONTEXT))
    );
    assert_eq!(server.client.get("/v1/models/tiny").json()["id"], MODEL);
    assert_eq!(server.client.get("/v1/models/other").status, 404);
    let metrics = server.client.get("/metrics").body;
    for line in [
        "clearway_generated_tokens_total{model_name=\"tiny\"} 3",
        "vllm:num_requests_running{model_name=\"tiny\"} 0",
        "clearway_time_to_first_token_seconds_count{model_name=\"tiny\"} 1",
        "clearway_time_between_tokens_seconds_count{model_name=\"tiny\"} 2",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    let document = server.client.get("/openapi.json").json();
    for path in
        ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize"]
    {
        assert!(document["paths"][path]["post"].is_object(), "{path}");
    }
    let answer = server.client.send("GET", "/health", &[("X-Request-Id", "my-id")], b"");
    assert_eq!(answer.header("x-request-id"), Some("my-id"));
    assert!(server.client.get("/health").header("x-request-id").unwrap().starts_with("req_"));
}

#[test]
fn the_picker_of_the_manifests_finds_its_metrics() {
    let manifest = include_str!("../../../../docs/kubernetes/pool.yaml");
    let arguments = manifest.lines().filter_map(|line| line.split_once("-metric="));
    let names: Vec<&str> = arguments.map(|(_, name)| name.trim()).collect();
    assert_eq!(names.len(), 5);
    let server = Running::new();
    let metrics = server.client.get("/metrics").body;
    for name in names {
        let sample = format!("{name}{{");
        assert!(metrics.lines().any(|line| line.starts_with(&sample)), "{name}");
    }
}
