//! `/openapi.json`: what the server takes and gives, for programs.

use axum::body::Body;
use axum::http::Response;
use serde_json::{Value, json};

use super::json_response;

/// The document.
pub async fn document() -> Response<Body> {
    json_response(&openapi())
}

/// The document as JSON.
pub fn openapi() -> Value {
    let reference = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let of_json = |schema: Value| json!({ "application/json": { "schema": schema } });
    let errors = |codes: &[u16], schema: &str| -> serde_json::Map<String, Value> {
        let error = json!({ "description": "An error.", "content": of_json(reference(schema)) });
        codes.iter().map(|code| (code.to_string(), error.clone())).collect()
    };
    let get = |summary: &str, content: Value| {
        let mut responses = errors(&[401, 403, 404, 503], "Error");
        responses.insert("200".into(), json!({ "description": "The answer.", "content": content }));
        json!({ "get": { "summary": summary, "responses": responses } })
    };
    let post = |summary: &str, request: &str, answer: &str, streams: bool| {
        let error = if summary.contains("Anthropic") { "AnthropicError" } else { "Error" };
        let mut responses = errors(&[400, 401, 403, 404, 408, 413, 429, 500, 503, 504], error);
        let mut content = of_json(reference(answer));
        if streams {
            content["text/event-stream"] = json!({ "schema": reference("Event") });
        }
        responses.insert("200".into(), json!({ "description": "The answer.", "content": content }));
        let body = json!({ "required": true, "content": of_json(reference(request)) });
        json!({ "post": { "summary": summary, "requestBody": body, "responses": responses } })
    };
    let text = json!({ "text/plain": { "schema": { "type": "string" } } });
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Clearway", "version": env!("CARGO_PKG_VERSION"), "license": { "name": "MIT OR Apache-2.0" },
            "description": "Fields that are not listed are refused with 400.",
        },
        "security": [{}, { "key": [] }],
        "paths": {
            "/health": get("Whether requests are taken.", of_json(reference("Health"))),
            "/metrics": get("Numbers for Prometheus.", text),
            "/slots": get("What the server does now.", of_json(json!({ "type": "object" }))),
            "/v1/models": get("The models.", of_json(reference("Models"))),
            "/v1/chat/completions": post("A conversation goes on.", "ChatRequest", "ChatAnswer", true),
            "/v1/completions": post("A text goes on.", "CompletionRequest", "CompletionAnswer", true),
            "/v1/embeddings": post("Texts to vectors.", "EmbeddingsRequest", "EmbeddingsAnswer", false),
            "/v1/responses": post("A conversation goes on, in the form of the Responses API.", "ResponsesRequest", "ResponsesAnswer", true),
            "/v1/messages": post("A conversation goes on, in Anthropic's form.", "MessagesRequest", "MessagesAnswer", true),
            "/v1/messages/count_tokens": post("Tokens of a conversation in Anthropic's form.", "CountRequest", "CountAnswer", false),
            "/tokenize": post("Text to tokens.", "TokenizeRequest", "TokenizeAnswer", false),
            "/detokenize": post("Tokens to text.", "DetokenizeRequest", "DetokenizeAnswer", false),
            "/apply-template": post("A conversation to its prompt.", "TemplateRequest", "TemplateAnswer", false),
        },
        "components": {
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas(),
        },
    })
}

/// A value that may be `null`, which counts as absent.
fn or_null(schema: Value) -> Value {
    json!({ "anyOf": [schema, { "type": "null" }] })
}

