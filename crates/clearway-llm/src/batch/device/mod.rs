//! A device that runs many sequences: the real [`Runner`].
//!
//! | module | what it does |
//! |---|---|
//! | `slots` | a slot as words, and the kernel that ends a step |
//! | `lists` | decode steps, rows of prompts, both at once, copies of blocks: compiled once, replayed |
//! | `batches` | rows of prompts, as many at once as a list holds |
//! | `shelf` | the lists there are, and which stand in for others |
//! | `maker` | a thread that makes lists |
//!
//! A work of one step with rows of prompts is one list of both (`StepList`), unless rows are pinned or the list is not made yet.
//!
//! The host has a copy of every slot. It is up to date when all work is finished, and only then it is written to the device:
//! a work that carries changes waits for the one before it. A work without any continues where the last one stopped, and
//! nothing is written at all.

mod batches;
mod lists;
pub(super) mod maker;
mod shelf;
mod slots;

use std::collections::VecDeque;
use std::ops::Range;

use clearway::{GpuError, NO_INDEX, Ticket};

use self::batches::{Batch, Batches};
use self::lists::{Row, StepKey, Tables};
use self::maker::{ListKey, Source};
use self::shelf::Shelf;
use self::slots::{FAILED, RING, RUNNING, WORDS};
use super::runner::{Change, Chosen, Limits, ListCounts, Read, Runner, Slot, SlotTokens, Work};
use crate::engine::choose::Choice;
use crate::engine::{Embedding, Engine, EngineError, sizes};

type Result<T> = std::result::Result<T, EngineError>;

/// Numbers of rows that decode steps are compiled for. Between them a step has rows that do nothing.
const DECODE_ROWS: [usize; 18] =
    [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/// As [`DECODE_ROWS`], beside rows of prompts on a device that multiplies many rows at once: few more cost nothing there, and there
/// are as many lists as pairs of numbers. One is what a prompt has that nobody else decodes beside.
const DECODE_ROWS_BESIDE: [usize; 7] = [1, 8, 16, 32, 64, 128, 256];
/// Rows of a tile there: a list of prompts and a step has whole ones.
const TILE_ROWS: usize = 16;
/// The fewest rows of prompts of a list, and of one beside rows that decode.
const LEAST_READ_ROWS: usize = 8;
const LEAST_READ_ROWS_BESIDE: usize = 24;
/// Numbers of rows of prompts whose lists are made ahead of need. Those between them are made when works ask for them.
const READ_ROWS: [usize; 14] = [8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048];
/// Rows of the list of prompts that is made first and stands in for all others.
const SHORT_READ: usize = 64;
/// Lists that are kept have so many times the rows that the device reads at once, or of steps of all slots, together.
const KEPT: usize = 6;
/// Rows of prompts that are read at once where rows are pinned.
const PINNED_READ: usize = 64;
/// Steps of one work at most, where the host is far from the device and where it is not.
const FAR_STEPS: usize = 32;
const NEAR_STEPS: usize = 4;

/// How sequences share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Sequences that run at once.
    pub slots: usize,
    /// Tokens of a block of the cache.
    pub block: usize,
    /// Tokens of one sequence at most; the pool is the engine's context.
    pub context: usize,
    /// Every step has the same number of rows, so that a sequence gets bit for bit the tokens it gets alone. Slower. An
    /// engine that was opened as deterministic does it, too.
    pub deterministic: bool,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { slots: 8, block: 32, context: 4096, deterministic: false }
    }
}

/// Sequences on the device of an engine.
pub struct DeviceRunner {
    engine: Engine,
    options: DeviceOptions,
    tables: Tables,
    slots: Vec<slots::Slot>,
    /// Blocks of each slot, as the device has them.
    blocks: Vec<u32>,
    lists: Shelf,
    /// Decode work on the device.
    under_way: VecDeque<UnderWay>,
    /// Works that are done and were not asked for yet.
    done: VecDeque<Vec<SlotTokens>>,
    /// What the device's decode inputs hold: the list and its slots, if nothing changed since.
    ready: Option<(StepKey, Vec<Slot>)>,
    /// Why work under way was lost while the next was started.
    lost: Option<EngineError>,
    /// Works that were one list of rows of prompts and a step.
    mixed: u64,
}

/// The smallest range that holds all that was added: one write is faster than many short ones.
#[derive(Default)]
struct Touched(Range<usize>);

impl Touched {
    fn add(&mut self, some: Range<usize>) {
        let Self(range) = self;
        *range = match range.start == range.end {
            true => some,
            false => range.start.min(some.start)..range.end.max(some.end),
        };
    }
}

