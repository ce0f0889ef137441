//! What the server accepts is what the document says.

use serde_json::{Map, Value, json};

use super::openapi;
use crate::api;
use crate::app::App;
use crate::config::Config;
use crate::fuzz::served;
use crate::log::LogFormat;

/// Endpoints by the numbers of [`api::prepare`].
const PATHS: [&str; 9] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/apply-template",
];

/// Valid bodies that together have every field.
fn bodies() -> Vec<(usize, Value)> {
    let parameters = json!({ "type": "object", "properties": { "a": { "enum": [1] } } });
    let function =
        json!({ "name": "f", "description": "d", "parameters": parameters, "strict": true });
    let tools = json!([{ "type": "function", "function": function }]);
    let call = json!({ "id": "c", "type": "function", "index": 0, "function": { "name": "f", "arguments": "{}" } });
    let messages = json!([
        { "role": "system", "content": "s", "name": "n" },
        { "role": "user", "content": [{ "type": "text", "text": "a", "cache_control": {} }] },
        { "role": "assistant", "content": null, "tool_calls": [call], "reasoning_content": "r" },
        { "role": "tool", "content": "t", "tool_call_id": "c" },
        { "role": "assistant", "refusal": "no" },
        { "role": "developer", "content": [{ "type": "refusal", "refusal": "b", "annotations": [] }] },
    ]);
    let sampling = json!({
        "seed": 1, "temperature": 0.5, "top_p": 0.9, "min_p": 0.1, "top_k": -1, "frequency_penalty": 0.5, "presence_penalty": -1,
        "repetition_penalty": 1.1, "repeat_penalty": 1.2, "repeat_last_n": 8, "logit_bias": { "3": -100 }, "stop": ["x"],
        "stop_token_ids": [1, 2], "ignore_eos": true, "skip_special_tokens": true, "no_stop_trim": false,
        "return_hidden_states": false, "stream": true,
    });
    let template = json!({
        "messages": messages, "tools": tools, "tool_choice": "auto", "parallel_tool_calls": false,
        "chat_template_kwargs": { "enable_thinking": true, "x": 1 }, "reasoning_effort": "low", "continue_final_message": false,
        "include_reasoning": true, "separate_reasoning": true, "stream_reasoning": true, "model": "m",
    });
    let user = json!([{ "role": "user", "content": "a" }]);
    let schema = json!({ "type": "json_schema", "json_schema": { "name": "n", "description": "d", "strict": true, "schema": parameters } });
    let blocks = json!([
        { "role": "user", "content": [{ "type": "text", "text": "a", "citations": [] }, { "type": "tool_result", "tool_use_id": "i", "is_error": false, "content": "c" }] },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "t", "signature": "s" }, { "type": "redacted_thinking", "data": "d" },
            { "type": "tool_use", "id": "i", "name": "f", "input": {}, "caller": {} },
        ] },
        { "role": "system", "content": "a" },
    ]);
    let anthropic = json!({
        "model": "m", "messages": blocks, "system": [{ "type": "text", "text": "s" }],
        "tools": [{ "type": "custom", "name": "f", "description": "d", "input_schema": parameters, "cache_control": {}, "strict": 1, "eager_input_streaming": true, "input_examples": [] }],
        "tool_choice": { "type": "tool", "name": "f", "disable_parallel_tool_use": true },
        "thinking": { "type": "enabled", "budget_tokens": 100, "display": "x" },
    });
    let format = |format: Value| json!({ "messages": user, "response_format": format });
    let structured = |wish: Value| json!({ "prompt": [1, 2], "structured_outputs": wish });
    vec![
        (
            0,
            join(&[
                &sampling,
                &template,
                &json!({
                    "max_tokens": 4, "max_completion_tokens": 4, "n": 2, "logprobs": true, "top_logprobs": 3, "stream_options": { "include_usage": true, "continuous_usage_stats": false, "include_obfuscation": false },
                    "return_token_ids": true, "modalities": ["text"], "service_tier": "auto", "store": false, "metadata": { "a": "b" },
                    "user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "unknown": null,
                }),
            ]),
        ),
        (0, format(json!({ "type": "text" }))),
        (0, format(json!({ "type": "json_object" }))),
        (0, format(schema.clone())),
        (0, format(json!({ "type": "json_schema", "name": "n", "schema": parameters }))),
        (0, format(json!({ "type": "regex", "regex": "[ab]" }))),
        (0, format(json!({ "type": "lark", "grammar": "start: \"a\"" }))),
        (
            0,
            json!({ "messages": user, "tools": tools, "tool_choice": { "type": "function", "function": { "name": "f" } } }),
        ),
        (
            1,
            join(&[
                &sampling,
                &json!({
                    "model": "m", "prompt": "a b", "max_tokens": 3, "max_completion_tokens": 3, "n": 2, "best_of": 2, "logprobs": 3, "echo": false, "suffix": "",
                    "stream_options": { "include_usage": true }, "return_token_ids": true, "user": "u",
                }),
            ]),
        ),
        (1, json!({ "prompt": ["a", [1, 2]], "echo": true })),
        (1, structured(json!({ "json": parameters }))),
        (1, structured(json!({ "regex": "[ab]", "json_object": false }))),
        (1, structured(json!({ "grammar": "start: \"a\"" }))),
        (1, structured(json!({ "choice": ["a", "b"] }))),
        (
            2,
            join(&[
                &sampling,
                &json!({
                    "model": "m", "instructions": "i", "max_output_tokens": 3, "parallel_tool_calls": true, "tool_choice": { "type": "function", "name": "f" },
                    "input": [
                        { "type": "message", "id": "i", "status": "x", "role": "user", "content": [{ "type": "input_text", "text": "a" }], "phase": 1 },
                        { "role": "developer", "content": "a" },
                        { "type": "function_call", "name": "f", "arguments": "{}", "call_id": "c", "namespace": "n" },
                        { "type": "function_call_output", "call_id": "c", "output": "o" },
                        { "type": "reasoning", "summary": [], "content": [], "encrypted_content": "e" },
                    ],
                    "tools": [{ "type": "function", "name": "f", "description": "d", "parameters": parameters, "strict": false }],
                    "reasoning": { "effort": "low", "summary": "auto", "generate_summary": "auto" },
                    "stream_options": { "include_obfuscation": false }, "metadata": { "a": "b" },
                    "store": false, "background": false, "truncation": "disabled", "service_tier": "default", "include": [], "top_logprobs": 0,
                    "user": "u", "safety_identifier": "s", "prompt_cache_key": "k",
                }),
            ]),
        ),
        (
            2,
            json!({ "input": "a", "text": { "format": { "type": "json_schema", "name": "n", "schema": parameters }, "verbosity": "medium" } }),
        ),
        (
            3,
            join(&[
                &sampling,
                &anthropic,
                &json!({ "max_tokens": 3, "stop_sequences": ["x"], "service_tier": "auto", "metadata": {} }),
            ]),
        ),
        (
            4,
            json!({ "model": "m", "input": ["a", [1, 2]], "encoding_format": "base64", "dimensions": null, "user": "u" }),
        ),
        (5, anthropic),
        (
            6,
            json!({ "model": "m", "content": "a", "add_special": true, "parse_special": false, "with_pieces": true }),
        ),
        (6, json!({ "prompt": "a", "add_special_tokens": true, "return_token_strs": true })),
        (7, json!({ "model": "m", "tokens": [1, 2] })),
        (8, template),
    ]
}

