//! A client that does what it is told, wrong things included.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Where a server is.
#[derive(Clone)]
pub struct Client {
    pub address: String,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The events of a stream: the data of each, `[DONE]` left out.
    pub fn events(&self) -> Vec<Value> {
        let data = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        let data = data.filter(|data| *data != "[DONE]");
        data.map(|data| {
            serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))
        })
        .collect()
    }

    /// The message of an error in OpenAI's form.
    pub fn error(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }
}

impl Client {
    pub fn new(address: &str) -> Self {
        Self { address: address.to_owned() }
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[], body.to_string().as_bytes())
    }

    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.open();
        self.write(&mut stream, method, path, headers, body);
        read(stream).unwrap_or_else(|| panic!("no answer to {method} {path}"))
    }

    pub fn open(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends a request and leaves the answer where it is.
    pub fn write(
        &self,
        to: &mut impl Write,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if method == "POST" {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        // A server that has refused the head reads no more.
        let _ = to.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| to.write_all(body));
    }
}

/// Reads an answer; `None` where the connection was closed instead.
pub fn read(from: impl Read) -> Option<Answer> {
    let mut from = BufReader::new(from);
    let mut line = String::new();
    from.read_line(&mut line).ok()?;
    let status = line.split(' ').nth(1)?.parse().ok()?;
    let mut headers = Vec::new();
    loop {
        line.clear();
        from.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let find = |name: &str| {
        headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    };
    let mut body = Vec::new();
    if find("transfer-encoding") == Some("chunked") {
        loop {
            line.clear();
            from.read_line(&mut line).ok()?;
            let size = usize::from_str_radix(line.trim(), 16).ok()?;
            let mut chunk = vec![0; size + 2];
            from.read_exact(&mut chunk).ok()?;
            if size == 0 {
                break;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    } else {
        let length = find("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        body.resize(length, 0);
        from.read_exact(&mut body).ok()?;
    }
    Some(Answer { status, headers, body: String::from_utf8(body).ok()? })
}
