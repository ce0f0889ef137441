//! Everything the command prints.
//!
//! [`say!`] writes to standard output, [`note!`] to standard error. Neither panics: a reader that has gone away is the
//! error [`Closed`], which ends the command quietly with status 0, as `| head` is meant; notes that nobody reads are
//! lost. What comes from files, such as names and metadata, may hold sequences that command a terminal: both write
//! [`clean`] text. Styles are put on text that is clean already.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use anyhow::Result;
use clearway_llm::output;
use console::Style;

/// Writes a line to standard output.
macro_rules! say {
    ($($text:tt)*) => { $crate::out::line(&format!($($text)*)) };
}

/// Writes a line to standard error.
macro_rules! note {
    ($($text:tt)*) => { $crate::out::note_line(&format!($($text)*)) };
}

pub(crate) use {note, say};

/// The reader of the output has gone away.
#[derive(Debug)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads the output")
    }
}

impl std::error::Error for Closed {}

/// Writes a line to standard output.
pub fn line(text: &str) -> Result<()> {
    print(&format!("{}\n", clean(text)))
}

/// Writes several lines, which end with a line end, to standard output.
pub fn text(text: &str) -> Result<()> {
    print(&clean(text))
}

/// Writes a heading to standard output.
pub fn heading(text: &str) -> Result<()> {
    print(&format!("{}\n", Style::new().bold().apply_to(clean(text))))
}

/// Writes one object, or one array, and a line end to standard output.
pub fn json(value: &serde_json::Value) -> Result<()> {
    json_text(&serde_json::to_string_pretty(value)?)
}

/// Writes JSON and a line end to standard output. JSON escapes some control characters by itself; the others can only
/// stand in strings and are escaped here.
pub fn json_text(text: &str) -> Result<()> {
    let mut shown = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        match is_harmful(c) {
            true => write!(shown, "\\u{:04x}", u32::from(c))?,
            false => shown.push(c),
        }
    }
    print(&(shown + "\n"))
}

/// Writes a line to standard error, or loses it.
pub fn note_line(text: &str) {
    note_styled(&Style::new(), text);
}

/// Writes a line to standard error in a style, where it is a terminal.
pub fn note_styled(style: &Style, text: &str) {
    let style = style.clone().for_stderr();
    let _ = writeln!(io::stderr(), "{}", style.apply_to(clean(text)));
}

/// Writes the error that ends the command.
pub fn error(text: &str) {
    let red = Style::new().for_stderr().red().bold();
    let _ = writeln!(io::stderr(), "{} {}", red.apply_to("error:"), clean(text));
}

/// The text of a model, to standard output. A terminal gets it without control characters, unless `raw` asks for
/// them; a file or a pipe gets every byte.
pub struct Answer {
    out: io::StdoutLock<'static>,
    clean: bool,
}

impl Answer {
    /// An answer that has not begun.
    pub fn new(raw: bool) -> Self {
        let out = io::stdout().lock();
        let clean = !raw && out.is_terminal();
        Self { out, clean }
    }

    /// Writes some whole characters, at once.
    pub fn write(&mut self, text: &str) -> Result<()> {
        // Marks that turn the direction of writing belong to some languages.
        let text = if self.clean { replace(text, is_control) } else { Cow::Borrowed(text) };
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        written.map_err(closed)
    }
}

/// Writes a whole file, or what else the path names: [`output`](clearway_llm::output) says how.
pub fn file(path: &Path, text: &str) -> Result<()> {
    output::write(path, text.as_bytes()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Closed.into(),
        _ => anyhow::Error::new(error).context(format!("cannot write {}", path.display())),
    })
}

/// An error of writing as the command sees it.
pub fn closed(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Closed.into(),
        _ => anyhow::Error::new(error).context("cannot write the output"),
    }
}

/// The text with every character in visible form that would command a terminal or turn the direction of writing.
/// Line ends and tabs stay.
pub fn clean(text: &str) -> Cow<'_, str> {
    replace(text, is_harmful)
}

fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(closed)
}

fn replace(text: &str, is_bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_bad) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_bad(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Whether a terminal may take a character as the start of a command: C0, DEL and C1.
fn is_control(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
}

/// Whether a character has no place in a message: controls, and those that make text look like other text.
fn is_harmful(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || is_control(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_commands_a_terminal_is_replaced() {
        let plain = "é 日本 🙂 a\tb\nשלום";
        assert!(matches!(clean(plain), Cow::Borrowed(text) if text == plain));
        assert_eq!(clean("\u{1b}]0;title\u{7}"), "\\u{1b}]0;title\\u{7}");
        assert_eq!(clean("a\rb\u{7f}\u{9b}2J"), "a\\rb\\u{7f}\\u{9b}2J");
        assert_eq!(clean("gpj\u{202e}exe"), "gpj\\u{202e}exe");
        for code in 0..0xa0 {
            let shown = clean(&char::from(code as u8).to_string()).into_owned();
            assert!(shown.chars().all(|c| c == '\n' || c == '\t' || !c.is_control()), "{code}");
        }
    }

    #[test]
    fn an_answer_keeps_the_direction_of_writing() {
        assert_eq!(
            replace("\u{202b}שלום\u{202c}\u{1b}c", is_control),
            "\u{202b}שלום\u{202c}\\u{1b}c"
        );
    }
}
