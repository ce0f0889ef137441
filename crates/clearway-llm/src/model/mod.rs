//! Models as functions that record their ops over a shape.
//!
//! No weights are needed: a graph can be planned, looked at and proven before a file is opened.
//! Weights, caches and the step's tokens and positions are external tensors, bound when the graph is
//! lowered. Tensor names are those of GGUF files.

mod layer;
mod shape;

pub use shape::{Arch, Experts, ModelShape, Window, builtin_shape, builtin_shapes};

use clearway::{ComputeGraph, DType, External, TensorView};

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
}

/// How to record a step.
pub struct RecordOptions<'a> {
    /// Tokens of the step: 1 for decode, more for prefill.
    pub tokens: usize,
    /// Rows of the KV cache.
    pub cache_rows: usize,
    /// Element type of the KV cache.
    pub cache_dtype: DType,
    /// Which tokens get logits.
    pub logits: Logits,
    /// Element type of each matrix, by name. Vectors are f32.
    pub weight_dtype: &'a dyn Fn(&str) -> DType,
}

impl RecordOptions<'_> {
    /// A step of `tokens` tokens with f16 weights and an f16 cache of `cache_rows` rows.
    pub fn new(tokens: usize, cache_rows: usize) -> Self {
        Self {
            tokens,
            cache_rows,
            cache_dtype: DType::F16,
            logits: Logits::Last,
            weight_dtype: &|_| DType::F16,
        }
    }
}

/// A recorded step.
#[derive(Clone, Debug)]
pub struct ModelGraph {
    /// The recorded list.
    pub graph: ComputeGraph,
    /// Tensors it names but does not hold: weights, caches, `tokens`, `positions`, perhaps `logit_rows`. The identity of
    /// each is its index.
    pub externals: Vec<External>,
    /// The logits, f32, one row for each token asked for.
    pub logits: TensorView,
}

/// Name of the external tensor with the step's token ids, `u32[T]`.
pub const TOKENS: &str = "tokens";
/// Name of the external tensor with the step's positions, `u32[T]`.
pub const POSITIONS: &str = "positions";
/// Name of the external tensor with the indices of the step's tokens that get logits, `u32[N]`, in steps recorded with
/// [`Logits::Rows`].
pub const LOGIT_ROWS: &str = "logit_rows";
/// Name of the external tensor that divides rotary frequencies; ones where a model has none.
pub const ROPE_FACTORS: &str = "rope_freqs.weight";

/// Records one step of a model.
///
/// # Errors
/// A shape whose sizes do not fit together, as the first op that finds out says it.
pub fn record(shape: &ModelShape, options: &RecordOptions<'_>) -> Result<ModelGraph> {
    let mut layers = Layers::new(shape, options)?;
    let mut x = layers.embed()?;
    for layer in 0..shape.layers {
        x = layers.layer(layer, x)?;
    }
    let logits = layers.head(x)?;
    let mut recorder = layers.into_recorder();
    recorder.mark_output(logits)?;
    let (graph, externals) = recorder.into_parts();
    Ok(ModelGraph { graph, externals, logits })
}
