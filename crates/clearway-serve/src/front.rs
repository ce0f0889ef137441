//! What stands in front of every endpoint: ids, keys, hosts and origins, panics, the log line.
//!
//! | check | why |
//! |---|---|
//! | `Host` names this machine, where only this machine can connect | a page of another site whose name suddenly means 127.0.0.1 (DNS rebinding) |
//! | `Origin` is the server's own or one that `--cors` names | a page of another site that sends requests without reading the answers |
//! | a key, where there are keys | everybody else; `/health` and the page itself need none |

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header,
};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use subtle::{Choice, ConstantTimeEq};
use tower_service::Service;

use crate::app::App;
use crate::config::Address;
use crate::error::{ApiError, Dialect};
use crate::generate::Tally;
use crate::log::Record;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Bytes of a key that are compared.
const KEY_BYTES: usize = 256;

/// The words of an error, for the log.
#[derive(Clone)]
pub struct Note(pub String);

/// Answers a request. Nothing that an endpoint does takes more down than its own request.
pub async fn answer(
    app: Arc<App>,
    mut router: Router,
    mut request: Request<Body>,
) -> Response<Body> {
    let started = Instant::now();
    app.metrics.in_flight.fetch_add(1, Relaxed);
    let headers = request.headers();
    let id = request_id(headers);
    let origin = headers.get(header::ORIGIN).cloned();
    let tally = Arc::new(Tally::default());
    let record = Record {
        id: id.clone(),
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        status: 499,
        trace: text(headers, "traceparent"),
        ..Record::default()
    };
    let mut watch =
        Watch { app: app.clone(), record, tally: tally.clone(), started, complete: false };
    let dialect = Dialect::of(request.uri().path());
    request.extensions_mut().insert(tally);
    let mut response = match check(&app, &request) {
        Err(error) => error.response(dialect),
        Ok(()) if request.method() == Method::OPTIONS => preflight(),
        Ok(()) => match Caught(pin!(router.call(request))).await {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(()) => {
                app.metrics.panics.fetch_add(1, Relaxed);
                ApiError::internal("the server failed at this request").response(dialect)
            }
        },
    };
    if let Some(Note(note)) = response.extensions_mut().remove() {
        watch.record.error = Some(note);
    }
    watch.record.status = response.status().as_u16();
    app.metrics.answered(watch.record.status);
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(origin) = origin.filter(|origin| allows_origin(&app, origin)) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        headers.insert(
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("x-request-id, retry-after"),
        );
    }
    response.map(|body| Body::new(Watched { body, watch }))
}

/// Whether a request may go on.
fn check(app: &App, request: &Request<Body>) -> Result<(), ApiError> {
    let forbidden = |message: String| ApiError::new(StatusCode::FORBIDDEN, message);
    let headers = request.headers();
    // A name in the request line counts before the header.
    let host = request.uri().authority().map(|authority| authority.to_string());
    let host = host.or_else(|| text(headers, header::HOST.as_str()));
    if let Address::Tcp { host: listens, .. } = &app.config.address
        && listens.is_loopback()
        && !host.as_deref().is_some_and(|host| is_local_name(host, &app.config.hosts))
    {
        let message = "this server answers to localhost only; --allow-host adds another name";
        return Err(forbidden(message.into()).with_code("host"));
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let own = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        let same = own.is_some_and(|(_, own)| Some(own) == host.as_deref());
        if !same && !allows_origin(app, origin) {
            let message =
                "pages of this origin may not use this server; --cors names those that may";
            return Err(forbidden(message.into()).with_code("origin"));
        }
    }
    let path = request.uri().path();
    let open =
        matches!(path, "/" | "/health" | "/v1/health") || request.method() == Method::OPTIONS;
    if app.config.keys.is_empty() || open {
        return Ok(());
    }
    let bearer = text(headers, header::AUTHORIZATION.as_str());
    let bearer = bearer.as_deref().and_then(|value| value.split_once(' '));
    let bearer = bearer
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, key)| key.trim());
    let given = bearer.map(str::to_owned).or_else(|| text(headers, API_KEY.as_str()));
    let fits = match &given {
        None => false,
        Some(given) => {
            let fits = |known: &String| is_key(known.as_bytes(), given.as_bytes());
            // All keys are compared, so that the time does not say which.
            app.config.keys.iter().map(fits).fold(Choice::from(0), |any, one| any | one).into()
        }
    };
    match (fits, given) {
        (true, _) => Ok(()),
        (false, Some(_)) => Err(ApiError::new(StatusCode::UNAUTHORIZED, "this key is not valid")
            .with_code("invalid_api_key")),
        (false, None) => {
            let message = "a key is needed: Authorization: Bearer KEY, or X-Api-Key";
            Err(ApiError::new(StatusCode::UNAUTHORIZED, message).with_code("missing_api_key"))
        }
    }
}

