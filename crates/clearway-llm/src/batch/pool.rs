//! The blocks of the cache: who holds them, and which can be found again by their tokens.
//!
//! A block is *held* by as many sequences as refer to it. A full block can be *published*: then a sequence whose text begins
//! with the same tokens finds it and holds it too, instead of reading those tokens again. A published block that nobody
//! holds stays until its memory is needed; the one that was let go first goes first.
//!
//! **Finding.** Blocks are looked up by a hash of the hash of the block before, the salt and their tokens. A hash alone
//! proves nothing: a block is found only if its tokens, its salt and the very block before it are the same. Two texts with
//! one hash therefore never share a block; the second of them is not published.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::runner::Block;

/// A block as it was published. It becomes void when the block is used for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    block: Block,
    generation: u64,
}

impl Key {
    /// The block.
    pub fn block(self) -> Block {
        self.block
    }
}

/// What a pool has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Blocks that were looked up and found.
    pub found: u64,
    /// Blocks that were looked up and not found.
    pub missed: u64,
    /// Published blocks whose memory was needed.
    pub evicted: u64,
    /// Blocks that were not published since another text has their hash.
    pub collisions: u64,
}

/// Blocks of the cache.
#[derive(Debug)]
pub struct Pool {
    size: usize,
    blocks: Vec<State>,
    /// Held by nobody and not published.
    free: Vec<Block>,
    /// Held by nobody and published, by the time they were let go.
    unused: BTreeSet<(u64, Block)>,
    published: FxHashMap<u64, Block>,
    clock: u64,
    counts: PoolCounts,
}

#[derive(Debug, Default)]
struct State {
    holders: u32,
    /// When it was let go, while nobody holds it.
    let_go: u64,
    /// Which publication this is.
    generation: u64,
    content: Option<Content>,
}

/// What a published block holds.
#[derive(Debug)]
struct Content {
    hash: u64,
    before: Option<Key>,
    salt: Salt,
    tokens: Box<[u32]>,
}

/// What texts must share besides tokens to share blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Salt {
    /// What their requests say.
    pub request: u64,
    /// The adapter that acted on them.
    pub adapter: Option<u32>,
}

/// A full block of a text: what it is looked up by.
#[derive(Clone, Copy, Debug)]
pub struct Full<'a> {
    /// [`link`] of the chain up to it.
    pub hash: u64,
    /// The published block before it; `None` for the first of a text.
    pub before: Option<Key>,
    /// Texts with another salt do not share blocks.
    pub salt: Salt,
    /// Its tokens.
    pub tokens: &'a [u32],
}

/// The hash of a full block: of the hash of the block before, the salt and the tokens.
pub fn link(before: Option<u64>, salt: Salt, tokens: &[u32]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| {
        let hash = (hash ^ word).wrapping_mul(FACTOR);
        hash ^ (hash >> 29)
    };
    let first = mix(FACTOR, u64::from(before.is_none()));
    let adapter = salt.adapter.map_or(0, |adapter| u64::from(adapter) + 1);
    let start = mix(mix(mix(first, before.unwrap_or(0)), salt.request), adapter);
    mix(tokens.iter().fold(start, |hash, &token| mix(hash, u64::from(token))), tokens.len() as u64)
}

impl Pool {
    /// A pool of `blocks` blocks of `size` tokens, all free.
    pub fn new(blocks: usize, size: usize) -> Self {
        let count = u32::try_from(blocks).unwrap_or(u32::MAX);
        Self {
            size,
            blocks: (0..count).map(|_| State::default()).collect(),
            // The lowest is taken first.
            free: (0..count).rev().collect(),
            unused: BTreeSet::new(),
            published: FxHashMap::default(),
            clock: 0,
            counts: PoolCounts::default(),
        }
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> usize {
        self.size
    }

    /// Blocks there are.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are no blocks at all.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Blocks that can be taken.
    pub fn available(&self) -> usize {
        self.free.len() + self.unused.len()
    }

    /// Blocks that somebody holds.
    pub fn in_use(&self) -> usize {
        self.len() - self.available()
    }

    /// Blocks that nobody holds and that can be found again.
    pub fn cached(&self) -> usize {
        self.unused.len()
    }

    /// What it has done so far.
    pub fn counts(&self) -> PoolCounts {
        self.counts
    }

    /// Goes on counting where another pool was.
    pub(super) fn carry(&mut self, counts: PoolCounts) {
        self.counts = counts;
    }

    /// Blocks that hold `tokens` tokens.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.size.max(1))
    }

    /// How many sequences hold a block.
    pub fn holders(&self, block: Block) -> u32 {
        self.blocks.get(block as usize).map_or(0, |state| state.holders)
    }

