//! A simulated device. A row of the cache holds a hash of the text up to it; a token is a function of all rows before it, so
//! a row that is wrong changes the text. Every rule of the runner's documentation is checked.

use std::collections::VecDeque;
use std::time::Duration;

use clearway_graph::testkit::Rng;
use clearway_llm::Error;
use clearway_llm::batch::runner::{
    Block, Change, Chosen, Limits, Read, Runner, Slot, SlotState, SlotTokens, Work,
};
use clearway_llm::engine::LogProbs;

/// Tokens of the vocabulary.
pub const VOCAB: u32 = 64;
/// The token that ends a text by the vocabulary.
pub const END: u32 = 0;

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// A step whatever its rows.
    pub step: Duration,
    /// For each row of a step.
    pub row: Duration,
    /// A chunk at least.
    pub chunk: Duration,
    /// For each token of a chunk.
    pub token: Duration,
    /// Percent by which a time may be longer.
    pub jitter: u64,
}

impl Default for Speed {
    fn default() -> Self {
        let us = Duration::from_micros;
        Self { step: us(1000), row: us(20), chunk: us(800), token: us(20), jitter: 20 }
    }
}

/// A row of the cache: its position, the hash of the text up to it.
type CacheRow = Option<(usize, u64)>;

pub struct Sim {
    limits: Limits,
    rows: Vec<Vec<CacheRow>>,
    slots: Vec<SlotSim>,
    under_way: VecDeque<UnderWay>,
    pub speed: Speed,
    rng: Rng,
    /// The time at which a work is started.
    pub now: Duration,
    free_at: Duration,
    /// Sleeps as long as the work takes.
    pub really: bool,
    /// Percent of works that cannot be started, and that are lost.
    pub fails: [u64; 2],
    /// Rows that have no numbers after this token.
    pub poison: Option<u32>,
    /// Tokens of prompts that were read.
    pub read: usize,
    pub steps: usize,
    /// Works of rows of prompts and one step, which it does at once.
    pub mixed: u64,
}

#[derive(Default)]
struct SlotSim {
    table: Vec<Block>,
    open: Option<Open>,
    /// Counts sequences in this slot.
    generation: u64,
}

struct Open {
    state: SlotState,
    stopped: bool,
}

struct UnderWay {
    results: Vec<SlotTokens>,
    done_at: Duration,
    took: Duration,
    /// Blocks it reads or writes, and for whom.
    touches: Vec<(Block, Slot, u64)>,
    host: bool,
}

