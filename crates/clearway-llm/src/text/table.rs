//! Storage of a vocabulary: token bytes in one arena and hash tables keyed against crafted collisions.
//!
//! Both tables hash with a random key, because a model file chooses all keys; with a fixed hash a file could make every
//! token collide and loading quadratic.

use std::hash::{BuildHasher, Hasher, RandomState};

use super::error::TextError;
use super::vocab::TokenKind;

/// No token. Ids and ranks are below it; see [`TokenTable::new`].
pub(super) const NONE: u32 = u32::MAX;

/// Bytes and kind of every token.
#[derive(Debug)]
pub(super) struct TokenTable {
    bytes: Vec<u8>,
    /// `ends[i]` is where token `i` ends in `bytes`; it starts where `i - 1` ends.
    ends: Vec<u32>,
    kinds: Vec<TokenKind>,
    longest: usize,
}

impl TokenTable {
    /// An empty table for `tokens` tokens.
    pub(super) fn new(tokens: usize) -> Result<Self, TextError> {
        if tokens == 0 {
            return Err(TextError::EmptyVocab);
        }
        if tokens >= NONE as usize {
            return Err(TextError::VocabTooLarge { what: "tokens" });
        }
        Ok(Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(tokens),
            kinds: Vec::with_capacity(tokens),
            longest: 0,
        })
    }

    /// Appends the next token; `write` puts its bytes at the end of the buffer it is given.
    pub(super) fn push(
        &mut self,
        kind: TokenKind,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), TextError> {
        let start = self.bytes.len();
        write(&mut self.bytes);
        let end = u32::try_from(self.bytes.len())
            .map_err(|_| TextError::VocabTooLarge { what: "token bytes" })?;
        self.longest = self.longest.max(self.bytes.len() - start);
        self.ends.push(end);
        self.kinds.push(kind);
        Ok(())
    }

    /// The bytes of token `id`; empty for an id outside the table.
    #[inline]
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let i = id as usize;
        let Some(&end) = self.ends.get(i) else {
            return &[];
        };
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// The kind of token `id`, if there is one.
    #[inline]
    pub(super) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// How many tokens there are.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Length of the longest token.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }
}

/// From bytes to token id. The first of several tokens with equal bytes wins.
#[derive(Debug)]
pub(super) struct IdMap {
    key: HashKey,
    /// Half of the hash, to skip most comparisons, and the id; [`NONE`] marks a free slot.
    slots: Vec<(u32, u32)>,
}

impl IdMap {
    /// A map of the tokens of `table` that `include` accepts. Empty tokens are never included.
    pub(super) fn new(table: &TokenTable, mut include: impl FnMut(u32, TokenKind) -> bool) -> Self {
        let ids = || 0..table.len() as u32;
        let mut map =
            Self { key: HashKey::random(), slots: vec![(0, NONE); slot_count(table.len())] };
        for id in ids() {
            let bytes = table.bytes(id);
            if bytes.is_empty() || !table.kind(id).is_some_and(|kind| include(id, kind)) {
                continue;
            }
            let slot = map.probe(table, bytes);
            if map.slots[slot].1 == NONE {
                map.slots[slot] = ((map.key.hash(bytes) >> 32) as u32, id);
            }
        }
        map
    }

    /// The id of the token with exactly these bytes.
    #[inline]
    pub(super) fn id(&self, table: &TokenTable, bytes: &[u8]) -> Option<u32> {
        let id = self.slots[self.probe(table, bytes)].1;
        (id != NONE).then_some(id)
    }

