//! `clearway eval`

use anyhow::{Context, Result, bail};
use clearway_llm::Sampling;
use clearway_llm::engine::{EngineError, Sampler};
use serde_json::json;

use crate::model::ModelArgs;
use crate::out::{self, say};

/// Arguments of `clearway eval`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway eval --tokens \"504 3575 282\" --top 5 -n 8
  clearway eval -m model.gguf --device cpu --tokens \"504 3575 282\" --json")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Token ids, separated by spaces.
    #[arg(long, value_name = "\"ID ID ...\"")]
    tokens: String,
    /// How many of the best logits to show.
    #[arg(long, value_name = "K", default_value_t = 10)]
    top: usize,
    /// Tokens to generate greedily.
    #[arg(short = 'n', long = "n-predict", value_name = "N", default_value_t = 0)]
    n_predict: usize,
    /// Read the tokens one after another, as generation does, instead of as a prompt.
    #[arg(long)]
    one_by_one: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Logits after the tokens, and what greedy decoding makes of them.
pub fn run(args: &Args) -> Result<()> {
    let tokens = args
        .tokens
        .split_whitespace()
        .map(|id| id.parse::<u32>().with_context(|| format!("`{id}` is not a token id")))
        .collect::<Result<Vec<_>>>()?;
    if tokens.is_empty() {
        bail!("no tokens were given; --tokens takes ids separated by spaces");
    }
    let gguf = args.model.name.open()?;
    let (mut engine, _device) = args.model.engine(&gguf)?;
    let at_once = if args.one_by_one { 1 } else { tokens.len() };
    let mut logits = Vec::new();
    for some in tokens.chunks(at_once) {
        logits = engine.eval(some)?;
    }
    let mut best: Vec<(usize, f32)> = logits.iter().copied().enumerate().collect();
    best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    best.truncate(args.top);
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
    let logsumexp = f64::from(max) + sum.ln();

    let mut sampler = Sampler::new(Sampling::greedy());
    let mut greedy = Vec::new();
    let mut next = logits;
    for index in 0..args.n_predict {
        let position = engine.position();
        let token = sampler.sample(&next, &[]).ok_or(EngineError::NoToken { position })?;
        greedy.push(token);
        if index + 1 < args.n_predict {
            next = engine.eval(&[token])?;
        }
    }
    if args.json {
        return out::json(&json!({
            "tokens": tokens,
            "top": best,
            "logsumexp": logsumexp,
            "greedy": greedy,
        }));
    }
    for (token, logit) in best {
        say!("{token:>8} {logit:>10.4}")?;
    }
    say!("logsumexp {logsumexp:.4}")?;
    if !greedy.is_empty() {
        say!("greedy {greedy:?}")?;
    }
    Ok(())
}
