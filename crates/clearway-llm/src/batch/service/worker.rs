//! The thread that owns the runner: commands in, work planned and done, events out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::device::Held;
use super::stream::{Outlet, Output};
use super::vectors::Job;
use super::{Command, Shared, Submitted};
use crate::batch::request::{EndReason, Event, Failure, RequestId, TokenUsage, What};
use crate::batch::schedule::Scheduler;
use crate::engine::EngineError;

/// Weight of a new interval between texts that end, in the mean: one of so many.
const INTERVAL_WEIGHT: u64 = 16;
/// Tokens of a text that becomes a vector which are read at once, while others decode.
const EMBED_BETWEEN: usize = 64;

pub(super) struct Worker {
    device: Held,
    scheduler: Scheduler,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    outlets: FxHashMap<RequestId, Live>,
    /// Texts that become vectors; the first is under way.
    vectors: VecDeque<Job>,
    epoch: Instant,
    last_end: Option<Instant>,
    /// After this all requests are cancelled.
    deadline: Option<Instant>,
    /// What the host did since the last work was finished.
    host: Duration,
}

/// A request that has not ended.
struct Live {
    outlet: Outlet,
    /// Texts that have not ended.
    open: usize,
    /// Which of its texts have no slot yet.
    queued: Vec<usize>,
}