/// The hash of a text with one more token.
fn extend(hash: u64, token: u32) -> u64 {
    let mut z = (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1;
    z = (z ^ (z >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 29)
}

/// The row of one more token of a text with an adapter.
fn row_of(hash: u64, token: u32, adapter: Option<u32>) -> u64 {
    extend(hash ^ adapter.map_or(0, |adapter| u64::from(adapter + 1) << 40), token)
}

/// The token after a text whose rows sum up to `sum`.
fn choose(sum: u64, seed: u64, position: usize) -> u32 {
    (extend(sum ^ seed.rotate_left(17), position as u32) >> 20) as u32 % VOCAB
}

/// The tokens a text gets alone, up to `budget`; without the one that ends it, which comes with them.
pub fn alone(prompt: &[u32], seed: u64, budget: usize, stops: &[u32]) -> (Vec<u32>, Option<u32>) {
    alone_with(None, prompt, seed, budget, stops)
}

/// As [`alone`], with an adapter.
pub fn alone_with(
    adapter: Option<u32>,
    prompt: &[u32],
    seed: u64,
    budget: usize,
    stops: &[u32],
) -> (Vec<u32>, Option<u32>) {
    let (mut hash, mut sum) = (1_u64, 0_u64);
    let mut read = |token| {
        hash = row_of(hash, token, adapter);
        sum = sum.rotate_left(7).wrapping_add(hash);
        sum
    };
    let mut last = 0;
    for &token in prompt {
        last = read(token);
    }
    let mut out = Vec::new();
    while out.len() < budget {
        let token = choose(last, seed, prompt.len() + out.len());
        if stops.contains(&token) {
            return (out, Some(token));
        }
        out.push(token);
        last = read(token);
    }
    (out, None)
}

impl Sim {
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self {
            limits,
            rows: vec![vec![None; limits.block]; limits.blocks],
            slots: (0..limits.slots).map(|_| SlotSim::default()).collect(),
            under_way: VecDeque::new(),
            speed: Speed::default(),
            rng: Rng::new(seed),
            now: Duration::ZERO,
            free_at: Duration::ZERO,
            really: false,
            fails: [0, 0],
            poison: None,
            read: 0,
            steps: 0,
            mixed: 0,
        }
    }

    /// When the oldest work is done.
    pub fn done_at(&self) -> Option<Duration> {
        self.under_way.front().map(|work| work.done_at)
    }

    /// The sum and the last hash of the rows of a slot before a position. Each must have been written for its position; a
    /// row of another text changes the sum, and with it the tokens.
    fn look_back(&self, slot: Slot, position: usize) -> (u64, u64) {
        let (mut sum, mut hash) = (0_u64, 1_u64);
        for at in 0..position {
            let table = &self.slots[slot].table;
            let block =
                *table.get(at / self.limits.block).expect("no block for a row that is read");
            let row = self.rows[block as usize][at % self.limits.block];
            let (written, content) = row.expect("a row is read that was never written");
            assert_eq!(written, at, "slot {slot} reads a row of another position");
            hash = content;
            sum = sum.rotate_left(7).wrapping_add(hash);
        }
        (sum, hash)
    }

    /// Writes the row of a position; the sum over all rows up to it.
    fn write(
        &mut self,
        slot: Slot,
        position: usize,
        (token, adapter): (u32, Option<u32>),
        before: (u64, u64),
        touches: &mut Vec<(Block, Slot, u64)>,
    ) -> (u64, u64) {
        assert!(token < VOCAB);
        assert!(position < self.limits.context, "beyond the context");
        let size = self.limits.block;
        let block = *self.slots[slot].table.get(position / size).expect("no block to write to");
        self.may_write(block, slot);
        for &other in &self.slots[slot].table[..position / size] {
            touches.push((other, slot, self.slots[slot].generation));
        }
        touches.push((block, slot, self.slots[slot].generation));
        assert!(adapter.is_none_or(|adapter| (adapter as usize) < self.limits.adapters));
        let hash = row_of(before.1, token, adapter);
        self.rows[block as usize][position % size] = Some((position, hash));
        (before.0.rotate_left(7).wrapping_add(hash), hash)
    }

    /// Nobody else may look at a block that is written, now or in work under way.
    fn may_write(&self, block: Block, slot: Slot) {
        let generation = self.slots[slot].generation;
        for (other, state) in self.slots.iter().enumerate() {
            let shared = other != slot && state.table.contains(&block);
            assert!(!shared, "slot {slot} writes block {block}, which slot {other} holds");
        }
        for work in &self.under_way {
            let foreign = work
                .touches
                .iter()
                .any(|&(touched, by, of)| touched == block && (by, of) != (slot, generation));
            assert!(!foreign, "slot {slot} writes block {block}, which work under way touches");
        }
    }

    fn change(&mut self, change: &Change, touches: &mut Vec<(Block, Slot, u64)>) {
        match change {
            Change::Blocks { slot, first, blocks } => {
                let table = &mut self.slots[*slot].table;
                assert_eq!(*first, table.len(), "a table grows at its end");
                for &block in blocks {
                    assert!((block as usize) < self.limits.blocks);
                    assert!(!table.contains(&block), "a block twice in one table");
                    table.push(block);
                }
                assert!(table.len() <= self.limits.context.div_ceil(self.limits.block));
            }
            Change::Open { slot, state } => {
                let SlotSim { open, table, .. } = &mut self.slots[*slot];
                assert!(open.is_none(), "slot {slot} is open");
                assert!(state.position < state.end && state.end <= self.limits.context);
                assert!(state.end <= table.len() * self.limits.block, "an end without blocks");
                if !state.sampling.penalties.are_none() {
                    assert_eq!(state.history.len(), state.position + 1);
                }
                *open = Some(Open { state: (**state).clone(), stopped: false });
            }
            Change::End { slot, end } => {
                let SlotSim { open, table, .. } = &mut self.slots[*slot];
                let open = open.as_mut().expect("the end of a slot that is not open");
                assert!(*end > open.state.end, "an end that is not further away");
                assert!(*end <= self.limits.context && *end <= table.len() * self.limits.block);
                open.state.end = *end;
            }
            Change::Close { slot } => {
                let state = &mut self.slots[*slot];
                state.open = None;
                state.table.clear();
                state.generation += 1;
            }
            Change::Copy { from, to } => {
                assert_ne!(from, to);
                // Whose it will be is not known yet: nobody's table has it.
                assert!(self.slots.iter().all(|slot| !slot.table.contains(to)));
                assert!(self.under_way.iter().all(|w| w.touches.iter().all(|t| t.0 != *to)));
                self.rows[*to as usize] = self.rows[*from as usize].clone();
                // Whoever holds it may write rows behind those that matter.
                let before = touches.len();
                for (slot, state) in self.slots.iter().enumerate() {
                    if state.table.contains(from) {
                        touches.push((*from, slot, state.generation));
                    }
                }
                if touches.len() == before {
                    touches.push((*from, usize::MAX, 0));
                }
            }
        }
    }

    fn read(&mut self, read: &Read, touches: &mut Vec<(Block, Slot, u64)>) {
        assert!(!read.tokens.is_empty());
        let mut state = self.look_back(read.slot, read.position);
        for (at, &token) in read.tokens.iter().enumerate() {
            let row = (token, read.adapter);
            state = self.write(read.slot, read.position + at, row, state, touches);
        }
        if let Some(open) = &self.slots[read.slot].open {
            let end = read.position + read.tokens.len();
            assert_eq!(open.state.position, end, "rows are read up to where the slot goes on");
        }
        self.read += read.tokens.len();
    }

    fn decode(
        &mut self,
        slot: Slot,
        steps: usize,
        touches: &mut Vec<(Block, Slot, u64)>,
    ) -> SlotTokens {
        let mut tokens = Vec::new();
        let mut failed = false;
        for _ in 0..steps {
            let open = self.slots[slot].open.as_ref().expect("a slot decodes that is not open");
            let (token, position) = (open.state.token, open.state.position);
            if open.stopped || position >= open.state.end {
                break;
            }
            let sampling = open.state.sampling.clone();
            let before = self.look_back(slot, position);
            if self.poison == Some(token) {
                failed = true;
                break;
            }
            let row = (token, sampling.adapter);
            let (sum, _) = self.write(slot, position, row, before, touches);
            let next = choose(sum, sampling.seed, position + 1);
            let open = self.slots[slot].open.as_mut().unwrap();
            open.stopped = open.state.stop_tokens.contains(&next);
            open.state.token = next;
            open.state.position += 1;
            let log_probs = (sampling.log_probs > 0).then(|| LogProbs {
                token: next,
                log_prob: -1.0,
                top: Vec::new(),
            });
            tokens.push(Chosen { token: next, log_probs });
        }
        SlotTokens { slot, tokens, failed }
    }

    fn error() -> Error {
        Error::Context { wanted: 17 }
    }
}

impl Runner for Sim {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn start(&mut self, work: &Work) -> Result<(), Error> {
        assert!(self.under_way.len() < self.limits.ahead, "too many works under way");
        assert!(!self.under_way.iter().any(|work| work.host), "the host has yet to choose");
        if self.rng.chance(self.fails[0]) {
            return Err(Self::error());
        }
        let mut touches = Vec::new();
        for change in &work.changes {
            self.change(change, &mut touches);
        }
        let read: usize = work.read.iter().map(|read| read.tokens.len()).sum();
        assert!(read <= self.limits.chunk, "{read} tokens at once");
        assert!(work.steps <= self.limits.steps);
        assert!(read > 0 || (work.steps > 0 && !work.decode.is_empty()), "work for nothing");
        for part in &work.read {
            self.read(part, &mut touches);
        }
        let mut seen = work.decode.clone();
        seen.dedup();
        assert_eq!(seen.len(), work.decode.len(), "a slot twice");
        let needs_host = |slot: &Slot| {
            let open = self.slots[*slot].open.as_ref().expect("a slot decodes that is not open");
            !open.state.sampling.runs_on_device()
        };
        let host = work.decode.iter().any(needs_host);
        assert!(!host || (work.steps == 1 && self.under_way.is_empty()), "the host chooses here");
        let results = work.decode.iter().map(|&slot| self.decode(slot, work.steps, &mut touches));
        let results: Vec<SlotTokens> = results.collect();
        self.steps += work.steps;
        let Speed { step, row, chunk, token, jitter } = self.speed;
        let rows = work.decode.len() as u32;
        let mut took =
            if rows > 0 { (step + row * rows) * work.steps as u32 } else { Duration::ZERO };
        if read > 0 && self.limits.mixed && rows > 0 && work.steps == 1 {
            // Weights are read once, and that takes longer than to multiply by a few rows.
            took = step.max(token * (read as u32 + rows)) + row * rows;
            self.mixed += 1;
        } else if read > 0 {
            took += chunk.max(token * read as u32);
        }
        took = took * (100 + self.rng.below(jitter + 1)) as u32 / 100;
        let done_at = self.now.max(self.free_at) + took;
        self.free_at = done_at;
        touches.sort_unstable();
        touches.dedup();
        self.under_way.push_back(UnderWay { results, done_at, took, touches, host });
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<SlotTokens>, Error> {
        let work = self.under_way.pop_front().expect("nothing is under way");
        if self.really {
            std::thread::sleep(work.took);
        }
        if self.rng.chance(self.fails[1]) {
            self.under_way.clear();
            self.rows = vec![vec![None; self.limits.block]; self.limits.blocks];
            self.slots.iter_mut().for_each(|slot| {
                let generation = slot.generation + 1;
                *slot = SlotSim { generation, ..SlotSim::default() };
            });
            return Err(Self::error());
        }
        Ok(work.results)
    }
}
