//! What can be wrong with an adapter.

use crate::gguf::GgufError;

/// Why an adapter cannot be used. Every variant names the adapter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// The file is broken.
    #[error("adapter `{adapter}`: {error}")]
    File {
        /// Name of the adapter.
        adapter: String,
        /// What is wrong.
        #[source]
        error: Box<GgufError>,
    },
    /// The file is something else.
    #[error("`{adapter}` is no adapter: `general.type` is {found}, not \"adapter\"")]
    NotAdapter {
        /// Name of the adapter.
        adapter: String,
        /// What the file says it is.
        found: String,
    },
    /// An adapter that is not made of low-rank matrices.
    #[error(
        "`{adapter}` is an adapter whose `adapter.type` is {found}; only \"lora\" is supported"
    )]
    Kind {
        /// Name of the adapter.
        adapter: String,
        /// What the file says.
        found: String,
    },
    /// An adapter that acts on a part of a text alone.
    #[error("`{adapter}` acts only behind its invocation tokens (`{key}`), which is not supported")]
    Activated {
        /// Name of the adapter.
        adapter: String,
        /// The key that says so.
        key: &'static str,
    },
    /// A factor that is no number to multiply by.
    #[error("the {what} of adapter `{adapter}` is {found}, but a finite number is needed")]
    Factor {
        /// Name of the adapter.
        adapter: String,
        /// Which factor.
        what: &'static str,
        /// Its value.
        found: f32,
    },
    /// A file without matrices.
    #[error("adapter `{adapter}` has no tensors")]
    Empty {
        /// Name of the adapter.
        adapter: String,
    },
    /// A tensor that is no half of a pair.
    #[error(
        "tensor `{tensor}` of adapter `{adapter}` is not supported: only pairs of `.lora_a` and `.lora_b` are"
    )]
    Tensor {
        /// Name of the adapter.
        adapter: String,
        /// Name of the tensor.
        tensor: String,
    },
    /// Half of a pair is missing.
    #[error("adapter `{adapter}` has `{found}` and lacks `{missing}`")]
    Half {
        /// Name of the adapter.
        adapter: String,
        /// The half that is there.
        found: String,
        /// The half that is not.
        missing: String,
    },
    /// The adapter was made for another family of models.
    #[error("adapter `{adapter}` is for models of `{found}`, but the model is one of `{model}`")]
    Architecture {
        /// Name of the adapter.
        adapter: String,
        /// Its family.
        found: String,
        /// That of the model.
        model: String,
    },
    /// The model has no such weight.
    #[error(
        "adapter `{adapter}` changes `{weight}`, which the model does not have; was it made for another model?"
    )]
    NoWeight {
        /// Name of the adapter.
        adapter: String,
        /// Name of the weight.
        weight: String,
    },
    /// The weight is there, but adapters of it are not supported.
    #[error("adapter `{adapter}` changes `{weight}`: adapters of this weight are not supported")]
    Target {
        /// Name of the adapter.
        adapter: String,
        /// Name of the weight.
        weight: String,
    },
    /// A matrix of the wrong shape.
    #[error("tensor `{tensor}` of adapter `{adapter}` is {found:?}, but {expected} is needed")]
    Shape {
        /// Name of the adapter.
        adapter: String,
        /// Name of the tensor.
        tensor: String,
        /// Its rows and the elements of a row.
        found: Vec<usize>,
        /// What is needed.
        expected: String,
    },
    /// A number that is not finite. It would reach texts that do not use the adapter.
    #[error(
        "element {element} of tensor `{tensor}` of adapter `{adapter}` is {value}: the file is damaged"
    )]
    NotFinite {
        /// Name of the adapter.
        adapter: String,
        /// Name of the tensor.
        tensor: String,
        /// Index of the number.
        element: usize,
        /// The number.
        value: f32,
    },
}
