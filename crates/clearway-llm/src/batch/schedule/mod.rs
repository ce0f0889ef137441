//! Which sequences run next: a state machine without I/O, threads or a clock of its own.
//!
//! | module | what it does |
//! |---|---|
//! | `plan` | the next work: who joins, who decodes, how much of which prompt is read |
//! | `memory` | blocks for sequences, and whose are taken when there are none |
//! | `done` | what finished work means for sequences; failures |
//! | `sequence` | one text |
//! | `times` | how long steps and chunks took |
//! | `decision` | what was decided, as data |
//!
//! **A sequence** waits, has a slot and reads its text, decodes, ends. It joins at the next work and leaves when it is done.
//! All tokens of its text but the last are read; the last is the input of its first decode step.
//!
//! **Time.** While somebody decodes, a work is one step and a chunk of prompts that adds at most
//! [`Policy::read_share`] steps to it. Where nobody decodes, chunks are as large as the device allows. Several steps make a work
//! only while nobody waits, and then they take at most [`Policy::patience`]. While nobody reads tokens as they come
//! ([`Request::patient`]), chunks are as large as the device allows, nobody decodes before all have read, and works are
//! long.
//!
//! **Memory.** A sequence gets blocks for the steps of a work when that work is planned, so it never has more than one block
//! beyond what the works under way can write. Where there is no block, the sequence of the lowest rank loses its own and
//! waits; its tokens are read again later. The sequence of the highest rank never has to yield, and the pool is large enough
//! for any one sequence, so somebody always goes on.
//!
//! **Works under way.** Blocks and slots that a sequence gives up are used again only when the last work that touches them is
//! finished. A block that a work under way fills may be shared by a later work: works are done in order.

mod decision;
mod done;
mod memory;
mod plan;
mod sequence;
mod times;

pub use decision::{Decided, Decision};

use std::collections::VecDeque;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::pool::{Pool, PoolCounts, Salt};
use super::request::{EndReason, Event, Refusal, Request, RequestId, TokenUsage, What};
use super::runner::{Block, Change, Limits, Slot};
use decision::Log;
use sequence::{Origin, Rank, Sequence, State};
use times::Times;

/// Names a sequence: one text of a request. They are counted in the order in which they came.
pub type SequenceId = u64;

/// What the scheduler weighs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// A chunk of prompts that is read beside a decode step adds at most so many steps of time to it.
    pub read_share: f64,
    /// Works under way take at most so long each while several sequences run.
    pub patience: Duration,
    /// As `patience`, while one sequence runs alone or nobody reads tokens as they come.
    pub patience_alone: Duration,
    /// A sequence that waits gains a step of priority after so long.
    pub ageing: Duration,
    /// Of so many works with a chunk of a prompt one only decodes, so that steps are measured.
    pub measure_every: u32,
    /// Decisions that are kept.
    pub decisions: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            read_share: 1.7,
            patience: Duration::from_millis(10),
            patience_alone: Duration::from_millis(60),
            ageing: Duration::from_secs(10),
            measure_every: 16,
            decisions: 1024,
        }
    }
}

/// How things stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Sequences without a slot.
    pub waiting: usize,
    /// Sequences whose text is read.
    pub reading: usize,
    /// Sequences that decode.
    pub decoding: usize,
    /// Works under way.
    pub under_way: usize,
    /// Blocks there are.
    pub blocks: usize,
    /// Blocks that somebody holds.
    pub blocks_in_use: usize,
    /// Blocks that nobody holds and that can be found again.
    pub blocks_cached: usize,
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Works.
    pub works: u64,
    /// Works in which rows of prompts and a step were one.
    pub mixed: u64,
    /// Works in which they were to be one and were two.
    pub apart: u64,
    /// Decode steps.
    pub steps: u64,
    /// Tokens of prompts that were read, those that were read again included.
    pub read: u64,
    /// Tokens of prompts that the cache had.
    pub cached: u64,
    /// Tokens that were generated.
    pub generated: u64,
    /// Sequences that lost their blocks.
    pub preempted: u64,
    /// Blocks that were copied.
    pub copied: u64,
    /// What the pool did.
    pub pool: PoolCounts,
}

