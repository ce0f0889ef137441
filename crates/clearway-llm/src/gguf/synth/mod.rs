//! Synthetic models: real shapes and layouts with random weights, for speed tests.
//!
//! Speed depends on shapes and types, not on what a model says, and a file of random weights is
//! made in seconds where a real one is a download of gigabytes. Weights are finite and small, so
//! that activations stay in range. There is no vocabulary (`tokenizer.ggml.model` is `no_vocab`).
//!
//! Tensor data is cut from one random tile per type, each tensor beginning at another place of it:
//! random numbers are slower than disks.

#[cfg(test)]
mod tests;
mod tile;

use std::{
    io::{self, Write},
    path::Path,
    str::FromStr,
};

use clearway_graph::DType;

use self::tile::Tiles;
use super::{error::GgufError, writer::GgufWriter};
use crate::output::OutputFile;

/// Shape of a synthetic model of the Llama family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SynthShape {
    /// Name of the built-in shape.
    pub name: &'static str,
    /// Short name, accepted too and part of `general.name`.
    pub short_name: &'static str,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub embedding: usize,
    /// Width of the feed-forward layer.
    pub feed_forward: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_width: usize,
    /// Tokens.
    pub vocabulary: usize,
    /// True when the output layer uses the embedding's weights.
    pub tied: bool,
}

/// Weight types of a synthetic model, named as the usual recipes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)] // the names every GGUF user knows
pub enum SynthQuant {
    /// 16-bit floats.
    F16,
    /// 8-bit blocks.
    Q8_0,
    /// 4-bit blocks.
    Q4_0,
    /// 4-bit blocks with minimums.
    Q4_1,
    /// 4-bit super-blocks, with 6 bits for the sensitive tensors.
    Q4_K_M,
}

/// A model to be made.
#[derive(Clone, Copy, Debug)]
pub struct Synth {
    /// Its shape.
    pub shape: SynthShape,
    /// Its weight types.
    pub quant: SynthQuant,
    /// Start of the random numbers; the same seed gives the same file.
    pub seed: u64,
}

impl SynthShape {
    /// The built-in shapes.
    pub const ALL: [Self; 3] = [
        Self {
            name: "smollm2-135m",
            short_name: "135m",
            layers: 30,
            embedding: 576,
            feed_forward: 1536,
            heads: 9,
            kv_heads: 3,
            head_width: 64,
            vocabulary: 49_152,
            tied: true,
        },
        Self {
            name: "llama-1b",
            short_name: "1b",
            layers: 16,
            embedding: 2048,
            feed_forward: 8192,
            heads: 32,
            kv_heads: 8,
            head_width: 64,
            vocabulary: 128_256,
            tied: false,
        },
        Self {
            name: "llama-8b",
            short_name: "8b",
            layers: 32,
            embedding: 4096,
            feed_forward: 14_336,
            heads: 32,
            kv_heads: 8,
            head_width: 128,
            vocabulary: 128_256,
            tied: false,
        },
    ];
}

impl FromStr for SynthShape {
    type Err = GgufError;

    fn from_str(name: &str) -> Result<Self, GgufError> {
        let found =
            Self::ALL.into_iter().find(|shape| name == shape.name || name == shape.short_name);
        found.ok_or_else(|| GgufError::UnknownName {
            what: "shape",
            name: name.to_owned(),
            known: Self::ALL.map(|shape| shape.name).join(", "),
        })
    }
}

impl SynthQuant {
    /// Every recipe.
    pub const ALL: [Self; 5] = [Self::F16, Self::Q8_0, Self::Q4_0, Self::Q4_1, Self::Q4_K_M];

    /// Lower-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q4_K_M => "q4_k_m",
        }
    }

    /// Type of a tensor; `sensitive` are those that recipes of mixed types keep finer.
    fn dtype(self, row: usize, sensitive: bool) -> DType {
        let dtype = match self {
            Self::F16 => DType::F16,
            Self::Q8_0 => DType::Q8_0,
            Self::Q4_0 => DType::Q4_0,
            Self::Q4_1 => DType::Q4_1,
            Self::Q4_K_M if sensitive => DType::Q6_K,
            Self::Q4_K_M => DType::Q4_K,
        };
        // Rows that are not whole super-blocks: the types llama.cpp's quantiser falls back to.
        match dtype {
            whole if row.is_multiple_of(whole.block_elems()) => whole,
            DType::Q4_K => DType::Q5_0,
            DType::Q6_K => DType::Q8_0,
            other => other,
        }
    }
}

impl FromStr for SynthQuant {
    type Err = GgufError;

