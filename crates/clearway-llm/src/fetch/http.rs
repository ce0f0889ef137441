//! Downloads over HTTP and HTTPS.
//!
//! A thread reads from the network and hands pieces over, so that a user who wants to stop never
//! waits for a server. A connection that breaks is taken up again where it broke. Redirects are
//! followed here and not by the HTTP library, because the user's token must go along to the hub
//! itself and to nobody else. Cryptography is Rust and inline assembly (Graviola): nothing here needs
//! a C compiler.

use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ureq::Agent;
use ureq::http::{Response, header};

use super::address::Address;
use super::checked::CheckedFile;
use super::{FetchError, Watch, tls};

/// Where the hub is, unless `HF_ENDPOINT` says otherwise.
const ENDPOINT: &str = "https://huggingface.co";
/// Lets a token go over unencrypted connections.
pub(super) const TOKEN_OVER_HTTP: &str = "CLEARWAY_TOKEN_OVER_HTTP";
/// Largest answer that is held in memory, and the time it may take.
const MAX_TEXT_BYTES: usize = 16 << 20;
const MAX_TEXT_TIME: Duration = Duration::from_secs(120);
/// Most bytes of an answer's head.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Most redirects that are followed.
const MAX_REDIRECTS: usize = 10;
/// Silence after which a connection counts as broken.
const SILENCE: Duration = Duration::from_secs(60);
/// Times in a row that a connection may bring nothing.
const MAX_FRUITLESS: u32 = 5;
const CHUNK: usize = 1 << 17;

/// The hub.
pub(super) struct Client {
    endpoint: String,
    shared: Arc<Shared>,
}

/// What the reading threads need.
struct Shared {
    agent: Agent,
    hub: Address,
    token: Option<String>,
}

/// What the reading thread hands over.
enum Piece {
    /// The answer's head: where its bytes start, and how many the whole file has.
    Head {
        start: u64,
        total: Option<u64>,
    },
    Bytes(Vec<u8>),
    End,
    /// The connection broke, and trying again may help.
    Broken(String),
    Failed(FetchError),
}

impl Client {
    /// A client for this address or else `HF_ENDPOINT`, with this token or else the one in `HF_TOKEN`.
    pub fn new(endpoint: Option<&str>, token: Option<&str>) -> Result<Self, FetchError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let endpoint = endpoint.map(str::to_owned).or_else(|| variable("HF_ENDPOINT"));
        let endpoint = endpoint.unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let hub = Address::parse(&endpoint).ok_or_else(|| FetchError::Http {
            url: endpoint.clone(),
            message: "HF_ENDPOINT is an http or https address without a password".into(),
        })?;
        let token = token.map(str::to_owned).or_else(|| variable("HF_TOKEN"));
        let private = hub.is_https() || hub.is_loopback();
        let allowed = || variable(TOKEN_OVER_HTTP).is_some_and(|value| value != "0");
        if token.is_some() && !private && !allowed() {
            return Err(FetchError::TokenOverHttp { url: endpoint });
        }
        let config = Agent::config_builder()
            .user_agent(concat!("clearway/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_response_header_size(MAX_HEAD_BYTES)
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE));
        let config = match (tls::config(), hub.is_https()) {
            (Ok(tls), _) => config.tls_config(tls),
            // Only a redirect could need it.
            (Err(_), false) => config,
            (Err(error), true) => return Err(error),
        };
        let shared = Arc::new(Shared { agent: config.build().into(), hub, token });
        Ok(Self { endpoint, shared })
    }

    /// The address of a path.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint)
    }

    /// A short answer as text.
    pub fn text(&self, path: &str, watch: &mut dyn Watch) -> Result<String, FetchError> {
        let url = self.url(path);
        let failed = |message: &str| FetchError::Http { url: url.clone(), message: message.into() };
        let mut text = Vec::new();
        let end = Instant::now() + MAX_TEXT_TIME;
        let pieces = self.read(&url, 0);
        loop {
            if Instant::now() > end {
                return Err(failed("the answer takes too long"));
            }
            match next(&pieces, watch)? {
                Piece::Head { .. } => {}
                Piece::Bytes(bytes) if text.len() + bytes.len() > MAX_TEXT_BYTES => {
                    return Err(failed("the answer is too long"));
                }
                Piece::Bytes(bytes) => text.extend(bytes),
                Piece::End => return String::from_utf8(text).map_err(|_| failed("not text")),
                Piece::Broken(message) => return Err(failed(&message)),
                Piece::Failed(error) => return Err(error),
            }
        }
    }

    /// Writes a file to `out`.
    pub fn download(
        &self,
        path: &str,
        out: &mut CheckedFile,
        watch: &mut dyn Watch,
    ) -> Result<(), FetchError> {
        let url = self.url(path);
        let mut fruitless = 0;
        loop {
            let before = out.len();
            let message = match self.download_once(&url, out, watch)? {
                None => return Ok(()),
                Some(message) => message,
            };
            fruitless = if out.len() > before { 1 } else { fruitless + 1 };
            if fruitless == MAX_FRUITLESS {
                return Err(FetchError::Http { url, message });
            }
            watch.say(&format!("the connection broke ({message}); trying again"));
            let until = Instant::now() + Duration::from_millis(100 << fruitless);
            while Instant::now() < until {
                super::cache::pause(watch)?;
            }
        }
    }

    /// Reads on from where `out` ends. Returns why it is not complete, if it is not.
    fn download_once(
        &self,
        url: &str,
        out: &mut CheckedFile,
        watch: &mut dyn Watch,
    ) -> Result<Option<String>, FetchError> {
        let pieces = self.read(url, out.len());
        loop {
            match next(&pieces, watch)? {
                Piece::Head { start, total } => {
                    if start != out.len() {
                        out.restart()?;
                    }
                    out.expect(total)?;
                    watch.progress(out.len(), out.expected());
                }
                Piece::Bytes(bytes) => {
                    out.write(&bytes)?;
                    watch.progress(out.len(), out.expected());
                }
                Piece::End if out.is_short()? => return Ok(Some("it ended too early".into())),
                Piece::End => return Ok(None),
                Piece::Broken(message) => return Ok(Some(message)),
                Piece::Failed(error) => return Err(error),
            }
        }
    }

    /// Starts to read an address at byte `start`.
    fn read(&self, url: &str, start: u64) -> Receiver<Piece> {
        let (sender, receiver) = sync_channel(8);
        let (shared, url) = (self.shared.clone(), url.to_owned());
        // If the thread cannot start, the channel closes and the caller says that it broke.
        let _ = std::thread::Builder::new().name("download".into()).spawn(move || {
            // A closed channel means that nobody waits any longer.
            let _ = match shared.request(&url, start) {
                Ok(response) => pass_on(response, url, start, &sender),
                Err(piece) => sender.send(piece),
            };
        });
        receiver
    }
}

