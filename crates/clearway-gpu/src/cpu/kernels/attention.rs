//! Causal grouped-query attention over a KV cache.
//!
//! Rows of the cache are taken in blocks, and the softmax is kept up as they come: with each block
//! that raises the largest score, what was summed so far is scaled down. Blocks start at multiples of
//! [`KEYS`] wherever a token's window starts, so the order of a sum depends on positions alone.
//! Queries that share a key-value head share the decoded block.

use std::ops::Range;

use clearway_graph::TensorView;

use super::rows::{f32_row, f32_row_memory, is_f32};
use super::{cut, math, reduce};
use crate::cpu::simd::{Lanes, Vectorised, float, vectorise};
use crate::cpu::{Grid, Piece};

/// Queries that go through the cache together.
const QUERIES: usize = 32;

/// Rows of the cache in a block.
const KEYS: usize = 32;

/// Operands of a cache in blocks: the sequence of each token, and the blocks of each sequence.
const SEQUENCES: usize = 4;
const BLOCKS: usize = 5;

/// Fewest pieces to cut a token into before queries that share keys are kept together.
const FEW_PIECES: usize = 16;

pub(super) fn grid(views: &[TensorView], _: &[u32]) -> Grid {
    let (q, k) = (&views[0].layout, &views[1].layout);
    let (heads, kv_heads) = (q.shape4()[2] as usize, k.shape4()[2] as usize);
    let (rows, group) = (q.rows(), heads / kv_heads);
    let per_row = (k.shape4()[1] as usize).saturating_mul(2 * q.cols());
    let wanted = cut::pieces(rows.saturating_mul(per_row));
    let block = if rows / group >= wanted.min(FEW_PIECES) {
        rows.div_ceil(wanted).next_multiple_of(group)
    } else {
        let enough = |part: &usize| group.is_multiple_of(*part) && rows / part >= FEW_PIECES;
        (1..=group).rev().find(enough).unwrap_or(1)
    };
    let blocks = KEYS * (f32_row_memory(k) + f32_row_memory(&views[2].layout));
    Grid::rows(rows, block).with_scratch(2 * QUERIES * q.cols() + blocks)
}

pub(super) fn attention(piece: &mut Piece<'_>) {
    vectorise(Attention(piece));
}

struct Attention<'p, 'a>(&'p mut Piece<'a>);

impl Vectorised for Attention<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        attend(l, self.0);
    }
}

#[inline(always)]
fn attend<L: Lanes>(l: L, piece: &mut Piece<'_>) {
    let heads = piece.layout(0).shape4()[2] as usize;
    let kv_heads = piece.layout(1).shape4()[2] as usize;
    let mut pass = Pass::take(piece);
    for kv_head in 0..kv_heads {
        for row in piece.rows() {
            if row % heads / (heads / kv_heads) == kv_head {
                // Queries share the rows of one sequence.
                if pass.len > 0 && pass.sequence != sequence_of(piece, row / heads) {
                    pass.run(l, piece, kv_head);
                }
                pass.push(piece, row);
            }
            if pass.len == QUERIES {
                pass.run(l, piece, kv_head);
            }
        }
        pass.run(l, piece, kv_head);
    }
}

/// Queries of one key-value head on their way through the cache.
struct Pass<'a> {
    scale: f32,
    window: usize,
    softcap: f32,
    /// Rows of a block of the cache; 0 where the cache is one sequence.
    block: usize,
    /// The sequence of all queries.
    sequence: usize,
    head: usize,
    /// Rows of the output, one for each query.
    rows: [usize; QUERIES],
    /// Rows of the cache each query sees.
    seen: [Range<usize>; QUERIES],
    /// Largest score of each query so far, and the sum of `exp(score - max)`.
    max: [f32; QUERIES],
    sum: [f32; QUERIES],
    len: usize,
    queries: &'a mut [f32],
    /// Weighted sums of value rows.
    outputs: &'a mut [f32],
    /// A block of keys and one of values, if they are not f32.
    keys: &'a mut [f32],
    values: &'a mut [f32],
}