/// Plans work for sequences.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    policy: Policy,
    /// Tokens that end a text by the vocabulary.
    end_tokens: Vec<u32>,
    pool: Pool,
    times: Times,
    log: Log,
    counts: Counts,
    events: Vec<Event>,

    sequences: FxHashMap<SequenceId, Sequence>,
    requests: FxHashMap<RequestId, Vec<SequenceId>>,
    next_request: u64,
    next_sequence: SequenceId,
    waiting: Vec<Waiting>,
    /// Sequences with a slot, the highest rank first.
    running: Vec<(Rank, SequenceId)>,
    seats: Vec<Seat>,
    /// Who will read the full block with this hash.
    claims: FxHashMap<u64, SequenceId>,
    /// Blocks and slots that works under way still touch.
    leaving: Vec<Leaving>,
    /// Slots that the next work closes.
    closes: Vec<Slot>,

    under_way: VecDeque<Started>,
    /// Works that were planned, and that are finished.
    started: u64,
    finished: u64,
    /// When the last work was finished.
    last_finish: Duration,
    /// Works with a chunk of a prompt since the last that only decoded.
    unmeasured: u32,
}

/// A sequence that waits for a slot.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: SequenceId,
    rank: Rank,
    since: Duration,
    /// Works that have to be finished first.
    after: u64,
    /// It waits until nobody claims this hash.
    hash: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    Free,
    Taken,
    Leaving,
}

#[derive(Debug)]
struct Leaving {
    /// Until this work is finished.
    work: u64,
    blocks: Vec<Block>,
    slot: Option<Slot>,
}

/// A work under way.
#[derive(Debug)]
struct Started {
    number: u64,
    at: Duration,
    rows: Vec<Row>,
    steps: usize,
    read: usize,
    /// The host chooses tokens in it.
    host: bool,
    expected: Duration,
    /// Sequences it concerns.
    touched: Vec<SequenceId>,
    /// Blocks that were published since it fills them.
    published: Vec<Block>,
    closed: Vec<Slot>,
}

/// A sequence that decodes in a work.
#[derive(Clone, Copy, Debug)]
struct Row {
    slot: Slot,
    id: SequenceId,
    /// Tokens it gives unless it stops.
    due: usize,
}

impl Scheduler {
    /// A scheduler for a device with these limits. `end_tokens` end a text by the vocabulary.
    pub fn new(limits: Limits, policy: Policy, end_tokens: Vec<u32>) -> Self {
        let limits = Limits {
            block: limits.block.max(1),
            chunk: limits.chunk.max(1),
            steps: limits.steps.max(1),
            ahead: limits.ahead.max(1),
            ..limits
        };
        Self {
            limits,
            policy,
            end_tokens,
            pool: Pool::new(limits.blocks, limits.block),
            times: Times::default(),
            log: Log::new(policy.decisions),
            counts: Counts::default(),
            events: Vec::new(),
            sequences: FxHashMap::default(),
            requests: FxHashMap::default(),
            next_request: 0,
            next_sequence: 0,
            waiting: Vec::new(),
            running: Vec::new(),
            seats: vec![Seat::Free; limits.slots],
            claims: FxHashMap::default(),
            leaving: Vec::new(),
            closes: Vec::new(),
            under_way: VecDeque::new(),
            started: 0,
            finished: 0,
            last_finish: Duration::ZERO,
            unmeasured: 0,
        }
    }

    /// What the device can hold.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Accepts a request.
    ///
    /// # Errors
    /// Why it can never run.
    pub fn submit(&mut self, request: &Request, now: Duration) -> Result<RequestId, Refusal> {
        let id = RequestId(self.next_request);
        self.submit_as(id, request, now)?;
        Ok(id)
    }

    /// As [`submit`](Self::submit), with a name that the caller has chosen and used for no other request.
    ///
    /// # Errors
    /// Why it can never run.
    pub fn submit_as(
        &mut self,
        id: RequestId,
        request: &Request,
        now: Duration,
    ) -> Result<(), Refusal> {
        request.check(&self.limits)?;
        self.next_request = self.next_request.max(id.0 + 1);
        let mut stop_tokens = request.sampling.stop_tokens.clone();
        if !request.ignore_eos {
            stop_tokens.extend(&self.end_tokens);
        }
        let context = self.limits.context.min(self.limits.blocks * self.limits.block);
        if request.sampling.budget == 0 {
            let usage = TokenUsage { prompt: request.prompt.len(), ..TokenUsage::default() };
            for choice in 0..request.n {
                let what = What::Ended { reason: EndReason::Budget, usage };
                self.events.push(Event { request: id, choice, what });
            }
            return Ok(());
        }
        let leader = self.next_sequence;
        for choice in 0..request.n {
            let sequence = self.next_sequence;
            self.next_sequence += 1;
            let mut sampling = request.sampling.clone();
            sampling.seed = sampling.seed.wrapping_add(choice as u64);
            let rank = Rank::new(request.priority, sequence);
            let origin = Origin {
                id: sequence,
                request: id,
                choice,
                rank,
                leader: (choice > 0).then_some(leader),
                text: request.prompt.to_vec(),
                sampling,
                stop_tokens: stop_tokens.clone(),
                salt: Salt { request: request.cache_salt, adapter: request.sampling.adapter },
                patient: request.patient,
                context,
                submitted: now,
            };
            self.sequences.insert(sequence, Sequence::new(origin));
            let hash = None;
            self.waiting.push(Waiting { id: sequence, rank, since: now, after: 0, hash });
            self.requests.entry(id).or_default().push(sequence);
        }
        Ok(())
    }

