//! Queries of one key-value head on their way through a chunk of the cache.

use std::ops::Range;

use super::block::{self, KEYS, padded};
use super::{CHUNK, Cache, Sizes, Summary, seen};
use crate::cpu::Piece;
use crate::cpu::kernels::math;
use crate::cpu::simd::Lanes;
use crate::cpu::simd::float::{Element, LANES};

/// Queries that go through the cache together.
pub(super) const QUERIES: usize = 64;

/// A row of scores for each query.
type Scores = [[f32; KEYS]];

pub(super) struct Pass<'a> {
    scale: f32,
    softcap: f32,
    /// Elements of a head of keys, and of values.
    head: usize,
    value: usize,
    /// Rows of the output, one for each query.
    rows: [usize; QUERIES],
    /// Rows of the cache each query sees.
    seen: [Range<usize>; QUERIES],
    /// What each query has found in this chunk: maxima and sums of groups of queries.
    found: [Found; QUERIES / LANES],
    /// What each has found in the chunks before it.
    total: [Summary; QUERIES],
    len: usize,
    /// Queries as [`block::interleave`] lays them, tile by tile.
    queries: &'a mut [f32],
    /// Weighted sums of value rows, of this chunk and of those before it.
    outputs: &'a mut [f32],
    totals: &'a mut [f32],
    scores: &'a mut Scores,
    /// A block of the cache.
    keys: &'a mut [f32],
    values: &'a mut [f32],
}

/// Summaries of sixteen queries.
#[derive(Clone, Copy)]
struct Found {
    max: [f32; LANES],
    sum: [f32; LANES],
}

impl Found {
    const NOTHING: Self = Self { max: [f32::NEG_INFINITY; LANES], sum: [0.0; LANES] };
}

/// Does work with several queries at a time, as many as the machine has registers for.
macro_rules! by_tile {
    ($lanes:ident, $left:expr, $tile:ident => $work:expr) => {
        match $left {
            8.. if const { $lanes::TILE >= 8 } => {
                const $tile: usize = 8;
                $work
            }
            4.. if const { $lanes::TILE >= 4 } => {
                const $tile: usize = 4;
                $work
            }
            3 if const { $lanes::TILE >= 4 } => {
                const $tile: usize = 3;
                $work
            }
            2 if const { $lanes::TILE >= 4 } => {
                const $tile: usize = 2;
                $work
            }
            _ => {
                const $tile: usize = 1;
                $work
            }
        }
    };
}

impl<'a> Pass<'a> {
    /// Floats of scratch.
    pub(super) fn floats(head: usize, value: usize) -> usize {
        let (head, value) = (padded(head), padded(value));
        QUERIES * (head + 2 * value + KEYS) + KEYS * (head + value)
    }

    pub(super) fn take(piece: &mut Piece<'a>) -> Self {
        let (head, value) = (piece.layout(0).cols(), piece.layout(2).cols());
        let (queries, rest) = piece.take_scratch().split_at_mut(QUERIES * padded(head));
        let (outputs, rest) = rest.split_at_mut(QUERIES * padded(value));
        let (totals, rest) = rest.split_at_mut(QUERIES * padded(value));
        let (scores, rest) = rest.split_at_mut(QUERIES * KEYS);
        let (keys, values) = rest.split_at_mut(KEYS * padded(head));
        Self {
            scale: piece.float(0),
            softcap: piece.float(2),
            head,
            value,
            rows: [0; QUERIES],
            seen: [const { 0..0 }; QUERIES],
            found: [Found::NOTHING; QUERIES / LANES],
            total: [Summary::NOTHING; QUERIES],
            len: 0,
            queries,
            outputs,
            totals,
            scores: scores.as_chunks_mut().0,
            keys,
            values,
        }
    }

