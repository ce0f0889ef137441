//! What is asked of the service, and how it ends or is refused.

use std::sync::Arc;
use std::time::Duration;

use super::runner::{Chosen, Limits};
use crate::engine::{EngineError, Sampling};

/// Names a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Texts that are to be written after a prompt.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tokens of the prompt.
    pub prompt: Arc<[u32]>,
    /// How tokens are chosen, what ends the text and how long it may be. Stop strings are not looked at here; see
    /// [`text`](super::text).
    pub sampling: Sampling,
    /// Texts after the same prompt. Text `i` has the seed of the row plus `i`.
    pub n: usize,
    /// A larger one goes first.
    pub priority: i32,
    /// Requests with different salts do not share what was computed for equal tokens. Nor do requests with different adapters.
    pub cache_salt: u64,
    /// The tokens that end a text by the vocabulary do not end it. Those of the sampling row still do.
    pub ignore_eos: bool,
    /// Nobody reads its tokens as they come: only how soon the whole text is there counts. While all texts that run are such,
    /// prompts are read in full chunks before anybody decodes, and works are long.
    pub patient: bool,
}

impl Request {
    /// One text after a prompt.
    pub fn new(prompt: impl Into<Arc<[u32]>>, sampling: Sampling) -> Self {
        let prompt = prompt.into();
        Self {
            prompt,
            sampling,
            n: 1,
            priority: 0,
            cache_salt: 0,
            ignore_eos: false,
            patient: false,
        }
    }

    /// Whether it can ever run within these limits.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, limits: &Limits) -> Result<(), Refusal> {
        let tokens = self.prompt.len();
        if tokens == 0 || self.n == 0 {
            return Err(Refusal::Empty);
        }
        let loaded = limits.adapters;
        if let Some(adapter) = self.sampling.adapter.filter(|&one| one as usize >= loaded) {
            return Err(Refusal::Adapter { adapter, loaded });
        }
        if tokens > limits.context {
            return Err(Refusal::TooLong { tokens, context: limits.context });
        }
        let needed = tokens.div_ceil(limits.block.max(1));
        if needed > limits.blocks {
            return Err(Refusal::TooLarge { needed, blocks: limits.blocks });
        }
        Ok(())
    }
}

/// Why a request was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no prompt, or no text is wanted.
    #[error("no tokens were given, or no text is wanted")]
    Empty,
    /// The prompt does not fit the context.
    #[error("the prompt has {tokens} tokens, but the context holds {context}")]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that fit.
        context: usize,
    },
    /// The prompt does not fit the memory of the cache, even alone.
    #[error("the prompt needs {needed} blocks of the cache, which has {blocks}")]
    TooLarge {
        /// Blocks of the prompt.
        needed: usize,
        /// Blocks there are.
        blocks: usize,
    },
    /// A token id the vocabulary does not have.
    #[error("token {token} does not exist; the vocabulary has {vocab}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Tokens there are.
        vocab: usize,
    },
    /// There is no such adapter of the weights.
    #[error("there is no adapter {adapter}: {loaded} are loaded")]
    Adapter {
        /// The adapter that was asked for.
        adapter: u32,
        /// How many there are.
        loaded: usize,
    },
    /// Too many requests wait.
    #[error("{waiting} texts wait already; try again in {:.1} s", expected.as_secs_f64())]
    Full {
        /// Texts that wait.
        waiting: usize,
        /// How long a new one would wait, by the pace of the last ones.
        expected: Duration,
    },
    /// The service ends and takes no more.
    #[error("the service is shutting down")]
    Draining,
}

/// Why a text could not go on.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The device failed in work for this text.
    #[error("the device failed: {0}")]
    Device(Arc<EngineError>),
    /// The model gave no numbers to choose a token by, or the row allows none.
    #[error("no token can be chosen after {position} tokens")]
    NoToken {
        /// Tokens of the text.
        position: usize,
    },
    /// The device broke the rules of [`runner`](super::runner).
    #[error("the device gave {found} tokens where {expected} were due")]
    Protocol {
        /// Tokens that were due.
        expected: usize,
        /// Tokens that came.
        found: usize,
    },
    /// The service is gone.
    #[error("the service has stopped")]
    Gone,
}

/// Why a text ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EndReason {
    /// This token ended it. It is not part of the text.
    Token(u32),
    /// The budget is spent.
    Budget,
    /// The context is full.
    Context,
    /// It was cancelled.
    Cancelled,
    /// It could not go on.
    Failed(Failure),
}

/// What a text took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenUsage {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens of the prompt that were not read since the cache had them.
    pub cached: usize,
    /// Tokens that were generated, without the one that ended the text.
    pub generated: usize,
}

/// What happened to a text of a request.
#[derive(Clone, Debug)]
pub struct Event {
    /// The request.
    pub request: RequestId,
    /// Which of its texts.
    pub choice: usize,
    /// What happened.
    pub what: What,
}

/// What happened to a text.
#[derive(Clone, Debug)]
pub enum What {
    /// It left the queue for the first time.
    Admitted {
        /// How long it waited.
        waited: Duration,
    },
    /// Tokens came.
    Tokens {
        /// The tokens.
        tokens: Vec<Chosen>,
        /// The time since the tokens before.
        since: Since,
        /// What the text took so far.
        usage: TokenUsage,
    },
    /// It ended. Nothing comes after this.
    Ended {
        /// Why.
        reason: EndReason,
        /// What it took.
        usage: TokenUsage,
    },
}

/// The time before some tokens came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// They are the first of their text.
    First {
        /// Since the request was submitted.
        submitted: Duration,
        /// Since the text left the queue: reading the prompt, and the first step.
        admitted: Duration,
    },
    /// Since the tokens before them.
    Last(Duration),
}
