//! One line for each request, on a thread of its own: a reader that does not read costs lines and never time.

use std::io::Write;
use std::sync::mpsc::{SyncSender, sync_channel};

use serde_json::{Value, json};

/// Lines that may wait to be written.
const WAITING: usize = 4096;

/// How lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Words and numbers.
    #[default]
    Text,
    /// An object a line.
    Json,
    /// Nothing.
    None,
}

/// What is said about a request.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Its id.
    pub id: String,
    /// The method.
    pub method: String,
    /// The path, without its query.
    pub path: String,
    /// The status; 499 where the client went away.
    pub status: u16,
    /// Milliseconds that it took.
    pub ms: f64,
    /// Milliseconds to the first token.
    pub first_token_ms: Option<f64>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were cached.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub tokens: usize,
    /// `traceparent` of the request.
    pub trace: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
}

/// Where lines go.
#[derive(Clone, Debug)]
pub struct Log {
    format: LogFormat,
    lines: Option<SyncSender<String>>,
}

impl Log {
    /// Lines to standard error.
    pub fn new(format: LogFormat) -> Self {
        let (sender, lines) = sync_channel::<String>(WAITING);
        let write = move || {
            for line in lines {
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
        };
        let thread = std::thread::Builder::new().name("log".into());
        let started = format != LogFormat::None && thread.spawn(write).is_ok();
        Self { format, lines: started.then_some(sender) }
    }

    /// Writes a line, or loses it where too many wait.
    pub fn write(&self, record: &Record) {
        let Some(lines) = &self.lines else { return };
        let line = match self.format {
            LogFormat::None => return,
            LogFormat::Text => text(record),
            LogFormat::Json => object(record).to_string(),
        };
        let _ = lines.try_send(line + "\n");
    }
}

fn text(record: &Record) -> String {
    let Record { id, method, path, status, ms, first_token_ms, .. } = record;
    let mut line =
        format!("{} {status} {method} {} {ms:.1} ms", crate::clock::stamp(), clean(path));
    if record.prompt_tokens > 0 {
        let Record { prompt_tokens, cached_tokens, tokens, .. } = record;
        line +=
            &format!(", {prompt_tokens} tokens read ({cached_tokens} cached), {tokens} written");
    }
    if let Some(first) = first_token_ms {
        line += &format!(", first after {first:.1} ms");
    }
    if let Some(error) = &record.error {
        line += &format!(", {}", clean(error));
    }
    line + &format!(" [{}]", clean(id))
}

fn object(record: &Record) -> Value {
    json!({
        "time": crate::clock::stamp(),
        "id": clean(&record.id),
        "method": record.method,
        "path": clean(&record.path),
        "status": record.status,
        "ms": (record.ms * 10.0).round() / 10.0,
        "first_token_ms": record.first_token_ms,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "tokens": record.tokens,
        "traceparent": record.trace,
        "error": record.error,
    })
}

/// Text that commands no terminal and stays on its line.
fn clean(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().collect() } else { c.to_string() };
    text.chars().take(300).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line_whatever_it_says() {
        let record = Record {
            path: "/a\nb\u{1b}[2J".into(),
            id: "x\ny".into(),
            status: 400,
            error: Some("line\nbreak".into()),
            ..Record::default()
        };
        for line in [text(&record), object(&record).to_string()] {
            assert!(!line.contains(['\n', '\u{1b}']), "{line}");
            assert!(line.contains("400"), "{line}");
        }
    }
}