    /// Starts with some heads of some tokens, at most [`QUERIES`] together.
    #[inline(always)]
    pub(super) fn start<L: Lanes>(
        &mut self,
        piece: &Piece<'_>,
        tokens: Range<usize>,
        heads: Range<usize>,
        sizes: Sizes,
        sinks: Option<usize>,
    ) {
        let padded = padded(self.head);
        self.len = 0;
        for token in tokens {
            let seen = seen(piece, token, sizes.cache_rows);
            for head in heads.clone() {
                self.rows[self.len] = token * sizes.heads + head;
                self.seen[self.len] = seen.clone();
                self.total[self.len] = Summary::start(piece, sinks, head);
                self.len += 1;
            }
        }
        let mut query = 0;
        while query < self.len {
            query += by_tile!(L, self.len - query, T => {
                // There are no keys yet: queries of the tile lie there row by row first.
                let rows = &mut self.keys[..T * padded];
                for (row, elems) in self.rows[query..].iter().zip(rows.chunks_exact_mut(padded)) {
                    let (elems, rest) = elems.split_at_mut(self.head);
                    piece.load_row(0, *row, elems);
                    rest.fill(0.0);
                }
                block::interleave::<T>(rows, &mut self.queries[query * padded..]);
                T
            });
        }
        self.totals[..self.len * block::padded(self.value)].fill(0.0);
    }

    /// Takes all queries through a chunk.
    #[inline(always)]
    pub(super) fn chunk<L: Lanes, T: Element>(
        &mut self,
        l: L,
        keys: Cache<'_, T>,
        values: Cache<'_, T>,
        kv_head: usize,
        chunk: usize,
    ) {
        self.found.fill(Found::NOTHING);
        self.outputs[..self.len * padded(self.value)].fill(0.0);
        let chunk = chunk * CHUNK..(chunk + 1) * CHUNK;
        let parts = self.seen[..self.len].iter().map(|seen| common(seen, &chunk));
        let parts = parts.filter(|part| !part.is_empty());
        let start = parts.clone().map(|part| part.start).min().unwrap_or(0);
        let end = parts.map(|part| part.end).max().unwrap_or(0);
        for first in (start / KEYS * KEYS..end).step_by(KEYS) {
            let block = first.max(start)..end.min(first + KEYS);
            let mut rows: [&[T]; KEYS] = [&[]; KEYS];
            for row in block.clone() {
                rows[row - first] = keys.row(row, kv_head);
            }
            block::load_keys(l, &rows, self.keys);
            for row in block.clone() {
                rows[row - first] = values.row(row, kv_head);
            }
            block::load_values(l, &rows, self.values);
            self.block(l, first);
        }
    }

    /// All queries with the rows of a block that they see.
    #[inline(always)]
    fn block<L: Lanes>(&mut self, l: L, first: usize) {
        let (head, value) = (padded(self.head), padded(self.value));
        let mut parts = [(0, 0); QUERIES];
        let mut query = 0;
        while query < self.len {
            let (queries, scores) = (&self.queries[query * head..], &mut self.scores[query..]);
            query += by_tile!(L, self.len - query, T => {
                block::scores::<L, T>(l, queries, self.keys, scores);
                T
            });
        }
        for (query, part) in parts.iter_mut().enumerate().take(self.len) {
            let seen = common(&self.seen[query], &(first..first + KEYS));
            if !seen.is_empty() {
                *part = (seen.start - first, seen.end - first);
            }
        }
        for group in 0..self.len.div_ceil(LANES) {
            self.weigh(l, group, &mut parts);
        }
        query = 0;
        while query < self.len {
            // Queries that see the same rows go together; others must not meet rows they do not see.
            let same = parts[query..self.len].iter().take_while(|part| **part == parts[query]);
            let (weights, outputs) = (&self.scores[query..], &mut self.outputs[query * value..]);
            query += by_tile!(L, same.count(), T => {
                block::add_values::<L, T>(l, weights, parts[query], self.values, outputs);
                T
            });
        }
    }

