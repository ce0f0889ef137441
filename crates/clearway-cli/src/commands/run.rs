//! `clearway run`

use std::io::Read;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clearway_llm::engine;
use clearway_llm::text::{ChatMessage, ChatOptions, EncodeOptions};

use crate::generate::{self, End, Talker};
use crate::model::ModelArgs;
use crate::out::{self, note};
use crate::sampling::Sampling;
use crate::{interrupt, stats};

/// Arguments of `clearway run`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway run -p \"Why is the sky blue?\"
  clearway run -m model.gguf -p \"Once upon a time\" --raw -n 64 --temp 0
  clearway run -m hf:user/repo:Q4_K_M -f prompt.txt --device cpu -t 4
  git diff | clearway run -f - --stats

The answer goes to stdout, timings to stderr. Ctrl-C ends the answer.")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The prompt.
    #[arg(
        short = 'p',
        long,
        value_name = "TEXT",
        required_unless_present = "file",
        allow_hyphen_values = true
    )]
    prompt: Option<String>,
    /// File with the prompt; - for standard input.
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Tokens to generate at most.
    #[arg(short = 'n', long = "n-predict", value_name = "N", default_value_t = 256)]
    n_predict: usize,
    /// Use the prompt as it is, without the chat template, and print the answer as it is: on a terminal control
    /// characters are otherwise shown instead of sent.
    #[arg(long)]
    raw: bool,
    /// Say more about the compiled step at the end.
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    sampling: Sampling,
}

/// Answers one prompt, token by token.
pub fn run(args: &Args) -> Result<()> {
    let prompt = prompt(args)?;
    if prompt.is_empty() {
        bail!("the prompt is empty; give some text with -p or -f");
    }
    let gguf = args.model.name.open()?;
    let started = Instant::now();
    let tokenizer = engine::tokenizer(&gguf)?;
    let tokens = if args.raw {
        tokenizer.encode(&prompt, EncodeOptions::PROMPT)?
    } else {
        let template = engine::chat_template(&gguf, &tokenizer)?;
        let messages = [ChatMessage::new("user", &prompt)];
        tokenizer.encode_chat(&template.render(&messages, &ChatOptions::default())?)?
    };
    let (mut engine, device) = args.model.engine(&gguf)?;
    let mut sampler = args.sampling.sampler();
    generate::prepare(&mut engine, &sampler)?;
    let load = started.elapsed();
    interrupt::catch();
    let (engine, limit) = (&mut engine, args.n_predict);
    let mut talker =
        Talker { engine: &mut *engine, tokenizer: &tokenizer, sampler: &mut sampler, limit };
    let mut out = out::Answer::new(args.raw);
    let answer = talker.answer(&tokens, &mut |text| out.write(text))?;
    out.write("\n")?;
    if let End::Full(full) = &answer.end {
        note!("stopped: {full}");
    }
    stats::print(load, &answer, &*device);
    if args.stats {
        stats::print_step(engine);
    }
    match answer.end {
        End::Stopped => Err(interrupt::Interrupted.into()),
        End::Done | End::Full(_) => Ok(()),
    }
}

fn prompt(args: &Args) -> Result<String> {
    match (&args.prompt, &args.file) {
        (Some(text), _) => Ok(text.clone()),
        (None, Some(file)) if file.as_os_str() == "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
            Ok(text)
        }
        (None, Some(file)) => {
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
        }
        (None, None) => Ok(String::new()),
    }
}