struct UnderWay {
    key: StepKey,
    ticket: Ticket,
    slots: Vec<Slot>,
    steps: usize,
}

impl DeviceRunner {
    /// Takes over an engine. Its context becomes the pool of blocks.
    ///
    /// # Errors
    /// [`EngineError::Context`] where the pool has no block or there is no slot; [`EngineError::Divided`]; what the device
    /// reports.
    pub fn new(engine: Engine, options: DeviceOptions) -> Result<Self> {
        let DeviceOptions { slots, block, context, .. } = options;
        if slots == 0 || block == 0 || engine.context() < block || context == 0 {
            return Err(EngineError::Context { wanted: engine.context() });
        }
        engine.check_undivided("a batch of texts")?;
        let context = context.min(engine.context() / block * block);
        engine.stretch_for(context)?;
        let entries = context.div_ceil(block);
        let tables = Tables::new(&engine, slots, block, entries)?;
        let kept_rows = KEPT * engine.executor().device().batch_tokens().max(slots);
        let source = Source { steps: engine.steps_in_blocks()?, tables: tables.clone() };
        Ok(Self {
            options: DeviceOptions {
                context,
                deterministic: options.deterministic || engine.options().deterministic,
                ..options
            },
            slots: (0..slots).map(|_| slots::Slot::empty()).collect(),
            blocks: vec![0; slots * entries],
            lists: Shelf::new(source, kept_rows),
            engine,
            tables,
            under_way: VecDeque::new(),
            done: VecDeque::new(),
            ready: None,
            lost: None,
            mixed: 0,
        })
    }

