//! Models as functions that record their ops over a shape.
//!
//! No weights are needed: a graph can be planned, looked at and proven before a file is opened.
//! Weights, caches and the step's tokens and positions are external tensors, bound when the graph is
//! lowered. Tensor names are those of GGUF files.

mod adapters;
mod experts;
mod family;
mod latent;
mod layer;
mod rope;
mod shape;

pub use adapters::{ADAPTERS, AdapterInput, AdapterLayout};
pub use family::{FAMILIES, Family, family_of, nearest_family};
pub use rope::{LONG_FACTORS, SHORT_FACTORS, Stretch, Yarn};
pub use shape::{
    Arch, Biases, Experts, FeedForward, HeadNorms, Latent, ModelShape, NormKind, NormPlace, Window,
    builtin_shape, builtin_shapes,
};

use clearway::{ComputeGraph, DType, External, Recorder, TensorView};

use layer::Layers;

/// Shorthand for results of op calls.
pub type Result<T> = std::result::Result<T, clearway::GpuError>;

/// What a step computes logits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Logits {
    /// The last token: what generation needs.
    Last,
    /// Every token.
    All,
    /// So many tokens, in the order in which [`LOGIT_ROWS`] names them: no others cost anything.
    Rows(usize),
    /// The last so many tokens. Of the others the last layer only fills the cache.
    Tail(usize),
    /// None: the step only fills the cache. What would lead to logits alone is not recorded.
    None,
    /// None, but the last norm of every token, which the head would read: what texts are compared by.
    Normed,
}

/// What of a model a step computes. A model that is divided between two devices has a front and a back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All of it: tokens to logits.
    #[default]
    Whole,
    /// Tokens to the residual stream behind so many layers. No logits are computed, whatever [`RecordOptions::logits`] says.
    Front {
        /// Layers of the part.
        layers: usize,
    },
    /// The residual stream ([`STREAM`]) to logits, from this layer on.
    Back {
        /// First layer of the part.
        from: usize,
    },
}

/// How the KV cache of a step lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLayout {
    /// One sequence: the row of a token is its position.
    Whole,
    /// Blocks of many sequences. The step has three more external tensors: [`CACHE_ROWS`], [`SEQUENCES`], [`BLOCKS`].
    Blocks {
        /// Rows of a block; it divides the rows of the cache.
        block: usize,
        /// Sequences of the table.
        sequences: usize,
        /// Blocks of a sequence at most.
        entries: usize,
    },
}

/// Tokens at the end of a step that belong to other sequences than those before them: such that decode, one token each, beside
/// prompts that are read. Attention looks at them apart, by a table of their own ([`DECODE_BLOCKS`]), since kernels for one token of
/// each of many sequences are others than those for many tokens of a few. All else is done for all tokens at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeRows {
    /// How many.
    pub rows: usize,
    /// Sequences of their table. [`SEQUENCES`] of these tokens counts in it.
    pub sequences: usize,
}

/// How to record a step.
pub struct RecordOptions<'a> {
    /// Tokens of the step: 1 for decode, more for prefill.
    pub tokens: usize,
    /// Rows of the KV cache.
    pub cache_rows: usize,
    /// How they belong to sequences.
    pub cache: CacheLayout,
    /// Which tokens have sequences of their own, where the cache lies in blocks.
    pub decode: Option<DecodeRows>,
    /// Element type of the KV cache: f16, f32 or q8_0.
    pub cache_dtype: DType,
    /// Which tokens get logits.
    pub logits: Logits,
    /// What is recorded.
    pub part: Part,
    /// Whether rows of experts are put in order, for devices that multiply those of each expert together.
    pub order_experts: bool,
    /// Element type of each matrix, by name. Vectors are f32.
    pub weight_dtype: &'a dyn Fn(&str) -> DType,
    /// Which weights have adapters; `None` where none has any.
    pub adapters: Option<&'a AdapterLayout>,
}

impl RecordOptions<'_> {
    /// A step of `tokens` tokens with f16 weights and an f16 cache of `cache_rows` rows.
    pub fn new(tokens: usize, cache_rows: usize) -> Self {
        Self {
            tokens,
            cache_rows,
            cache: CacheLayout::Whole,
            decode: None,
            cache_dtype: DType::F16,
            logits: Logits::Last,
            part: Part::Whole,
            order_experts: false,
            weight_dtype: &|_| DType::F16,
            adapters: None,
        }
    }
}

/// How elements of a cache lie that was asked for as `dtype`: blocks of q8_0 are taken apart, so that kernels read quants and
/// scales in wide pieces.
pub(crate) const fn in_cache(dtype: DType) -> DType {
    match dtype {
        DType::Q8_0 => DType::C8,
        dtype => dtype,
    }
}

