//! A scheduler and a simulated device, driven by hand.

use std::collections::BTreeMap;
use std::time::Duration;

use clearway_llm::Sampling;
use clearway_llm::batch::request::{EndReason, Event, Request, RequestId, TokenUsage, What};
use clearway_llm::batch::runner::{Limits, Runner, Work};
use clearway_llm::batch::schedule::{Policy, Scheduler};

use super::sim::{END, Sim, alone_with};

pub struct Drive {
    pub scheduler: Scheduler,
    pub sim: Sim,
    pub now: Duration,
    pub texts: BTreeMap<(RequestId, usize), Text>,
    pub requests: BTreeMap<RequestId, Request>,
    /// Whether the books are checked after each work.
    pub check: bool,
}

/// What came of a text.
#[derive(Debug, Default)]
pub struct Text {
    pub tokens: Vec<u32>,
    /// When they came.
    pub times: Vec<Duration>,
    pub end: Option<EndReason>,
    pub usage: TokenUsage,
}

impl Drive {
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self {
            scheduler: Scheduler::new(limits, Policy::default(), vec![END]),
            sim: Sim::new(limits, seed),
            now: Duration::ZERO,
            texts: BTreeMap::new(),
            requests: BTreeMap::new(),
            check: true,
        }
    }

    pub fn submit(&mut self, request: Request) -> RequestId {
        let id = self.scheduler.submit(&request, self.now).unwrap();
        for choice in 0..request.n {
            self.texts.insert((id, choice), Text::default());
        }
        self.requests.insert(id, request);
        id
    }

    pub fn cancel(&mut self, id: RequestId, choice: Option<usize>) {
        self.scheduler.cancel(id, choice, self.now);
    }

    /// Starts what can be started; the last work of it.
    pub fn start(&mut self) -> Option<Work> {
        let mut last = None;
        while let Some(work) = self.scheduler.plan(self.now) {
            self.sim.now = self.now;
            match self.sim.start(&work) {
                Ok(()) => last = Some(work),
                Err(error) => {
                    let events = self.scheduler.start_failed(error, self.now);
                    self.note(events);
                }
            }
            self.audit();
        }
        let events = self.scheduler.take_events();
        self.note(events);
        last
    }

    /// Waits for the oldest work; whether there was one.
    pub fn finish(&mut self) -> bool {
        let Some(done_at) = self.sim.done_at() else {
            assert_eq!(self.scheduler.under_way(), 0);
            return false;
        };
        self.now = self.now.max(done_at);
        let events = match self.sim.finish() {
            Ok(results) => self.scheduler.finished(results, self.now),
            Err(error) => self.scheduler.lost(error, self.now),
        };
        self.note(events);
        self.audit();
        true
    }

    /// One turn of the loop; whether anything was done.
    pub fn turn(&mut self) -> bool {
        self.start();
        self.finish()
    }

    /// Runs until all have ended.
    pub fn run(&mut self) {
        while !self.scheduler.is_idle() {
            assert!(self.turn(), "nothing is done and somebody waits: {:?}", self.scheduler.load());
        }
        let events = self.scheduler.take_events();
        self.note(events);
        let load = self.scheduler.load();
        assert_eq!(load.blocks_in_use, 0, "blocks are lost");
    }

    fn audit(&self) {
        if self.check {
            self.scheduler.check().unwrap();
        }
    }

    fn note(&mut self, events: Vec<Event>) {
        for Event { request, choice, what } in events {
            let text = self.texts.get_mut(&(request, choice)).unwrap();
            assert!(text.end.is_none(), "something comes after the end");
            match what {
                What::Admitted { .. } => assert!(text.tokens.is_empty()),
                What::Tokens { tokens, usage, .. } => {
                    assert!(!tokens.is_empty());
                    text.times.extend(std::iter::repeat_n(self.now, tokens.len()));
                    text.tokens.extend(tokens.iter().map(|chosen| chosen.token));
                    assert_eq!(usage.generated, text.tokens.len());
                }
                What::Ended { reason, usage } => {
                    assert_eq!(usage.generated, text.tokens.len());
                    text.usage = usage;
                    text.end = Some(reason);
                }
            }
        }
    }

    /// Whether every text is what it is alone, or the beginning of that where it was cancelled or failed.
    pub fn compare(&self) {
        let limits = self.scheduler.limits();
        let context = limits.context.min(limits.blocks * limits.block);
        for ((id, choice), text) in &self.texts {
            let request = &self.requests[id];
            let Sampling { seed, budget, stop_tokens, adapter, .. } = &request.sampling;
            let seed = seed.wrapping_add(*choice as u64);
            let mut stops = stop_tokens.clone();
            if !request.ignore_eos {
                stops.push(END);
            }
            let room = context + 1 - request.prompt.len();
            let within = (*budget).min(room);
            let (tokens, stop) = alone_with(*adapter, &request.prompt, seed, within, &stops);
            let name = format!("text {choice} of {id:?}");
            match text.end.as_ref().unwrap_or_else(|| panic!("{name} has not ended")) {
                EndReason::Cancelled | EndReason::Failed(_) => {
                    let same = tokens.get(..text.tokens.len());
                    assert_eq!(same, Some(&*text.tokens), "{name}");
                    continue;
                }
                EndReason::Token(token) => assert_eq!(Some(*token), stop, "{name}"),
                EndReason::Budget => assert!(stop.is_none() && tokens.len() == *budget, "{name}"),
                EndReason::Context => {
                    assert!(stop.is_none() && tokens.len() == room && room < *budget, "{name}");
                }
                other => panic!("{name} ended with {other:?}"),
            }
            assert_eq!(text.tokens, tokens, "{name}");
        }
    }

    pub fn text(&self, id: RequestId) -> &Text {
        &self.texts[&(id, 0)]
    }
}

/// Limits of a device with room for much.
pub fn roomy() -> Limits {
    Limits {
        slots: 16,
        block: 16,
        blocks: 4096,
        context: 16384,
        chunk: 512,
        steps: 32,
        ahead: 2,
        adapters: 0,
        mixed: false,
    }
}

/// A request whose text is as long as its budget.
pub fn request(prompt: Vec<u32>, budget: usize) -> Request {
    let sampling = Sampling { budget, ..Sampling::default() };
    Request { ignore_eos: true, ..Request::new(prompt, sampling) }
}

/// A prompt of this length that differs from others with another salt.
pub fn prompt(length: usize, salt: u32) -> Vec<u32> {
    (0..length as u32).map(|at| 1 + (at * 7 + salt * 13 + at / 5 * salt) % 60).collect()
}
