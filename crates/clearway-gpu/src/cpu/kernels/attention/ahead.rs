//! Which rows of the cache are asked for while others are used.

use std::ops::Range;

use super::narrow::KEYS;
use super::{CHUNK, Sizes};

/// Blocks of a chunk.
const BLOCKS_OF_CHUNK: usize = CHUNK / KEYS;

/// Most elements of a chunk, keys and values of all heads, for which the whole next chunk is asked for.
const MOST_AHEAD: usize = 128 << 10;

/// Rows of the cache that are asked for while others are used: some heads of each.
#[derive(Clone)]
pub(super) struct Ahead {
    pub(super) rows: Range<usize>,
    pub(super) heads: Range<usize>,
    /// Whether nobody has asked for the rows that are used now.
    pub(super) starts: bool,
}

impl Ahead {
    pub(super) const NOTHING: Self = Self { rows: 0..0, heads: 0..1, starts: false };

    /// One head of a chunk.
    pub(super) fn head(sizes: Sizes, chunk: usize, kv_head: usize) -> Self {
        let rows = chunk * CHUNK..sizes.cache_rows.min((chunk + 1) * CHUNK);
        Self { rows, heads: kv_head..kv_head + 1, starts: false }
    }

    /// What comes next after one head of a chunk, where all heads of a chunk come one behind the other. Whole rows of the next
    /// chunk lie together in memory, so that reading them is fastest: each head asks for its share of them. Where
    /// two chunks would not stay in the cache of a core, it is the next head.
    pub(super) fn after(sizes: Sizes, chunks: &Range<usize>, chunk: usize, kv_head: usize) -> Self {
        let heads = sizes.kv_heads;
        if heads * (sizes.head + sizes.value) * CHUNK > MOST_AHEAD && kv_head + 1 < heads {
            return Self::head(sizes, chunk, kv_head + 1);
        }
        if chunk + 1 >= chunks.end {
            return Self::NOTHING;
        }
        let next = Self::head(sizes, chunk + 1, 0);
        if heads * (sizes.head + sizes.value) * CHUNK > MOST_AHEAD {
            return next;
        }
        let (start, count) = (next.rows.start, next.rows.len());
        let share = start + count * kv_head / heads..start + count * (kv_head + 1) / heads;
        Self { rows: share, heads: 0..heads, starts: false }
    }

    /// The part of them that goes with block `block` of a chunk.
    #[inline(always)]
    pub(super) fn part(&self, block: usize) -> Range<usize> {
        let (start, count) = (self.rows.start, self.rows.len());
        start + count * block / BLOCKS_OF_CHUNK..start + count * (block + 1) / BLOCKS_OF_CHUNK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(kv_heads: usize, head: usize, cache_rows: usize) -> Sizes {
        let (tokens, heads, value, block) = (1, kv_heads, head, 0);
        Sizes { tokens, heads, kv_heads, head, value, cache_rows, block }
    }

    /// Rows and heads that one head of a chunk asks for, block by block.
    fn asked(ahead: &Ahead) -> Vec<(usize, usize)> {
        let rows = (0..BLOCKS_OF_CHUNK).flat_map(|block| ahead.part(block));
        rows.flat_map(|row| ahead.heads.clone().map(move |head| (row, head))).collect()
    }

    #[test]
    fn heads_of_a_chunk_ask_for_all_of_the_next_once() {
        let (sizes, chunks) = (sizes(3, 64, 300), 0..3);
        for (chunk, next) in [(0, 128..256), (1, 256..300), (2, 0..0)] {
            let all = (0..3).map(|head| Ahead::after(sizes, &chunks, chunk, head));
            let mut found: Vec<_> = all.flat_map(|ahead| asked(&ahead)).collect();
            found.sort_unstable();
            let wanted = next.flat_map(|row| (0..3).map(move |head| (row, head)));
            assert_eq!(found, Vec::from_iter(wanted), "chunk {chunk}");
        }
    }

    #[test]
    fn heads_of_a_large_chunk_ask_for_the_next_head() {
        let (sizes, chunks) = (sizes(8, 128, 1000), 2..4);
        let rows = |rows: Range<usize>, head| Vec::from_iter(rows.map(|row| (row, head)));
        assert_eq!(asked(&Ahead::after(sizes, &chunks, 2, 4)), rows(256..384, 5));
        assert_eq!(asked(&Ahead::after(sizes, &chunks, 2, 7)), rows(384..512, 0));
        assert_eq!(asked(&Ahead::after(sizes, &chunks, 3, 7)), []);
    }
}
