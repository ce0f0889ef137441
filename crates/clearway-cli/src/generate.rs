//! A reply on its way to the user; what `run` and `chat` share.

use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use clearway_llm::{End, Reply, Usage};

use crate::progress::Bar;
use crate::{interrupt, out};

/// Writes a reply as it comes, until it ends or the user wants no more.
///
/// # Errors
/// What the model reports; what standard output reports.
pub fn write(reply: Reply<'_>, raw: bool) -> Result<(Usage, Option<End>)> {
    let mut out = out::Answer::new(raw);
    let mut reading = Reading::new();
    let watch = move |done, total| reading.at(done, total);
    let mut reply = reply.stop_when(interrupt::wanted).watch_prompt(watch);
    for piece in &mut reply {
        out.write(&piece?.text)?;
    }
    out.write("\n")?;
    Ok((reply.usage(), reply.end().cloned()))
}

/// A bar for prompts that take longer than a second, until the last batch of them is on its way.
struct Reading {
    started: Instant,
    bar: Option<Bar>,
}

impl Reading {
    fn new() -> Self {
        Self { started: Instant::now(), bar: None }
    }

    fn at(&mut self, done: usize, total: usize) {
        if self.bar.is_none() && done > 0 && self.started.elapsed() >= Duration::from_secs(1) {
            self.bar = Some(Bar::new("reading the prompt"));
        }
        if let Some(bar) = &self.bar {
            bar.tokens(done as u64, total as u64);
        }
    }
}

/// What to do about an error, where the command line has a flag for it.
pub fn advice(error: &Error) -> Option<&'static str> {
    use clearway_llm::Error::{ContextFull, NotFinite, TooLarge};
    match error.downcast_ref()? {
        NotFinite { origin: None, .. } => {
            Some("--no-fuse may help, and a report of this is welcome")
        }
        ContextFull { .. } => Some("raise it with -c"),
        TooLarge { weights, memory, .. } if weights < memory => {
            Some("a smaller context (-c) may fit")
        }
        TooLarge { .. } => Some("a smaller model, or one with fewer bits per weight, may fit"),
        _ => None,
    }
}