    fn from_str(name: &str) -> Result<Self, GgufError> {
        let found = Self::ALL.into_iter().find(|quant| quant.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| GgufError::UnknownName {
            what: "quantisation",
            name: name.to_owned(),
            known: Self::ALL.map(Self::name).join(", "),
        })
    }
}

impl Synth {
    /// Length of the file in bytes.
    pub fn file_bytes(&self) -> Result<u64, GgufError> {
        Ok(self.writer(&Tiles::new(self.seed))?.file_bytes())
    }

    /// Writes the model to a file and returns its length.
    ///
    /// The file appears under its name only when it is complete; after an error, such as a full
    /// disk, nothing is left ([`output`](crate::output) says more). `progress` is told the bytes written so far; its error ends the work.
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

    /// Writes the model and returns its length. `progress` is told the bytes written so far; its
    /// error ends the work.
    pub fn write_to(
        &self,
        out: impl Write,
        progress: impl FnMut(u64) -> io::Result<()>,
    ) -> Result<u64, GgufError> {
        let tiles = Tiles::new(self.seed);
        self.writer(&tiles)?.write_to(Progress { out, written: 0, progress })
    }

    fn writer<'a>(&self, tiles: &'a Tiles) -> Result<GgufWriter<'a>, GgufError> {
        let mut writer = GgufWriter::new();
        self.add_metadata(&mut writer)?;
        for (no, (name, dtype, dims)) in self.tensors().into_iter().enumerate() {
            let elements: usize = dims.iter().product();
            let blocks = elements / dtype.block_elems();
            writer.tensor(&name, dtype, &dims, move |out| tiles.write(dtype, no, blocks, out))?;
        }
        Ok(writer)
    }

    fn add_metadata(&self, writer: &mut GgufWriter<'_>) -> Result<(), GgufError> {
        let shape = &self.shape;
        let name = format!("synthetic-{}-{}", shape.short_name, self.quant.name());
        writer.set("general.architecture", "llama")?;
        writer.set("general.name", &name)?;
        writer.set("llama.block_count", &(shape.layers as u32))?;
        writer.set("llama.context_length", &8192_u32)?;
        writer.set("llama.embedding_length", &(shape.embedding as u32))?;
        writer.set("llama.feed_forward_length", &(shape.feed_forward as u32))?;
        writer.set("llama.attention.head_count", &(shape.heads as u32))?;
        writer.set("llama.attention.head_count_kv", &(shape.kv_heads as u32))?;
        writer.set("llama.attention.layer_norm_rms_epsilon", &1e-5_f32)?;
        writer.set("llama.rope.freq_base", &500_000_f32)?;
        writer.set("llama.rope.dimension_count", &(shape.head_width as u32))?;
        writer.set("llama.vocab_size", &(shape.vocabulary as u32))?;
        writer.set("tokenizer.ggml.model", "no_vocab")
    }

    /// Names, types and dimensions in file order.
    fn tensors(&self) -> Vec<(String, DType, Vec<usize>)> {
        let shape = &self.shape;
        let (embedding, layers) = (shape.embedding, shape.layers);
        let kv = shape.kv_heads * shape.head_width;
        let matrix = |name: String, row, rows, sensitive| {
            let dtype = self.quant.dtype(row, sensitive);
            (name, dtype, vec![row, rows])
        };
        let norm = |name: String| (name, DType::F32, vec![embedding]);

        let mut all = vec![matrix("token_embd.weight".into(), embedding, shape.vocabulary, false)];
        if shape.tied {
            all[0].1 = DType::Q8_0;
        }
        for i in 0..layers {
            // Where q4_k_m spends its bits: the first and last eighth, and every third between.
            let eighth = layers / 8;
            let fine = i < eighth || i >= 7 * layers / 8 || (i - eighth) % 3 == 2;
            let name = |tensor: &str| format!("blk.{i}.{tensor}.weight");
            all.extend([
                norm(name("attn_norm")),
                matrix(name("attn_q"), embedding, embedding, false),
                matrix(name("attn_k"), embedding, kv, false),
                matrix(name("attn_v"), embedding, kv, fine),
                matrix(name("attn_output"), embedding, embedding, false),
                norm(name("ffn_norm")),
                matrix(name("ffn_gate"), embedding, shape.feed_forward, false),
                matrix(name("ffn_up"), embedding, shape.feed_forward, false),
                matrix(name("ffn_down"), shape.feed_forward, embedding, fine),
            ]);
        }
        all.push(norm("output_norm.weight".into()));
        if !shape.tied {
            all.push(matrix("output.weight".into(), embedding, shape.vocabulary, true));
        }
        all
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
