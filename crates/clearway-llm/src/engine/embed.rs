//! Texts to vectors: the last norm of each token, pooled over the text.
//!
//! The step is the model's without its head ([`Logits::Normed`]). It has a cache of its own, which grows with the longest
//! text, so the text that the engine is in the middle of stays as it is.

use clearway::{Bindings, Buffer};
use rustc_hash::FxHashMap;

use super::sizes::{self, Kept};
use super::{Engine, EngineError, Result, Step, missing};
use crate::gguf::Gguf;
use crate::model::{Logits, POSITIONS, SEEN, STREAM, TOKENS, family_of};

/// Rows of the smallest cache.
const FEWEST_ROWS: usize = 256;

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// That of the first token, which stands for the whole text in some encoders.
    First,
    /// That of the last token: in a decoder the only one that has seen the whole text.
    Last,
}

impl Pooling {
    /// What a file says in `{architecture}.pooling_type`; where it says nothing, the mean of an encoder and the last token
    /// of a decoder.
    ///
    /// # Errors
    /// Ways to pool that are made for other models.
    pub fn of(file: &Gguf) -> Result<Self> {
        let meta = file.metadata();
        let architecture = meta.optional::<&str>("general.architecture")?.unwrap_or_default();
        let key = format!("{architecture}.pooling_type");
        let encoder = family_of(architecture).is_some_and(|family| family.arch.is_encoder());
        match meta.optional::<u32>(&key)? {
            None | Some(0) if encoder => Ok(Self::Mean),
            Some(2) if encoder => Ok(Self::First),
            None | Some(0 | 3) => Ok(Self::Last),
            Some(1) => Ok(Self::Mean),
            Some(other) if encoder => Err(EngineError::Parameter {
                key,
                found: other.to_string(),
                expected: "encoders pool by 1 (mean), 2 (first) or 3 (last)".into(),
            }),
            Some(other) => Err(EngineError::Parameter {
                key,
                found: other.to_string(),
                expected: "decoders pool by 1 (mean) or 3 (last)".into(),
            }),
        }
    }
}

/// A text on its way to its vector, part by part: see [`Engine::embed_part`].
#[derive(Clone, Debug)]
pub struct Embedding {
    tokens: Vec<u32>,
    read: usize,
    /// Sum of the vectors so far, or the last.
    pooled: Vec<f64>,
}

impl Embedding {
    /// A text of which nothing was read yet.
    pub fn new(tokens: Vec<u32>) -> Self {
        Self { tokens, read: 0, pooled: Vec::new() }
    }

    /// Tokens of the text.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

/// Steps that give vectors, and their cache.
pub(super) struct Embedder {
    rows: usize,
    cache: FxHashMap<String, Buffer>,
    steps: Kept<usize, Step>,
}

impl Embedder {
    /// No cache yet. Its steps have so many rows together.
    pub(super) fn new(kept_rows: usize) -> Self {
        Self { rows: 0, cache: FxHashMap::default(), steps: Kept::new(kept_rows) }
    }
}

impl Engine {
    /// The vector of a text, pooled as the file says ([`Pooling`]) and scaled to length 1. It has
    /// [`ModelShape::embd`](crate::model::ModelShape::embd) numbers. The text that the engine is in the middle of stays as
    /// it is.
    ///
    /// # Errors
    /// [`EngineError::Empty`], [`EngineError::ContextFull`], [`EngineError::TokenOutOfRange`] and a file that pools otherwise,
    /// before anything is computed; [`EngineError::NotFinite`]; what the device reports.
    pub fn embed(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let mut text = Embedding::new(tokens.to_vec());
        loop {
            if let Some(vector) = self.embed_part(&mut text, usize::MAX)? {
                return Ok(vector);
            }
        }
    }

    /// Reads at most so many of the next tokens of a text; its vector once all are read. Between the parts of one text no
    /// other may be read.
    ///
    /// # Errors
    /// As [`embed`](Self::embed).
    pub fn embed_part(&mut self, text: &mut Embedding, most: usize) -> Result<Option<Vec<f32>>> {
        let pooling = Pooling::of(&self.file)?;
        if text.read == 0 {
            self.check_embedded(&text.tokens)?;
            self.embedder_for(text.tokens.len())?;
        }
        // An encoder sees a text as a whole.
        let most = match self.shape.causal {
            true => most.clamp(1, self.batch_tokens()),
            false => usize::MAX,
        };
        let part = &text.tokens[text.read..];
        let part = &part[..part.len().min(most)];
        let rows = self.embed_step(part, text.read)?;
        let size = self.shape.embd;
        let end = text.read + part.len();
        for row in rows.chunks_exact(size) {
            match pooling {
                Pooling::First if !text.pooled.is_empty() => {}
                Pooling::First | Pooling::Last => {
                    text.pooled = row.iter().copied().map(f64::from).collect()
                }
                Pooling::Mean => {
                    text.pooled.resize(size, 0.0);
                    text.pooled.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
                }
            }
        }
        text.read = end;
        if end < text.tokens.len() {
            return Ok(None);
        }
        // The length of a mean does not matter, nor what it was divided by.
        let length = text.pooled.iter().map(|x| x * x).sum::<f64>().sqrt();
        if !length.is_finite() {
            return Err(EngineError::NotFinite { position: end, origin: None });
        }
        let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
        Ok(Some(text.pooled.iter().map(|x| (x * scale) as f32).collect()))
    }

