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

/// Scores of `T` queries with the keys of a block, element by element.
#[inline(always)]
pub(super) fn scores<L: Lanes, const T: usize>(
    l: L,
    queries: &[f32],
    keys: &[f32],
    out: &mut [[f32; KEYS]],
) {
    let keys = keys.as_chunks::<KEYS>().0;
    let mut rows: [&[f32]; T] = [&[]; T];
    for (row, query) in rows.iter_mut().zip(queries.chunks_exact(keys.len())) {
        *row = &query[..keys.len()];
    }
    for part in 0..KEYS / LANES {
        let mut sums = [l.float(0.0); T];
        for (at, keys) in keys.iter().enumerate() {
            let keys = l.floats(&keys.as_chunks::<LANES>().0[part]);
            for (sum, row) in sums.iter_mut().zip(&rows) {
                *sum = l.mul_add(l.float(row[at]), keys, *sum);
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
    (first, end): (usize, usize),
    values: &[f32],
    outputs: &mut [f32],
) {
    let panels = values.as_chunks::<LANES>().0.chunks_exact(KEYS);
    let width = panels.len();
    let outputs = outputs.as_chunks_mut::<LANES>().0;
    let mut rows: [&[f32]; T] = [&[]; T];
    for (row, weights) in rows.iter_mut().zip(weights) {
        *row = &weights[first..end];
    }
    for (at, panel) in panels.enumerate() {
        let mut sums = [l.float(0.0); T];
        for (query, sum) in sums.iter_mut().enumerate() {
            *sum = l.floats(&outputs[query * width + at]);
        }
        let panel = &panel[first..end];
        for (index, value) in panel.iter().enumerate() {
            let value = l.floats(value);
            for (sum, row) in sums.iter_mut().zip(&rows) {
                *sum = l.mul_add(l.float(row[index]), value, *sum);
            }
        }
        for (query, sum) in sums.iter().enumerate() {
            outputs[query * width + at] = l.store(*sum);
        }
    }
}
