//! A block of the cache as f32, and products of several queries with it.

use crate::cpu::simd::Lanes;
use crate::cpu::simd::float::{Element, LANES, sixteen};

/// Rows of the cache in a block.
pub(super) const KEYS: usize = 32;

/// Elements of a head with zeros behind them, so that there are whole vectors.
pub(super) const fn padded(head: usize) -> usize {
    head.next_multiple_of(LANES)
}

/// Loads keys so that one element of all of them lies together: `keys` has [`KEYS`] floats for each
/// element. Rows that are empty become zeros.
#[inline(always)]
pub(super) fn load_keys<L: Lanes, T: Element>(l: L, rows: &[&[T]; KEYS], keys: &mut [f32]) {
    let keys = keys.as_chunks_mut::<LANES>().0;
    for (part, rows) in rows.as_chunks::<LANES>().0.iter().enumerate() {
        for (at, keys) in keys.chunks_exact_mut(LANES * KEYS / LANES).enumerate() {
            let mut square = [l.float(0.0); LANES];
            for (vector, row) in square.iter_mut().zip(rows) {
                *vector = sixteen(l, row, at * LANES);
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
pub(super) fn load_values<L: Lanes, T: Element>(l: L, rows: &[&[T]; KEYS], values: &mut [f32]) {
    let panels = values.as_chunks_mut::<LANES>().0.chunks_exact_mut(KEYS);
    for (at, panel) in panels.enumerate() {
        for (value, row) in panel.iter_mut().zip(rows) {
            *value = l.store(sixteen(l, row, at * LANES));
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

/// Scores of `T` [interleaved](interleave) queries with the keys of a block, element by element.
#[inline(always)]
pub(super) fn scores<L: Lanes, const T: usize>(
    l: L,
    queries: &[f32],
    keys: &[f32],
    out: &mut [[f32; KEYS]],
) {
    const PARTS: usize = KEYS / LANES;
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
            for (out, sum) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(sums) {
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
            out.as_chunks_mut::<LANES>().0[part] = l.store(sum);
        }
    }
}

/// Adds values by the weights that `T` queries give them, row by row from `first` to `end`.
#[inline(always)]
pub(super) fn add_values<L: Lanes, const T: usize>(
    l: L,
    weights: &[[f32; KEYS]],
    rows: (usize, usize),
    values: &[f32],
    outputs: &mut [f32],
) {
    let Some(weights) = weights.first_chunk::<T>() else { return };
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
    weights: &[[f32; KEYS]; T],
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
