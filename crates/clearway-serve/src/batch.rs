//! The engine of many sequences, as the server asks for it.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use clearway_llm::Error;
use clearway_llm::batch::device::{DeviceOptions, DeviceRunner};
use clearway_llm::batch::request::{self, EndReason, Refusal};
use clearway_llm::batch::runner::Runner;
use clearway_llm::batch::service::{Output, Service, ServiceOptions, Stream, Times};
use clearway_llm::engine::{Engine, Pooling};

use crate::backend::{
    Backend, End, Event, Events, Failure, Refused, Request, Stats, Ticket, Vectors,
};

/// Tokens of a block of the cache.
const BLOCK: usize = 32;

/// Many texts at once on one device.
pub struct Batch {
    service: Service,
    queue: usize,
    /// Adapters that requests can choose.
    adapters: usize,
    /// Why texts have no vectors, if they have none.
    no_vectors: Option<String>,
}

type OpenEngine = Box<dyn FnMut() -> Result<Engine, Error> + Send>;

/// How texts share the device.
#[derive(Clone, Copy, Debug)]
pub struct BatchOptions {
    /// Texts that are written at once.
    pub parallel: usize,
    /// Tokens of one text at most.
    pub context: usize,
    /// Texts that may wait.
    pub queue: usize,
}

impl Batch {
    /// Takes over an engine, whose context all texts share. `ends` are the tokens that end a text.
    ///
    /// # Errors
    /// What the device reports, and a system that gives no thread.
    pub fn new(engine: Engine, ends: Vec<u32>, options: BatchOptions) -> Result<Self, StartError> {
        Self::start(engine, ends, options, None)
    }

    /// As [`new`](Self::new); `reopen` gives another engine on the device once that was lost.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn reopening(
        engine: Engine,
        ends: Vec<u32>,
        options: BatchOptions,
        reopen: impl FnMut() -> Result<Engine, Error> + Send + 'static,
    ) -> Result<Self, StartError> {
        Self::start(engine, ends, options, Some(Box::new(reopen)))
    }

    fn start(
        engine: Engine,
        ends: Vec<u32>,
        options: BatchOptions,
        reopen: Option<OpenEngine>,
    ) -> Result<Self, StartError> {
        let vocab = engine.shape().vocab;
        let adapters = engine.adapters().len();
        let no_vectors = Pooling::of(engine.file()).err().map(|error| error.to_string());
        let BatchOptions { parallel, context, queue } = options;
        let device = DeviceOptions { slots: parallel, block: BLOCK, context, deterministic: false };
        let runner = move |engine: Engine| -> Result<Box<dyn Runner>, Error> {
            let mut runner = DeviceRunner::new(engine, device)?;
            runner.prepare(1, &clearway_llm::Sampling::default())?;
            // Nobody's text waits for a compiler.
            runner.make_ahead()?;
            Ok(Box::new(runner))
        };
        let options = ServiceOptions {
            end_tokens: ends,
            vocab: Some(vocab),
            queue,
            ..ServiceOptions::default()
        };
        let first = runner(engine)?;
        let service = match reopen {
            None => Service::new(first, options)?,
            Some(mut reopen) => {
                Service::reopening(first, options, Box::new(move || runner(reopen()?)))?
            }
        };
        Ok(Self { service, queue, adapters, no_vectors })
    }

    /// Tokens of one text at most.
    pub fn context(&self) -> usize {
        self.service.limits().context
    }
}