/// Compares keys in a time that depends on neither.
fn is_key(known: &[u8], given: &[u8]) -> Choice {
    let padded = |key: &[u8]| {
        let mut padded = [0_u8; KEY_BYTES];
        padded.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
        padded
    };
    let same_length = (known.len() as u64).ct_eq(&(given.len() as u64));
    let short = Choice::from(u8::from(given.len() <= KEY_BYTES));
    padded(known).ct_eq(&padded(given)) & same_length & short
}

/// Whether a name is one of this machine's own.
fn is_local_name(host: &str, more: &[String]) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.trim_end_matches('.');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        || more.iter().any(|known| known.eq_ignore_ascii_case(name))
}

fn allows_origin(app: &App, origin: &HeaderValue) -> bool {
    let allowed = |known: &String| known == "*" || known.as_bytes() == origin.as_bytes();
    app.config.origins.iter().any(allowed)
}

fn preflight() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, OPTIONS"),
        (
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            "authorization, content-type, x-api-key, x-request-id, anthropic-version, anthropic-beta",
        ),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The client's id where it is a plain one, or a new one.
fn request_id(headers: &HeaderMap) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    let given = text(headers, REQUEST_ID.as_str());
    let given = given.filter(|id| !id.is_empty() && id.len() <= 128 && id.chars().all(plain));
    given.unwrap_or_else(|| format!("req_{:016x}", crate::sampling::random()))
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// A future whose panics are errors.
pub struct Caught<F>(pub F);

impl<F: Future + Unpin> Future for Caught<F> {
    type Output = Result<F::Output, ()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let inner = Pin::new(&mut self.0);
        match catch_unwind(AssertUnwindSafe(|| inner.poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(_) => Poll::Ready(Err(())),
        }
    }
}

/// A request until its last byte is written, or its client is gone.
struct Watch {
    app: Arc<App>,
    record: Record,
    tally: Arc<Tally>,
    started: Instant,
    complete: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.app.metrics.in_flight.fetch_sub(1, Relaxed);
        let tally = &self.tally;
        let record = &mut self.record;
        if !self.complete {
            record.status = 499;
            record.error = Some("the client went away".into());
        }
        let late = tally.error.lock().map_or(None, |mut error| error.take());
        record.error = record.error.take().or(late);
        record.ms = self.started.elapsed().as_secs_f64() * 1e3;
        record.prompt_tokens = tally.prompt.load(Relaxed);
        record.cached_tokens = tally.cached.load(Relaxed);
        record.tokens = tally.tokens.load(Relaxed);
        let first = tally.first.load(Relaxed);
        record.first_token_ms = (first > 0).then(|| first as f64 / 1e3);
        let quiet =
            matches!(record.path.as_str(), "/health" | "/v1/health" | "/metrics" | "/slots");
        if !quiet || record.status >= 400 {
            self.app.log.write(record);
        }
    }
}

/// A body that knows when it is done.
struct Watched {
    body: Body,
    watch: Watch,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.watch.complete = true;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_the_whole_key_fits() {
        let fits =
            |known: &str, given: &str| bool::from(is_key(known.as_bytes(), given.as_bytes()));
        assert!(fits("secret", "secret"));
        let long = "k".repeat(KEY_BYTES);
        assert!(fits(&long, &long));
        for wrong in ["", "s", "secre", "secret\0", "secrets", "Secret", " secret"] {
            assert!(!fits("secret", wrong), "{wrong:?}");
        }
        assert!(!fits(&long, &format!("{long}x")), "what is not compared does not count as equal");
    }

    #[test]
    fn the_time_of_a_comparison_tells_nothing_of_the_key() {
        let key = "k".repeat(KEY_BYTES);
        let with = |at: usize| {
            let mut wrong = key.clone().into_bytes();
            wrong[at] = b'x';
            wrong
        };
        let prefix = |length: usize| key.as_bytes()[..length].to_vec();
        // Wrong at the beginning and at the end, too short, and right.
        let given =
            [with(0), with(KEY_BYTES - 1), prefix(1), prefix(KEY_BYTES - 1), prefix(KEY_BYTES)];
        let mut fastest = [Duration::MAX; 5];
        for _ in 0..200 {
            for (given, fastest) in given.iter().zip(&mut fastest) {
                let started = Instant::now();
                for _ in 0..1000 {
                    let known = std::hint::black_box(key.as_bytes());
                    std::hint::black_box(is_key(known, std::hint::black_box(given)));
                }
                *fastest = started.elapsed().min(*fastest);
            }
        }
        // A comparison that ends early takes a fraction of one that does not.
        let (least, most) = (fastest.iter().min().unwrap(), fastest.iter().max().unwrap());
        assert!(*most < *least * 2, "{fastest:?}");
    }

    #[test]
    fn names_of_this_machine() {
        let more = ["box.example".to_owned()];
        for name in [
            "localhost",
            "LOCALHOST:80",
            "localhost.",
            "127.0.0.1:8080",
            "127.9.9.9",
            "[::1]:1",
            "[::1]",
            "box.example:1",
        ] {
            assert!(is_local_name(name, &more), "{name}");
        }
        for name in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.nip.io:80",
            "10.0.0.1",
            "[::2]",
        ] {
            assert!(!is_local_name(name, &more), "{name}");
        }
    }
}