    /// A block for one sequence alone. Where none is free, the published one that was let go first.
    pub fn take(&mut self) -> Option<Block> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let (_, block) = self.unused.pop_first()?;
                self.forget(block);
                self.counts.evicted += 1;
                block
            }
        };
        self.blocks[block as usize].holders = 1;
        Some(block)
    }

    /// One more sequence holds a block.
    pub fn share(&mut self, block: Block) {
        let state = &mut self.blocks[block as usize];
        if state.holders == 0 {
            self.unused.remove(&(state.let_go, block));
        }
        state.holders += 1;
    }

    /// A sequence lets its blocks go. Of blocks that go together the last of the text is given away first.
    pub fn release(&mut self, blocks: &[Block]) {
        for &block in blocks.iter().rev() {
            let state = &mut self.blocks[block as usize];
            debug_assert!(state.holders > 0, "block {block} is let go twice");
            state.holders = state.holders.saturating_sub(1);
            if state.holders > 0 {
                continue;
            }
            if state.content.is_some() {
                self.clock += 1;
                state.let_go = self.clock;
                self.unused.insert((self.clock, block));
            } else {
                self.free.push(block);
            }
        }
    }

    /// The published block with this content.
    pub fn find(&mut self, full: &Full<'_>) -> Option<Key> {
        let found = self.published.get(&full.hash).copied();
        let key = found.and_then(|block| self.same(block, full));
        match key {
            Some(_) => self.counts.found += 1,
            None => self.counts.missed += 1,
        }
        key
    }

    /// Lets others find a full block. The key of the block that is found from now on: this one, or another with the same
    /// content. `None` where the block cannot be found: another text has its hash, or the block before is void.
    pub fn publish(&mut self, block: Block, full: &Full<'_>) -> Option<Key> {
        if let Some(&other) = self.published.get(&full.hash) {
            let key = self.same(other, full);
            if key.is_none() {
                self.counts.collisions += 1;
            }
            return key;
        }
        if full.before.is_some_and(|before| !self.is_valid(before)) {
            return None;
        }
        self.clock += 1;
        let generation = self.clock;
        let state = &mut self.blocks[block as usize];
        debug_assert!(state.content.is_none() && state.holders > 0);
        state.generation = generation;
        let &Full { hash, before, salt, tokens } = full;
        state.content = Some(Content { hash, before, salt, tokens: tokens.into() });
        self.published.insert(hash, block);
        Some(Key { block, generation })
    }

    /// Takes a publication back: what the block holds was never written.
    pub fn withdraw(&mut self, block: Block) {
        self.forget(block);
        let state = &mut self.blocks[block as usize];
        if state.holders == 0 && self.unused.remove(&(state.let_go, block)) {
            self.free.push(block);
        }
    }

    fn is_valid(&self, key: Key) -> bool {
        let state = self.blocks.get(key.block as usize);
        state.is_some_and(|s| s.content.is_some() && s.generation == key.generation)
    }

    /// The key of a block if its content is this.
    fn same(&self, block: Block, full: &Full<'_>) -> Option<Key> {
        let State { generation, content, .. } = self.blocks.get(block as usize)?;
        let content = content.as_ref()?;
        let same = content.before == full.before
            && content.salt == full.salt
            && *content.tokens == *full.tokens;
        same.then_some(Key { block, generation: *generation })
    }

    fn forget(&mut self, block: Block) {
        if let Some(content) = self.blocks[block as usize].content.take() {
            self.published.remove(&content.hash);
        }
    }

    /// Whether every block is where it belongs: held exactly as often as it is named in `held`, and otherwise free or
    /// unused, once.
    ///
    /// # Errors
    /// The first block that is lost, used twice or in two places.
    pub fn check(&self, held: impl IntoIterator<Item = Block>) -> Result<(), String> {
        let mut holders = vec![0_u32; self.len()];
        for block in held {
            let count = holders.get_mut(block as usize);
            *count.ok_or_else(|| format!("block {block} does not exist"))? += 1;
        }
        let mut places = vec![0_u32; self.len()];
        for &block in self.free.iter().chain(self.unused.iter().map(|(_, block)| block)) {
            places[block as usize] += 1;
        }
        for (block, state) in self.blocks.iter().enumerate() {
            if state.holders != holders[block] {
                let (counted, found) = (state.holders, holders[block]);
                return Err(format!("block {block} counts {counted} holders and has {found}"));
            }
            if places[block] != u32::from(state.holders == 0) {
                let place = places[block];
                return Err(format!(
                    "block {block} is {place} times free and held by {}",
                    state.holders
                ));
            }
            let unused = self.unused.contains(&(state.let_go, block as Block));
            if state.holders == 0 && unused != state.content.is_some() {
                return Err(format!("block {block} can be found: {unused}"));
            }
            if let Some(content) = &state.content
                && self.published.get(&content.hash) != Some(&(block as Block))
            {
                return Err(format!("block {block} is published and not found"));
            }
        }
        let contents = self.blocks.iter().filter(|state| state.content.is_some()).count();
        if contents != self.published.len() {
            return Err(format!("{} hashes name {contents} blocks", self.published.len()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(request: u64, adapter: Option<u32>) -> Salt {
        Salt { request, adapter }
    }

    fn full<'a>(before: Option<Key>, hash: u64, tokens: &'a [u32]) -> Full<'a> {
        Full { hash, before, salt: Salt::default(), tokens }
    }

    #[test]
    fn a_published_block_is_found_until_its_memory_is_needed() {
        let mut pool = Pool::new(2, 2);
        let a = pool.take().unwrap();
        let key = pool.publish(a, &full(None, 7, &[1, 2])).unwrap();
        pool.release(&[a]);
        assert_eq!((pool.available(), pool.cached(), pool.in_use()), (2, 1, 0));
        assert_eq!(pool.find(&full(None, 7, &[1, 2])), Some(key));
        pool.share(a);
        assert_eq!((pool.available(), pool.in_use()), (1, 1));
        pool.release(&[a]);
        let b = pool.take().unwrap();
        assert_ne!(a, b, "a free block goes first");
        assert_eq!(pool.take(), Some(a));
        assert_eq!(pool.find(&full(None, 7, &[1, 2])), None);
        assert_eq!(pool.take(), None);
        pool.check([a, b]).unwrap();
        assert_eq!(pool.counts().evicted, 1);
    }

    #[test]
    fn the_block_that_was_let_go_first_goes_first_and_the_end_of_a_text_before_its_start() {
        let mut pool = Pool::new(4, 1);
        let blocks: Vec<Block> = (0..4).map(|_| pool.take().unwrap()).collect();
        let mut before = None;
        for (at, &block) in blocks[..3].iter().enumerate() {
            let tokens = [at as u32];
            before = pool.publish(block, &full(before, at as u64, &tokens));
        }
        pool.publish(blocks[3], &full(None, 99, &[9])).unwrap();
        pool.release(&blocks[3..]);
        pool.release(&blocks[..3]);
        let order: Vec<Block> = (0..4).map(|_| pool.take().unwrap()).collect();
        assert_eq!(order, [blocks[3], blocks[2], blocks[1], blocks[0]]);
    }

    #[test]
    fn equal_hashes_of_different_texts_share_nothing() {
        let mut pool = Pool::new(4, 1);
        let blocks: Vec<Block> = (0..4).map(|_| pool.take().unwrap()).collect();
        let first = pool.publish(blocks[0], &full(None, 5, &[1])).unwrap();
        assert_eq!(pool.find(&full(None, 5, &[2])), None, "other tokens");
        for salt in [of(1, None), of(0, Some(0))] {
            assert_eq!(pool.find(&Full { salt, ..full(None, 5, &[1]) }), None, "another salt");
        }
        assert_eq!(pool.publish(blocks[1], &full(None, 5, &[2])), None);
        assert_eq!(pool.counts().collisions, 1);
        // The block behind has equal tokens and an equal hash, but another block before it.
        pool.publish(blocks[2], &full(Some(first), 6, &[3])).unwrap();
        assert_eq!(pool.find(&full(None, 6, &[3])), None);
        // A second block with the same content is not published; the first stays the one that is found.
        assert_eq!(pool.publish(blocks[3], &full(None, 5, &[1])), Some(first));
        pool.check(blocks).unwrap();
    }

    #[test]
    fn a_block_whose_forerunner_is_gone_is_not_published() {
        let mut pool = Pool::new(2, 1);
        let [a, b] = [pool.take().unwrap(), pool.take().unwrap()];
        let key = pool.publish(a, &full(None, 1, &[1])).unwrap();
        pool.withdraw(a);
        assert_eq!(pool.publish(b, &full(Some(key), 2, &[2])), None);
        pool.check([a, b]).unwrap();
        pool.release(&[a, b]);
        assert_eq!(pool.cached(), 0);
    }

    #[test]
    fn the_checker_sees_lost_blocks_and_blocks_that_are_used_twice() {
        let mut pool = Pool::new(3, 1);
        let [a, b] = [pool.take().unwrap(), pool.take().unwrap()];
        pool.check([a, b]).unwrap();
        assert!(pool.check([a]).is_err(), "b is lost");
        assert!(pool.check([a, b, b]).is_err(), "b is used twice");
        pool.free.push(a);
        assert!(pool.check([a, b]).is_err(), "a is free and in use");
    }

    #[test]
    fn hashes_follow_salt_order_and_forerunner() {
        let hashes = [
            link(None, of(0, None), &[1, 2]),
            link(None, of(1, None), &[1, 2]),
            link(None, of(0, Some(0)), &[1, 2]),
            link(None, of(0, Some(1)), &[1, 2]),
            link(None, of(0, None), &[2, 1]),
            link(Some(1), of(1, None), &[1, 2]),
            link(None, of(0, None), &[1, 2, 0]),
        ];
        for (at, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..at].contains(hash), "{at}");
        }
    }
}
