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
  clearway synth smollm2-135m q4_1 smollm2.gguf

The file has no vocabulary: it can be measured, but not talked to.")]
pub struct Args {
    /// Built-in shape: smollm2-135m, llama-1b or llama-8b.
    shape: SynthShape,
    /// f16, q8_0, q4_0, q4_1 or q4_k_m.
    quant: SynthQuant,
    /// File to write.
    file: PathBuf,
    /// Seed of the weights.
    #[arg(short = 's', long, value_name = "SEED", default_value_t = 7)]
    seed: u64,
}

/// Writes a model of random weights, for speed tests.
pub fn run(args: &Args) -> Result<()> {
    let synth = Synth { shape: args.shape, quant: args.quant, seed: args.seed };
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