impl<'a> Pass<'a> {
    fn take(piece: &mut Piece<'a>) -> Self {
        let head = piece.layout(0).cols();
        let (queries, rest) = piece.take_scratch().split_at_mut(QUERIES * head);
        let (outputs, rest) = rest.split_at_mut(QUERIES * head);
        let (keys, values) = rest.split_at_mut(rest.len() / 2);
        Self {
            scale: piece.float(0),
            window: piece.int(1) as usize,
            softcap: piece.float(2),
            block: piece.int(3) as usize,
            sequence: 0,
            head,
            rows: [0; QUERIES],
            seen: [const { 0..0 }; QUERIES],
            max: [0.0; QUERIES],
            sum: [0.0; QUERIES],
            len: 0,
            queries,
            outputs,
            keys,
            values,
        }
    }

    /// Adds a query; `row` counts heads of all tokens.
    fn push(&mut self, piece: &Piece<'_>, row: usize) {
        let heads = piece.layout(0).shape4()[2] as usize;
        let token = row / heads;
        self.sequence = sequence_of(piece, token);
        let rows = match self.block {
            0 => piece.layout(1).shape4()[1] as usize,
            _ if self.sequence >= piece.layout(BLOCKS).rows() => 0,
            block => piece.layout(BLOCKS).cols() * block,
        };
        let end = (piece.src_row::<u32>(3, 0)[token] as usize).saturating_add(1);
        let start = if self.window == 0 { 0 } else { end.saturating_sub(self.window) };
        let index = self.len;
        let query = index * self.head..(index + 1) * self.head;
        piece.load_row(0, row, &mut self.queries[query.clone()]);
        self.outputs[query].fill(0.0);
        self.rows[index] = row;
        self.seen[index] = start..end.min(rows);
        self.max[index] = f32::NEG_INFINITY;
        self.sum[index] = 0.0;
        self.len += 1;
    }

    /// Takes all queries through the cache, stores the results and starts anew.
    #[inline(always)]
    fn run<L: Lanes>(&mut self, l: L, piece: &mut Piece<'_>, kv_head: usize) {
        let seen = self.seen[..self.len].iter().filter(|seen| !seen.is_empty());
        let start = seen.clone().map(|seen| seen.start).min().unwrap_or(0);
        let end = seen.map(|seen| seen.end).max().unwrap_or(0);
        for first in (start / KEYS * KEYS..end).step_by(KEYS) {
            self.block(l, piece, kv_head, first.max(start)..end.min(first + KEYS));
        }
        for index in 0..std::mem::take(&mut self.len) {
            let output = &mut self.outputs[index * self.head..][..self.head];
            // A query that sees nothing gives zeros.
            if self.sum[index] != 0.0 {
                let sum = self.sum[index];
                output.iter_mut().for_each(|x| *x /= sum);
            }
            piece.store_row(piece.operand_count() - 1, self.rows[index], output);
        }
    }

    /// All queries with the part of one block that any of them sees. Each row of the cache is read
    /// once for all queries, since rows of one head lie a power of two apart and share few places in
    /// the nearest cache.
    #[inline(always)]
    fn block<L: Lanes>(&mut self, l: L, piece: &Piece<'_>, kv_head: usize, block: Range<usize>) {
        let kv_heads = piece.layout(1).shape4()[2] as usize;
        let rows = block.clone().map(|row| self.cache_row(piece, row) * kv_heads + kv_head);
        let mut places = [0; KEYS];
        places.iter_mut().zip(rows).for_each(|(place, row)| *place = row);
        let places = &places[..block.len()];
        let keys = load(piece, 1, places, self.keys);
        let mut scores = [[0.0; KEYS]; QUERIES];
        for (row, key) in block.clone().zip(keys) {
            for (index, query) in self.queries.chunks_exact(self.head).take(self.len).enumerate() {
                if self.seen[index].contains(&row) {
                    scores[index][row - block.start] = float::dot(l, query, key);
                }
            }
        }
        let mut parts = [const { 0..0 }; QUERIES];
        for index in 0..self.len {
            let seen = &self.seen[index];
            let (start, end) = (seen.start.max(block.start), seen.end.min(block.end));
            if start >= end {
                continue;
            }
            let part = start - block.start..end - block.start;
            if self.take_scores(index, &mut scores[index][part.clone()]) {
                parts[index] = part;
            }
        }
        let values = load(piece, 2, places, self.values);
        // Groups of four start at multiples of four of the cache, as blocks do.
        for first in (block.start / 4 * 4..block.end).step_by(4) {
            let (start, end) = (first.max(block.start), block.end.min(first + 4));
            let outputs = self.outputs.chunks_exact_mut(self.head).zip(&parts).zip(&scores);
            for ((output, part), weights) in outputs.take(self.len) {
                let start = part.start.max(start - block.start);
                let end = part.end.min(end - block.start);
                if start < end {
                    add_weighted(&weights[start..end], &values[start..end], output);
                }
            }
        }
    }