fn join(parts: &[&Value]) -> Value {
    let fields = parts.iter().filter_map(|part| part.as_object()).flatten();
    Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// Whether a value fits a schema, for the keywords that the document has. Patterns are not looked at.
fn fits(schema: &Value, value: &Value, schemas: &Value) -> bool {
    let Some(schema) = schema.as_object() else { return schema != &json!(false) };
    schema.iter().all(|(keyword, wanted)| match (keyword.as_str(), value) {
        ("$ref", _) => {
            let name = wanted.as_str().unwrap().rsplit('/').next().unwrap();
            fits(&schemas[name], value, schemas)
        }
        ("anyOf", _) => wanted.as_array().unwrap().iter().any(|one| fits(one, value, schemas)),
        ("type", _) => match wanted.as_array() {
            Some(types) => types.iter().any(|one| is(one, value)),
            None => is(wanted, value),
        },
        ("enum", _) => wanted.as_array().unwrap().contains(value),
        ("const", _) => wanted == value,
        ("minimum", Value::Number(n)) => n.as_f64() >= wanted.as_f64(),
        ("maximum", Value::Number(n)) => n.as_f64() <= wanted.as_f64(),
        ("maxLength", Value::String(text)) => {
            text.chars().count() as u64 <= wanted.as_u64().unwrap()
        }
        ("minItems", Value::Array(items)) => items.len() as u64 >= wanted.as_u64().unwrap(),
        ("maxItems", Value::Array(items)) => items.len() as u64 <= wanted.as_u64().unwrap(),
        ("maxProperties", Value::Object(map)) => map.len() as u64 <= wanted.as_u64().unwrap(),
        ("items", Value::Array(items)) => items.iter().all(|item| fits(wanted, item, schemas)),
        ("required", Value::Object(map)) => {
            wanted.as_array().unwrap().iter().all(|name| map.contains_key(name.as_str().unwrap()))
        }
        ("properties", Value::Object(map)) => map.iter().all(|(name, value)| {
            wanted.get(name).is_none_or(|schema| fits(schema, value, schemas))
        }),
        ("additionalProperties", Value::Object(map)) => {
            let known = schema.get("properties").and_then(Value::as_object);
            let known = |name: &String| known.is_some_and(|known| known.contains_key(name));
            map.iter().all(|(name, value)| known(name) || fits(wanted, value, schemas))
        }
        ("pattern", _) => true,
        ("minimum" | "maximum" | "maxLength" | "minItems" | "maxItems" | "maxProperties", _) => {
            true
        }
        ("items" | "required" | "properties" | "additionalProperties", _) => true,
        (other, _) => panic!("the keyword {other} is not looked at"),
    })
}

fn is(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type is called {other}"),
    }
}

