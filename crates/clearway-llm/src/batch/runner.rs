//! What the scheduler asks of a device: sequences in slots, rows of prompts, decode steps.
//!
//! A [`Runner`] has a fixed number of *slots*. A slot is a row of tables on the device: last token, position, block table,
//! sampling row, stop tokens, end. The cache is a pool of blocks of [`Limits::block`] tokens; a slot's block table says
//! which block holds which tokens of its text.
//!
//! **Reading a prompt.** [`Work::read`] puts tokens into the cache at their positions and gives nothing back. All tokens of
//! a prompt but the last are read so. The last is the slot's token when it is opened: the first decode step reads it and
//! chooses the first token of the reply.
//!
//! **Decoding.** Each of [`Work::steps`] steps reads the token of each of [`Work::decode`]'s slots at the slot's position,
//! chooses the next one, stores it in the slot and moves the position on. A slot stops by itself when it chose a stop token
//! or when its position has reached [`SlotState::end`]: later steps leave it as it is and give no token for it.
//!
//! **Both at once.** Where [`Limits::mixed`] says so, rows of prompts and one step are done together: weights are read once for all of
//! them. A slot whose prompt ends in a work may decode in it, too: every row sees what rows before it in its text have written.
//!
//! **Work under way.** Work is done in the order in which it is started. [`Runner::start`] may be called again before the
//! first work is finished, at most [`Limits::ahead`] times. Changes of work that is started later never reach steps of work
//! that was started before.

use std::time::Duration;

use super::super::engine::{Embedding, EngineError, LogProbs, Sampling};

/// Index of a slot.
pub type Slot = usize;
/// Index of a block of the pool.
pub type Block = u32;

/// What a runner can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sequences that run at once.
    pub slots: usize,
    /// Tokens of a block.
    pub block: usize,
    /// Blocks of the pool.
    pub blocks: usize,
    /// Tokens of one sequence at most.
    pub context: usize,
    /// Tokens of prompts that are read at once at most.
    pub chunk: usize,
    /// Steps of one work at most.
    pub steps: usize,
    /// Works that may be under way at once.
    pub ahead: usize,
    /// Adapters that a sequence can choose from.
    pub adapters: usize,
    /// Rows of prompts and one step of a work are done at once: together they take less than one after the other.
    pub mixed: bool,
}

/// A sequence as it enters its slot.
#[derive(Clone, Debug)]
pub struct SlotState {
    /// The token that the next step reads.
    pub token: u32,
    /// Its position: how many tokens of the text are in the cache.
    pub position: usize,
    /// The slot stops when its position reaches this: budget, context, or the tokens that its blocks hold.
    pub end: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end the text, those of the vocabulary included; empty to ignore them.
    pub stop_tokens: Vec<u32>,
    /// The text up to and with `token`, where the host chooses; empty otherwise.
    pub history: Vec<u32>,
}

/// A change of the tables, made before the work that carries it.
#[derive(Clone, Debug)]
pub enum Change {
    /// A slot's block table from entry `first` on.
    Blocks {
        /// Which slot.
        slot: Slot,
        /// The first entry that is written.
        first: usize,
        /// The entries.
        blocks: Vec<Block>,
    },
    /// A sequence that decodes from now on. Its blocks are written already, or by the same work.
    Open {
        /// Which slot.
        slot: Slot,
        /// What it holds.
        state: Box<SlotState>,
    },
    /// The end of an open slot, further away than before. A slot that stopped at a stop token stays stopped.
    End {
        /// Which slot.
        slot: Slot,
        /// The new end.
        end: usize,
    },
    /// A slot that writes nothing any more.
    Close {
        /// Which slot.
        slot: Slot,
    },
    /// All rows of a block copied to another.
    Copy {
        /// From.
        from: Block,
        /// To.
        to: Block,
    },
}

/// Tokens of one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// Whose block table says where they lie.
    pub slot: Slot,
    /// Position of the first.
    pub position: usize,
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The adapter of their text, as its sampling row has it.
    pub adapter: Option<u32>,
}

/// What is done at once: changes, then rows of prompts, then decode steps.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Changes of the tables, in order.
    pub changes: Vec<Change>,
    /// Rows of prompts, of any number of slots.
    pub read: Vec<Read>,
    /// Slots that decode.
    pub decode: Vec<Slot>,
    /// How many steps they decode.
    pub steps: usize,
}

/// A token that a slot chose.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The token. A stop token is reported like any other.
    pub token: u32,
    /// Its log probability and those of the best, where the row asks for them.
    pub log_probs: Option<LogProbs>,
}

/// What became of a slot in a work.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotTokens {
    /// Which slot.
    pub slot: Slot,
    /// The tokens it chose: fewer than the work's steps where it stopped.
    pub tokens: Vec<Chosen>,
    /// It has no numbers to choose by: the text cannot go on.
    pub failed: bool,
}

/// What became of the lists that works are done by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListCounts {
    /// Lists that were made before a work needed them.
    pub ahead: u64,
    /// Lists that were made after a work had needed them.
    pub late: u64,
    /// Lists that could not be made, for want of memory perhaps. Others stand in for them.
    pub failed: u64,
    /// Lists that a work waited for.
    pub waits: u64,
    /// Works whose rows of prompts and step were two lists, since the list of both was not made yet.
    pub apart: u64,
    /// Lists that works needed and that are not made yet.
    pub missing: u64,
    /// What it took to make those that nobody waited for, of all threads together.
    pub making: Duration,
}

impl ListCounts {
    /// Both together.
    pub fn and(self, other: Self) -> Self {
        Self {
            ahead: self.ahead + other.ahead,
            late: self.late + other.late,
            failed: self.failed + other.failed,
            waits: self.waits + other.waits,
            apart: self.apart + other.apart,
            missing: self.missing + other.missing,
            making: self.making + other.making,
        }
    }
}

/// A device that runs sequences.
pub trait Runner: Send {
    /// What it can hold.
    fn limits(&self) -> Limits;

    /// Starts work. An error says that nothing of it was done and that nothing started before it is lost.
    ///
    /// # Errors
    /// What the device reports.
    fn start(&mut self, work: &Work) -> Result<(), EngineError>;

    /// Waits for the oldest work under way; the tokens of its decode slots, in the order of [`Work::decode`].
    ///
    /// # Errors
    /// What the device reports: then the contents of slots and blocks are lost, and nothing is under way any more.
    fn finish(&mut self) -> Result<Vec<SlotTokens>, EngineError>;

    /// Reads at most so many of the next tokens of a text; its vector once all are read. It needs no slot and no block. A
    /// text is read to its end, or given up, before the next is begun.
    ///
    /// # Errors
    /// What the device reports; a runner without vectors.
    fn embed(
        &mut self,
        text: &mut Embedding,
        most: usize,
    ) -> Result<Option<Vec<f32>>, EngineError> {
        let _ = (text, most);
        Err(EngineError::NoVectors)
    }

    /// Lists so far, where it has lists.
    fn lists(&self) -> ListCounts {
        ListCounts::default()
    }
}
