//! Answers that must look like something. A model of random weights never writes them by itself.

use serde_json::{Value, json};

use crate::server::{MODEL, Running};

fn ask(server: &Running, more: Value) -> Value {
    let mut body =
        json!({ "messages": [{ "role": "user", "content": "Go" }], "max_tokens": 300, "seed": 5 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = server.client.post("/v1/chat/completions", &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn content(answer: &Value) -> String {
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "colour": { "enum": ["red", "green"] },
            "sizes": { "type": "array", "items": { "type": "integer", "minimum": 1, "maximum": 99 }, "minItems": 2, "maxItems": 3 },
        },
        "required": ["colour", "sizes"],
        "additionalProperties": false,
    })
}

#[test]
fn answers_follow_a_schema_an_expression_and_a_grammar() {
    let server = Running::new();
    for seed in 0..6 {
        let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema(), "strict": true } });
        let text = content(&ask(&server, json!({ "seed": seed, "response_format": format })));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert!(["red", "green"].map(Value::from).contains(&value["colour"]), "{text}");
        let sizes = value["sizes"].as_array().unwrap();
        assert!((2..=3).contains(&sizes.len()), "{text}");
        assert!(sizes.iter().all(|size| (1..=99).contains(&size.as_i64().unwrap())), "{text}");
    }
    let regex = json!({ "type": "regex", "regex": "[ab]{4}-[0-9]{2}" });
    let text = content(&ask(&server, json!({ "response_format": regex })));
    assert!(text.len() == 7 && text.as_bytes()[4] == b'-', "{text}");
    let lark = json!({ "type": "lark", "grammar": "start: \"yes\" | \"no\"" });
    assert!(
        ["yes", "no"]
            .contains(&content(&ask(&server, json!({ "response_format": lark }))).as_str())
    );
    let choice = json!({ "choice": ["left", "right"] });
    assert!(
        ["left", "right"]
            .contains(&content(&ask(&server, json!({ "structured_outputs": choice }))).as_str())
    );
    let object =
        ask(&server, json!({ "response_format": { "type": "json_object" }, "max_tokens": 40 }));
    assert!(
        object["choices"][0]["message"]["content"].as_str().unwrap().trim_start().starts_with('{')
    );
}

#[test]
fn a_schema_that_cannot_be_enforced_is_refused_by_its_keyword() {
    let server = Running::new();
    for (schema, keyword) in [
        (json!({ "type": "array", "uniqueItems": true }), "uniqueItems"),
        (json!({ "type": "object", "dependentRequired": { "a": ["b"] } }), "dependentRequired"),
        (json!({ "not": { "type": "string" } }), "not"),
    ] {
        let format =
            json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
        let body =
            json!({ "messages": [{ "role": "user", "content": "Go" }], "response_format": format });
        let answer = server.client.post("/v1/chat/completions", &body);
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.error().contains(keyword), "{answer:?}");
    }
    for format in [
        json!({ "type": "regex", "regex": "(" }),
        json!({ "type": "lark", "grammar": "start: nothing" }),
    ] {
        let body =
            json!({ "messages": [{ "role": "user", "content": "Go" }], "response_format": format });
        assert_eq!(server.client.post("/v1/chat/completions", &body).status, 400);
    }
}

fn tools() -> Value {
    let tool = |name: &str, values: [&str; 2]| {
        let parameters = json!({
            "type": "object", "properties": { "place": { "enum": values } }, "required": ["place"], "additionalProperties": false,
        });
        json!({ "type": "function", "function": { "name": name, "description": "d", "parameters": parameters } })
    };
    json!([tool("weather", ["Paris", "Rome"]), tool("time", ["here", "there"])])
}