/// Values of every type, and numbers at the limits.
fn values() -> Vec<Value> {
    vec![
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(-1),
        json!(1),
        json!(2.0),
        json!(0.5),
        json!(1e300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("a"),
        json!("none"),
        json!("auto"),
        json!("text"),
        json!("user"),
        json!("assistant"),
        json!("tool"),
        json!("x".repeat(1025)),
        json!([]),
        json!([1]),
        json!([null]),
        json!([[]]),
        json!(["a"]),
        json!(vec!["a"; 17]),
        json!({}),
        json!({ "a": null }),
        json!({ "type": "text" }),
        json!({ "type": "text", "text": "a" }),
        json!({ "type": "function", "name": "f" }),
    ]
}

/// All places in a body, as steps from its root.
fn places(value: &Value, at: &mut Vec<Step>, found: &mut Vec<Vec<Step>>) {
    found.push(at.clone());
    let inside: Vec<(Step, &Value)> = match value {
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, item)| (Step::Item(index), item)).collect()
        }
        Value::Object(map) => {
            map.iter().map(|(name, value)| (Step::Field(name.clone()), value)).collect()
        }
        _ => return,
    };
    for (step, value) in inside {
        at.push(step);
        places(value, at, found);
        at.pop();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Item(usize),
    Field(String),
}