impl Shared {
    /// Asks for an address, and for those it redirects to, until one answers.
    fn request(&self, url: &str, start: u64) -> Result<Response<ureq::Body>, Piece> {
        let failed =
            |message: String| Piece::Failed(FetchError::Http { url: url.to_owned(), message });
        let mut target =
            Address::parse(url).ok_or_else(|| failed("not an http or https address".into()))?;
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.agent.get(target.as_str());
            if let Some(token) = self.token.as_ref().filter(|_| self.hub.is_server_of(&target)) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            if start > 0 {
                request = request.header(header::RANGE, format!("bytes={start}-"));
            }
            let response = request.call().map_err(|error| match error {
                ureq::Error::Io(_) | ureq::Error::Timeout(_) | ureq::Error::Protocol(_) => {
                    Piece::Broken(error.to_string())
                }
                error => failed(error.to_string()),
            })?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(response);
            }
            let location = response.headers().get(header::LOCATION);
            let location = location.and_then(|location| location.to_str().ok()).unwrap_or("");
            let next = target.join(location).ok_or_else(|| {
                failed(format!("a redirect leads to no address: `{}`", location.escape_debug()))
            })?;
            if target.is_https() && !next.is_https() {
                return Err(failed(format!("a redirect from https to {next} is refused")));
            }
            target = next;
        }
        Err(failed(format!("more than {MAX_REDIRECTS} redirects")))
    }
}

type Sent = Result<(), std::sync::mpsc::SendError<Piece>>;

/// Hands an answer over in pieces.
fn pass_on(
    mut response: Response<ureq::Body>,
    url: String,
    start: u64,
    to: &SyncSender<Piece>,
) -> Sent {
    let status = response.status().as_u16();
    let body = response.body().content_length();
    let head = match status {
        200 => Piece::Head { start: 0, total: body },
        206 => match range(&response) {
            Some((first, total)) if first == start => Piece::Head { start, total },
            _ => {
                let message = "the server sent another part than it was asked for".into();
                return to.send(Piece::Failed(FetchError::Http { url, message }));
            }
        },
        500.. => return to.send(Piece::Broken(format!("the server answered with {status}"))),
        _ => return to.send(Piece::Failed(FetchError::Status { url, status })),
    };
    to.send(head)?;
    let mut reader = response.body_mut().as_reader();
    loop {
        let mut chunk = vec![0; CHUNK];
        match reader.read(&mut chunk) {
            Ok(0) => return to.send(Piece::End),
            Ok(count) => {
                chunk.truncate(count);
                to.send(Piece::Bytes(chunk))?;
            }
            Err(error) => return to.send(Piece::Broken(error.to_string())),
        }
    }
}

fn range(response: &Response<ureq::Body>) -> Option<(u64, Option<u64>)> {
    content_range(response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?)
}

/// First byte and whole length of `Content-Range: bytes FIRST-LAST/TOTAL`.
pub(super) fn content_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, total.parse().ok()))
}

/// The next piece, or an error as soon as the user wants to stop.
fn next(pieces: &Receiver<Piece>, watch: &dyn Watch) -> Result<Piece, FetchError> {
    loop {
        if watch.stopped() {
            return Err(FetchError::Stopped);
        }
        match pieces.recv_timeout(Duration::from_millis(50)) {
            Ok(piece) => return Ok(piece),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Ok(Piece::Broken("the reading thread is gone".into()));
            }
        }
    }
}
