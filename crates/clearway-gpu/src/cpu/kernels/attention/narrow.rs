//! A vector holds a number of each of sixteen keys, or sixteen elements of a value, and meets a few queries.
//!
//! Keys are transposed sixteen by sixteen, for all queries.

use std::f32::consts::LOG2_E;

use super::row::Row;
use super::{CHUNK, Softmax};
use crate::cpu::kernels::math;
use crate::cpu::simd::Lanes;
use crate::cpu::simd::float::LANES;

/// Rows of the cache in a block.
pub(super) const KEYS: usize = 32;

/// Sixteen elements of sixteen keys from element `at` on: a vector has one element of all of them.
#[inline(always)]
pub(super) fn square<L: Lanes, R: Row, const WHOLE: bool>(
    l: L,
    rows: &[R; LANES],
    at: usize,
) -> [L::Floats; LANES] {
    let mut square = [l.float(0.0); LANES];
    for (vector, row) in square.iter_mut().zip(rows) {
        *vector = if const { WHOLE } { row.whole(l, at) } else { row.sixteen(l, at) };
    }
    l.transpose(square)
}

/// Lays queries side by side: element `i` of all `T`, then element `i + 1`. So [`scores`] reads them from one address.
#[inline(always)]
pub(super) fn interleave<const T: usize>(rows: &[f32], queries: &mut [f32]) {
    let elems = rows.len() / T;
    let queries = &mut queries.as_chunks_mut::<T>().0[..elems];
    for (query, row) in rows.chunks_exact(elems).enumerate() {
        for (to, from) in queries.iter_mut().zip(row) {
            to[query] = *from;
        }
    }
}

