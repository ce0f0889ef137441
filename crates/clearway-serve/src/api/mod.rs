//! The endpoints.
//!
//! | module | endpoints |
//! |---|---|
//! | `chat` | `/v1/chat/completions` |
//! | `completions` | `/v1/completions` |
//! | `responses` | `/v1/responses` |
//! | `embeddings` | `/v1/embeddings` |
//! | `messages` | `/v1/messages`, `/v1/messages/count_tokens` |
//! | `text` | `/tokenize`, `/detokenize`, `/apply-template` |
//! | `openapi` | `/openapi.json` |
//! | `page` | `/` |
//! | `about` | `/health`, `/v1/models`, `/metrics`, `/slots` |

mod about;
mod chat;
mod completions;
mod embeddings;
mod messages;
mod openapi;
mod page;
mod responses;
mod text;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use bytes::Bytes;
use http_body::Frame;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::app::App;
use crate::error::{ApiError, Dialect, Result};
use crate::front::{Caught, Note};
use crate::generate::{Tally, send};
use crate::model::Served;

/// A client has so long to send its body.
const BODY_TIME: Duration = Duration::from_secs(60);
/// Pieces of a stream that may wait for a slow reader, before its text waits, too.
const FRAMES: usize = 64;

/// All endpoints.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(page::page))
        .route("/health", get(about::health))
        .route("/v1/health", get(about::health))
        .route("/metrics", get(about::metrics))
        .route("/slots", get(about::slots))
        .route("/v1/models", get(about::models))
        .route("/v1/models/{*name}", get(about::model))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count))
        .route("/tokenize", post(text::tokenize))
        .route("/detokenize", post(text::detokenize))
        .route("/apply-template", post(text::apply_template))
        .route("/openapi.json", get(openapi::document))
        .fallback(missing)
        .method_not_allowed_fallback(wrong_method)
        .with_state(app)
}

async fn missing() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "there is no such endpoint; /openapi.json lists all")
}

async fn wrong_method() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this endpoint does not take this method")
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        respond(&self, Dialect::OpenAi)
    }
}

/// An error as an answer, with its words for the log.
fn respond(error: &ApiError, dialect: Dialect) -> Response<Body> {
    let mut response = error.response(dialect);
    response.extensions_mut().insert(Note(error.message().to_owned()));
    response
}

/// A request with its whole body.
pub struct Call {
    /// What all requests share.
    pub app: Arc<App>,
    /// The model.
    pub served: Arc<Served>,
    /// What the request takes.
    pub tally: Arc<Tally>,
    /// The body.
    pub body: Bytes,
}

impl FromRequest<Arc<App>> for Call {
    type Rejection = Response<Body>;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Response<Body>> {
        let dialect = Dialect::of(request.uri().path());
        Self::read(request, app).await.map_err(|error| respond(&error, dialect))
    }
}

impl Call {
    async fn read(request: Request, app: &Arc<App>) -> Result<Self> {
        let served = app.served()?;
        let tally = request.extensions().get::<Arc<Tally>>().cloned().unwrap_or_default();
        let limit = app.config.max_body;
        let too_large = || {
            let message = format!("the body is larger than {limit} bytes");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > limit) {
            return Err(too_large());
        }
        // A body of unknown length may become as large as any.
        let _room = app.reserve(length.unwrap_or(limit.min(1 << 20)))?;
        let body = to_bytes(request.into_body(), limit);
        match tokio::time::timeout(BODY_TIME, body).await {
            Ok(Ok(body)) => Ok(Self { app: app.clone(), served, tally, body }),
            Ok(Err(error)) => {
                let full = error.into_inner();
                match full.is::<http_body_util::LengthLimitError>() {
                    true => Err(too_large()),
                    false => Err(ApiError::bad("the body could not be read")),
                }
            }
            Err(_) => {
                let message = "the body did not come in time";
                Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message))
            }
        }
    }
}

/// Prepares a request as its endpoint does, and drops what it starts.
///
/// # Errors
/// What the endpoint refuses.
#[cfg(any(test, feature = "testkit"))]
pub fn prepare(endpoint: u8, app: &App, served: &Served, body: &[u8]) -> Result<()> {
    let tally = Tally::default();
    match endpoint % 9 {
        0 => chat::prepare(app, served, &tally, body).map(drop),
        1 => completions::prepare(app, served, &tally, body).map(drop),
        2 => responses::prepare(app, served, &tally, body).map(drop),
        3 => messages::prepare(app, served, &tally, body).map(drop),
        4 => embeddings::prepare(served, &tally, body).map(drop),
        5 => messages::counted(served, body).map(drop),
        6 => text::tokenized(served, body).map(drop),
        7 => text::detokenized(served, body).map(drop),
        _ => text::templated(served, body).map(drop),
    }
}

/// Does what takes a while, such as tokenizing, where it keeps nobody waiting.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ApiError::internal("the server failed at this request")))
}

/// An answer of JSON.
fn json_response(value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// An event of a stream.
fn event(data: &Value) -> Bytes {
    Bytes::from(format!("data: {data}\n\n"))
}

/// An answer that comes in pieces. `write` sends them; it is given up when the client goes away. An error is the last piece,
/// in the form of the dialect.
fn stream<F>(
    tally: Arc<Tally>,
    dialect: Dialect,
    write: impl FnOnce(mpsc::Sender<Bytes>) -> F,
) -> Response<Body>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let (sender, frames) = mpsc::channel(FRAMES);
    let writing = write(sender.clone());
    tokio::spawn(async move {
        let done = tokio::select! {
            () = sender.closed() => return,
            done = Caught(Box::pin(writing)) => done,
        };
        let error = match done {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(()) => ApiError::internal("the server failed at this request"),
        };
        if let Ok(mut note) = tally.error.lock() {
            *note = Some(error.message().to_owned());
        }
        let last = match dialect {
            Dialect::OpenAi => event(&error.openai()),
            Dialect::Anthropic => {
                Bytes::from(format!("event: error\ndata: {}\n\n", error.anthropic()))
            }
        };
        let _ = send(&sender, last).await;
    });
    let mut response = Response::new(Body::new(Frames(frames)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies are told to pass pieces on as they come.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Pieces of a stream as a body.
struct Frames(mpsc::Receiver<Bytes>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let received = pin!(&mut self.0).poll_recv(context);
        received.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// The adapter that a request names in place of a model; `None` for the model itself.
///
/// # Errors
/// Nothing of this name is served.
fn check_model(name: Option<&str>, served: &Served) -> Result<Option<u32>> {
    let Some(name) = name else { return Ok(None) };
    if served.names.iter().any(|known| known == name) {
        return Ok(None);
    }
    if let Some(adapter) = served.adapters.iter().position(|known| known == name) {
        return Ok(Some(adapter as u32));
    }
    let known: Vec<&str> = served.names.iter().chain(&served.adapters).map(|one| &**one).collect();
    let message = format!("there is no model `{name}`; served are: {}", known.join(", "));
    Err(ApiError::new(StatusCode::NOT_FOUND, message).with_code("model_not_found"))
}

/// Counts in OpenAI's form.
fn usage(tally: &Tally) -> Value {
    use std::sync::atomic::Ordering::Relaxed;
    let (prompt, tokens) = (tally.prompt.load(Relaxed), tally.tokens.load(Relaxed));
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
        "prompt_tokens_details": { "cached_tokens": tally.cached.load(Relaxed) },
    })
}

/// An id that begins with these letters.
fn new_id(prefix: &str) -> String {
    let [a, b] = [crate::sampling::random(), crate::sampling::random()];
    format!("{prefix}{a:016x}{:08x}", b as u32)
}
