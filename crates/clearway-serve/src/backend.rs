//! What the server asks of an engine: prompts of tokens in, tokens out, many at a time.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use clearway_llm::Sampling;
use clearway_llm::batch::service::Times;
use clearway_llm::engine::LogProbs;

/// One text to be written.
pub struct Request {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// How tokens are chosen. Stop strings are the server's.
    pub sampling: Sampling,
    /// Whether tokens that end a text are taken for ordinary ones.
    pub ignore_end: bool,
}

/// What becomes of a request, in order.
#[derive(Debug)]
pub enum Event {
    /// It is read from now on.
    Started {
        /// Tokens of the prompt that need not be read again.
        cached: usize,
    },
    /// A token was chosen.
    Token {
        /// Which.
        token: u32,
        /// Its log probability and those of the best, where they were asked for.
        log_probs: Option<LogProbs>,
    },
    /// There are no more.
    End(End),
    /// It cannot go on.
    Failed(Failure),
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model has said all.
    Stop,
    /// The budget is spent or the context is full.
    Length,
}

/// Why a request was not taken.
#[derive(Debug)]
pub enum Refused {
    /// Too many wait already.
    Full {
        /// How many.
        waiting: usize,
        /// How long one of them is expected to wait.
        wait: Duration,
    },
    /// The prompt does not fit the context.
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that fit, one for the answer included.
        context: usize,
    },
    /// The request can never be done.
    Invalid(String),
    /// Nothing is taken any more.
    Closed,
}

/// Why a request that was taken failed.
#[derive(Clone, Debug)]
pub enum Failure {
    /// By its own fault.
    Request(String),
    /// The device or the model failed.
    Engine(String),
    /// The engine is gone.
    Lost,
    /// It took too long.
    TimedOut,
}

/// Numbers for metrics and for the page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Requests that are read or written.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that can run at once.
    pub slots: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// Tokens of a block of the cache.
    pub block_tokens: usize,
    /// Blocks of the cache.
    pub blocks: usize,
    /// Blocks in use.
    pub blocks_used: usize,
    /// Tokens of prompts, cached ones included.
    pub prompt_tokens: u64,
    /// Tokens of prompts that were not read again.
    pub cached_tokens: u64,
    /// Tokens that were written.
    pub generated_tokens: u64,
    /// Works in which rows of prompts and a step were one.
    pub mixed_works: u64,
    /// Works in which they were two lists, since the list of both was not made yet.
    pub apart_works: u64,
    /// Lists that were made before a work needed them.
    pub lists_ahead: u64,
    /// Lists that were made after a work had needed them.
    pub lists_late: u64,
    /// Lists that could not be made.
    pub lists_failed: u64,
    /// Lists that texts waited for.
    pub list_waits: u64,
    /// Lists that texts needed and that are not made yet.
    pub lists_missing: u64,
    /// What it took to make those that nobody waited for, of all threads together.
    pub lists_time: Duration,
    /// Times that a lost device was opened again.
    pub reopened: u64,
    /// Adapters that requests can choose.
    pub adapters: usize,
}

/// An engine.
pub trait Backend: Send + Sync {
    /// Takes a request, or says at once why not.
    ///
    /// # Errors
    /// [`Refused`].
    fn submit(&self, request: Request) -> Result<Ticket, Refused>;

    /// Takes texts that become vectors, or says at once why not.
    ///
    /// # Errors
    /// [`Refused`].
    fn embed(&self, texts: Vec<Vec<u32>>) -> Result<Vectors, Refused> {
        drop(texts);
        Err(Refused::Invalid("this model gives no vectors of texts".into()))
    }

    /// Numbers as they are now. It must not wait for the engine.
    fn stats(&self) -> Stats;

    /// Times that the engine measures, each with a name and a sentence.
    fn times(&self) -> Vec<(&'static str, &'static str, Times)> {
        Vec::new()
    }
}

/// Vectors of texts, in their order. Dropped, they are not computed.
pub type Vectors = Pin<Box<dyn Future<Output = Result<Vec<Vec<f32>>, Failure>> + Send>>;

/// Where the events of a request come from.
pub trait Events: Send {
    /// The next event; the waker is woken when there is one.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event>;
}

/// A request under way. Dropped, it is cancelled.
pub struct Ticket(Box<dyn Events>);

impl Ticket {
    /// A ticket for these events. What is not fetched yet is bounded by the budget of the request.
    pub fn new(events: impl Events + 'static) -> Self {
        Self(Box::new(events))
    }

    /// The next event. It may be waited for again where the waiting was given up.
    pub async fn next(&mut self) -> Event {
        std::future::poll_fn(|context| self.0.poll(context)).await
    }

    /// The next event where it is there already.
    pub fn ready(&mut self) -> Option<Event> {
        match self.0.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(event) => Some(event),
            Poll::Pending => None,
        }
    }
}