    /// Turns scores of sixteen queries, each of which sees a part of the block, into weights, and brings what was summed before
    /// to their scale. The part of a query becomes empty if nothing in it can have any weight.
    #[inline(always)]
    fn weigh<L: Lanes>(&mut self, l: L, group: usize, parts: &mut [(usize, usize); QUERIES]) {
        let first = group * LANES;
        let count = LANES.min(self.len - first);
        let scores = &mut self.scores[first..first + count];
        let parts = &mut parts[first..first + count];
        let mut maxima = [l.float(f32::NEG_INFINITY); LANES];
        for ((scores, part), max) in scores.iter_mut().zip(&*parts).zip(&mut maxima) {
            for vector in scores.as_chunks_mut::<LANES>().0 {
                *vector = l.store(l.mul(l.floats(vector), l.float(self.scale)));
            }
            if self.softcap > 0.0 {
                for score in scores.iter_mut() {
                    *score = math::soft_cap(*score, self.softcap);
                }
            }
            if *part != (0, KEYS) {
                scores[..part.0].fill(f32::NEG_INFINITY);
                scores[part.1..].fill(f32::NEG_INFINITY);
            }
            for vector in scores.as_chunks::<LANES>().0 {
                *max = l.max(*max, l.floats(vector));
            }
        }
        // From one query in each vector to one in each lane.
        let mut max = l.float(f32::NEG_INFINITY);
        for lane in l.transpose(maxima) {
            max = l.max(max, lane);
        }
        let found = &mut self.found[group];
        let before = found.max;
        found.max = l.store(l.max(l.floats(&before), max));
        // Where nothing was seen yet, any other number does: all weights are zero.
        let base = found.max.map(|max| if max == f32::NEG_INFINITY { 0.0 } else { max });
        let shrink = exp_of_difference(l, l.floats(&before), &base);
        let mut sums = [l.float(0.0); LANES];
        for ((scores, base), sum) in scores.iter_mut().zip(base).zip(&mut sums) {
            for vector in scores.as_chunks_mut::<LANES>().0 {
                let weights = math::exp_lanes(l, l.add(l.floats(vector), l.float(-base)));
                *vector = l.store(weights);
                *sum = l.add(*sum, weights);
            }
        }
        let mut sum = l.float(0.0);
        for lane in l.transpose(sums) {
            sum = l.add(sum, lane);
        }
        found.sum = l.store(l.mul_add(l.floats(&found.sum), shrink, sum));
        let padded = padded(self.value);
        let outputs = self.outputs[first * padded..].chunks_exact_mut(padded);
        let queries = l.store(shrink).into_iter().zip(found.max).zip(parts).zip(outputs);
        for (((shrink, max), part), output) in queries {
            if max == f32::NEG_INFINITY {
                *part = (0, 0);
            } else if shrink != 1.0 {
                for vector in output.as_chunks_mut::<LANES>().0 {
                    *vector = l.store(l.mul(l.floats(vector), l.float(shrink)));
                }
            }
        }
    }

    /// What a query has found in this chunk.
    #[inline(always)]
    fn found(&self, query: usize) -> Summary {
        let Found { max, sum } = &self.found[query / LANES];
        Summary { max: max[query % LANES], sum: sum[query % LANES] }
    }

    /// Adds what the chunk gave to what those before it gave.
    #[inline(always)]
    pub(super) fn add(&mut self) {
        let padded = padded(self.value);
        for query in 0..self.len {
            let row = query * padded..(query + 1) * padded;
            let (found, output) = (self.found(query), &self.outputs[row.clone()]);
            self.total[query].add(&mut self.totals[row], found, output);
        }
    }

    /// Stores what all chunks gave.
    #[inline(always)]
    pub(super) fn store(&mut self, piece: &mut Piece<'_>) {
        let padded = padded(self.value);
        for (query, total) in self.total.iter().enumerate().take(self.len) {
            let values = &mut self.totals[query * padded..][..self.value];
            total.finish(values);
            piece.store_row(piece.operand_count() - 1, self.rows[query], values);
        }
    }

    /// Leaves what the chunk gave for the piece that joins the parts.
    #[inline(always)]
    pub(super) fn summarise(&self, summaries: &mut [f32]) {
        let outputs = self.outputs.chunks_exact(padded(self.value)).take(self.len);
        for ((query, output), out) in
            outputs.enumerate().zip(summaries.chunks_exact_mut(2 + self.value))
        {
            let found = self.found(query);
            (out[0], out[1]) = (found.max, found.sum);
            out[2..].copy_from_slice(&output[..self.value]);
        }
    }
}

/// `e^(x - base)`.
#[inline(always)]
fn exp_of_difference<L: Lanes>(l: L, x: L::Floats, base: &[f32; LANES]) -> L::Floats {
    math::exp_lanes(l, l.mul_add(l.floats(base), l.float(-1.0), x))
}

fn common(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}
