//! One module per command: its arguments, and what it does.

pub mod devices;
pub mod eval;
pub mod inspect;
pub mod plan;
pub mod run;
pub mod show;
pub mod synth;
pub mod tokenize;

use anyhow::Result;

/// Prints one object and a line end.
pub fn print_json(value: &serde_json::Value) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}
