//! The merge loop that byte-level BPE and SentencePiece share, and the cache of words already merged.
//!
//! Both algorithms start from the smallest symbols of a word and join the most urgent adjacent pair until no pair is left;
//! among equally urgent pairs the leftmost goes first. They differ only in how urgent a pair is, which [`Pairs`] says.
//! Short words are scanned; long ones use a heap, so that a megabyte without white space stays near linear.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::table::{HashKey, NONE};

/// Up to this many symbols a scan for the best pair beats the heap.
const SCAN_LIMIT: usize = 40;

/// A part of a word that has become, or may become, one token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    /// Start in the word, in bytes.
    pub(super) start: u32,
    /// Length in bytes.
    pub(super) len: u32,
    /// The token, or [`NONE`] while it is not known.
    pub(super) id: u32,
    prev: u32,
    next: u32,
}

impl Symbol {
    /// A symbol that nothing has been merged into yet.
    pub(super) fn new(start: u32, len: u32, id: u32) -> Self {
        Self { start, len, id, prev: NONE, next: NONE }
    }
}

/// Which pairs of symbols may be joined, and in which order.
pub(super) trait Pairs {
    /// Urgency of joining two neighbours (lower first, below [`NONE`]) and the token that results.
    fn pair(&self, word: &[u8], left: &Symbol, right: &Symbol) -> Option<(u32, u32)>;

    /// Told of every pair that becomes a candidate, with the token that would result.
    #[inline]
    fn found(&mut self, _left: &Symbol, _id: u32) {}
}

/// [`Pairs::pair`] for a pair that has just come about.
#[inline]
fn candidate(
    pairs: &mut impl Pairs,
    word: &[u8],
    left: &Symbol,
    right: &Symbol,
) -> Option<(u32, u32)> {
    let pair = pairs.pair(word, left, right);
    if let Some((_, id)) = pair {
        pairs.found(left, id);
    }
    pair
}

/// Buffers of the merge loop, kept between words.
#[derive(Debug, Default)]
pub(super) struct Merger {
    /// The symbols of the word: filled by the caller, reduced by [`Self::merge`].
    pub(super) symbols: Vec<Symbol>,
    ranks: Vec<(u32, u32)>,
    heap: BinaryHeap<Reverse<u64>>,
}

impl Merger {
    /// Joins the symbols of `word` until `pairs` knows no more. At most `u32::MAX - 1` symbols.
    pub(super) fn merge(&mut self, word: &[u8], pairs: &mut impl Pairs) {
        if self.symbols.len() <= SCAN_LIMIT {
            self.merge_by_scan(word, pairs);
        } else {
            self.merge_by_heap(word, pairs);
        }
    }

    fn merge_by_scan(&mut self, word: &[u8], pairs: &mut impl Pairs) {
        let Self { symbols, ranks, .. } = self;
        ranks.clear();
        for two in symbols.windows(2) {
            ranks.push(candidate(pairs, word, &two[0], &two[1]).unwrap_or((NONE, NONE)));
        }
        loop {
            let mut best = (NONE, 0);
            for (i, &(rank, _)) in ranks.iter().enumerate() {
                if rank < best.0 {
                    best = (rank, i);
                }
            }
            let (rank, i) = best;
            if rank == NONE {
                return;
            }
            symbols[i].id = ranks[i].1;
            symbols[i].len += symbols[i + 1].len;
            symbols.remove(i + 1);
            ranks.remove(i);
            let mut rank_of = |left: usize| {
                candidate(pairs, word, &symbols[left], &symbols[left + 1]).unwrap_or((NONE, NONE))
            };
            if i > 0 {
                ranks[i - 1] = rank_of(i - 1);
            }
            if i < ranks.len() {
                ranks[i] = rank_of(i);
            }
        }
    }

    fn merge_by_heap(&mut self, word: &[u8], pairs: &mut impl Pairs) {
        let Self { symbols, heap, .. } = self;
        heap.clear();
        let count = symbols.len() as u32;
        for (i, symbol) in symbols.iter_mut().enumerate() {
            let i = i as u32;
            symbol.prev = if i == 0 { NONE } else { i - 1 };
            symbol.next = if i + 1 == count { NONE } else { i + 1 };
        }
        for i in 1..symbols.len() {
            if let Some((rank, _)) = candidate(pairs, word, &symbols[i - 1], &symbols[i]) {
                heap.push(entry(rank, i as u32 - 1));
            }
        }
        while let Some(Reverse(top)) = heap.pop() {
            let (rank, left) = ((top >> 32) as u32, top as u32);
            // An entry is stale if either side has merged since. Asking again is enough: a pair of the same rank at the
            // same place is the one that would be popped next anyway.
            let right = symbols[left as usize].next;
            if symbols[left as usize].len == 0 || right == NONE {
                continue;
            }
            let (a, b) = (symbols[left as usize], symbols[right as usize]);
            let Some((_, id)) = pairs.pair(word, &a, &b).filter(|&(now, _)| now == rank) else {
                continue;
            };
            symbols[left as usize] = Symbol { len: a.len + b.len, id, next: b.next, ..a };
            symbols[right as usize].len = 0;
            if b.next != NONE {
                symbols[b.next as usize].prev = left;
            }
            for (l, r) in [(a.prev, left), (left, b.next)] {
                if l != NONE
                    && r != NONE
                    && let Some((rank, _)) =
                        candidate(pairs, word, &symbols[l as usize], &symbols[r as usize])
                {
                    heap.push(entry(rank, l));
                }
            }
        }
        symbols.retain(|symbol| symbol.len > 0);
    }
}

