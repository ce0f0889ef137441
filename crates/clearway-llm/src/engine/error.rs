//! What can go wrong between a model file and its text.

use clearway::DType;

use super::adapter::AdapterError;
use super::finite::{self, Origin};
use super::memory::Bytes;
use crate::gguf::GgufError;
use crate::text::TextError;

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The file is broken or lacks something.
    #[error(transparent)]
    File(#[from] GgufError),
    /// The runtime or the device failed.
    #[error(transparent)]
    Runtime(#[from] clearway::Error),
    /// The vocabulary or the chat template is broken.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The model is of a family that is not supported.
    #[error(
        "architecture `{found}` is not supported; supported are {supported}{}",
        nearest.map_or_else(String::new, |name| format!("; the nearest of them is {name}"))
    )]
    Architecture {
        /// What the file says.
        found: String,
        /// What there is.
        supported: String,
        /// What is most like it, if anything is.
        nearest: Option<&'static str>,
    },
    /// A hyper-parameter has a value that is not supported.
    #[error("`{key}` is {found}, but {expected}")]
    Parameter {
        /// Key in the file.
        key: String,
        /// Its value.
        found: String,
        /// What is supported.
        expected: String,
    },
    /// A tensor is missing or has another shape or type than the model's shape asks for.
    #[error("tensor `{name}` is {found}, but {expected} is needed")]
    TensorShape {
        /// Name of the tensor.
        name: String,
        /// Its type and shape.
        found: String,
        /// What is needed.
        expected: String,
    },
    /// The file has no vocabulary.
    #[error(
        "the file has no vocabulary (tokenizer `{model}`); it can be measured but not talked to"
    )]
    NoVocabulary {
        /// What the file says its tokenizer is.
        model: String,
    },
    /// A model that drafts has another vocabulary than the one it drafts for.
    #[error(
        "the draft model has another vocabulary: {}; drafts need a model of the same family, whose tokens mean the same",
        match token {
            Some(token) => format!("token {token} is not the same in both"),
            None => format!("{found} tokens instead of {expected}"),
        }
    )]
    OtherVocabulary {
        /// Tokens the draft model knows.
        found: usize,
        /// Tokens that it should know.
        expected: usize,
        /// The first token that differs; `None` where only the number does.
        token: Option<u32>,
    },
    /// There is nothing to compute.
    #[error("no tokens were given")]
    Empty,
    /// These sampling options need the host between tokens.
    #[error(
        "tokens cannot be chosen on the device with these options, or two devices have the model; use eval and a sampler"
    )]
    NotOnDevice,
    /// An adapter cannot be used.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// The file is an adapter and no model.
    #[error(
        "the file is an adapter for models of {architecture}, not a model: it is loaded beside one"
    )]
    IsAdapter {
        /// The family of its model, as the file has it.
        architecture: String,
    },
    /// The text names an adapter where texts cannot choose.
    #[error(
        "adapter {adapter} cannot be chosen: texts choose adapters where many are written at once"
    )]
    NoAdapter {
        /// The adapter that was asked for.
        adapter: u32,
    },
    /// The sampling options leave no token to choose.
    #[error(
        "no token may come after {position} tokens: mask and biases close the whole vocabulary"
    )]
    NoToken {
        /// Tokens of the text.
        position: usize,
    },
    /// A constraint cannot go on.
    #[error("the grammar of the answer cannot go on: {what}")]
    Grammar {
        /// Why not.
        what: String,
    },
    /// The cache cannot have this type.
    #[error("the cache cannot be {cache_dtype}: {why}")]
    CacheType {
        /// The type that was asked for.
        cache_dtype: DType,
        /// Why not.
        why: String,
    },
    /// The device has too little memory.
    #[error(
        "the model is too large for `{device}`: it needs {} for weights and {} for a context of {context} tokens in \
         {cache_dtype}, but the device has {}",
        Bytes(*weights), Bytes(*cache), Bytes(*memory)
    )]
    TooLarge {
        /// Name of the device.
        device: String,
        /// Bytes of the weights.
        weights: u64,
        /// Bytes of the cache.
        cache: u64,
        /// Rows of the cache.
        context: usize,
        /// Type of the cache's elements.
        cache_dtype: DType,
        /// Bytes the device has.
        memory: u64,
    },
    /// Neither a card nor the device beside it has the memory for its part of the model.
    #[error(
        "the model is too large for `{}` and `{}` together: it needs {} for weights and {} for a context of {context} tokens, \
         but they have {} and {}",
        devices[0], devices[1], Bytes(*weights), Bytes(*cache), Bytes(memory[0]), Bytes(memory[1])
    )]
    TooLargeTogether {
        /// Names of the card and the other device.
        devices: [String; 2],
        /// Bytes of the weights.
        weights: u64,
        /// Bytes of the cache.
        cache: u64,
        /// Rows of the cache.
        context: usize,
        /// Bytes the devices have.
        memory: [u64; 2],
    },
    /// The layers that were asked for do not fit the card.
    #[error(
        "these layers and the head need {} on `{device}`, which has {}; {fit} layers fit",
        Bytes(*needed), Bytes(*memory)
    )]
    LayersTooLarge {
        /// Name of the card.
        device: String,
        /// Bytes of weights and cache.
        needed: u64,
        /// Bytes the card has.
        memory: u64,
        /// Layers that would fit.
        fit: usize,
    },
    /// A model cannot be divided there.
    #[error(
        "the first {host_layers} of {layers} layers cannot lie apart: the last lies with the head"
    )]
    Layers {
        /// Layers that were to lie apart.
        host_layers: usize,
        /// Layers there are.
        layers: usize,
    },
    /// Something needs the whole model on one device.
    #[error(
        "{what} needs the whole model on one device, but it is divided between `{}` and `{}`",
        devices[0], devices[1]
    )]
    Divided {
        /// What needs it.
        what: &'static str,
        /// Names of the devices.
        devices: [String; 2],
    },
    /// A saved text cannot be put back.
    #[error("the saved text cannot be used: {what}")]
    Saved {
        /// Why not.
        what: &'static str,
    },
    /// The model could not be fetched.
    #[cfg(feature = "fetch")]
    #[error(transparent)]
    Fetch(#[from] crate::fetch::FetchError),
    /// The cache cannot have this size.
    #[error("a context of {wanted} tokens is not possible")]
    Context {
        /// Rows asked for.
        wanted: usize,
    },
    /// Work on the device ended in a panic.
    #[error("the engine broke down: {what}")]
    Panicked {
        /// What it said.
        what: String,
    },
    /// The device cannot be opened.
    #[error("the device cannot be opened: {what}")]
    NoDevice {
        /// Why not.
        what: String,
    },
    /// The model is an encoder.
    #[error("`{name}` is an encoder: it gives vectors of texts and writes none")]
    NoLogits {
        /// Name of the model.
        name: String,
    },
    /// The runner gives no vectors.
    #[error("this engine gives no vectors of texts")]
    NoVectors,
    /// Work that was started before is lost.
    #[error("the device lost what was started before")]
    LostBefore,
    /// The text does not fit the cache.
    #[error("the text needs {wanted} tokens, but the context holds {context}")]
    ContextFull {
        /// Tokens the text would have.
        wanted: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// The model computed logits from which no token can be chosen.
    #[error("the logits after {position} tokens are not finite: {}", finite::words(origin.as_ref()))]
    NotFinite {
        /// Tokens of the text.
        position: usize,
        /// Where it began, if the step does the same when it is computed one op after another.
        origin: Option<Origin>,
    },
    /// Logits were asked for after a token that was not given.
    #[error("there is no token {row} among {tokens} to give logits for")]
    RowOutOfRange {
        /// Index of the token.
        row: usize,
        /// Tokens there are.
        tokens: usize,
    },
    /// A token id the vocabulary does not have.
    #[error("token {token} does not exist; the vocabulary has {vocab}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Tokens there are.
        vocab: usize,
    },
}

impl EngineError {
    /// Whether the device must be opened again before it can do anything.
    pub fn is_device_lost(&self) -> bool {
        use clearway::{Error, GpuError};
        let lost = |error: &Error| matches!(error, Error::Gpu(GpuError::DeviceLost { .. }));
        match self {
            Self::Runtime(error) => lost(error),
            Self::Panicked { .. } => true,
            _ => false,
        }
    }
}

impl From<clearway::GraphError> for EngineError {
    fn from(error: clearway::GraphError) -> Self {
        Self::Runtime(error.into())
    }
}

impl From<clearway::GpuError> for EngineError {
    fn from(error: clearway::GpuError) -> Self {
        Self::Runtime(error.into())
    }
}