    /// The slot that holds `bytes`, or the free slot where they belong. There is always a free slot: see [`slot_count`].
    #[inline]
    fn probe(&self, table: &TokenTable, bytes: &[u8]) -> usize {
        let hash = self.key.hash(bytes);
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let (tag, id) = self.slots[slot];
            if id == NONE || (tag == (hash >> 32) as u32 && table.bytes(id) == bytes) {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// From a pair of ids to the rank of its merge and the id of the result.
#[derive(Debug)]
pub(super) struct PairMap {
    key: HashKey,
    slots: Vec<PairSlot>,
}

#[derive(Debug, Clone, Copy)]
struct PairSlot {
    pair: u64,
    rank: u32,
    merged: u32,
}

impl PairMap {
    /// An empty map with room for `pairs` pairs.
    pub(super) fn new(pairs: usize) -> Self {
        let free = PairSlot { pair: 0, rank: NONE, merged: NONE };
        Self { key: HashKey::random(), slots: vec![free; slot_count(pairs)] }
    }

    /// Adds a pair; a pair that is there already keeps its earlier, lower rank. At most as many as [`Self::new`] was told.
    pub(super) fn insert(&mut self, left: u32, right: u32, rank: u32, merged: u32) {
        let slot = self.probe(left, right);
        if self.slots[slot].rank == NONE {
            self.slots[slot] = PairSlot { pair: join(left, right), rank, merged };
        }
    }

    /// Rank and result of the merge of `left` and `right`.
    #[inline]
    pub(super) fn get(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let slot = self.slots[self.probe(left, right)];
        (slot.rank != NONE).then_some((slot.rank, slot.merged))
    }

    #[inline]
    fn probe(&self, left: u32, right: u32) -> usize {
        let pair = join(left, right);
        let mask = self.slots.len() - 1;
        let mut slot = self.key.mix(pair) as usize & mask;
        loop {
            let at = self.slots[slot];
            if at.rank == NONE || at.pair == pair {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }
}

/// A secret for hashing.
#[derive(Debug, Clone, Copy)]
pub(super) struct HashKey(u64, u64);

impl HashKey {
    /// A key that a file cannot know.
    pub(super) fn random() -> Self {
        let state = RandomState::new();
        let word = |n: u64| {
            let mut hasher = state.build_hasher();
            hasher.write_u64(n);
            hasher.finish()
        };
        Self(word(0), word(1) | 1)
    }

    /// The same key in every run.
    #[cfg(test)]
    pub(super) fn fixed() -> Self {
        Self(0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03)
    }

    /// Hash of a byte string.
    #[inline]
    pub(super) fn hash(self, bytes: &[u8]) -> u64 {
        let mut state = self.0 ^ bytes.len() as u64;
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            state = fold(state ^ u64::from_le_bytes(word), self.1);
        }
        let mut word = [0; 8];
        let rest = chunks.remainder();
        word[..rest.len()].copy_from_slice(rest);
        fold(fold(state ^ u64::from_le_bytes(word), self.1), self.0 | 1)
    }

    /// Hash of one word.
    #[inline]
    fn mix(self, word: u64) -> u64 {
        fold(word ^ self.0, self.1)
    }
}

/// High and low half of the full product, which spreads every input bit over the result.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[inline]
fn join(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// A power of two above `entries` by at least a third, so that a free slot ends every search.
fn slot_count(entries: usize) -> usize {
    (entries + entries / 2 + 2).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(tokens: &[&str]) -> TokenTable {
        let mut table = TokenTable::new(tokens.len()).unwrap();
        for token in tokens {
            table.push(TokenKind::Normal, |out| out.extend(token.as_bytes())).unwrap();
        }
        table
    }

    #[test]
    fn ids_are_found_and_the_first_duplicate_wins() {
        let table = table(&["a", "", "bc", "a", "a longer token", "Ġ"]);
        let map = IdMap::new(&table, |_, _| true);
        let id = |text: &str| map.id(&table, text.as_bytes());
        assert_eq!(id("a"), Some(0));
        assert_eq!(id("bc"), Some(2));
        assert_eq!(id("a longer token"), Some(4));
        assert_eq!(id("Ġ"), Some(5));
        assert_eq!(id(""), None);
        assert_eq!(id("b"), None);
        assert_eq!(table.longest(), 14);
    }

    #[test]
    fn a_full_map_still_ends_a_failed_search() {
        for entries in 0..200 {
            let mut map = PairMap::new(entries);
            for i in 0..entries as u32 {
                map.insert(i, i + 1, i, i + 2);
            }
            for i in 0..entries as u32 {
                assert_eq!(map.get(i, i + 1), Some((i, i + 2)));
            }
            assert_eq!(map.get(7, 7), None);
        }
    }
}