    /// Works so far that were one list of rows of prompts and a step.
    pub fn mixed(&self) -> u64 {
        self.mixed
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Compiles decode steps of so many rows, so that the first ones need not wait for it.
    ///
    /// # Errors
    /// What the device reports.
    pub fn prepare(&mut self, rows: usize, sampling: &crate::engine::Sampling) -> Result<()> {
        let choice = Choice::of(sampling).unwrap_or(Choice::Greedy);
        let key = StepKey { read: 0, decode: self.decode_rows(rows), choice };
        self.lists.prepare(ListKey::Step(key))
    }

    /// Compiles what stands in for everything else, and has other lists made on a thread of their own from now on: those that are known to be
    /// needed sooner or later, and those that works ask for. A work whose list is not there takes others, and nobody waits for a compiler.
    /// Without this call a work waits until its lists are made, and always has the fastest.
    ///
    /// # Errors
    /// What the device reports.
    pub fn make_ahead(&mut self) -> Result<()> {
        let (first, then) = self.known_lists();
        self.lists.make_ahead(&first, &then)
    }

    /// The lists that stand in for all others, and those that texts of any length and number need, the most common first.
    fn known_lists(&self) -> (Vec<ListKey>, Vec<ListKey>) {
        let [common, greedy, any] = Choice::ALL;
        let step = |decode, choice| ListKey::Step(StepKey { read: 0, decode, choice });
        let most = self.decode_rows(self.options.slots);
        if self.options.deterministic {
            let first = vec![step(most, any), ListKey::Read(PINNED_READ)];
            return (first, vec![step(most, common), step(most, greedy)]);
        }
        let chunk = self.limits().chunk;
        let short = READ_ROWS.into_iter().find(|&rows| rows >= SHORT_READ.min(chunk));
        let first = vec![step(most, any), ListKey::Read(short.unwrap_or(chunk))];
        if self.tables.one_kernel {
            // Nothing is compiled there, and every list takes memory: those that works ask for are enough.
            return (first, Vec::new());
        }
        let reads = READ_ROWS.into_iter().take_while(|&rows| rows <= chunk);
        let mut then: Vec<ListKey> = reads.map(ListKey::Read).collect();
        let decodes = DECODE_ROWS.into_iter().take_while(|&rows| rows <= most);
        then.extend(decodes.flat_map(|rows| [step(rows, common), step(rows, greedy)]));
        (first, then)
    }

    fn decode_rows(&self, rows: usize) -> usize {
        let rows = if self.options.deterministic { self.options.slots } else { rows };
        DECODE_ROWS.into_iter().find(|&some| some >= rows).unwrap_or(rows)
    }

    /// Where a position of a slot lies in the cache.
    fn cache_row(&self, slot: Slot, position: usize) -> u32 {
        let (block, entries) = (self.tables.block, self.tables.entries);
        let entry = (position / block).min(entries - 1);
        self.blocks[slot * entries + entry] * block as u32 + (position % block) as u32
    }

    fn apply(&mut self, changes: &[Change]) -> Result<()> {
        let entries = self.tables.entries;
        let mut written = Touched::default();
        let mut tabled = Touched::default();
        for change in changes {
            match change {
                Change::Blocks { slot, first, blocks } => {
                    let end = (first + blocks.len()).min(entries);
                    let blocks = &blocks[..end.saturating_sub(*first)];
                    let at = slot * entries + first;
                    self.blocks[at..at + blocks.len()].copy_from_slice(blocks);
                    tabled.add(at..at + blocks.len());
                }
                Change::Open { slot, state } => {
                    self.slots[*slot] = slots::Slot::open(state);
                    written.add(*slot..slot + 1);
                }
                Change::End { slot, end } => {
                    self.slots[*slot].set_end((*end).min(self.options.context));
                    written.add(*slot..slot + 1);
                }
                Change::Close { slot } => {
                    self.slots[*slot] = slots::Slot::empty();
                    written.add(*slot..slot + 1);
                }
                Change::Copy { from, to } => self.lists.copy_list()?.run(*from, *to)?,
            }
        }
        let Touched(range) = tabled;
        self.tables.blocks.write_slice(4 * range.start as u64, &self.blocks[range])?;
        self.write_slots(written)
    }

    /// Writes the slots of a range, which no work under way has.
    fn write_slots(&self, Touched(range): Touched) -> Result<()> {
        let at = 4 * (range.start * WORDS) as u64;
        let words: Vec<u32> = self.slots[range].iter().flat_map(slots::Slot::words).collect();
        Ok(self.tables.slots.write_slice(at, &words)?)
    }

    /// Rows of prompts, as many at once as a list holds.
    fn batches(&self, reads: &[Read]) -> Vec<Batch> {
        let most = match self.options.deterministic {
            true => PINNED_READ,
            false => self.limits().chunk,
        };
        // Where many sequences share a list, it is one with room for them, whether its rows are used or not.
        let mut batches = Batches::new(most, self.tables.together(most));
        for read in reads {
            for (index, &token) in read.tokens.iter().enumerate() {
                let position = read.position + index;
                let row = Row {
                    token,
                    position: position as u32,
                    sequence: 0,
                    cache_row: self.cache_row(read.slot, position),
                    adapter: read.adapter,
                };
                batches.push(read.slot, row);
            }
        }
        batches.done()
    }

    /// Rows of the list that reads a batch: room for its rows and for its sequences.
    fn read_rows(&self, batch: &Batch) -> usize {
        if self.options.deterministic {
            return PINNED_READ;
        }
        let rows = self.tables.rows_for(batch.sequences.len()).max(batch.rows.len());
        sizes::fitting(rows.max(LEAST_READ_ROWS))
    }

    /// Rows of prompts of a list that reads a batch beside so many rows that decode: both together are a number that lists are made
    /// for, so that no tile is begun for a few rows.
    fn read_beside(&self, batch: &Batch, decode: usize) -> usize {
        let rows = self.tables.rows_for(batch.sequences.len()).max(batch.rows.len());
        let all = sizes::fitting(rows.max(LEAST_READ_ROWS_BESIDE) + decode);
        all.next_multiple_of(TILE_ROWS) - decode
    }

    /// The blocks of the sequences of a batch.
    fn table(&self, batch: &Batch) -> Vec<u32> {
        let entries = self.tables.entries;
        let blocks = |&slot: &Slot| &self.blocks[slot * entries..(slot + 1) * entries];
        batch.sequences.iter().flat_map(blocks).copied().collect()
    }

    fn read_batch(&mut self, batch: &Batch) -> Result<()> {
        let wanted = self.read_rows(batch);
        let rows = self.lists.read_for(wanted)?;
        if rows < wanted {
            // Several that are there stand in for one.
            let parts = batch.parts(rows, self.tables.together(rows));
            return parts.iter().try_for_each(|part| self.run_batch(part, rows));
        }
        self.run_batch(batch, rows)
    }

    /// Reads a batch with a list of so many rows, which is there.
    fn run_batch(&mut self, batch: &Batch, rows: usize) -> Result<()> {
        let table = self.table(batch);
        let list = self.lists.read(rows)?;
        let mut padded = batch.rows.clone();
        padded.resize(rows, Row::NONE);
        list.inputs.write(&padded)?;
        list.blocks.write_slice(0, &table)?;
        list.graph.start(1)?;
        Ok(())
    }

    /// The list for a step of these slots, with rows of prompts beside them or without.
    fn key(&self, slots: &[Slot], beside: Option<&Batch>) -> StepKey {
        let choices = slots.iter().filter_map(|&slot| self.slots[slot].choice);
        let choice = choices.fold(Choice::Greedy, Choice::and);
        let decode = self.decode_rows(slots.len());
        let Some(batch) = beside else { return StepKey { read: 0, decode, choice } };
        let read = self.read_rows(batch);
        if self.tables.one_kernel {
            return StepKey { read, decode, choice };
        }
        let coarse = DECODE_ROWS_BESIDE.into_iter().find(|&rows| rows >= slots.len());
        let decode = coarse.unwrap_or(decode);
        StepKey { read: self.read_beside(batch, decode), decode, choice }
    }

    fn write_rows(&mut self, key: StepKey, slots: &[Slot], beside: Option<&Batch>) -> Result<()> {
        let row = |&slot: &Slot| {
            let state = &self.slots[slot];
            match state.state {
                RUNNING => Row {
                    token: state.token,
                    position: state.position as u32,
                    sequence: slot as u32,
                    cache_row: self.cache_row(slot, state.position),
                    adapter: state.adapter,
                },
                _ => Row::NONE,
            }
        };
        let mut rows = beside.map_or_else(Vec::new, |batch| batch.rows.clone());
        rows.resize(key.read, Row::NONE);
        rows.extend(slots.iter().map(row));
        rows.resize(key.read + key.decode, Row::NONE);
        let mut of_rows: Vec<u32> = slots.iter().map(|&slot| slot as u32).collect();
        of_rows.resize(key.decode, NO_INDEX);
        let table = beside.map(|batch| self.table(batch));
        let list = self.lists.step(key)?;
        list.inputs.write(&rows)?;
        if let (Some(table), Some(blocks)) = (table, &list.blocks) {
            blocks.write_slice(0, &table)?;
        }
        Ok(list.rows.write_slice(0, &of_rows)?)
    }

    /// Waits for the oldest work on the device and takes its tokens.
    fn absorb(&mut self) -> Result<()> {
        let Some(work) = self.under_way.pop_front() else { return Ok(()) };
        if work.steps == 0 {
            self.done.push_back(Vec::new());
            return Ok(());
        }
        match self.lists.step(work.key)?.graph.finish(work.ticket) {
            Err(clearway::Error::Gpu(GpuError::Stalled { .. })) => {
                self.again(work)?;
                return self.absorb();
            }
            other => other?,
        }
        let UnderWay { key, slots, steps, .. } = work;
        let count = self.slots.len();
        let ring: Vec<u32> = self.tables.ring.peek_vec(0, count * (RING + 2))?;
        let mut results = Vec::with_capacity(slots.len());
        for (row, &slot) in slots.iter().enumerate() {
            if self.slots[slot].is_hosts() {
                results.push(self.choose(key, row, slot)?);
                continue;
            }
            let mut result = SlotTokens { slot, tokens: Vec::new(), failed: false };
            while result.tokens.len() < steps && self.slots[slot].state == RUNNING {
                let state = &mut self.slots[slot];
                let [reached, status] = [0, 1].map(|word| ring[count * RING + 2 * slot + word]);
                if state.position >= reached as usize {
                    if status == FAILED {
                        (state.state, result.failed) = (FAILED, true);
                    }
                    break;
                }
                let token = ring[slot * RING + state.position % RING];
                state.take(token);
                result.tokens.push(Chosen { token, log_probs: None });
            }
            results.push(result);
        }
        self.done.push_back(results);
        Ok(())
    }

    /// Does a work again that failed because the device did not start workgroups in order, and those behind it, which have the
    /// same slots. The list has waited for all of them and runs with barriers from now on. The host's slots are those
    /// before the work, and the cache rows it wrote are written again.
    fn again(&mut self, work: UnderWay) -> Result<()> {
        self.engine.note_stall();
        let mut slots = Touched::default();
        work.slots.iter().for_each(|&slot| slots.add(slot..slot + 1));
        self.write_slots(slots)?;
        // Lists that can stall have no rows of prompts.
        self.write_rows(work.key, &work.slots, None)?;
        let behind = std::mem::take(&mut self.under_way);
        for work in std::iter::once(work).chain(behind) {
            let ticket = self.lists.step(work.key)?.graph.start(work.steps)?;
            self.under_way.push_back(UnderWay { ticket, ..work });
        }
        Ok(())
    }

    /// Chooses the token of a slot whose sampling the device does not do.
    fn choose(&mut self, key: StepKey, row: usize, slot: Slot) -> Result<SlotTokens> {
        let mut result = SlotTokens { slot, tokens: Vec::new(), failed: false };
        if self.slots[slot].state != RUNNING {
            return Ok(result);
        }
        let logits = self.lists.step(key)?.logits(row)?;
        let state = &mut self.slots[slot];
        let Some(sampler) = &mut state.sampler else { return Ok(result) };
        match sampler.sample(&logits, &state.history) {
            Some(token) => {
                let log_probs = sampler.log_probs(&logits, token);
                state.take(token);
                result.tokens.push(Chosen { token, log_probs });
            }
            None => (state.state, result.failed) = (FAILED, true),
        }
        self.ready = None;
        Ok(result)
    }
}

impl Runner for DeviceRunner {
    fn limits(&self) -> Limits {
        let far = self.engine.feeds_back();
        let chunk = self.engine.executor().device().batch_tokens();
        Limits {
            slots: self.options.slots,
            block: self.tables.block,
            blocks: self.tables.pool,
            context: self.options.context,
            chunk: chunk.min(READ_ROWS[READ_ROWS.len() - 1]),
            steps: if far { FAR_STEPS } else { NEAR_STEPS },
            ahead: if far { 2 } else { 1 },
            adapters: self.engine.adapters().len(),
            mixed: !self.options.deterministic,
        }
    }

