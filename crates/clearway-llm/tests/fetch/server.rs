//! A hub on loopback, good or bad in one way.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clearway_graph::DType;
use clearway_llm::gguf::GgufWriter;
use sha2::{Digest, Sha256};

/// What the server does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Behaviour {
    /// Nothing.
    Good,
    /// Ends every file after a third of what is asked for; knows `Range` or not. Without it, every
    /// other answer is whole.
    Breaks { ranges: bool },
    /// Sends a file with one bit flipped.
    Flips,
    /// Sends more than it announced.
    TooLong,
    /// Answers everything with this status.
    Status(u16),
    /// Describes the repository in another language.
    NotJson,
    /// Accepts a connection for a file and says nothing.
    Silent,
    /// Redirects to itself for ever.
    Redirects,
    /// Redirects every file once, to itself or to this port of this machine.
    Moves { to: Option<u16> },
    /// Tells neither length nor SHA-256 of anything, and sends this for a file.
    Unmeasured(Body),
    /// Tells a length that no disk has.
    Vast,
    /// Sends a head without end.
    EndlessHead,
    /// Describes the repository without end.
    EndlessText,
}

/// What comes without a length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Body {
    /// A model.
    Whole,
    /// A model without its last byte.
    Cut,
    /// The beginning of a model's tables.
    CutInTables,
    /// A model and then zeros, until the client has enough.
    Endless,
    /// Tables that never end.
    EndlessTables,
    /// A page that asks for a login.
    Page,
}

/// Most that is sent of what has no end, so that a client that takes all of it fails its test and not the machine.
const ENDLESS: usize = 600 << 20;

const FILES: [&str; 6] = [
    "README.md",
    "m-Q4_K_M.gguf",
    "sub/m-Q8_0.gguf",
    "m-F16-00001-of-00002.gguf",
    "m-F16-00002-of-00002.gguf",
    "mmproj-Q4_K_M.gguf",
];

pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    behaviour: Behaviour,
    stop: AtomicBool,
    log: Mutex<Vec<Request>>,
    sent: AtomicUsize,
}

/// A request as it came.
#[derive(Clone, Default)]
struct Request {
    range: Option<u64>,
    token: Option<String>,
}

impl Server {
    pub fn new(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            behaviour,
            stop: AtomicBool::new(false),
            log: Mutex::default(),
            sent: AtomicUsize::new(0),
        });
        let served = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if served.stop.load(Ordering::SeqCst) {
                    return;
                }
                let shared = served.clone();
                std::thread::spawn(move || {
                    // A client that hangs up early is no concern of the server.
                    let _ = shared.answer(stream.unwrap());
                });
            }
        });
        Self { address, shared }
    }

    pub fn address(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn content(&self, file: &str) -> Vec<u8> {
        content(file)
    }

    /// The tokens that came, request by request.
    pub fn tokens(&self) -> Vec<Option<String>> {
        self.shared.log.lock().unwrap().iter().map(|request| request.token.clone()).collect()
    }

    /// Bytes sent of what has no end.
    pub fn sent(&self) -> usize {
        self.shared.sent.load(Ordering::SeqCst)
    }

    pub fn requests(&self) -> usize {
        self.shared.log.lock().unwrap().len()
    }

    /// First bytes of the requests that asked for a part.
    pub fn ranges(&self) -> Vec<u64> {
        self.shared.log.lock().unwrap().iter().filter_map(|request| request.range).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address); // wakes the listener, which then ends
    }
}

/// Some bytes that depend on the name: large enough for several pieces.
fn content(file: &str) -> Vec<u8> {
    let seed = file.len() as u32;
    (0..400_000 + seed).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 ^ seed as u8).collect()
}

/// A model: tables, and a tensor that takes several pieces.
pub fn model() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "llama").unwrap();
    writer.set("tokenizer.ggml.tokens", &vec!["token"; 20_000]).unwrap();
    writer.tensor("t", DType::F32, &[100_001], |out| out.write_all(&[7; 400_004])).unwrap();
    let mut file = Vec::new();
    writer.write_to(&mut file).unwrap();
    file
}

