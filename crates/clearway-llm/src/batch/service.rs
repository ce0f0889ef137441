//! Requests in, streams of tokens out: a scheduler and a runner on a thread of their own.
//!
//! A [`Service`] is a handle that may be cloned and used from any thread. [`Service::submit`] gives a [`Stream`] or a typed
//! refusal at once; nothing else waits for the device. When the last handle and the last stream are gone, the thread ends.

mod device;
mod stats;
mod stream;
mod vectors;
mod worker;

pub use stats::{BOUNDS_US, Histogram, Numbers, Stats, Times};
pub use stream::{Output, Stream};
pub use vectors::Vectors;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::request::{Refusal, Request, RequestId};
use super::runner::{Limits, Runner};
use super::schedule::{Decision, Policy, Scheduler};
use crate::engine::EngineError;
use stream::Outlet;
use vectors::Job;
use worker::Worker;

/// How a service works.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// What the scheduler weighs.
    pub policy: Policy,
    /// Tokens that end a text by the vocabulary.
    pub end_tokens: Vec<u32>,
    /// Tokens of the vocabulary, to refuse others; `None` to accept any.
    pub vocab: Option<usize>,
    /// Texts that may wait for a slot. Requests beyond are refused.
    pub queue: usize,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        Self { policy: Policy::default(), end_tokens: Vec::new(), vocab: None, queue: 512 }
    }
}

/// Opens a device again that was lost: a runner with the limits of the one before.
pub type Reopen = Box<dyn FnMut() -> Result<Box<dyn Runner>, EngineError> + Send>;

/// A device that serves many requests at once. Handles are cheap to clone.
#[derive(Clone)]
pub struct Service {
    shared: Arc<Shared>,
    link: Link,
    limits: Limits,
    vocab: Option<usize>,
    queue: usize,
}

/// What handles, streams and the thread share.
struct Shared {
    stats: Arc<Stats>,
    next: AtomicU64,
    draining: AtomicBool,
    /// Decode steps that the host's time was counted for.
    steps: AtomicU64,
    /// Requests that have not ended, and whether the thread runs.
    live: Mutex<(usize, bool)>,
    fewer: Condvar,
}

impl Shared {
    fn live(&self) -> std::sync::MutexGuard<'_, (usize, bool)> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts requests; `false` where no more are taken. Whoever drains sees those that were counted before.
    fn begin(&self, count: usize) -> bool {
        let mut live = self.live();
        let open = live.1 && !self.draining.load(Ordering::Acquire);
        live.0 += if open { count } else { 0 };
        open
    }

    fn ended(&self, count: usize) {
        let mut live = self.live();
        live.0 = live.0.saturating_sub(count);
        self.fewer.notify_all();
    }

    fn close(&self) {
        self.live().1 = false;
        self.fewer.notify_all();
    }
}

enum Command {
    Submit { all: Vec<Submitted> },
    Embed { job: Job },
    Cancel { id: RequestId, choice: Option<usize> },
    Drain { deadline: Instant },
    Decisions { reply: Sender<Vec<Decision>> },
}

/// A request that was accepted.
struct Submitted {
    id: RequestId,
    request: Request,
    outlet: Outlet,
}

/// The way to the thread.
#[derive(Clone)]
struct Link {
    commands: Sender<Command>,
}

impl Link {
    fn cancel(&self, id: RequestId, choice: Option<usize>) {
        // A thread that is gone has nothing to cancel.
        let _ = self.commands.send(Command::Cancel { id, choice });
    }
}

