//! A reply on its way to the user; what `run` and `chat` share.

use anyhow::{Error, Result};
use clearway_llm::{End, Reply, Usage};

use crate::{interrupt, out};

/// Writes a reply as it comes, until it ends or the user wants no more.
///
/// # Errors
/// What the model reports; what standard output reports.
pub fn write(reply: Reply<'_>, raw: bool) -> Result<(Usage, Option<End>)> {
    let mut out = out::Answer::new(raw);
    let mut reply = reply.stop_when(interrupt::wanted);
    for piece in &mut reply {
        out.write(&piece?.text)?;
    }
    out.write("\n")?;
    Ok((reply.usage(), reply.end().cloned()))
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