impl Shared {
    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let (mut range, mut token) = (None, None);
        for line in lines {
            let line = line?;
            let (name, value) = line.split_once(": ").unwrap_or_default();
            match (name.to_ascii_lowercase().as_str(), value) {
                ("range", bytes) => {
                    let from = bytes.trim_start_matches("bytes=").trim_end_matches('-');
                    range = from.parse().ok();
                }
                ("authorization", value) => token = Some(value.to_owned()),
                _ => {}
            }
            if line.is_empty() {
                break;
            }
        }
        if path.is_empty() {
            return Ok(());
        }
        let number = {
            let mut log = self.log.lock().unwrap();
            log.push(Request { range, token });
            log.len()
        };
        if let Behaviour::Status(status) = self.behaviour {
            return send(&mut stream, &format!("{status} No"), "", &[], 0);
        }
        if self.behaviour == Behaviour::Redirects {
            let head = format!("Location: {path}\r\n");
            return send(&mut stream, "302 Found", &head, &[], 0);
        }
        if self.behaviour == Behaviour::EndlessHead {
            stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
            return self.send_for_ever(&mut stream, "X-Padding: x\r\n".repeat(1000).as_bytes());
        }
        if path == "/api/models/user/repo?blobs=true" {
            let text = match self.behaviour {
                Behaviour::NotJson => "<html>".to_owned(),
                Behaviour::Unmeasured(_) => bare_description(),
                Behaviour::Vast => description()
                    .replace(&content(FILES[1]).len().to_string(), "1152921504606846976"),
                Behaviour::EndlessText => {
                    stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
                    return self.send_for_ever(&mut stream, &[b' '; 1 << 16]);
                }
                _ => description(),
            };
            return send(&mut stream, "200 OK", "", text.as_bytes(), text.len());
        }
        if let Behaviour::Moves { to } = self.behaviour
            && !path.starts_with("/moved")
        {
            let server = to.map(|port| format!("http://127.0.0.1:{port}")).unwrap_or_default();
            let head = format!("Location: {server}/moved{path}\r\n");
            return send(&mut stream, "302 Found", &head, &[], 0);
        }
        let path = path.trim_start_matches("/moved");
        if let Behaviour::Unmeasured(body) = self.behaviour {
            return self.send_unmeasured(&mut stream, body);
        }
        match FILES.iter().find(|file| path == format!("/user/repo/resolve/0123abcd/{file}")) {
            Some(file) => self.send_file(&mut stream, content(file), range, number),
            None => send(&mut stream, "404 Not Found", "", &[], 0),
        }
    }

    fn send_file(
        &self,
        stream: &mut TcpStream,
        mut bytes: Vec<u8>,
        range: Option<u64>,
        number: usize,
    ) -> std::io::Result<()> {
        let total = bytes.len();
        match self.behaviour {
            Behaviour::Flips => bytes[total / 2] ^= 1,
            Behaviour::TooLong => bytes.push(0),
            Behaviour::Silent => {
                std::thread::sleep(Duration::from_secs(10));
                return Ok(());
            }
            _ => {}
        }
        let knows_ranges = self.behaviour != Behaviour::Breaks { ranges: false };
        match range.filter(|_| knows_ranges) {
            Some(from) => {
                let rest = &bytes[from as usize..];
                let head = format!("Content-Range: bytes {from}-{}/{total}\r\n", total - 1);
                let shown = self.shown(rest.len(), number);
                send(stream, "206 Partial Content", &head, &rest[..shown], rest.len())
            }
            None => {
                let shown = self.shown(bytes.len(), number);
                send(stream, "200 OK", "", &bytes[..shown], bytes.len())
            }
        }
    }

    /// A body that ends where the connection does.
    fn send_unmeasured(&self, stream: &mut TcpStream, body: Body) -> std::io::Result<()> {
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
        let model = model();
        match body {
            Body::Whole => stream.write_all(&model),
            // Behind the last tensor there is padding, without which a model is whole too.
            Body::Cut => stream.write_all(&model[..model.len() - 32]),
            Body::CutInTables => stream.write_all(&model[..100_000]),
            Body::Endless => {
                stream.write_all(&model)?;
                self.send_for_ever(stream, &[0; 1 << 16])
            }
            Body::EndlessTables => {
                let mut head = b"GGUF\x03\0\0\0".to_vec();
                head.extend(0_u64.to_le_bytes());
                head.extend(1_u64.to_le_bytes());
                head.extend(1_u64.to_le_bytes());
                head.extend(b"k\x08\0\0\0");
                head.extend((1_u64 << 60).to_le_bytes());
                stream.write_all(&head)?;
                self.send_for_ever(stream, &[0; 1 << 16])
            }
            Body::Page => stream.write_all("<html>please log in</html>".repeat(5000).as_bytes()),
        }
    }

    fn send_for_ever(&self, stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
        while self.sent.load(Ordering::SeqCst) < ENDLESS {
            stream.write_all(bytes)?;
            self.sent.fetch_add(bytes.len(), Ordering::SeqCst);
        }
        Ok(())
    }

    /// How many of some bytes are sent before the connection ends.
    fn shown(&self, len: usize, number: usize) -> usize {
        match self.behaviour {
            Behaviour::Breaks { ranges: true } if len > 1000 => len / 3,
            Behaviour::Breaks { ranges: false } if number < 4 => len / 3,
            _ => len,
        }
    }
}

fn send(
    stream: &mut TcpStream,
    status: &str,
    head: &str,
    body: &[u8],
    announced: usize,
) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status}\r\n{head}Content-Length: {announced}\r\n")?;
    write!(stream, "Connection: close\r\n\r\n")?;
    stream.write_all(body)?;
    stream.flush()
}

fn description() -> String {
    let siblings: Vec<_> = FILES
        .iter()
        .map(|file| {
            let bytes = content(file);
            let sha256: String =
                Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
            let size = bytes.len();
            serde_json::json!({
                "rfilename": file, "size": size, "lfs": {"sha256": sha256, "size": size},
            })
        })
        .collect();
    serde_json::json!({"id": "user/repo", "sha": "0123abcd", "siblings": siblings}).to_string()
}

fn bare_description() -> String {
    let siblings: Vec<_> =
        FILES.iter().map(|file| serde_json::json!({ "rfilename": file })).collect();
    serde_json::json!({"id": "user/repo", "sha": "0123abcd", "siblings": siblings}).to_string()
}
