//! Queries of one key-value head on their way through a chunk of the cache.

use std::ops::Range;

use super::block::{self, KEYS, padded};
use super::{CHUNK, Cache, Sizes, Summary, seen};
use crate::cpu::Piece;
use crate::cpu::kernels::{math, reduce};
use crate::cpu::simd::Lanes;
use crate::cpu::simd::float::Element;

/// Queries that go through the cache together.
pub(super) const QUERIES: usize = 64;

/// A row of scores for each query.
type Scores = [[f32; KEYS]];

pub(super) struct Pass<'a> {
    scale: f32,
    softcap: f32,
    head: usize,
    /// Rows of the output, one for each query.
    rows: [usize; QUERIES],
    /// Rows of the cache each query sees.
    seen: [Range<usize>; QUERIES],
    /// What each query has found in this chunk, and in those before it.
    found: [Summary; QUERIES],
    total: [Summary; QUERIES],
    len: usize,
    queries: &'a mut [f32],
    /// Weighted sums of value rows, of this chunk and of those before it.
    outputs: &'a mut [f32],
    totals: &'a mut [f32],
    scores: &'a mut Scores,
    /// A block of the cache.
    keys: &'a mut [f32],
    values: &'a mut [f32],
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
    pub(super) fn floats(head: usize) -> usize {
        QUERIES * (3 * padded(head) + KEYS) + 2 * KEYS * padded(head)
    }

    pub(super) fn take(piece: &mut Piece<'a>) -> Self {
        let head = piece.layout(0).cols();
        let (queries, rest) = piece.take_scratch().split_at_mut(QUERIES * padded(head));
        let (outputs, rest) = rest.split_at_mut(QUERIES * padded(head));
        let (totals, rest) = rest.split_at_mut(QUERIES * padded(head));
        let (scores, rest) = rest.split_at_mut(QUERIES * KEYS);
        let (keys, values) = rest.split_at_mut(KEYS * padded(head));
        Self {
            scale: piece.float(0),
            softcap: piece.float(2),
            head,
            rows: [0; QUERIES],
            seen: [const { 0..0 }; QUERIES],
            found: [Summary::NOTHING; QUERIES],
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
    pub(super) fn start(
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
                let (index, row) = (self.len, token * sizes.heads + head);
                let query = &mut self.queries[index * padded..][..padded];
                let (elems, rest) = query.split_at_mut(self.head);
                piece.load_row(0, row, elems);
                rest.fill(0.0);
                self.rows[index] = row;
                self.seen[index] = seen.clone();
                self.total[index] = Summary::start(piece, sinks, head);
                self.len += 1;
            }
        }
        self.totals[..self.len * padded].fill(0.0);
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
        self.found[..self.len].fill(Summary::NOTHING);
        self.outputs[..self.len * padded(self.head)].fill(0.0);
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
        let padded = padded(self.head);
        let mut parts = [(0, 0); QUERIES];
        let mut query = 0;
        while query < self.len {
            let (queries, scores) = (&self.queries[query * padded..], &mut self.scores[query..]);
            query += by_tile!(L, self.len - query, T => {
                block::scores::<L, T>(l, queries, self.keys, scores);
                T
            });
        }
        for (query, part) in parts.iter_mut().enumerate().take(self.len) {
            let seen = common(&self.seen[query], &(first..first + KEYS));
            if !seen.is_empty() && self.weigh(query, seen.start - first, seen.end - first) {
                *part = (seen.start - first, seen.end - first);
            }
        }
        query = 0;
        while query < self.len {
            // Queries that see the same rows go together; others must not meet rows they do not see.
            let same = parts[query..self.len].iter().take_while(|part| **part == parts[query]);
            let (weights, outputs) = (&self.scores[query..], &mut self.outputs[query * padded..]);
            query += by_tile!(L, same.count(), T => {
                block::add_values::<L, T>(l, weights, parts[query], self.values, outputs);
                T
            });
        }
    }

    /// Turns scores of one query, which sees rows `start` to `end` of a block, into weights, and brings
    /// what was summed before to their scale. False if none of them can have any weight.
    #[inline(always)]
    fn weigh(&mut self, query: usize, start: usize, end: usize) -> bool {
        let scores = &mut self.scores[query];
        for score in scores.iter_mut() {
            *score *= self.scale;
        }
        if self.softcap > 0.0 {
            for score in scores.iter_mut() {
                *score = math::soft_cap(*score, self.softcap);
            }
        }
        if end - start < KEYS {
            for (row, score) in scores.iter_mut().enumerate() {
                *score = if row >= start && row < end { *score } else { f32::NEG_INFINITY };
            }
        }
        let found = &mut self.found[query];
        let before = found.max;
        let max = reduce::max_or_nan(scores);
        let max = if max > before || max.is_nan() { max } else { before };
        if max == f32::NEG_INFINITY {
            return false;
        }
        for score in scores.iter_mut() {
            *score = math::exp(*score - max);
        }
        let shrink = math::exp(before - max);
        *found = Summary { max, sum: found.sum * shrink + reduce::sum(scores) };
        if shrink != 1.0 {
            let padded = padded(self.head);
            let output = &mut self.outputs[query * padded..][..padded];
            output.iter_mut().for_each(|x| *x *= shrink);
        }
        true
    }

    /// Adds what the chunk gave to what those before it gave.
    #[inline(always)]
    pub(super) fn add(&mut self) {
        let padded = padded(self.head);
        let outputs = self.outputs.chunks_exact(padded).zip(self.totals.chunks_exact_mut(padded));
        let summaries = self.found.iter().zip(&mut self.total);
        for ((output, values), (found, total)) in outputs.zip(summaries).take(self.len) {
            total.add(values, *found, output);
        }
    }

    /// Stores what all chunks gave.
    #[inline(always)]
    pub(super) fn store(&mut self, piece: &mut Piece<'_>) {
        let padded = padded(self.head);
        for (query, total) in self.total.iter().enumerate().take(self.len) {
            let values = &mut self.totals[query * padded..][..self.head];
            total.finish(values);
            piece.store_row(piece.operand_count() - 1, self.rows[query], values);
        }
    }

    /// Leaves what the chunk gave for the piece that joins the parts.
    #[inline(always)]
    pub(super) fn summarise(&self, summaries: &mut [f32]) {
        let outputs = self.outputs.chunks_exact(padded(self.head));
        let queries = self.found.iter().zip(outputs).take(self.len);
        for ((found, output), out) in queries.zip(summaries.chunks_exact_mut(2 + self.head)) {
            (out[0], out[1]) = (found.max, found.sum);
            out[2..].copy_from_slice(&output[..self.head]);
        }
    }
}

fn common(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}
