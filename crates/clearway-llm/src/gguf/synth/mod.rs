//! Synthetic models: real shapes and layouts with random weights, for speed tests.
//!
//! Speed depends on shapes and types, not on what a model says, and a file of random weights is made in
//! seconds where a real one is a download of gigabytes. Weights are finite, small and centred, so that
//! activations stay in range. Without [`Synth::vocab`] a file has no vocabulary (`tokenizer.ggml.model`
//! is `no_vocab`); with it the file has a byte-level BPE vocabulary and a chat template, and can be
//! talked to.
//!
//! Tensor data is cut from one random tile per type, each tensor beginning at another place of it:
//! random numbers are slower than disks. A tile is written in pieces of megabytes by one thread: the system
//! lets one writer at a time into a file, and others only wait for it.

mod layout;
mod quant;
#[cfg(test)]
mod tests;
mod tile;
mod vocabulary;

use std::{
    io::{self, Write},
    path::Path,
    str::FromStr,
};

pub use self::quant::SynthQuant;
use self::{layout::Planned, tile::Tiles};
use super::{error::GgufError, writer::GgufWriter};
use crate::model::{Arch, ModelShape, builtin_shapes};
use crate::output::OutputFile;

/// Shape of a synthetic model: one that a GGUF file can describe.
#[derive(Clone, Debug, PartialEq)]
pub struct SynthShape {
    shape: ModelShape,
    short_name: Option<&'static str>,
}

/// A model to be made.
#[derive(Clone, Debug)]
pub struct Synth {
    /// Its shape.
    pub shape: SynthShape,
    /// Its weight types.
    pub quant: SynthQuant,
    /// Start of the random numbers; the same seed gives the same file.
    pub seed: u64,
    /// Whether the file gets a vocabulary and a chat template.
    pub vocab: bool,
}

impl SynthShape {
    /// A shape of any size.
    ///
    /// # Errors
    /// A family that GGUF files have no name for, and encoders.
    pub fn new(shape: ModelShape) -> Result<Self, GgufError> {
        match layout::architecture(shape.arch) {
            Some(_) if shape.arch.is_encoder() => Err(GgufError::NoSynth {
                shape: shape.name,
                reason: "it is an encoder, which writes no text to measure".into(),
            }),
            Some(_) => Ok(Self { shape, short_name: None }),
            None => Err(GgufError::NoSynth {
                shape: shape.name,
                reason: "GGUF files have no name for its family".into(),
            }),
        }
    }

    /// The built-in shapes that a GGUF file can describe.
    pub fn all() -> Vec<Self> {
        let known = builtin_shapes().into_iter().filter_map(|shape| Self::new(shape).ok());
        known.map(Self::like_the_reference).collect()
    }

    /// Name of the shape.
    pub fn name(&self) -> &str {
        &self.shape.name
    }

    /// Short name, accepted too and part of `general.name`, where there is one.
    pub fn short_name(&self) -> Option<&'static str> {
        self.short_name
    }

    /// Everything the model's graph depends on but the weights.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// Built-in shapes of the Llama family have the short name and the rotary base of the script that
    /// speed comparisons with other engines use.
    fn like_the_reference(mut self) -> Self {
        if self.shape.arch == Arch::Llama {
            self.shape.rope_base = 500_000.0;
            self.short_name = match &*self.shape.name {
                "smollm2-135m" => Some("135m"),
                "llama-1b" => Some("1b"),
                "llama-8b" => Some("8b"),
                _ => None,
            };
        }
        self
    }
}

impl FromStr for SynthShape {
    type Err = GgufError;

    fn from_str(name: &str) -> Result<Self, GgufError> {
        let mut all = Self::all();
        let found =
            all.iter().position(|shape| name == shape.name() || Some(name) == shape.short_name);
        match found {
            Some(found) => Ok(all.swap_remove(found)),
            None => Err(GgufError::UnknownName {
                what: "shape",
                name: name.to_owned(),
                known: all.iter().map(Self::name).collect::<Vec<_>>().join(", "),
            }),
        }
    }
}

impl Synth {
    /// A model without a vocabulary.
    pub fn new(shape: SynthShape, quant: SynthQuant, seed: u64) -> Self {
        Self { shape, quant, seed, vocab: false }
    }

    /// Length of the file in bytes.
    ///
    /// # Errors
    /// As [`write_to`](Self::write_to), but for what the system reports.
    pub fn file_bytes(&self) -> Result<u64, GgufError> {
        Ok(self.writer(&self.tensors(), &Tiles::new(self.seed))?.file_bytes())
    }

    /// Writes the model to a file and returns its length.
    ///
    /// The file appears under its name only when it is complete; after an error, such as a full disk,
    /// nothing is left ([`output`](crate::output) says more). `progress` is told the bytes written so
    /// far; its error ends the work.
    ///
    /// # Errors
    /// As [`write_to`](Self::write_to); those of the system name the file.
    pub fn write_file(
        &self,
        path: &Path,
        progress: impl FnMut(u64) -> io::Result<()>,
    ) -> Result<u64, GgufError> {
        let failed = |error| GgufError::Write { path: Some(path.to_owned()), error };
        let mut file = OutputFile::create(path).map_err(failed)?;
        let bytes = self.write_to(&mut file, progress).map_err(|error| match error {
            GgufError::Write { error, .. } => failed(error),
            other => other,
        })?;
        file.complete().map_err(failed)?;
        Ok(bytes)
    }

    /// Writes the model front to back and returns its length. `progress` is told the bytes written so
    /// far; its error ends the work.
    ///
    /// # Errors
    /// What the system or `progress` reports, and a vocabulary of a size that none can be made for.
    pub fn write_to(
        &self,
        out: impl Write,
        progress: impl FnMut(u64) -> io::Result<()>,
    ) -> Result<u64, GgufError> {
        let tiles = Tiles::new(self.seed);
        self.writer(&self.tensors(), &tiles)?.write_to(Progress { out, written: 0, progress })
    }

    fn writer<'a>(
        &self,
        tensors: &[Planned],
        tiles: &'a Tiles,
    ) -> Result<GgufWriter<'a>, GgufError> {
        let mut writer = GgufWriter::new();
        self.add_metadata(&mut writer)?;
        for (no, tensor) in tensors.iter().enumerate() {
            let (fill, bytes) = (tensor.fill(), tensor.bytes());
            writer.tensor(&tensor.name, tensor.dtype, &tensor.dims, move |out| {
                tiles.write(fill, no, bytes, out)
            })?;
        }
        Ok(writer)
    }
}

/// Tells how much has passed.
struct Progress<W, F> {
    out: W,
    written: u64,
    progress: F,
}

impl<W: Write, F: FnMut(u64) -> io::Result<()>> Write for Progress<W, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.out.write(bytes)?;
        self.written += taken as u64;
        (self.progress)(self.written)?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
