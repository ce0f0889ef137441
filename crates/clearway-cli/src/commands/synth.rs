//! `clearway synth`

use std::io;
use std::path::PathBuf;

use anyhow::Result;
use clearway_llm::gguf::GgufError;
use clearway_llm::gguf::synth::{Synth, SynthQuant, SynthShape};

use crate::out::say;
use crate::progress::Bar;
use crate::{interrupt, memory, out};

/// Arguments of `clearway synth`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway synth llama-1b q8_0 llama-1b-q8_0.gguf
  clearway synth qwen3-30b-a3b q4_k_m qwen3-30b.gguf
  clearway synth gemma3-4b q6_k gemma3.gguf --vocab
  clearway run -m gemma3.gguf -n 20 \"Once upon a time\"

The name of one type gives every matrix that type. Names that end in _s, _m or _l are llama.cpp's mixes.
Without --vocab the file can be measured, but not talked to.")]
pub struct Args {
    /// Built-in shape: smollm2-135m, llama-1b, llama-8b, qwen3-0.6b, qwen3-30b-a3b, gemma3-4b, phi4-mini, gpt-oss-20b or
    /// deepseek-v2-lite.
    shape: SynthShape,
    /// f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4, or a mix:
    /// q2_k_s, q3_k_s, q3_k_m, q3_k_l, q4_k_s, q4_k_m, q5_k_s, q5_k_m.
    quant: SynthQuant,
    /// File to write.
    file: PathBuf,
    /// Seed of the weights.
    #[arg(short = 's', long, value_name = "SEED", default_value_t = 7)]
    seed: u64,
    /// Add a byte-level vocabulary and a chat template, for `run` and `chat`.
    #[arg(long)]
    vocab: bool,
}

/// Writes a model of random weights, for speed tests.
pub fn run(args: &Args) -> Result<()> {
    let synth =
        Synth { vocab: args.vocab, ..Synth::new(args.shape.clone(), args.quant, args.seed) };
    let total = synth.file_bytes()?;
    interrupt::catch();
    let bar = Bar::new("writing");
    let written = synth.write_file(&args.file, |done| {
        bar.at(done, Some(total));
        // Any kind but `Interrupted`, which writers take as a wish to try again.
        interrupt::check().map_err(io::Error::other)
    });
    drop(bar);
    if let Err(error) = &written {
        interrupt::check()?;
        if matches!(error, GgufError::Write { error, .. } if error.kind() == io::ErrorKind::BrokenPipe)
        {
            return Err(out::Closed.into());
        }
    }
    let size = memory::size(written?);
    say!("{} written, {size}", args.file.display())
}
