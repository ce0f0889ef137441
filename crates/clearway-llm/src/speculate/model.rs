//! Drafts of a second, smaller model.
//!
//! It reads the same tokens and chooses by the same row of sampling data. Random numbers are a hash of seed and position, so
//! where both models think alike they draw alike: drafts of drawn texts are kept as those of greedy ones are.

use std::sync::Arc;

use clearway::Device;

use super::Drafter;
use crate::engine::{self, Engine, EngineError, EngineOptions, Result, Sampler, Sampling};
use crate::gguf::Gguf;
use crate::text::Tokenizer;

/// A model that drafts for another.
pub struct DraftModel {
    engine: Engine,
    /// Tokens in its cache.
    read: Vec<u32>,
}

impl std::fmt::Debug for DraftModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DraftModel")
            .field("name", &self.engine.shape().name)
            .finish_non_exhaustive()
    }
}

impl DraftModel {
    /// Loads a model file that drafts for a model of this vocabulary; `progress` is told how many bytes of its tensors are on
    /// the device.
    ///
    /// # Errors
    /// [`EngineError::OtherVocabulary`] before anything is loaded; as [`Engine::new`].
    pub fn new(
        gguf: &Gguf,
        vocabulary: &Tokenizer,
        device: Arc<dyn Device>,
        options: EngineOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        check_vocabulary(&engine::tokenizer(gguf)?, vocabulary)?;
        let engine = Engine::with_progress(gguf, device, options, progress)?;
        engine.check_writes()?;
        Ok(Self { engine, read: Vec::new() })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
}

/// An error unless every token means the same to both.
fn check_vocabulary(draft: &Tokenizer, model: &Tokenizer) -> Result<()> {
    let differs = |&token: &u32| {
        draft.token_bytes(token) != model.token_bytes(token)
            || draft.token_kind(token) != model.token_kind(token)
    };
    let (found, expected) = (draft.len(), model.len());
    let token = (0..found.min(expected) as u32).find(differs);
    match token.is_some() || found != expected {
        true => Err(EngineError::OtherVocabulary { found, expected, token }),
        false => Ok(()),
    }
}

impl Drafter for DraftModel {
    fn kind(&mut self, text: &[u32]) -> Option<usize> {
        // A text longer than its context is beyond it.
        (text.len() < self.engine.context()).then_some(0)
    }

    fn draft(&mut self, text: &[u32], most: usize, sampling: &Sampling) -> Result<Vec<u32>> {
        let Some((&last, before)) = text.split_last() else { return Ok(Vec::new()) };
        let most = most.min(self.engine.context().saturating_sub(before.len()));
        if most == 0 {
            return Ok(Vec::new());
        }
        // A constraint belongs to the text itself, and nobody asks how likely a draft is.
        let sampling = Sampling { constraint: None, log_probs: 0, ..sampling.clone() };
        let shared = before.iter().zip(&self.read).take_while(|(a, b)| a == b).count();
        self.engine.truncate(shared);
        self.read.truncate(shared);
        let mut draft = Vec::with_capacity(most);
        if self.engine.feeds_back() && sampling.runs_on_device() {
            if shared < before.len() {
                self.engine.eval(&before[shared..])?;
                self.read.extend_from_slice(&before[shared..]);
            }
            let mut seen = |token| {
                draft.push(token);
                true
            };
            self.engine.generate(last, most, &sampling, &mut seen)?;
            self.read.push(last);
            self.read.extend_from_slice(&draft[..most - 1]);
            return Ok(draft);
        }
        let mut sampler = Sampler::new(sampling);
        let mut unread = &text[shared..];
        while draft.len() < most {
            let logits = self.engine.eval(unread)?;
            self.read.extend_from_slice(unread);
            let Some(token) = sampler.sample(&logits, &self.read) else { break };
            draft.push(token);
            unread = &draft[draft.len() - 1..];
        }
        Ok(draft)
    }

    fn is_free(&self) -> bool {
        false
    }
}
