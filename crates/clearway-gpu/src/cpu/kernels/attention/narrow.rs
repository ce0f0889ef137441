//! A vector holds a number of each of sixteen keys, or sixteen elements of a value, and meets a few queries.
//!
//! Keys are transposed block by block, for all queries.

use super::row::Row;
use super::{CHUNK, Softmax};
use crate::cpu::kernels::math;
use crate::cpu::simd::Lanes;
use crate::cpu::simd::float::LANES;

/// Rows of the cache in a block.
pub(super) const KEYS: usize = 32;

/// Loads keys so that one element of all of them lies together: `keys` has [`KEYS`] floats for each
/// element. Rows that are empty become zeros.
#[inline(always)]
pub(super) fn load_keys<L: Lanes, R: Row>(l: L, rows: &[R; KEYS], keys: &mut [f32]) {
    let keys = keys.as_chunks_mut::<LANES>().0;
    for (part, rows) in rows.as_chunks::<LANES>().0.iter().enumerate() {
        for (at, keys) in keys.chunks_exact_mut(LANES * KEYS / LANES).enumerate() {
            let mut square = [l.float(0.0); LANES];
            for (vector, row) in square.iter_mut().zip(rows) {
                *vector = row.sixteen(l, at * LANES);
            }
            let square = l.transpose(square);
            for (keys, vector) in keys.chunks_exact_mut(KEYS / LANES).zip(square) {
                keys[part] = l.store(vector);
            }
        }
    }
}

/// Loads values: sixteen elements of all rows, then the next sixteen. Rows that are empty become zeros.
#[inline(always)]
pub(super) fn load_values<L: Lanes, R: Row>(l: L, rows: &[R; KEYS], values: &mut [f32]) {
    let panels = values.as_chunks_mut::<LANES>().0.chunks_exact_mut(KEYS);
    for (at, panel) in panels.enumerate() {
        for (value, row) in panel.iter_mut().zip(rows) {
            *value = l.store(row.sixteen(l, at * LANES));
        }
    }
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

/// Scores of `T` [interleaved](interleave) queries with the keys of a block, element by element. The block starts at row
/// `first` of the chunk.
#[inline(always)]
pub(super) fn scores<L: Lanes, const T: usize>(
    l: L,
    queries: &[f32],
    keys: &[f32],
    first: usize,
    out: &mut [[f32; CHUNK]],
) {
    const PARTS: usize = KEYS / LANES;
    let first = first / LANES;
    let keys = keys.as_chunks::<KEYS>().0;
    let queries = &queries.as_chunks::<T>().0[..keys.len()];
    let Some(out) = out.first_chunk_mut::<T>() else { return };
    if const { L::TILE >= 8 } {
        // There are registers for the sums of all keys.
        let mut sums = [[l.float(0.0); PARTS]; T];
        for (query, keys) in queries.iter().zip(keys) {
            let mut vectors = [l.float(0.0); PARTS];
            for (vector, keys) in vectors.iter_mut().zip(keys.as_chunks::<LANES>().0) {
                *vector = l.floats(keys);
            }
            for (sums, query) in sums.iter_mut().zip(query) {
                let query = l.float(*query);
                for (sum, keys) in sums.iter_mut().zip(vectors) {
                    *sum = l.mul_add(query, keys, *sum);
                }
            }
        }
        for (out, sums) in out.iter_mut().zip(sums) {
            for (out, sum) in out.as_chunks_mut::<LANES>().0[first..].iter_mut().zip(sums) {
                *out = l.store(sum);
            }
        }
        return;
    }
    for part in 0..PARTS {
        let mut sums = [l.float(0.0); T];
        for (query, keys) in queries.iter().zip(keys) {
            let keys = l.floats(&keys.as_chunks::<LANES>().0[part]);
            for (sum, query) in sums.iter_mut().zip(query) {
                *sum = l.mul_add(l.float(*query), keys, *sum);
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            out.as_chunks_mut::<LANES>().0[first + part] = l.store(sum);
        }
    }
}

/// Turns scores of up to sixteen queries, each of which sees a part of the chunk, into weights. The part of a query
/// becomes empty if nothing in it can have any weight.
#[inline(always)]
pub(super) fn weigh<L: Lanes>(
    l: L,
    scale: f32,
    softcap: f32,
    parts: &mut [(usize, usize)],
    scores: &mut [[f32; CHUNK]],
) -> Softmax {
    let scores = &mut scores[..parts.len()];
    let mut maxima = [l.float(f32::NEG_INFINITY); LANES];
    for ((scores, part), max) in scores.iter_mut().zip(&*parts).zip(&mut maxima) {
        for vector in scores.as_chunks_mut::<LANES>().0 {
            *vector = l.store(l.mul(l.floats(vector), l.float(scale)));
            if softcap > 0.0 {
                *vector = vector.map(|score| math::soft_cap(score, softcap));
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
            let weights = math::exp_lanes(l, l.add(l.floats(vector), l.float(-base)));
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

/// Adds values of a block of the chunk by the weights that `T` queries give them, row by row from the first to the last
/// of `rows`, which are rows of the block.
#[inline(always)]
pub(super) fn add_values<L: Lanes, const T: usize>(
    l: L,
    weights: &[[f32; CHUNK]],
    block: usize,
    rows: (usize, usize),
    values: &[f32],
    outputs: &mut [f32],
) {
    let mut of_block = [&[0.0; KEYS]; T];
    for (of_block, weights) in of_block.iter_mut().zip(weights) {
        *of_block = &weights.as_chunks().0[block];
    }
    let weights = &of_block;
    let panels = values.as_chunks::<LANES>().0.as_chunks::<KEYS>().0;
    let outputs = outputs.as_chunks_mut::<LANES>().0;
    let width = panels.len();
    let mut at = 0;
    if const { L::TILE >= 8 } {
        // There are registers for the sums of two panels.
        while let Some(two) = panels[at..].first_chunk::<2>() {
            add_panels(l, weights, rows, two, outputs, width, at);
            at += 2;
        }
    }
    while let Some(one) = panels[at..].first_chunk::<1>() {
        add_panels(l, weights, rows, one, outputs, width, at);
        at += 1;
    }
}

/// The same for `P` panels of the values, which are vectors `at` to `at + P` of each output's `width`.
#[inline(always)]
fn add_panels<L: Lanes, const T: usize, const P: usize>(
    l: L,
    weights: &[&[f32; KEYS]; T],
    (first, end): (usize, usize),
    panels: &[[[f32; LANES]; KEYS]; P],
    outputs: &mut [[f32; LANES]],
    width: usize,
    at: usize,
) {
    let mut sums = [[l.float(0.0); P]; T];
    for (query, sums) in sums.iter_mut().enumerate() {
        for (sum, output) in sums.iter_mut().zip(&outputs[query * width + at..]) {
            *sum = l.floats(output);
        }
    }
    for row in first..end.min(KEYS) {
        let mut values = [l.float(0.0); P];
        for (value, panel) in values.iter_mut().zip(panels) {
            *value = l.floats(&panel[row]);
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
