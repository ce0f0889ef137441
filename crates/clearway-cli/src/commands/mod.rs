//! One module per command: its arguments, and what it does.

pub mod bench;
pub mod chat;
pub mod devices;
pub mod eval;
pub mod inspect;
pub mod list;
pub mod micro;
pub mod plan;
pub mod pull;
pub mod run;
pub mod show;
pub mod synth;
pub mod tokenize;

use std::io::Write;

use anyhow::Result;

/// Prints one object, or one array, and a line end.
pub fn print_json(value: &serde_json::Value) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string_pretty(value)?)?)
}
