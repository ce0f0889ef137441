//! The model that is served, as far as texts need it.

use clearway_llm::engine::{self, EngineError};
use clearway_llm::gguf::Gguf;
use clearway_llm::text::{ChatTemplate, TextError, Tokenizer};

use crate::backend::Backend;

/// A model that is ready.
pub struct Served {
    /// Names it answers to; the first is its own.
    pub names: Vec<String>,
    /// Names of its adapters, which requests choose as if they were models of their own.
    pub adapters: Vec<String>,
    /// The vocabulary.
    pub tokenizer: Tokenizer,
    /// The chat template, or why there is none.
    pub template: Result<ChatTemplate, TextError>,
    /// Tokens of one text at most.
    pub context: usize,
    /// Parameters and bytes, for `/v1/models`.
    pub facts: Facts,
    /// What writes the texts.
    pub backend: Box<dyn Backend>,
}

/// What is said about a model file.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Architecture.
    pub architecture: String,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Context the model was trained with.
    pub trained_context: usize,
    /// Bytes of the weights.
    pub bytes: u64,
    /// Numbers of the vector of a text.
    pub embedding: usize,
}

impl Served {
    /// A model of a file.
    ///
    /// # Errors
    /// A file without a vocabulary, or with a broken one.
    pub fn new(
        names: Vec<String>,
        file: &Gguf,
        context: usize,
        trained_context: usize,
        backend: Box<dyn Backend>,
    ) -> Result<Self, EngineError> {
        let tokenizer = engine::tokenizer(file)?;
        let template = match engine::chat_template(file, &tokenizer) {
            Ok(template) => Ok(template),
            Err(EngineError::Text(error)) => Err(error),
            Err(other) => return Err(other),
        };
        let meta = file.metadata();
        let architecture = meta.optional::<&str>("general.architecture")?.unwrap_or("").to_owned();
        let embedding = meta.optional::<u32>(&format!("{architecture}.embedding_length"))?;
        let facts = Facts {
            architecture,
            embedding: embedding.unwrap_or(0) as usize,
            vocabulary: tokenizer.len(),
            trained_context,
            bytes: file.tensor_bytes(),
        };
        let adapters = Vec::new();
        Ok(Self { names, adapters, tokenizer, template, context, facts, backend })
    }

    /// The same model with adapters of these names, in the order in which its engine has them
    /// ([`Engine::adapters`](clearway_llm::engine::Engine::adapters)).
    #[must_use]
    pub fn with_adapters(self, adapters: Vec<String>) -> Self {
        Self { adapters, ..self }
    }

    /// The model's own name.
    pub fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }
}