    fn start(&mut self, work: &Work) -> Result<()> {
        self.lists.refill();
        let mut key = self.key(&work.decode, None);
        let unchanged = work.changes.is_empty() && work.read.is_empty();
        let continued = self.ready.as_ref().filter(|(ready, slots)| {
            // Where the list itself has come, the one that stood in for it has done its part.
            let stays = *ready == key || !self.lists.has(ListKey::Step(key));
            unchanged && stays && *slots == work.decode
        });
        if let Some((ready, _)) = continued {
            key = *ready;
        } else {
            while !self.under_way.is_empty() {
                if let Err(error) = self.absorb() {
                    // Who waits for that work is told why.
                    self.lost = Some(error);
                    return Err(EngineError::LostBefore);
                }
            }
            self.ready = None;
            self.lists.give_up();
            self.apply(&work.changes)?;
            let mut batches = self.batches(&work.read);
            if !work.decode.is_empty() && work.steps > 0 {
                // Rows of prompts and a step are one list; more steps do not fit it.
                let mixes = self.limits().mixed && work.steps == 1;
                let beside = if mixes { batches.pop() } else { None };
                let both = match &beside {
                    Some(batch) => {
                        let key = self.key(&work.decode, Some(batch));
                        self.lists.step_for(key, work.decode.len())?
                    }
                    None => None,
                };
                if let Some(both) = both {
                    key = both;
                    self.write_rows(key, &work.decode, beside.as_ref())?;
                    self.mixed += 1;
                } else {
                    batches.extend(beside);
                    // The changes may have brought slots that choose in another way.
                    key = self.key(&work.decode, None);
                    key = self.lists.step_for(key, work.decode.len())?.unwrap_or(key);
                    self.write_rows(key, &work.decode, None)?;
                    self.ready = Some((key, work.decode.clone()));
                }
            }
            for batch in &batches {
                self.read_batch(batch)?;
            }
        }
        let steps = if work.decode.is_empty() { 0 } else { work.steps };
        let ticket = match steps {
            0 => Ticket::default(),
            steps => self.lists.step(key)?.graph.start(steps)?,
        };
        self.under_way.push_back(UnderWay { key, ticket, slots: work.decode.clone(), steps });
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<SlotTokens>> {
        if let Some(done) = self.done.pop_front() {
            return Ok(done);
        }
        let outcome = match self.lost.take() {
            Some(error) => Err(error),
            None => self.absorb(),
        };
        if let Err(error) = outcome {
            // What is still on the device belongs to slots that the caller gives up: it must not be taken for later work.
            self.under_way.clear();
            self.ready = None;
            return Err(error);
        }
        Ok(self.done.pop_front().unwrap_or_default())
    }

    fn embed(&mut self, text: &mut Embedding, most: usize) -> Result<Option<Vec<f32>>> {
        self.engine.embed_part(text, most)
    }

    fn lists(&self) -> ListCounts {
        self.lists.counts()
    }
}
