//! The thread that owns the runner: commands in, work planned and done, events out.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::stream::{Outlet, Output};
use super::{Command, Shared};
use crate::batch::request::{EndReason, Event, RequestId, TokenUsage, What};
use crate::batch::runner::Runner;
use crate::batch::schedule::Scheduler;

/// Weight of a new interval between texts that end, in the mean: one of so many.
const INTERVAL_WEIGHT: u64 = 16;

pub(super) struct Worker {
    runner: Box<dyn Runner>,
    scheduler: Scheduler,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    outlets: FxHashMap<RequestId, Live>,
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
        runner: Box<dyn Runner>,
        scheduler: Scheduler,
        commands: Receiver<Command>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            runner,
            scheduler,
            commands,
            shared,
            outlets: FxHashMap::default(),
            epoch: Instant::now(),
            last_end: None,
            deadline: None,
            host: Duration::ZERO,
        }
    }

    /// Runs until nobody can ask for anything any more.
    pub(super) fn run(mut self) {
        while self.listen() {
            let since = Instant::now();
            self.start_works();
            self.host += since.elapsed();
            if self.scheduler.under_way() > 0 {
                self.finish_work();
            }
            self.shared.stats.stand(&self.scheduler.load(), &self.scheduler.counts());
        }
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
            }
            match self.commands.try_recv() {
                Ok(command) => {
                    self.obey(command);
                    continue;
                }
                Err(TryRecvError::Disconnected) if self.scheduler.is_idle() => return false,
                Err(_) => {}
            }
            if !self.scheduler.is_idle() {
                return true;
            }
            self.shared.stats.stand(&self.scheduler.load(), &self.scheduler.counts());
            match self.commands.recv_timeout(Duration::from_secs(3600)) {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    fn obey(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Submit { id, request, outlet } => {
                let n = request.n;
                let live = Live { outlet, open: n, queued: (0..n).collect() };
                self.outlets.insert(id, live);
                if self.scheduler.submit_as(id, &request, now).is_err() {
                    // It was checked against the same limits before; should they differ, the stream ends as failed.
                    self.forget(id);
                }
            }
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
        while let Some(work) = self.scheduler.plan(self.now()) {
            if let Err(error) = self.runner.start(&work) {
                let events = self.scheduler.start_failed(error, self.now());
                self.deliver(events);
            }
        }
        self.deliver_rest();
    }

    fn finish_work(&mut self) {
        let steps = self.scheduler.counts().steps;
        let result = self.runner.finish();
        let since = Instant::now();
        let now = self.now();
        let events = match result {
            Ok(results) => self.scheduler.finished(results, now),
            Err(error) => self.scheduler.lost(error, now),
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
        let live = self.outlets.len();
        self.outlets.clear();
        self.shared.ended(live);
        self.shared.close();
    }
}