    /// Where a row of the sequence lies in the cache.
    #[inline(always)]
    fn cache_row(&self, piece: &Piece<'_>, row: usize) -> usize {
        if self.block == 0 {
            return row;
        }
        let last = piece.layout(1).shape4()[1] as usize / self.block - 1;
        let blocks = piece.src_row::<u32>(BLOCKS, self.sequence);
        (blocks[row / self.block] as usize).min(last) * self.block + row % self.block
    }

    /// Turns scores of one query into weights, and brings what was summed before to their scale.
    /// False if none of them can have any weight.
    #[inline(always)]
    fn take_scores(&mut self, index: usize, scores: &mut [f32]) -> bool {
        for score in &mut *scores {
            *score *= self.scale;
        }
        if self.softcap > 0.0 {
            for score in &mut *scores {
                *score = math::soft_cap(*score, self.softcap);
            }
        }
        let before = self.max[index];
        let max = reduce::max_or_nan(&[before, reduce::max_or_nan(scores)]);
        if max == f32::NEG_INFINITY {
            return false;
        }
        for score in &mut *scores {
            *score = math::exp(*score - max);
        }
        let shrink = math::exp(before - max);
        self.max[index] = max;
        self.sum[index] = self.sum[index] * shrink + reduce::sum(scores);
        if shrink != 1.0 {
            let output = &mut self.outputs[index * self.head..][..self.head];
            output.iter_mut().for_each(|x| *x *= shrink);
        }
        true
    }
}

/// The sequence of a token; 0 where the cache is one sequence.
fn sequence_of(piece: &Piece<'_>, token: usize) -> usize {
    if piece.int(3) == 0 { 0 } else { piece.src_row::<u32>(SEQUENCES, 0)[token] as usize }
}

/// Rows of a cache as f32.
fn load<'b, 'a: 'b>(
    piece: &Piece<'a>,
    cache: usize,
    rows: &[usize],
    memory: &'b mut [f32],
) -> [&'b [f32]; KEYS] {
    let mut loaded: [&[f32]; KEYS] = [&[]; KEYS];
    if is_f32(piece, cache) {
        for (slot, row) in loaded.iter_mut().zip(rows) {
            *slot = piece.src_row(cache, *row);
        }
    } else {
        let memory = memory.chunks_exact_mut(piece.layout(cache).cols());
        for ((slot, &row), memory) in loaded.iter_mut().zip(rows).zip(memory) {
            *slot = f32_row(piece, cache, row, memory);
        }
    }
    loaded
}

/// Adds rows by weight. Four together go through memory once.
#[inline(always)]
fn add_weighted(weights: &[f32], rows: &[&[f32]], out: &mut [f32]) {
    if let (&[w0, w1, w2, w3], &[r0, r1, r2, r3]) = (weights, rows) {
        let rows = r0.iter().zip(r1).zip(r2.iter().zip(r3));
        for (out, ((&r0, &r1), (&r2, &r3))) in out.iter_mut().zip(rows) {
            *out += (w0 * r0 + w1 * r1) + (w2 * r2 + w3 * r3);
        }
        return;
    }
    for (&weight, row) in weights.iter().zip(rows) {
        for (out, &x) in out.iter_mut().zip(*row) {
            *out += weight * x;
        }
    }
}
