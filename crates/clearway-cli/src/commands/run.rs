//! `clearway run`

use std::io::Read;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clearway_llm::{End, Error};

use crate::generate;
use crate::model::ModelArgs;
use crate::out::note;
use crate::sampling::Sampling;
use crate::spec::SpecArgs;
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
    #[command(flatten)]
    spec: SpecArgs,
}

/// Answers one prompt, token by token.
pub fn run(args: &Args) -> Result<()> {
    let prompt = prompt(args)?;
    if prompt.is_empty() {
        bail!("the prompt is empty; give some text with -p or -f");
    }
    args.spec.kind()?;
    let gguf = args.model.name.open()?;
    let started = Instant::now();
    let (mut model, device) = args.model.model(&gguf)?;
    args.spec.apply(&mut model, &device, &args.model.engine)?;
    let sampling = args.sampling.row(args.n_predict);
    model.prepare(&sampling)?;
    let load = started.elapsed();
    interrupt::catch();
    let (usage, end) = if args.raw {
        generate::write(model.complete(&prompt, &sampling)?, true)?
    } else {
        let mut chat = model.chat()?;
        chat.user(prompt);
        generate::write(chat.reply(&sampling)?, false)?
    };
    if let Some(End::ContextFull { context }) = end {
        let full = Error::ContextFull { wanted: context + 1, context };
        note!("stopped: {full}; raise it with -c");
    }
    stats::print(load, &usage, &*device);
    stats::print_stall(model.engine());
    if args.stats {
        stats::print_step(model.engine());
    }
    match end {
        Some(End::Stopped) => Err(interrupt::Interrupted.into()),
        _ => Ok(()),
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