fn find<'a>(mut value: &'a mut Value, steps: &[Step]) -> Option<&'a mut Value> {
    for step in steps {
        value = match step {
            Step::Item(index) => value.get_mut(*index)?,
            Step::Field(name) => value.get_mut(name)?,
        };
    }
    Some(value)
}

/// Bodies in which one thing is changed: each place has another value, or is gone, or has one field more.
fn changed(body: &Value) -> Vec<Value> {
    let (mut all, mut found) = (Vec::new(), Vec::new());
    places(body, &mut Vec::new(), &mut found);
    for steps in &found {
        for value in values() {
            let mut copy = body.clone();
            *find(&mut copy, steps).unwrap() = value;
            all.push(copy);
        }
        let mut more = body.clone();
        if let Some(Value::Object(map)) = find(&mut more, steps) {
            map.insert("more".to_owned(), json!(1));
            all.push(more);
        }
        let Some((last, before)) = steps.split_last() else { continue };
        let mut without = body.clone();
        match (find(&mut without, before).unwrap(), last) {
            (Value::Array(items), Step::Item(index)) => drop(items.remove(*index)),
            (Value::Object(map), Step::Field(name)) => drop::<Option<Value>>(map.remove(name)),
            _ => continue,
        }
        all.push(without);
    }
    all
}

#[test]
fn whatever_is_accepted_fits_the_document() {
    let document = openapi();
    let schemas = &document["components"]["schemas"];
    let schema = |endpoint: usize| {
        let body = &document["paths"][PATHS[endpoint]]["post"]["requestBody"];
        body["content"]["application/json"]["schema"].clone()
    };
    let app = App::new(Config { log: LogFormat::None, ..Config::default() });
    let served = served().unwrap();
    let accepts = |endpoint: usize, body: &Value| {
        api::prepare(endpoint as u8, &app, &served, body.to_string().as_bytes())
            .map_err(|error| error.message().to_owned())
    };
    let (mut accepted, mut refused) = (0, 0);
    let mut fields: Map<String, Value> = Map::new();
    for (endpoint, body) in bodies() {
        accepts(endpoint, &body).unwrap_or_else(|error| panic!("{body} is refused: {error}"));
        assert!(fits(&schema(endpoint), &body, schemas), "{body} does not fit");
        fields.extend(body.as_object().unwrap().clone());
        for body in changed(&body) {
            match accepts(endpoint, &body) {
                Err(_) => refused += 1,
                Ok(()) => {
                    accepted += 1;
                    let path = PATHS[endpoint];
                    assert!(fits(&schema(endpoint), &body, schemas), "{path} takes {body}");
                }
            }
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} accepted, {refused} refused");
    // The bodies above have every field of the document.
    for path in PATHS {
        let request = &document["paths"][path]["post"]["requestBody"];
        let name = request["content"]["application/json"]["schema"]["$ref"].as_str().unwrap();
        let schema = &schemas[name.rsplit('/').next().unwrap()];
        for (field, _) in schema["properties"].as_object().into_iter().flatten() {
            assert!(fields.contains_key(field), "no body has {field} of {path}");
        }
    }
}

#[test]
fn the_document_refuses_what_the_server_refuses_for_its_form() {
    let document = openapi();
    let schemas = &document["components"]["schemas"];
    let refused =
        |name: &str, body: Value| assert!(!fits(&schemas[name], &body, schemas), "{body}");
    refused("ChatRequest", json!({}));
    refused("ChatRequest", json!({ "messages": [] }));
    refused("ChatRequest", json!({ "messages": [{ "role": "user" }] }));
    refused(
        "ChatRequest",
        json!({ "messages": [{ "role": "user", "content": "a" }], "temperature": 3 }),
    );
    refused("CompletionRequest", json!({ "prompt": "a", "more": 1 }));
    refused(
        "MessagesRequest",
        json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 1 }),
    );
    refused("TokenizeRequest", json!({ "content": "a", "prompt": "b" }));
}
