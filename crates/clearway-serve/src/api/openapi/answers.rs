//! Bodies of answers and errors.

use serde_json::{Map, Value, json};

/// Schemas by name.
pub fn schemas() -> Map<String, Value> {
    let text = json!({ "type": "string" });
    let whole = json!({ "type": "integer" });
    let answer = |object: &str, choice: Value| {
        json!({
            "type": "object", "required": ["id", "object", "created", "model", "choices", "usage"],
            "properties": {
                "id": text, "object": { "const": object }, "created": whole,
                "model": text, "choices": { "type": "array", "items": choice, "minItems": 1 },
                "usage": { "$ref": "#/components/schemas/Usage" },
            },
        })
    };
    let schemas = [
        (
            "Error",
            json!({
                "type": "object", "required": ["error"], "properties": { "error": {
                    "type": "object", "required": ["message", "type", "param", "code"],
                    "properties": { "message": text, "type": text },
                } },
            }),
        ),
        (
            "AnthropicError",
            json!({
                "type": "object", "required": ["type", "error"], "properties": {
                    "type": { "const": "error" },
                    "error": { "type": "object", "required": ["type", "message"] },
                },
            }),
        ),
        (
            "Event",
            json!({
                "type": "object", "required": ["data"], "description": "One event of a stream.",
                "properties": { "data": text, "event": text },
            }),
        ),
        (
            "Health",
            json!({ "type": "object", "required": ["status"], "properties": { "status": text } }),
        ),
        (
            "Models",
            json!({
                "type": "object", "required": ["object", "data"],
                "properties": { "object": { "const": "list" }, "data": { "type": "array", "items": {
                    "type": "object", "required": ["id", "object", "created", "owned_by"],
                } } },
            }),
        ),
        (
            "Usage",
            json!({
                "type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
                "properties": { "prompt_tokens": whole, "completion_tokens": whole, "total_tokens": whole },
            }),
        ),
        (
            "ChatAnswer",
            answer(
                "chat.completion",
                json!({
                    "type": "object", "required": ["index", "message", "finish_reason"], "properties": {
                        "index": whole, "finish_reason": { "enum": ["stop", "length", "tool_calls"] },
                        "message": { "type": "object", "required": ["role", "content"] },
                    },
                }),
            ),
        ),
        (
            "CompletionAnswer",
            answer(
                "text_completion",
                json!({
                    "type": "object", "required": ["index", "text", "finish_reason"], "properties": {
                        "index": whole, "text": text, "finish_reason": { "enum": ["stop", "length"] },
                    },
                }),
            ),
        ),
        (
            "EmbeddingsAnswer",
            json!({
                "type": "object", "required": ["object", "data", "model", "usage"], "properties": {
                    "object": { "const": "list" }, "data": { "type": "array", "minItems": 1, "items": {
                        "type": "object", "required": ["object", "index", "embedding"], "properties": {
                            "object": { "const": "embedding" }, "index": whole,
                            "embedding": { "anyOf": [text, { "type": "array", "items": { "type": "number" } }] },
                        },
                    } },
                },
            }),
        ),
        (
            "ResponsesAnswer",
            json!({
                "type": "object", "required": ["id", "object", "created_at", "model", "output", "status", "usage"],
                "properties": { "object": { "const": "response" }, "status": { "enum": ["completed", "incomplete"] } },
            }),
        ),
        (
            "MessagesAnswer",
            json!({
                "type": "object",
                "required": ["id", "type", "role", "model", "content", "stop_reason", "usage"],
                "properties": {
                    "type": { "const": "message" }, "role": { "const": "assistant" },
                    "stop_reason": { "enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"] },
                },
            }),
        ),
        (
            "CountAnswer",
            json!({ "type": "object", "required": ["input_tokens"], "properties": { "input_tokens": whole } }),
        ),
        (
            "TokenizeAnswer",
            json!({
                "type": "object", "required": ["tokens", "count", "max_model_len"],
                "properties": { "tokens": { "type": "array" } },
            }),
        ),
        (
            "DetokenizeAnswer",
            json!({ "type": "object", "required": ["content", "prompt"], "properties": { "content": text } }),
        ),
        (
            "TemplateAnswer",
            json!({ "type": "object", "required": ["prompt", "count"], "properties": { "prompt": text } }),
        ),
    ];
    schemas.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}