    /// Ends a request, or one of its texts, wherever it stands. One that has ended is left alone.
    pub fn cancel(&mut self, request: RequestId, choice: Option<usize>, now: Duration) {
        let ids = self.requests.get(&request).cloned().unwrap_or_default();
        for id in ids {
            let is_it = |s: &Sequence| choice.is_none_or(|choice| s.choice == choice);
            if self.sequences.get(&id).is_some_and(is_it) {
                self.end(id, EndReason::Cancelled, now);
            }
        }
    }

    /// What happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Whether no sequence waits or runs and no work is under way.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.under_way.is_empty()
    }

    /// Works under way.
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// How things stand.
    pub fn load(&self) -> Load {
        let decoding = self.running.iter().filter(|(_, id)| self.sequences[id].is_decoding());
        let decoding = decoding.count();
        Load {
            waiting: self.waiting.len(),
            reading: self.running.len() - decoding,
            decoding,
            under_way: self.under_way.len(),
            blocks: self.pool.len(),
            blocks_in_use: self.pool.in_use(),
            blocks_cached: self.pool.cached(),
        }
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        Counts { pool: self.pool.counts(), ..self.counts }
    }

    /// The last decisions, the oldest first.
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.log.iter()
    }

    /// Whether books and blocks agree.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<(), String> {
        let of_sequences = self.sequences.values().flat_map(|s| s.blocks.iter().chain(&s.copy_of));
        let leaving = self.leaving.iter().flat_map(|l| &l.blocks);
        self.pool.check(of_sequences.chain(leaving).copied())?;
        for sequence in self.sequences.values() {
            let id = sequence.id;
            let needs = match sequence.state {
                State::Waiting if !sequence.blocks.is_empty() => {
                    return Err(format!("sequence {id} waits with blocks"));
                }
                State::Waiting => 0,
                State::Reading { read, .. } => read.max(1),
                State::Decoding { reach, .. } => reach.max(1),
            };
            let (has, needs) = (sequence.blocks.len(), self.pool.blocks_for(needs));
            if has > needs + 1 {
                return Err(format!("sequence {id} has {has} blocks and needs {needs}"));
            }
        }
        let taken = self.seats.iter().filter(|&&seat| seat == Seat::Taken).count();
        let waiting = self.sequences.len() - self.running.len();
        if taken != self.running.len() || waiting != self.waiting.len() {
            return Err(format!("{taken} slots for {} sequences", self.running.len()));
        }
        if self.under_way.is_empty() && !self.leaving.is_empty() {
            return Err("something leaves for ever".to_owned());
        }
        Ok(())
    }

    /// The work that was planned last is under way as two lists: that of rows of prompts and a step at once was not made yet.
    pub fn started_apart(&mut self, now: Duration) {
        let Some(started) = self.under_way.back() else { return };
        let what = Decided::Apart { rows: started.rows.len(), beside: started.read };
        self.log.push(now, started.number, what);
        self.counts.mixed = self.counts.mixed.saturating_sub(1);
        self.counts.apart += 1;
    }

    fn decide(&mut self, now: Duration, what: Decided) {
        self.log.push(now, self.started + 1, what);
    }
}

/// The word for an end.
fn word(reason: &EndReason) -> &'static str {
    match reason {
        EndReason::Token(_) => "token",
        EndReason::Budget => "budget",
        EndReason::Context => "context",
        EndReason::Cancelled => "cancelled",
        EndReason::Failed(_) => "failed",
    }
}

/// Changes that put blocks into a slot's table.
fn table(slot: Slot, first: usize, blocks: &[Block]) -> Option<Change> {
    (!blocks.is_empty()).then(|| Change::Blocks { slot, first, blocks: blocks.to_vec() })
}