/// Adds sixteen elements to the scores of `T` [interleaved](interleave) queries with sixteen keys, element by element. Element
/// `at` of the head is the first of them, and row `first` of the chunk the first key.
#[inline(always)]
pub(super) fn add_scores<L: Lanes, const T: usize>(
    l: L,
    queries: &[f32],
    square: &[L::Floats; LANES],
    at: usize,
    first: usize,
    out: &mut [[f32; CHUNK]],
) {
    let Some(queries) = queries.as_chunks::<T>().0[at..].first_chunk::<LANES>() else { return };
    let Some(out) = out.first_chunk_mut::<T>() else { return };
    let vector = first / LANES;
    let mut sums = [l.float(0.0); T];
    if at > 0 {
        for (sum, out) in sums.iter_mut().zip(&*out) {
            *sum = l.floats(&out.as_chunks::<LANES>().0[vector]);
        }
    }
    for (query, keys) in queries.iter().zip(square) {
        for (sum, query) in sums.iter_mut().zip(query) {
            *sum = l.mul_add(l.float(*query), *keys, *sum);
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        out.as_chunks_mut::<LANES>().0[vector] = l.store(sum);
    }
}

/// Turns scores of up to sixteen queries, each of which sees a part of the chunk, into weights. The part of a query
/// becomes empty if nothing in it can have any weight.
#[inline(always)]
pub(super) fn weigh<L: Lanes>(
    l: L,
    softcap: f32,
    parts: &mut [(usize, usize)],
    scores: &mut [[f32; CHUNK]],
) -> Softmax {
    let scores = &mut scores[..parts.len()];
    let mut maxima = [l.float(f32::NEG_INFINITY); LANES];
    for ((scores, part), max) in scores.iter_mut().zip(&*parts).zip(&mut maxima) {
        if softcap > 0.0 {
            for score in scores.iter_mut() {
                *score = math::soft_cap(*score, softcap) * LOG2_E;
            }
        }
        if *part != (0, CHUNK) {
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
    let max = l.store(max);
    let mut sums = [l.float(0.0); LANES];
    for ((scores, max), sum) in scores.iter_mut().zip(max).zip(&mut sums) {
        // Where nothing was seen, any other number does: all weights are zero.
        let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
        for vector in scores.as_chunks_mut::<LANES>().0 {
            let weights = math::exp2_lanes(l, l.add(l.floats(vector), l.float(-base)));
            *vector = l.store(weights);
            *sum = l.add(*sum, weights);
        }
    }
    let mut sum = l.float(0.0);
    for lane in l.transpose(sums) {
        sum = l.add(sum, lane);
    }
    for (part, max) in parts.iter_mut().zip(max) {
        if max == f32::NEG_INFINITY {
            *part = (0, 0);
        }
    }
    Softmax::of(&max, &l.store(sum))
}

/// Asks for the rows that go with turn `turn` of `turns`. Spread over them, since a machine has only so many requests for
/// memory under way.
#[inline(always)]
pub(super) fn fetch<L: Lanes, R: Row>(l: L, rows: &[R], turn: usize, turns: usize) {
    for row in &rows[rows.len() * turn / turns..rows.len() * (turn + 1) / turns] {
        row.fetch(l);
    }
}

/// Values of a block of the chunk.
#[derive(Clone, Copy)]
pub(super) struct Block<'a, R> {
    /// Which block it is.
    pub(super) index: usize,
    pub(super) rows: &'a [R; KEYS],
    /// Rows to ask for meanwhile.
    pub(super) ahead: &'a [R],
}

/// Adds values of a block by the weights that `T` queries give them, row by row from the first to the last
/// of `part`, which are rows of the block. They have `elems` elements.
#[inline(always)]
pub(super) fn add_values<L: Lanes, R: Row, const T: usize>(
    l: L,
    weights: &[[f32; CHUNK]],
    mut block: Block<'_, R>,
    part: (usize, usize),
    elems: usize,
    outputs: &mut [f32],
) {
    let mut of_block = [&[0.0; KEYS]; T];
    for (of_block, weights) in of_block.iter_mut().zip(weights) {
        *of_block = &weights.as_chunks().0[block.index];
    }
    let weights = &of_block;
    let outputs = outputs.as_chunks_mut::<LANES>().0;
    let (width, whole) = (elems.div_ceil(LANES), elems / LANES);
    let mut at = 0;
    if const { L::TILE >= 8 && T <= 4 } {
        // There are registers for the sums of four vectors of each query.
        while at + 4 <= whole {
            add_vectors::<L, R, T, 4, true>(l, weights, block, part, (width, at), outputs);
            block.ahead = &[];
            at += 4;
        }
    }
    if const { L::TILE >= 8 } {
        while at + 2 <= whole {
            add_vectors::<L, R, T, 2, true>(l, weights, block, part, (width, at), outputs);
            block.ahead = &[];
            at += 2;
        }
    }
    while at < whole {
        add_vectors::<L, R, T, 1, true>(l, weights, block, part, (width, at), outputs);
        block.ahead = &[];
        at += 1;
    }
    if at < width {
        add_vectors::<L, R, T, 1, false>(l, weights, block, part, (width, at), outputs);
    }
}

/// The same for vectors `at` to `at + P` of each output's `width`. Rows have all of them if they are `WHOLE`.
#[inline(always)]
fn add_vectors<L: Lanes, R: Row, const T: usize, const P: usize, const WHOLE: bool>(
    l: L,
    weights: &[&[f32; KEYS]; T],
    block: Block<'_, R>,
    (first, end): (usize, usize),
    (width, at): (usize, usize),
    outputs: &mut [[f32; LANES]],
) {
    let mut sums = [[l.float(0.0); P]; T];
    for (query, sums) in sums.iter_mut().enumerate() {
        for (sum, output) in sums.iter_mut().zip(&outputs[query * width + at..]) {
            *sum = l.floats(output);
        }
    }
    for row in first..end.min(KEYS) {
        fetch(l, block.ahead, row, KEYS);
        let mut values = [l.float(0.0); P];
        for (vector, value) in values.iter_mut().enumerate() {
            let (row, at) = (block.rows[row], (at + vector) * LANES);
            *value = if const { WHOLE } { row.whole(l, at) } else { row.sixteen(l, at) };
        }
        for (sums, weights) in sums.iter_mut().zip(weights) {
            let weight = l.float(weights[row]);
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = l.mul_add(weight, value, *sum);
            }
        }
    }
    for (query, sums) in sums.into_iter().enumerate() {
        for (output, sum) in outputs[query * width + at..].iter_mut().zip(sums) {
            *output = l.store(sum);
        }
    }
}
