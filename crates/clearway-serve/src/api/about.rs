//! What the server says about itself.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use super::{check_model, json_response};
use crate::app::App;
use crate::error::Result;
use crate::model::Served;

/// `/health`: at once, from one atomic.
pub async fn health(State(app): State<Arc<App>>) -> Response<Body> {
    let state = app.state();
    let mut response =
        json_response(&json!({ "status": if state == "ready" { "ok" } else { state } }));
    if state != "ready" {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
    }
    response
}

/// `/metrics`
pub async fn metrics(State(app): State<Arc<App>>) -> Response<Body> {
    let served = app.loaded();
    let name = served.map_or("", |served| served.name());
    let times = served.map_or_else(Vec::new, |served| served.backend.times());
    let stats = served.map(|served| served.backend.stats());
    let text = app.metrics.text(name, app.state(), stats, &times);
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// `/slots`: what the page shows of the server.
pub async fn slots(State(app): State<Arc<App>>) -> Result<Response<Body>> {
    let served = app.served()?;
    let stats = served.backend.stats();
    Ok(json_response(&json!({
        "model": served.name(),
        "context": served.context,
        "running": stats.running,
        "waiting": stats.waiting,
        "slots": stats.slots,
        "queue": stats.queue,
        "cache_blocks": stats.blocks,
        "cache_blocks_used": stats.blocks_used,
        "block_tokens": stats.block_tokens,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "generated_tokens": stats.generated_tokens,
        "uptime_seconds": app.started.elapsed().as_secs(),
    })))
}

/// `/v1/models`
pub async fn models(State(app): State<Arc<App>>) -> Result<Response<Body>> {
    let served = app.served()?;
    let names = served.names.iter().chain(&served.adapters);
    let models: Vec<Value> = names.map(|name| about(&app, &served, name)).collect();
    Ok(json_response(&json!({ "object": "list", "data": models })))
}

/// `/v1/models/NAME`
pub async fn model(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Response<Body>> {
    let served = app.served()?;
    check_model(Some(&name), &served)?;
    Ok(json_response(&about(&app, &served, &name)))
}

/// A model, or an adapter, whose parent is its model.
fn about(app: &App, served: &Served, name: &str) -> Value {
    let is_adapter = !served.names.iter().any(|known| known == name);
    json!({
        "id": name,
        "object": "model",
        "created": app.created,
        "owned_by": "clearway",
        "root": if is_adapter { name } else { served.name() },
        "parent": is_adapter.then(|| served.name()),
        "max_model_len": served.context,
        "meta": {
            "architecture": served.facts.architecture,
            "n_vocab": served.facts.vocabulary,
            "n_ctx_train": served.facts.trained_context,
            "size": served.facts.bytes,
        },
    })
}
