//! A hub on loopback, good or bad in one way.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

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
}

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
    log: Mutex<Vec<(String, Option<u64>)>>,
}

impl Server {
    pub fn new(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared =
            Arc::new(Shared { behaviour, stop: AtomicBool::new(false), log: Mutex::default() });
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

    pub fn content(&self, file: &str) -> Vec<u8> {
        content(file)
    }

    pub fn requests(&self) -> usize {
        self.shared.log.lock().unwrap().len()
    }

    /// First bytes of the requests that asked for a part.
    pub fn ranges(&self) -> Vec<u64> {
        self.shared.log.lock().unwrap().iter().filter_map(|(_, range)| *range).collect()
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

impl Shared {
    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let request = lines.next().unwrap_or_else(|| Ok(String::new()))?;
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut range = None;
        for line in lines {
            let line = line?.to_ascii_lowercase();
            if let Some(from) = line.strip_prefix("range: bytes=") {
                range = from.trim_end_matches('-').parse().ok();
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
            log.push((path.clone(), range));
            log.len()
        };
        if let Behaviour::Status(status) = self.behaviour {
            return send(&mut stream, &format!("{status} No"), "", &[], 0);
        }
        if self.behaviour == Behaviour::Redirects {
            let head = format!("Location: {path}\r\n");
            return send(&mut stream, "302 Found", &head, &[], 0);
        }
        if path == "/api/models/user/repo?blobs=true" {
            let text = match self.behaviour {
                Behaviour::NotJson => "<html>".to_owned(),
                _ => description(),
            };
            return send(&mut stream, "200 OK", "", text.as_bytes(), text.len());
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
