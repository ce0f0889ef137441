//! `clearway run`

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use clearway_llm::engine::{self, EngineError, Sampler, SamplerOptions};
use clearway_llm::text::{ChatMessage, ChatOptions, DecodeOptions, EncodeOptions, StreamDecoder};

use crate::model::ModelArgs;

/// Arguments of `clearway run`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway run -m model.gguf -p \"Why is the sky blue?\"
  clearway run -m model.gguf -f prompt.txt --raw -n 64 --temp 0")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The prompt.
    #[arg(short = 'p', long, value_name = "TEXT", required_unless_present = "file")]
    prompt: Option<String>,
    /// File with the prompt.
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Tokens to generate at most.
    #[arg(short = 'n', long = "n-predict", value_name = "N", default_value_t = 256)]
    n_predict: usize,
    /// Use the prompt as it is, without the chat template.
    #[arg(long)]
    raw: bool,
    /// Print timings at the end.
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    sampling: Sampling,
}

/// How tokens are chosen.
#[derive(clap::Args)]
pub struct Sampling {
    /// Temperature; 0 takes the likeliest token.
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temp: f32,
    /// Only the K likeliest tokens; 0 for all.
    #[arg(long, value_name = "K", default_value_t = 40)]
    top_k: usize,
    /// Only the likeliest tokens that together have probability P.
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    top_p: f32,
    /// Only tokens at least P times as likely as the likeliest.
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    min_p: f32,
    /// Penalty on recent tokens; 1 for none.
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    repeat_penalty: f32,
    /// Seed: the same seed gives the same text.
    #[arg(short = 's', long, value_name = "SEED", default_value_t = 0)]
    seed: u64,
}

impl Sampling {
    fn sampler(&self) -> Sampler {
        Sampler::new(SamplerOptions {
            temperature: self.temp,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            seed: self.seed,
        })
    }
}

/// Answers one prompt, token by token.
pub fn run(args: &Args) -> Result<()> {
    let started = Instant::now();
    let prompt = match (&args.prompt, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?,
        (None, None) => String::new(),
    };
    let gguf = args.model.open()?;
    let tokenizer = engine::tokenizer(&gguf)?;
    let tokens = if args.raw {
        tokenizer.encode(&prompt, EncodeOptions::PROMPT)?
    } else {
        let template = engine::chat_template(&gguf, &tokenizer)?;
        let messages = [ChatMessage::new("user", &prompt)];
        let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
        tokenizer.encode_chat(&template.render(&messages, &options)?)?
    };
    let mut engine = args.model.engine(&gguf)?;
    let loaded = started.elapsed();
    let mut sampler = args.sampling.sampler();
    let prefill = Instant::now();
    let mut logits = engine.eval(&tokens)?;
    let prefill = prefill.elapsed();

    let mut stream = StreamDecoder::new(&tokenizer, DecodeOptions::default());
    let mut out = std::io::stdout().lock();
    let decode = Instant::now();
    let mut generated = 0;
    while generated < args.n_predict {
        let token = sampler.sample(&logits);
        if tokenizer.is_end(token) {
            break;
        }
        generated += 1;
        write!(out, "{}", stream.push(token)?)?;
        out.flush()?;
        if generated == args.n_predict {
            break;
        }
        logits = match engine.eval(&[token]) {
            Ok(logits) => logits,
            Err(full @ EngineError::ContextFull { .. }) => {
                writeln!(out)?;
                eprintln!("stopped: {full}");
                break;
            }
            Err(error) => return Err(error.into()),
        };
    }
    let decode = decode.elapsed();
    writeln!(out, "{}", stream.finish())?;
    if args.stats {
        let rate = |tokens: usize, time: std::time::Duration| tokens as f64 / time.as_secs_f64();
        eprintln!("load     {:>8.0} ms", loaded.as_secs_f64() * 1e3);
        eprintln!("prefill  {:>8.1} tok/s  ({} tokens)", rate(tokens.len(), prefill), tokens.len());
        eprintln!("decode   {:>8.1} tok/s  ({generated} tokens)", rate(generated, decode));
        if let Some(stats) = engine.decode_stats().map(|stats| stats.compile) {
            eprintln!(
                "a step is {} dispatches in {} groups, {} fusions, arena {:.2} MiB",
                stats.dispatches,
                stats.groups,
                stats.fusions,
                stats.arena_bytes as f64 / f64::from(1 << 20)
            );
        }
    }
    Ok(())
}
