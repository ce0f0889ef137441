//! `clearway tokenize`

use anyhow::Result;
use clearway_llm::engine;
use clearway_llm::text::EncodeOptions;
use serde_json::json;

use crate::model::NameArgs;
use crate::out::{self, say};

/// Arguments of `clearway tokenize`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway tokenize \"Hello, world\"
  clearway tokenize -m model.gguf --json \"<|im_start|>user\"")]
pub struct Args {
    #[command(flatten)]
    name: NameArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Text; special tokens in it are parsed.
    #[arg(allow_hyphen_values = true)]
    text: String,
}

/// Shows the tokens of a text.
pub fn run(args: &Args) -> Result<()> {
    let gguf = args.name.open()?;
    let tokenizer = engine::tokenizer(&gguf)?;
    let tokens = tokenizer.encode(&args.text, EncodeOptions::PROMPT)?;
    if args.json {
        return out::json(&json!({ "tokens": tokens }));
    }
    for token in tokens {
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        say!("{token:>8}  {:?}", String::from_utf8_lossy(bytes))?;
    }
    Ok(())
}
