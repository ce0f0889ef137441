//! `clearway tokenize`

use std::path::PathBuf;

use anyhow::Result;
use clearway_llm::engine;
use clearway_llm::text::EncodeOptions;
use serde_json::json;

use super::print_json;
use crate::model;

/// Arguments of `clearway tokenize`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway tokenize -m model.gguf \"Hello, world\"
  clearway tokenize -m model.gguf --json \"<|im_start|>user\"")]
pub struct Args {
    /// Model file (GGUF).
    #[arg(short = 'm', long = "model", value_name = "MODEL", env = "CLEARWAY_MODEL")]
    model: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Text; special tokens in it are parsed.
    text: String,
}

/// Shows the tokens of a text.
pub fn run(args: &Args) -> Result<()> {
    let gguf = model::open(&args.model)?;
    let tokenizer = engine::tokenizer(&gguf)?;
    let tokens = tokenizer.encode(&args.text, EncodeOptions::PROMPT)?;
    if args.json {
        return print_json(&json!({ "tokens": tokens }));
    }
    for token in tokens {
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        println!("{token:>8}  {:?}", String::from_utf8_lossy(bytes));
    }
    Ok(())
}