/// Why an engine of many sequences cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The device or the model is to blame.
    #[error(transparent)]
    Engine(#[from] Error),
    /// The system gives no thread.
    #[error("no thread for the engine: {0}")]
    Thread(#[from] io::Error),
}

impl Backend for Batch {
    fn submit(&self, request: Request) -> Result<Ticket, Refused> {
        let Request { prompt, sampling, ignore_end } = request;
        let (tokens, context) = (prompt.len(), self.context());
        if tokens >= context {
            return Err(Refused::TooLong { tokens, context });
        }
        let request =
            request::Request { ignore_eos: ignore_end, ..request::Request::new(prompt, sampling) };
        let stream = self.service.submit(request).map_err(refused)?;
        Ok(Ticket::new(Tokens { stream, ready: VecDeque::new(), begun: false }))
    }

    fn embed(&self, texts: Vec<Vec<u32>>) -> Result<Vectors, Refused> {
        if let Some(why) = &self.no_vectors {
            return Err(Refused::Invalid(why.clone()));
        }
        let vectors = self.service.embed(texts).map_err(refused)?;
        Ok(Box::pin(async move {
            vectors.await.map_err(|failure| match failure {
                request::Failure::Gone => Failure::Lost,
                failure => Failure::Engine(failure.to_string()),
            })
        }))
    }

    fn stats(&self) -> Stats {
        let stats = self.service.stats();
        let numbers = stats.numbers();
        Stats {
            running: (numbers.reading + numbers.decoding) as usize,
            waiting: stats.queued(),
            slots: numbers.slots as usize,
            queue: self.queue,
            block_tokens: numbers.block_size as usize,
            blocks: numbers.blocks as usize,
            blocks_used: numbers.blocks_in_use as usize,
            prompt_tokens: numbers.prompt_tokens + numbers.cached_tokens,
            cached_tokens: numbers.cached_tokens,
            generated_tokens: numbers.generated_tokens,
            mixed_works: numbers.mixed_works,
            apart_works: numbers.apart_works,
            lists_ahead: numbers.lists_ahead,
            lists_late: numbers.lists_late,
            lists_failed: numbers.lists_failed,
            list_waits: numbers.list_waits,
            lists_missing: numbers.lists_missing,
            lists_time: Duration::from_micros(numbers.lists_us),
            reopened: numbers.reopened,
            adapters: self.adapters,
        }
    }

    fn times(&self) -> Vec<(&'static str, &'static str, Times)> {
        let stats = self.service.stats();
        vec![
            ("clearway_queue_seconds", "Time in the queue.", stats.queue.read()),
            ("clearway_prompt_seconds", "From the queue to the first token.", stats.prompt.read()),
            (
                "clearway_host_step_seconds",
                "What the host does for a step.",
                stats.host_per_step.read(),
            ),
        ]
    }
}

fn refused(refusal: Refusal) -> Refused {
    match refusal {
        Refusal::Full { waiting, expected } => Refused::Full { waiting, wait: expected },
        Refusal::TooLong { tokens, context } => Refused::TooLong { tokens, context },
        Refusal::Draining => Refused::Closed,
        other => Refused::Invalid(other.to_string()),
    }
}

/// Tokens of one text, one by one.
struct Tokens {
    stream: Stream,
    ready: VecDeque<Event>,
    begun: bool,
}

impl Events for Tokens {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(event);
            }
            let usage = match self.stream.poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Event::Failed(Failure::Lost)),
                Poll::Ready(Some(Output::Tokens { tokens, usage, .. })) => {
                    let tokens = tokens.into_iter();
                    self.ready.extend(
                        tokens
                            .map(|one| Event::Token { token: one.token, log_probs: one.log_probs }),
                    );
                    usage
                }
                Poll::Ready(Some(Output::End { reason, usage, .. })) => {
                    self.ready.push_back(ended(reason));
                    usage
                }
            };
            if !self.begun {
                self.begun = true;
                self.ready.push_front(Event::Started { cached: usage.cached });
            }
        }
    }
}

fn ended(reason: EndReason) -> Event {
    match reason {
        EndReason::Token(_) => Event::End(End::Stop),
        EndReason::Budget | EndReason::Context => Event::End(End::Length),
        EndReason::Failed(request::Failure::NoToken { position }) => {
            let what = format!("no token may come after {position} tokens");
            Event::Failed(Failure::Request(what))
        }
        EndReason::Failed(request::Failure::Gone) => Event::Failed(Failure::Lost),
        EndReason::Failed(failure) => Event::Failed(Failure::Engine(failure.to_string())),
        EndReason::Cancelled => Event::Failed(Failure::Engine("the text was cancelled".into())),
        other => Event::Failed(Failure::Engine(format!("{other:?}"))),
    }
}
