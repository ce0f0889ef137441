//! Errors as clients see them.
//!
//! Before the first byte of an answer an error is a status with a body; afterwards it is an event of the stream. Both have
//! the form of the dialect that was asked: OpenAI's `{"error": {message, type, param, code}}`, or Anthropic's
//! `{"type": "error", "error": {type, message}}`.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::backend::{Failure, Refused};

/// Shorthand for results of a request.
pub type Result<T, E = ApiError> = std::result::Result<T, E>;

/// Why a request has no answer.
#[derive(Clone, Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    param: Option<String>,
    code: Option<&'static str>,
    /// Seconds after which another attempt may work.
    retry_after: Option<u64>,
    /// Facts for programs, beside the message.
    facts: Vec<(&'static str, Value)>,
}

impl ApiError {
    /// An error of this status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let (param, code, retry_after, facts) = (None, None, None, Vec::new());
        Self { status, message: message.into(), param, code, retry_after, facts }
    }

    /// A request that is wrong as it is.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A field that is wrong.
    pub fn field(name: impl Into<String>, message: impl std::fmt::Display) -> Self {
        let name = name.into();
        let message = format!("`{name}` {message}");
        Self { param: Some(name), ..Self::bad(message) }
    }

    /// A failure of ours.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// Not now, but after some seconds.
    pub fn unavailable(message: impl Into<String>, retry_after: u64) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, message);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// With a word that programs look for.
    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// With a fact for programs.
    #[must_use]
    pub fn with_fact(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.facts.push((name, value.into()));
        self
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The sentence.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// OpenAI's word for the kind of error.
    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 | 405 => "not_found_error",
            429 => "rate_limit_error",
            503 => "unavailable_error",
            504 => "timeout_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// The body, in OpenAI's form.
    pub fn openai(&self) -> Value {
        let mut error = json!({
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        });
        for (name, value) in &self.facts {
            error[*name] = value.clone();
        }
        json!({ "error": error })
    }

    /// The body, in Anthropic's form.
    pub fn anthropic(&self) -> Value {
        let kind = match self.status.as_u16() {
            413 => "request_too_large",
            503 => "overloaded_error",
            401 | 403 | 404 | 429 | 504 => self.kind(),
            400..=499 => "invalid_request_error",
            _ => "api_error",
        };
        json!({ "type": "error", "error": { "type": kind, "message": self.message }, "request_id": null })
    }

    /// The answer, in the form of a dialect.
    pub fn response(&self, dialect: Dialect) -> Response<Body> {
        let body = match dialect {
            Dialect::OpenAi => self.openai(),
            Dialect::Anthropic => self.anthropic(),
        };
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Whose form an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl Dialect {
    /// The dialect of a path.
    pub fn of(path: &str) -> Self {
        if path.starts_with("/v1/messages") { Self::Anthropic } else { Self::OpenAi }
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Full { waiting, wait } => {
                let seconds = wait.as_secs_f64().ceil().clamp(1.0, 3600.0) as u64;
                let message = format!("{waiting} requests are waiting already; try again later");
                let error =
                    Self::new(StatusCode::TOO_MANY_REQUESTS, message).with_code("queue_full");
                Self { retry_after: Some(seconds), ..error }
            }
            Refused::Closed => Self::unavailable("the server is shutting down", 5),
            Refused::TooLong { tokens, context } => {
                let message = format!(
                    "the prompt has {tokens} tokens, but the context holds {context}; shorten it or start the server \
                     with a larger --ctx-size"
                );
                Self::bad(message)
                    .with_code("context_length_exceeded")
                    .with_fact("n_prompt_tokens", tokens)
                    .with_fact("n_ctx", context)
            }
            Refused::Invalid(message) => Self::bad(message),
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Request(message) => Self::bad(message),
            Failure::Engine(message) => Self::internal(message).with_code("engine_error"),
            Failure::Lost => Self::internal("the engine has stopped").with_code("engine_error"),
            Failure::TimedOut => {
                let message = "the request took longer than the server allows (--timeout)";
                Self::new(StatusCode::GATEWAY_TIMEOUT, message).with_code("timeout")
            }
        }
    }
}