#[inline]
fn entry(rank: u32, left: u32) -> Reverse<u64> {
    Reverse(u64::from(rank) << 32 | u64::from(left))
}

/// Ids of words met before in the same text: one slot per hash value, the last word to come owns it.
#[derive(Debug)]
pub(super) struct WordCache {
    key: HashKey,
    slots: Vec<Cached>,
}

/// A word as a range of the text and its ids as a range of the output.
#[derive(Debug, Clone, Copy, Default)]
struct Cached {
    text: (u32, u32),
    ids: (u32, u32),
}

impl WordCache {
    /// A cache for a text of `bytes` bytes. Its size is bounded whatever the text.
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            key: HashKey::random(),
            slots: vec![Cached::default(); (bytes / 8).clamp(16, 1 << 15).next_power_of_two()],
        }
    }

    /// Appends the ids of `text[start..end]` to `out`, from the cache or by `merge`.
    #[inline]
    pub(super) fn encode(
        &mut self,
        text: &[u8],
        (start, end): (usize, usize),
        out: &mut Vec<u32>,
        merge: impl FnOnce(&[u8], &mut Vec<u32>),
    ) {
        let word = &text[start..end];
        let slot = self.key.hash(word) as usize & (self.slots.len() - 1);
        let cached = self.slots[slot];
        let range = |(start, end): (u32, u32)| start as usize..end as usize;
        if &text[range(cached.text)] == word {
            out.extend_from_within(range(cached.ids));
            return;
        }
        let first = out.len();
        merge(word, out);
        // Ids are at most as many as bytes, but they share the vector with the ids of earlier texts.
        if let Ok(last) = u32::try_from(out.len()) {
            self.slots[slot] =
                Cached { text: (start as u32, end as u32), ids: (first as u32, last) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Joins two symbols when their texts are neighbours in a list, urgency by place in the list.
    struct ByText(Vec<(&'static str, &'static str)>);

    impl Pairs for ByText {
        fn pair(&self, word: &[u8], left: &Symbol, right: &Symbol) -> Option<(u32, u32)> {
            let text = |s: &Symbol| &word[s.start as usize..(s.start + s.len) as usize];
            let found = self
                .0
                .iter()
                .position(|(l, r)| l.as_bytes() == text(left) && r.as_bytes() == text(right))?;
            Some((found as u32, found as u32))
        }
    }

    #[test]
    fn scan_and_heap_agree() {
        // Every pair of strings of one or two letters, in an order without pattern.
        let parts = ["a", "b", "c", "ab", "ba", "bc", "cb", "ac", "ca", "aa", "bb", "cc"];
        let mut list: Vec<_> = parts.iter().flat_map(|&l| parts.map(|r| (l, r))).collect();
        list.sort_by_key(|(l, r)| HashKey::fixed().hash([*l, ".", *r].concat().as_bytes()));
        let mut pairs = ByText(list);
        let mut state = 7u64;
        for round in 0..2000 {
            let word: Vec<u8> = (0..round % 38)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                    b'a' + ((state >> 40) % 3) as u8
                })
                .collect();
            let symbols = |word: &[u8]| {
                (0..word.len() as u32).map(|i| Symbol::new(i, 1, NONE)).collect::<Vec<_>>()
            };
            let mut by_scan = Merger { symbols: symbols(&word), ..Merger::default() };
            let mut by_heap = Merger { symbols: symbols(&word), ..Merger::default() };
            by_scan.merge_by_scan(&word, &mut pairs);
            by_heap.merge_by_heap(&word, &mut pairs);
            let spans =
                |m: &Merger| m.symbols.iter().map(|s| (s.start, s.len, s.id)).collect::<Vec<_>>();
            assert_eq!(spans(&by_scan), spans(&by_heap), "word {word:?}");
        }
    }
}