impl Service {
    /// Starts a thread that owns the runner.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new(runner: Box<dyn Runner>, options: ServiceOptions) -> std::io::Result<Self> {
        Self::start(runner, options, None)
    }

    /// As [`new`](Self::new). Where the device is lost, requests under way fail, it is opened again, and those that waited go
    /// on.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn reopening(
        runner: Box<dyn Runner>,
        options: ServiceOptions,
        reopen: Reopen,
    ) -> std::io::Result<Self> {
        Self::start(runner, options, Some(reopen))
    }

    fn start(
        runner: Box<dyn Runner>,
        options: ServiceOptions,
        reopen: Option<Reopen>,
    ) -> std::io::Result<Self> {
        let limits = runner.limits();
        let stats = Arc::new(Stats::default());
        stats.limits(limits.slots, limits.block);
        let ServiceOptions { policy, end_tokens, vocab, queue } = options;
        let scheduler = Scheduler::new(limits, policy, end_tokens);
        let shared = Arc::new(Shared {
            stats,
            next: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            live: Mutex::new((0, true)),
            fewer: Condvar::new(),
        });
        let (commands, receiver) = mpsc::channel();
        let device = device::Held::new(runner, reopen);
        let worker = Worker::new(device, scheduler, receiver, Arc::clone(&shared));
        std::thread::Builder::new().name("clearway-batch".into()).spawn(move || worker.run())?;
        Ok(Self { shared, link: Link { commands }, limits, vocab, queue })
    }

    /// What the device can hold.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Asks for texts. They come through the stream; dropping it cancels them.
    ///
    /// # Errors
    /// Why the request is refused: it can never run, too many wait, the service is shutting down.
    pub fn submit(&self, request: Request) -> Result<Stream, Refusal> {
        let mut streams = self.submit_all(vec![request])?;
        streams.pop().ok_or(Refusal::Empty)
    }

    /// Asks for many texts at once: no work begins before all of them are known. All are accepted, or none.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_all(&self, requests: Vec<Request>) -> Result<Vec<Stream>, Refusal> {
        for request in &requests {
            request.check(&self.limits)?;
            if let Some(vocab) = self.vocab
                && let Some(&token) = request.prompt.iter().find(|&&token| token as usize >= vocab)
            {
                return Err(Refusal::TokenOutOfRange { token, vocab });
            }
        }
        let texts: usize = requests.iter().map(|request| request.n).sum();
        let stats = &self.shared.stats;
        let waiting = stats.queued.fetch_add(texts, Ordering::AcqRel);
        if waiting + texts > self.queue.saturating_add(self.free_slots()) {
            let expected = stats.expected_wait();
            stats.queued.fetch_sub(texts, Ordering::AcqRel);
            stats.refused();
            return Err(Refusal::Full { waiting, expected });
        }
        let count = requests.len();
        let (mut all, mut streams) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for request in requests {
            let id = RequestId(self.shared.next.fetch_add(1, Ordering::Relaxed));
            let (outlet, stream) = stream::pair(id, request.n, self.link.clone());
            all.push(Submitted { id, request, outlet });
            streams.push(stream);
        }
        if !self.shared.begin(count) || self.link.commands.send(Command::Submit { all }).is_err() {
            stats.queued.fetch_sub(texts, Ordering::AcqRel);
            streams.into_iter().for_each(Stream::forget);
            return Err(Refusal::Draining);
        }
        (0..count).for_each(|_| stats.accepted());
        Ok(streams)
    }

    /// Asks for the vectors of texts of tokens. They are computed between the steps of others.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn embed(&self, texts: Vec<Vec<u32>>) -> Result<Vectors, Refusal> {
        if texts.is_empty() || texts.iter().any(Vec::is_empty) {
            return Err(Refusal::Empty);
        }
        let context = self.limits.context;
        if let Some(tokens) = texts.iter().map(Vec::len).find(|&tokens| tokens > context) {
            return Err(Refusal::TooLong { tokens, context });
        }
        if let Some(vocab) = self.vocab
            && let Some(&token) = texts.iter().flatten().find(|&&token| token as usize >= vocab)
        {
            return Err(Refusal::TokenOutOfRange { token, vocab });
        }
        let stats = &self.shared.stats;
        let waiting = stats.queued.fetch_add(1, Ordering::AcqRel);
        if waiting + 1 > self.queue.saturating_add(self.free_slots()) {
            let expected = stats.expected_wait();
            stats.queued.fetch_sub(1, Ordering::AcqRel);
            stats.refused();
            return Err(Refusal::Full { waiting, expected });
        }
        let (job, vectors) = Job::new(texts);
        if !self.shared.begin(1) || self.link.commands.send(Command::Embed { job }).is_err() {
            stats.queued.fetch_sub(1, Ordering::AcqRel);
            return Err(Refusal::Draining);
        }
        stats.accepted();
        Ok(vectors)
    }

    /// Ends a request wherever it stands; its stream gets the ends.
    pub fn cancel(&self, request: RequestId) {
        self.link.cancel(request, None);
    }

    /// Numbers and times. Reading them waits for nobody.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.shared.stats
    }

    /// The last decisions of the scheduler, the oldest first. Waits for the work under way.
    pub fn decisions(&self) -> Vec<Decision> {
        let (reply, answer) = mpsc::channel();
        match self.link.commands.send(Command::Decisions { reply }) {
            Ok(()) => answer.recv().unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// Whether new requests are refused since the service ends.
    pub fn is_draining(&self) -> bool {
        self.shared.draining.load(Ordering::Acquire)
    }

    /// Takes no more requests, waits until all have ended and cancels those that have not at the deadline; whether all
    /// ended by themselves.
    pub fn drain(&self, deadline: Duration) -> bool {
        self.shared.draining.store(true, Ordering::Release);
        let until = Instant::now() + deadline;
        let mut in_time = true;
        let mut live = self.shared.live();
        while live.0 > 0 && live.1 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() && in_time {
                in_time = false;
                // A thread that is gone has no requests.
                let _ = self.link.commands.send(Command::Drain { deadline: until });
            }
            live = if in_time {
                let waited = self.shared.fewer.wait_timeout(live, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.shared.fewer.wait(live).unwrap_or_else(PoisonError::into_inner)
            };
        }
        in_time
    }

    /// Slots without a text, by the last word of the thread.
    fn free_slots(&self) -> usize {
        let numbers = self.shared.stats.numbers();
        let taken = numbers.reading + numbers.decoding;
        (self.limits.slots as u64).saturating_sub(taken) as usize
    }
}