impl Worker {
    pub(super) fn new(
        device: Held,
        scheduler: Scheduler,
        commands: Receiver<Command>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            device,
            scheduler,
            commands,
            shared,
            outlets: FxHashMap::default(),
            vectors: VecDeque::new(),
            epoch: Instant::now(),
            last_end: None,
            deadline: None,
            host: Duration::ZERO,
        }
    }

    /// Runs until nobody can ask for anything any more.
    pub(super) fn run(mut self) {
        while self.listen() {
            self.open();
            let since = Instant::now();
            self.start_works();
            self.host += since.elapsed();
            if self.scheduler.under_way() > 0 {
                self.finish_work();
            }
            self.embed();
            self.stand();
        }
    }

    /// Tells how things stand.
    fn stand(&self) {
        let (load, counts) = (self.scheduler.load(), self.scheduler.counts());
        self.shared.stats.stand(&load, &counts, &self.device.lists());
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Takes commands, and waits for one where there is nothing else to do. Whether to go on.
    fn listen(&mut self) -> bool {
        loop {
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.deadline = None;
                let live: Vec<RequestId> = self.outlets.keys().copied().collect();
                for id in live {
                    self.scheduler.cancel(id, None, self.now());
                }
                self.deliver_rest();
                while let Some(job) = self.vectors.pop_front() {
                    self.answer(job, Err(Failure::Gone));
                }
            }
            match self.commands.try_recv() {
                Ok(command) => {
                    self.obey(command);
                    continue;
                }
                Err(TryRecvError::Disconnected) if self.is_idle() => return false,
                Err(_) => {}
            }
            if !self.is_idle() {
                return true;
            }
            self.stand();
            match self.commands.recv_timeout(Duration::from_secs(3600)) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.vectors.is_empty()
    }

    fn obey(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Submit { all } => {
                for Submitted { id, request, outlet } in all {
                    let n = request.n;
                    let live = Live { outlet, open: n, queued: (0..n).collect() };
                    self.outlets.insert(id, live);
                    if self.scheduler.submit_as(id, &request, now).is_err() {
                        // It was checked against the same limits before; should they differ, the stream ends as failed.
                        self.forget(id);
                    }
                }
            }
            Command::Embed { job } => self.vectors.push_back(job),
            Command::Cancel { id, choice } => self.scheduler.cancel(id, choice, now),
            Command::Drain { deadline } => self.deadline = Some(deadline),
            Command::Decisions { reply } => {
                let decisions = self.scheduler.decisions().cloned().collect();
                // Who asked may have gone.
                let _ = reply.send(decisions);
            }
        }
        self.deliver_rest();
    }

    fn start_works(&mut self) {
        while self.device.is_open()
            && let Some(work) = self.scheduler.plan(self.now())
        {
            let apart = self.device.lists().apart;
            if let Err(error) = self.device.start(&work) {
                let lost = error.is_device_lost();
                // What is under way says why.
                let before = matches!(error, EngineError::LostBefore);
                let events = self.scheduler.start_failed(error, self.now());
                self.deliver(events);
                if lost && self.device.give_up() {
                    self.lose(EngineError::LostBefore);
                }
                if before {
                    break;
                }
            } else if self.device.lists().apart > apart {
                self.scheduler.started_apart(self.now());
            }
        }
        self.deliver_rest();
    }

    /// Opens the device again where it was lost. Where that fails, everybody who waits is told.
    fn open(&mut self) {
        if self.device.is_open() || self.is_idle() {
            return;
        }
        match self.device.open() {
            Ok(()) => self.shared.stats.reopened(),
            Err(error) => {
                let error = Arc::new(error);
                let failure = || Failure::Device(Arc::clone(&error));
                let events = self.scheduler.fail_all(&failure(), self.now());
                self.deliver(events);
                while let Some(job) = self.vectors.pop_front() {
                    self.answer(job, Err(failure()));
                }
            }
        }
    }

    /// What was under way on the device is lost.
    fn lose(&mut self, error: EngineError) {
        let events = self.scheduler.lost(error, self.now());
        self.deliver(events);
    }

    /// Reads the next part of the first text that becomes a vector.
    fn embed(&mut self) {
        while self.vectors.front().is_some_and(|job| !job.is_wanted()) {
            if let Some(job) = self.vectors.pop_front() {
                self.answer(job, Err(Failure::Gone));
            }
        }
        if !self.device.is_open() {
            return;
        }
        let most = if self.scheduler.is_idle() { usize::MAX } else { EMBED_BETWEEN };
        let Some(job) = self.vectors.front_mut() else { return };
        let Some(text) = job.texts.front_mut() else { return };
        match self.device.embed(text, most) {
            Ok(None) => {}
            Ok(Some(vector)) => {
                job.done.push(vector);
                job.texts.pop_front();
                if !job.texts.is_empty() {
                    return;
                }
                if let Some(mut job) = self.vectors.pop_front() {
                    let done = std::mem::take(&mut job.done);
                    self.answer(job, Ok(done));
                }
            }
            Err(error) => {
                let lost = error.is_device_lost();
                if let Some(job) = self.vectors.pop_front() {
                    self.answer(job, Err(Failure::Device(Arc::new(error))));
                }
                if lost && self.device.give_up() {
                    self.lose(EngineError::LostBefore);
                }
            }
        }
    }

    fn answer(&mut self, job: Job, answer: Result<Vec<Vec<f32>>, Failure>) {
        job.answer(answer);
        self.shared.stats.queued.fetch_sub(1, Ordering::Relaxed);
        self.shared.ended(1);
    }

    fn finish_work(&mut self) {
        let steps = self.scheduler.counts().steps;
        let result = self.device.finish();
        let since = Instant::now();
        let now = self.now();
        let events = match result {
            Ok(results) => self.scheduler.finished(results, now),
            Err(error) => {
                if error.is_device_lost() {
                    self.device.give_up();
                }
                self.scheduler.lost(error, now)
            }
        };
        self.deliver(events);
        let new = steps - self.shared.steps.swap(steps, Ordering::Relaxed);
        let host = std::mem::take(&mut self.host) + since.elapsed();
        if new > 0 {
            let per_step = host / u32::try_from(new).unwrap_or(u32::MAX);
            self.shared.stats.host_per_step.add(per_step, new);
        }
    }

    fn deliver_rest(&mut self) {
        let events = self.scheduler.take_events();
        self.deliver(events);
    }

    fn deliver(&mut self, events: Vec<Event>) {
        // Whoever gets the last token of a text finds it counted.
        self.stand();
        for event in events {
            self.shared.stats.happened(&event);
            let Event { request, choice, what } = event;
            let Some(live) = self.outlets.get_mut(&request) else { continue };
            match what {
                What::Admitted { .. } => self.left_queue(request, choice),
                What::Tokens { tokens, usage, .. } => {
                    live.outlet.put(Output::Tokens { choice, tokens, usage });
                }
                What::Ended { reason, usage } => {
                    self.left_queue(request, choice);
                    self.ended(request, choice, reason, usage);
                }
            }
        }
    }

    fn left_queue(&mut self, request: RequestId, choice: usize) {
        let Some(live) = self.outlets.get_mut(&request) else { return };
        let before = live.queued.len();
        live.queued.retain(|&queued| queued != choice);
        self.shared.stats.queued.fetch_sub(before - live.queued.len(), Ordering::Relaxed);
    }

    fn ended(&mut self, id: RequestId, choice: usize, reason: EndReason, usage: TokenUsage) {
        let now = Instant::now();
        if let Some(last) = self.last_end.replace(now) {
            let ns = u64::try_from((now - last).as_nanos()).unwrap_or(u64::MAX);
            let mean = &self.shared.stats.interval_ns;
            let old = mean.load(Ordering::Relaxed);
            let new =
                if old == 0 { ns } else { old - old / INTERVAL_WEIGHT + ns / INTERVAL_WEIGHT };
            mean.store(new, Ordering::Relaxed);
        }
        let Some(live) = self.outlets.get_mut(&id) else { return };
        live.outlet.put(Output::End { choice, reason, usage });
        live.open = live.open.saturating_sub(1);
        if live.open == 0 {
            self.forget(id);
        }
    }

    fn forget(&mut self, id: RequestId) {
        if let Some(live) = self.outlets.remove(&id) {
            self.shared.stats.queued.fetch_sub(live.queued.len(), Ordering::Relaxed);
            self.shared.ended(1);
        }
    }
}

impl Drop for Worker {
    /// Streams end as failed when their outlets go; whoever waits for the last request is told.
    fn drop(&mut self) {
        let live = self.outlets.len() + self.vectors.len();
        self.outlets.clear();
        self.vectors.clear();
        self.shared.ended(live);
        self.shared.close();
    }
}