    fn check_embedded(&self, tokens: &[u32]) -> Result<()> {
        if tokens.is_empty() {
            return Err(EngineError::Empty);
        }
        let (wanted, context) = (tokens.len(), self.context);
        if wanted > context {
            return Err(EngineError::ContextFull { wanted, context });
        }
        self.check_vocabulary(tokens)
    }

    /// Makes the cache large enough.
    fn embedder_for(&mut self, tokens: usize) -> Result<()> {
        if tokens <= self.embedder.rows {
            return Ok(());
        }
        self.embedder = Embedder::new(self.kept_rows());
        if let Some(front) = &mut self.front {
            front.embedder_for(tokens)?;
        }
        let rows = tokens.next_power_of_two().max(FEWEST_ROWS);
        let device = self.executor.device();
        let recorded = self.record_rows(1, Logits::Normed, rows)?;
        let mut cache = FxHashMap::default();
        for external in recorded.externals().iter().filter(|one| one.name.starts_with("cache.")) {
            let buffer = device.alloc(external.view.layout.span_bytes())?;
            cache.insert(external.name.to_string(), buffer);
        }
        self.embedder = Embedder { rows, cache, ..Embedder::new(self.kept_rows()) };
        Ok(())
    }

    /// Reads a part of a text from a position on; the vectors of its tokens, one after another.
    fn embed_step(&mut self, tokens: &[u32], position: usize) -> Result<Vec<f32>> {
        let most = if self.shape.causal { self.batch_tokens() } else { usize::MAX };
        let size = sizes::fitting(tokens.len()).min(most);
        // As in a step with logits: what is missing is the first token again, at its own place.
        let (missing, first) = (size - tokens.len(), position as u32);
        let positions: Vec<u32> =
            std::iter::repeat_n(first, missing).chain(first..).take(size).collect();
        let repeated = std::iter::repeat_n(tokens[0], missing);
        let padded: Vec<u32> = repeated.chain(tokens.iter().copied()).collect();
        let last = (position + tokens.len() - 1) as u32;
        let mut rows = self.replay_embedder(&padded, &positions, last)?;
        rows.drain(..missing * self.shape.embd);
        Ok(rows)
    }

    /// Runs the step of as many tokens as are given, of which each sees the rows up to `last` where texts are read as a
    /// whole. Returns what this part of the model ends with.
    fn replay_embedder(
        &mut self,
        tokens: &[u32],
        positions: &[u32],
        last: u32,
    ) -> Result<Vec<f32>> {
        let size = tokens.len();
        let step = match self.embedder.steps.take(&size) {
            Some(step) if self.options.replay => step,
            _ => {
                self.embedder.steps.give_up_for(size);
                self.compile_embedder(size)?
            }
        };
        let step = self.embedder.steps.put(size, size, step);
        match &mut self.front {
            None => step.input.write_slice(0, tokens)?,
            Some(front) => {
                let stream = front.replay_embedder(tokens, positions, last)?;
                step.input.write_slice(0, &stream)?;
            }
        }
        step.positions.write_slice(0, positions)?;
        if let Some(seen) = &step.rows {
            seen.write_slice(0, &vec![last; size])?;
        }
        step.graph.run()?;
        Ok(step.graph.read_f32(step.recorded.logits)?)
    }

    fn compile_embedder(&self, size: usize) -> Result<Step> {
        let recorded = self.record_rows(size, Logits::Normed, self.embedder.rows)?;
        let device = self.executor.device();
        let input = self.input(&recorded)?;
        let positions = device.alloc(size as u64 * 4)?;
        let seen = match self.shape.causal {
            true => None,
            false => Some(device.alloc(size as u64 * 4)?),
        };
        let mut bound = Bindings::new();
        for external in recorded.externals() {
            let buffer = match &*external.name {
                TOKENS | STREAM => &input,
                POSITIONS => &positions,
                SEEN => seen.as_ref().ok_or_else(|| missing(SEEN))?,
                name => match self.embedder.cache.get(name) {
                    Some(buffer) => buffer,
                    None => self.buffer(name)?,
                },
            };
            bound.bind(external.view, buffer);
        }
        let graph = self.executor.compile(recorded.graph(), &bound, &self.options.compile)?;
        Ok(Step { graph, recorded, input, positions, rows: seen })
    }
}