fn schemas() -> Value {
    let number =
        |low: f64, high: f64| or_null(json!({ "type": "number", "minimum": low, "maximum": high }));
    let int = |low: i64, high: i64| {
        or_null(json!({ "type": "integer", "minimum": low, "maximum": high }))
    };
    let flag = || or_null(json!({ "type": "boolean" }));
    let string = || json!({ "type": "string" });
    let texts = || json!({ "type": "array", "items": { "type": "string" }, "maxItems": 16 });
    let count = || int(1, i64::from(u32::MAX));
    let stop = || {
        or_null(
            json!({ "anyOf": [{ "type": "string", "maxLength": 1024 }, { "type": "array", "items": { "type": "string", "maxLength": 1024 }, "maxItems": 16 }] }),
        )
    };
    let tokens = || json!({ "type": "array", "items": { "type": "integer", "minimum": 0 } });
    let sampling = [
        ("seed", or_null(json!({ "type": "integer", "minimum": i64::MIN, "maximum": i64::MAX }))),
        ("temperature", number(0.0, 2.0)),
        ("top_p", number(0.0, 1.0)),
        ("min_p", number(0.0, 1.0)),
        ("top_k", int(-1, i64::from(u32::MAX))),
        ("frequency_penalty", number(-2.0, 2.0)),
        ("presence_penalty", number(-2.0, 2.0)),
        ("repetition_penalty", number(0.01, 100.0)),
        ("repeat_last_n", int(-1, i64::from(u32::MAX))),
        (
            "logit_bias",
            or_null(
                json!({ "type": "object", "additionalProperties": { "type": "number", "minimum": -100, "maximum": 100 } }),
            ),
        ),
        ("ignore_eos", flag()),
    ];
    let token_ids =
        json!({ "type": "array", "items": { "type": "integer", "minimum": 0 }, "minItems": 1 });
    // A field that is not known may be null, as clients send what they do not use.
    let object = |required: &[&str], fields: Vec<(&str, Value)>| {
        let properties: serde_json::Map<String, Value> =
            fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
        json!({ "type": "object", "required": required, "properties": properties, "additionalProperties": { "type": "null" } })
    };
    let request = |required: &[&str], own: Vec<(&'static str, Value)>| {
        let mut fields: Vec<(&str, Value)> = sampling.to_vec();
        fields.push(("stream", flag()));
        fields.extend(own);
        object(required, fields)
    };
    let model = || or_null(string());
    let message = object(
        &["role", "content"],
        vec![
            ("role", json!({ "enum": ["system", "developer", "user", "assistant"] })),
            ("content", string()),
            ("name", or_null(string())),
        ],
    );
    let messages = || json!({ "type": "array", "items": { "$ref": "#/components/schemas/Message" }, "minItems": 1 });
    let turn = object(
        &["role", "content"],
        vec![("role", json!({ "enum": ["user", "assistant"] })), ("content", string())],
    );
    let turns = || json!({ "type": "array", "items": { "$ref": "#/components/schemas/Turn" }, "minItems": 1 });
    let usage = json!({
        "type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
        "properties": { "prompt_tokens": { "type": "integer" }, "completion_tokens": { "type": "integer" }, "total_tokens": { "type": "integer" } },
    });
    let answer = |object: &str, choice: Value| {
        json!({
            "type": "object", "required": ["id", "object", "created", "model", "choices", "usage"],
            "properties": {
                "id": { "type": "string" }, "object": { "const": object }, "created": { "type": "integer" },
                "model": { "type": "string" }, "choices": { "type": "array", "items": choice, "minItems": 1 },
                "usage": { "$ref": "#/components/schemas/Usage" },
            },
        })
    };
    let tool = json!({
        "type": "object", "required": ["type", "function"], "additionalProperties": { "type": "null" },
        "properties": { "type": { "const": "function" }, "function": {
            "type": "object", "required": ["name"], "additionalProperties": { "type": "null" }, "properties": {
                "name": { "type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$" }, "description": or_null(string()),
                "strict": flag(),
            },
        } },
    });
    json!({
        "Error": {
            "type": "object", "required": ["error"], "properties": { "error": {
                "type": "object", "required": ["message", "type", "param", "code"],
                "properties": { "message": { "type": "string" }, "type": { "type": "string" } },
            } },
        },
        "AnthropicError": {
            "type": "object", "required": ["type", "error"], "properties": {
                "type": { "const": "error" },
                "error": { "type": "object", "required": ["type", "message"] },
            },
        },
        "Event": {
            "type": "object", "required": ["data"], "description": "One event of a stream.",
            "properties": { "data": { "type": "string" }, "event": { "type": "string" } },
        },
        "Health": { "type": "object", "required": ["status"], "properties": { "status": { "type": "string" } } },
        "Models": {
            "type": "object", "required": ["object", "data"],
            "properties": { "object": { "const": "list" }, "data": { "type": "array", "items": {
                "type": "object", "required": ["id", "object", "created", "owned_by"],
            } } },
        },
        "Usage": usage,
        "Message": message,
        "Turn": turn,
        "Tool": tool,
        "ChatRequest": request(&["messages"], vec![
            ("model", model()), ("messages", messages()), ("stop", stop()), ("n", int(1, 128)),
            ("max_tokens", count()), ("logprobs", flag()), ("user", or_null(string())),
            ("response_format", or_null(json!({
                "type": "object", "required": ["type"], "additionalProperties": { "type": "null" },
                "properties": { "type": { "enum": ["text", "json_object"] } },
            }))),
        ]),
        "ChatAnswer": answer("chat.completion", json!({
            "type": "object", "required": ["index", "message", "finish_reason"], "properties": {
                "index": { "type": "integer" }, "finish_reason": { "enum": ["stop", "length", "tool_calls"] },
                "message": { "type": "object", "required": ["role", "content"] },
            },
        })),
        "CompletionRequest": request(&["prompt"], vec![
            ("model", model()),
            ("prompt", json!({ "anyOf": [{ "type": "string", "minLength": 1 }, { "type": "array", "items": { "anyOf": [{ "type": "string", "minLength": 1 }, token_ids] }, "minItems": 1, "maxItems": 2048 }, token_ids] })),
            ("stop", stop()), ("n", int(1, 128)), ("max_tokens", count()), ("logprobs", int(0, 20)), ("echo", flag()),
            ("user", or_null(string())),
        ]),
        "CompletionAnswer": answer("text_completion", json!({
            "type": "object", "required": ["index", "text", "finish_reason"], "properties": {
                "index": { "type": "integer" }, "text": { "type": "string" }, "finish_reason": { "enum": ["stop", "length"] },
            },
        })),
        "EmbeddingsRequest": object(&["input"], vec![
            ("model", model()),
            ("input", json!({ "anyOf": [
                { "type": "string", "minLength": 1 },
                { "type": "array", "items": { "type": "string", "minLength": 1 }, "minItems": 1, "maxItems": 2048 },
            ] })),
            ("encoding_format", or_null(json!({ "enum": ["float", "base64"] }))),
            ("dimensions", count()), ("user", or_null(string())),
        ]),
        "EmbeddingsAnswer": {
            "type": "object", "required": ["object", "data", "model", "usage"], "properties": {
                "object": { "const": "list" }, "data": { "type": "array", "minItems": 1, "items": {
                    "type": "object", "required": ["object", "index", "embedding"], "properties": {
                        "object": { "const": "embedding" }, "index": { "type": "integer" },
                        "embedding": { "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "number" } }] },
                    },
                } },
            },
        },
        "ResponsesRequest": request(&["input"], vec![
            ("model", model()),
            ("input", json!({ "anyOf": [{ "type": "string" }, messages()] })),
            ("instructions", or_null(string())), ("max_output_tokens", count()), ("store", or_null(json!({ "const": false }))),
        ]),
        "ResponsesAnswer": {
            "type": "object", "required": ["id", "object", "created_at", "model", "output", "status", "usage"],
            "properties": { "object": { "const": "response" }, "status": { "enum": ["completed", "incomplete"] } },
        },
        "MessagesRequest": request(&["model", "messages", "max_tokens"], vec![
            ("model", string()), ("messages", turns()), ("system", or_null(string())),
            ("max_tokens", json!({ "type": "integer", "minimum": 1, "maximum": u32::MAX })),
            ("stop_sequences", or_null(texts())),
        ]),
        "MessagesAnswer": {
            "type": "object", "required": ["id", "type", "role", "model", "content", "stop_reason", "usage"],
            "properties": {
                "type": { "const": "message" }, "role": { "const": "assistant" },
                "stop_reason": { "enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"] },
            },
        },
        "CountRequest": object(&["messages"], vec![("model", model()), ("messages", turns()), ("system", or_null(string()))]),
        "CountAnswer": { "type": "object", "required": ["input_tokens"], "properties": { "input_tokens": { "type": "integer" } } },
        "TokenizeRequest": object(&["content"], vec![
            ("model", model()), ("content", string()), ("add_special", flag()), ("parse_special", flag()), ("with_pieces", flag()),
        ]),
        "TokenizeAnswer": {
            "type": "object", "required": ["tokens", "count", "max_model_len"], "properties": { "tokens": { "type": "array" } },
        },
        "DetokenizeRequest": object(&["tokens"], vec![("model", model()), ("tokens", tokens())]),
        "DetokenizeAnswer": {
            "type": "object", "required": ["content", "prompt"], "properties": { "content": { "type": "string" } },
        },
        "TemplateRequest": object(&["messages"], vec![("model", model()), ("messages", messages())]),
        "TemplateAnswer": {
            "type": "object", "required": ["prompt", "count"], "properties": { "prompt": { "type": "string" } },
        },
    })
}
