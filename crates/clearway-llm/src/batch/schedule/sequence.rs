//! One text: its tokens, its blocks, where it stands.

use std::time::Duration;

use super::SequenceId;
use crate::batch::pool::{self, Full, Key, Pool, Salt};
use crate::batch::request::{RequestId, TokenUsage};
use crate::batch::runner::{Block, Slot};
use crate::engine::Sampling;

/// Who goes first: the larger priority, then who came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    priority: std::cmp::Reverse<i32>,
    order: u64,
}

impl Rank {
    pub(super) fn new(priority: i32, order: u64) -> Self {
        Self { priority: std::cmp::Reverse(priority), order }
    }

    pub(super) fn priority(self) -> i32 {
        self.priority.0
    }
}

/// Where a sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It has no slot and no blocks.
    Waiting,
    /// Its text is read: `read` tokens are in the cache when the works under way are done.
    Reading { slot: Slot, read: usize },
    /// It decodes. Its position is at most `reach` when the works under way are done; the device knows `room` as its end.
    Decoding { slot: Slot, reach: usize, room: usize },
}

/// Full blocks at the start of a text that others can find.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chain {
    /// How many.
    pub(super) len: usize,
    /// The last of them.
    pub(super) key: Option<Key>,
    /// No more can be published: another text has the hash of one.
    pub(super) broken: bool,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    pub(super) request: RequestId,
    pub(super) choice: usize,
    pub(super) rank: Rank,
    /// The first text of the same request, where this is not it.
    pub(super) leader: Option<SequenceId>,
    /// Prompt and tokens that were generated.
    pub(super) text: Vec<u32>,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    pub(super) sampling: Sampling,
    pub(super) stop_tokens: Vec<u32>,
    pub(super) salt: Salt,
    /// Nobody reads its tokens as they come.
    pub(super) patient: bool,
    /// Its position never reaches further: budget or context.
    pub(super) end: usize,
    /// The end is that of the context.
    pub(super) ends_with_context: bool,
    /// Hashes of full blocks of the text.
    hashes: Vec<u64>,
    pub(super) blocks: Vec<Block>,
    /// Entries of the block table that the device has.
    pub(super) tabled: usize,
    /// Its first block to write is this one's copy, which is not made yet.
    pub(super) copy_of: Option<Block>,
    pub(super) chain: Chain,
    pub(super) state: State,
    /// The last work that touches its slot or its blocks.
    pub(super) last_work: u64,
    pub(super) cached: usize,
    pub(super) submitted: Duration,
    pub(super) admitted: Option<Duration>,
    pub(super) last_token: Option<Duration>,
}

/// What a sequence is made of.
pub(super) struct Origin {
    pub(super) id: SequenceId,
    pub(super) request: RequestId,
    pub(super) choice: usize,
    pub(super) rank: Rank,
    pub(super) leader: Option<SequenceId>,
    pub(super) text: Vec<u32>,
    pub(super) sampling: Sampling,
    pub(super) stop_tokens: Vec<u32>,
    pub(super) salt: Salt,
    pub(super) patient: bool,
    pub(super) context: usize,
    pub(super) submitted: Duration,
}

impl Sequence {
    pub(super) fn new(origin: Origin) -> Self {
        let Origin { id, request, choice, rank, leader, text, sampling, .. } = origin;
        let prompt = text.len();
        let wanted = (prompt - 1).saturating_add(sampling.budget);
        Self {
            id,
            request,
            choice,
            rank,
            leader,
            text,
            prompt,
            sampling,
            stop_tokens: origin.stop_tokens,
            salt: origin.salt,
            patient: origin.patient,
            end: wanted.min(origin.context),
            ends_with_context: wanted > origin.context,
            hashes: Vec::new(),
            blocks: Vec::new(),
            tabled: 0,
            copy_of: None,
            chain: Chain::default(),
            state: State::Waiting,
            last_work: 0,
            cached: 0,
            submitted: origin.submitted,
            admitted: None,
            last_token: None,
        }
    }

    pub(super) fn slot(&self) -> Option<Slot> {
        match self.state {
            State::Waiting => None,
            State::Reading { slot, .. } | State::Decoding { slot, .. } => Some(slot),
        }
    }

    /// Tokens that are read before it decodes: all but the last.
    pub(super) fn to_read(&self) -> usize {
        self.text.len() - 1
    }

    /// Tokens that are still to be read.
    pub(super) fn unread(&self) -> usize {
        match self.state {
            State::Reading { read, .. } => self.to_read() - read,
            _ => 0,
        }
    }

    pub(super) fn is_decoding(&self) -> bool {
        matches!(self.state, State::Decoding { .. })
    }

    pub(super) fn generated(&self) -> usize {
        self.text.len() - self.prompt
    }

    pub(super) fn usage(&self) -> TokenUsage {
        TokenUsage { prompt: self.prompt, cached: self.cached, generated: self.generated() }
    }

    /// Whether the host chooses its tokens.
    pub(super) fn needs_host(&self) -> bool {
        !self.sampling.runs_on_device()
    }

    /// The hash of full block `index` of the text.
    pub(super) fn hash(&mut self, index: usize, size: usize) -> u64 {
        while self.hashes.len() <= index {
            let at = self.hashes.len();
            let tokens = &self.text[at * size..(at + 1) * size];
            let before = self.hashes.last().copied();
            self.hashes.push(pool::link(before, self.salt, tokens));
        }
        self.hashes[index]
    }

    /// What full block `index` of the text is looked up by, `before` being the block before it.
    fn full(&mut self, index: usize, before: Option<Key>, size: usize) -> Full<'_> {
        let hash = self.hash(index, size);
        let tokens = &self.text[index * size..(index + 1) * size];
        Full { hash, before, salt: self.salt, tokens }
    }

    /// The published block that is the next of the text, if its tokens need to be read at all.
    pub(super) fn find_next(&mut self, chain: Chain, pool: &mut Pool) -> Option<Key> {
        let size = pool.block_size();
        if chain.broken || (chain.len + 1) * size > self.to_read() {
            return None;
        }
        let full = self.full(chain.len, chain.key, size);
        pool.find(&full)
    }

    /// Publishes blocks that are full when `written` tokens are in the cache; those that were not published before.
    pub(super) fn publish(&mut self, written: usize, pool: &mut Pool) -> Vec<Block> {
        let size = pool.block_size();
        let mut new = Vec::new();
        while !self.chain.broken && (self.chain.len + 1) * size <= written {
            let Chain { len, key, .. } = self.chain;
            let block = self.blocks[len];
            let published = pool.publish(block, &self.full(len, key, size));
            match published {
                Some(key) => {
                    if key.block() == block {
                        new.push(block);
                    }
                    self.chain = Chain { len: len + 1, key: Some(key), broken: false };
                }
                None => self.chain.broken = true,
            }
        }
        new
    }
}
