//! `/openapi.json`: what the server takes and gives, for programs.
//!
//! | module | what it describes |
//! |---|---|
//! | `requests` | bodies of requests: whatever the server accepts, and as little else as a schema can say |
//! | `answers` | bodies of answers and errors |

mod answers;
mod requests;
#[cfg(test)]
mod tests;

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

fn schemas() -> Value {
    let mut schemas = requests::schemas();
    schemas.extend(answers::schemas());
    Value::Object(schemas)
}