#[test]
fn tools_that_must_be_called_are_called_with_fitting_arguments() {
    let server = Running::new();
    for (choice, names) in [
        (json!("required"), &["weather", "time"][..]),
        (json!({ "type": "function", "function": { "name": "time" } }), &["time"]),
    ] {
        // A tool of a name is called once in any case.
        let parallel = choice.is_object();
        let more =
            json!({ "tools": tools(), "tool_choice": choice, "parallel_tool_calls": parallel });
        let answer = ask(&server, more.clone());
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
        let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap().clone();
        assert_eq!(calls.len(), 1);
        let name = calls[0]["function"]["name"].as_str().unwrap();
        assert!(names.contains(&name), "{answer}");
        let arguments: Value =
            serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
        let places = if name == "time" { ["here", "there"] } else { ["Paris", "Rome"] };
        assert!(places.map(Value::from).contains(&arguments["place"]), "{answer}");
        // The same in pieces.
        let mut body = json!({ "messages": [{ "role": "user", "content": "Go" }], "max_tokens": 300, "seed": 5, "stream": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let events = server.client.post("/v1/chat/completions", &body).events();
        let deltas: Vec<Value> = events
            .iter()
            .map(|event| event["choices"][0]["delta"]["tool_calls"][0].clone())
            .collect();
        let first = deltas.iter().find(|delta| !delta.is_null()).unwrap();
        assert_eq!((&first["index"], &first["function"]["name"]), (&json!(0), &json!(name)));
        let pieces = deltas.iter().filter_map(|delta| delta["function"]["arguments"].as_str());
        assert_eq!(pieces.collect::<String>(), calls[0]["function"]["arguments"].as_str().unwrap());
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[test]
fn calls_come_in_every_dialect_and_their_results_go_back() {
    let server = Running::new();
    let parameters = json!({ "type": "object", "properties": { "x": { "enum": [1, 2] } }, "required": ["x"], "additionalProperties": false });
    let body = json!({
        "input": "Go", "tools": [{ "type": "function", "name": "f", "parameters": parameters, "strict": true }],
        "tool_choice": "required", "parallel_tool_calls": false, "max_output_tokens": 200,
    });
    let response = server.client.post("/v1/responses", &body);
    assert_eq!(response.status, 200, "{response:?}");
    let response = response.json();
    let call = &response["output"][0];
    assert_eq!(
        (&call["type"], &call["name"], &call["status"]),
        (&json!("function_call"), &json!("f"), &json!("completed")),
        "{response}"
    );
    let follow = json!({ "input": [{ "role": "user", "content": "Go" }, call, { "type": "function_call_output", "call_id": call["call_id"], "output": "3" }], "max_output_tokens": 4 });
    assert_eq!(server.client.post("/v1/responses", &follow).status, 200);

    let body = json!({
        "model": MODEL, "max_tokens": 200, "messages": [{ "role": "user", "content": "Go" }],
        "tools": [{ "name": "f", "input_schema": parameters }],
        "tool_choice": { "type": "tool", "name": "f", "disable_parallel_tool_use": true },
    });
    let message = server.client.post("/v1/messages", &body);
    assert_eq!(message.status, 200, "{message:?}");
    let message = message.json();
    let block = &message["content"][0];
    assert_eq!(
        (&message["stop_reason"], &block["type"]),
        (&json!("tool_use"), &json!("tool_use")),
        "{message}"
    );
    assert!([1, 2].map(Value::from).contains(&block["input"]["x"]));
    let result = json!({ "type": "tool_result", "tool_use_id": block["id"], "content": "3" });
    let follow = json!({ "model": MODEL, "max_tokens": 4, "messages": [
        { "role": "user", "content": "Go" }, { "role": "assistant", "content": message["content"] }, { "role": "user", "content": [result] },
    ] });
    let follow = server.client.post("/v1/messages", &follow);
    assert_eq!(follow.status, 200, "{follow:?}");
}

#[test]
fn tools_that_may_be_called_leave_the_text_free() {
    let server = Running::new();
    let answer = ask(&server, json!({ "tools": tools(), "max_tokens": 20, "ignore_eos": true }));
    assert!(answer["choices"][0]["message"]["content"].is_string(), "{answer}");
    let answer = ask(&server, json!({ "tools": tools(), "tool_choice": "none", "max_tokens": 20 }));
    assert!(answer["choices"][0]["message"]["tool_calls"].is_null(), "{answer}");
}