/// A recorded step.
#[derive(Clone, Debug)]
pub struct ModelGraph {
    /// What was recorded. More ops and tensors can be added to it, such as the choice of a token.
    pub recorder: Recorder,
    /// The logits, f32, one row for each token asked for; without any, what the last layer begins with, or the last norm; of
    /// [`Part::Front`] the residual stream of every token.
    pub logits: TensorView,
}

impl ModelGraph {
    /// The recorded list.
    pub fn graph(&self) -> &ComputeGraph {
        self.recorder.graph()
    }

    /// Tensors it names but does not hold: weights, caches, `tokens`, `positions`, perhaps `logit_rows`. The identity of
    /// each is its index.
    pub fn externals(&self) -> &[External] {
        self.recorder.externals()
    }

    /// The tensor of this name that it does not hold.
    pub fn external(&self, name: &str) -> Option<TensorView> {
        self.externals().iter().find(|external| external.name == name).map(|found| found.view)
    }

    /// Only the tensors it does not hold.
    pub fn into_externals(self) -> Vec<External> {
        self.recorder.into_parts().1
    }
}

/// Name of the external tensor with the step's token ids, `u32[T]`.
pub const TOKENS: &str = "tokens";
/// Name of the external tensor with the residual stream of the step's tokens, `f32[T,E]`, in steps of [`Part::Back`]. They
/// have no [`TOKENS`].
pub const STREAM: &str = "stream";
/// Name of the external tensor with the step's positions, `u32[T]`.
pub const POSITIONS: &str = "positions";
/// Name of the external tensor with the cache row that each token is written to, `u32[T]`, where the cache lies in blocks. A
/// token with a row beyond the cache is written nowhere.
pub const CACHE_ROWS: &str = "cache_rows";
/// Name of the external tensor with the sequence of each token, `u32[T]`, where the cache lies in blocks. A token of a
/// sequence beyond the table sees nothing.
pub const SEQUENCES: &str = "sequences";
/// Name of the external tensor with the blocks of each sequence, `u32[S,N]`, where the cache lies in blocks.
pub const BLOCKS: &str = "blocks";
/// Name of the external tensor with the blocks of each sequence that decodes, `u32[S,N]`, in steps recorded with
/// [`RecordOptions::decode`].
pub const DECODE_BLOCKS: &str = "decode_blocks";
/// Name of the external tensor with the indices of the step's tokens that get logits, `u32[N]`, in steps recorded with
/// [`Logits::Rows`].
pub const LOGIT_ROWS: &str = "logit_rows";
/// Name of the external tensor with the last cache row that each token sees, `u32[T]`, where a model reads texts as a whole
/// ([`ModelShape::causal`]).
pub const SEEN: &str = "seen";
/// Name of the external tensor with the numbers of the heads, `u32[H]`, counted from 0, where attention is latent
/// ([`ModelShape::latent`]).
pub const HEADS: &str = "heads";
/// Name of the external tensor that divides rotary frequencies; ones where a model has none.
pub const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Records one step of a model. Where texts are read as a whole ([`ModelShape::causal`]) that is the last norm of every token, whatever [`RecordOptions::logits`] says.
///
/// # Errors
/// A shape whose sizes do not fit together, as the first op that finds out says it.
pub fn record(shape: &ModelShape, options: &RecordOptions<'_>) -> Result<ModelGraph> {
    let mut layers = Layers::new(shape, options)?;
    let (mut x, first) = match options.part {
        Part::Whole => (layers.embed()?, 0),
        Part::Front { layers: count } => {
            let mut stream = layers.embed()?;
            for layer in 0..count {
                stream = layers.layer(layer, stream)?;
            }
            let mut recorder = layers.into_recorder();
            recorder.mark_output(stream)?;
            return Ok(ModelGraph { recorder, logits: stream });
        }
        Part::Back { from } => (layers.stream(), from),
    };
    let (last, logits) = match options.logits {
        Logits::None if shape.causal => (shape.layers.saturating_sub(1), false),
        Logits::None => (shape.layers, true),
        Logits::Last | Logits::All | Logits::Rows(_) | Logits::Tail(_) | Logits::Normed => {
            (shape.layers, true)
        }
    };
    for layer in first..last {
        x = match options.logits {
            Logits::Tail(count) if layer + 1 == last && count < options.tokens => {
                layers.last_layer(layer, x, count)?
            }
            _ => layers.layer(layer, x)?,
        };
    }
    let logits = if shape.arch.is_encoder() {
        // It ends with the norm of its last layer.
        x
    } else if options.logits == Logits::Normed || !shape.causal {
        layers.last_norm(x)?
    } else if logits {
        layers.head(x)?
    } else {
        layers.fill_cache(last, x)?;
        x
    };
    let mut recorder = layers.into_recorder();
    if options.logits != Logits::None || !shape.causal {
        recorder.mark_output(logits)?;
    }
    Ok(ModelGraph { recorder, logits })
}
