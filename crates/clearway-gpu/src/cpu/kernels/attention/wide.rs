//! A vector holds a number of each of sixteen queries; keys and values are the same for all of them.
//!
//! Keys and values need no transposing, and neither do scores: maxima and sums of a softmax run down the
//! rows of a chunk. Queries and outputs are transposed once for all of the cache.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::row::Row;
use crate::cpu::kernels::math;
use crate::cpu::simd::Lanes;
use crate::cpu::simd::float::{LANES, sixteen};

/// A number of each of `16 P` queries.
pub(super) type Wide<const P: usize> = [[f32; LANES]; P];

/// Does work with several vectors of queries, as many as the machine has registers for: `P` vectors, and
/// `T` keys or elements of a value at a time.
macro_rules! by_vectors {
    ($lanes:ident, $left:expr, ($vectors:ident, $tile:ident) => $work:expr) => {
        match $left {
            3 | 5.. if const { $lanes::TILE >= 8 } => {
                const $vectors: usize = 3;
                const $tile: usize = 8;
                $work
            }
            2 | 4 if const { $lanes::TILE >= 8 } => {
                const $vectors: usize = 2;
                const $tile: usize = 8;
                $work
            }
            _ if const { $lanes::TILE >= 8 } => {
                const $vectors: usize = 1;
                const $tile: usize = 16;
                $work
            }
            _ => {
                const $vectors: usize = 1;
                const $tile: usize = 4;
                $work
            }
        }
    };
}
pub(super) use by_vectors;

/// Widens sixteen elements, from element `at` on, of each row. Rows have all of them if they are `WHOLE`.
#[inline(always)]
pub(super) fn load<L: Lanes, R: Row, const WHOLE: bool>(
    l: L,
    rows: &[R],
    at: usize,
    out: &mut [[f32; LANES]],
) {
    for (out, row) in out.iter_mut().zip(rows) {
        *out = l.store(if const { WHOLE } { row.whole(l, at) } else { row.sixteen(l, at) });
    }
}

/// Sixteen rows of floats become vector `at` of `P` in each element's `out`.
#[inline(always)]
pub(super) fn transpose<L: Lanes, const P: usize>(
    l: L,
    rows: &[f32],
    at: usize,
    out: &mut [Wide<P>],
) {
    let len = out.len();
    for (part, out) in out.chunks_exact_mut(LANES).enumerate() {
        let mut square = [l.float(0.0); LANES];
        for (vector, row) in square.iter_mut().zip(rows.chunks_exact(len)) {
            *vector = sixteen(l, row, part * LANES);
        }
        for (out, vector) in out.iter_mut().zip(l.transpose(square)) {
            out[at] = l.store(vector);
        }
    }
}

/// The other way round.
#[inline(always)]
pub(super) fn untranspose<L: Lanes, const P: usize>(
    l: L,
    wide: &[Wide<P>],
    at: usize,
    rows: &mut [f32],
) {
    let len = wide.len();
    for (part, wide) in wide.as_chunks::<LANES>().0.iter().enumerate() {
        let mut square = [l.float(0.0); LANES];
        for (vector, wide) in square.iter_mut().zip(wide) {
            *vector = l.floats(&wide[at]);
        }
        for (row, vector) in rows.chunks_exact_mut(len).zip(l.transpose(square)) {
            row.as_chunks_mut::<LANES>().0[part] = l.store(vector);
        }
    }
}

/// Scores of `T` keys of a block, from a multiple of `T` on; `maxima` are kept up.
#[inline(always)]
pub(super) fn scores<L: Lanes, const P: usize, const T: usize>(
    l: L,
    queries: &[Wide<P>],
    keys: &[f32],
    first: usize,
    maxima: &mut Wide<P>,
    out: &mut [Wide<P>],
) {
    let panels = keys.as_chunks::<LANES>().0.as_chunks::<LANES>().0;
    let mut sums = [[l.float(0.0); P]; T];
    for (panel, queries) in panels.iter().zip(queries.as_chunks::<LANES>().0) {
        let keys = &panel.as_chunks::<T>().0[first / T];
        for (elem, query) in queries.iter().enumerate() {
            let mut vectors = [l.float(0.0); P];
            for (vector, query) in vectors.iter_mut().zip(query) {
                *vector = l.floats(query);
            }
            for (sums, key) in sums.iter_mut().zip(keys) {
                let key = l.float(key[elem]);
                for (sum, query) in sums.iter_mut().zip(vectors) {
                    *sum = l.mul_add(query, key, *sum);
                }
            }
        }
    }
    let Some(out) = out.first_chunk_mut::<T>() else { return };
    let mut most = [l.float(0.0); P];
    for (most, max) in most.iter_mut().zip(&*maxima) {
        *most = l.floats(max);
    }
    for (out, sums) in out.iter_mut().zip(sums) {
        for ((out, sum), most) in out.iter_mut().zip(sums).zip(&mut most) {
            *most = l.larger(sum, *most);
            *out = l.store(sum);
        }
    }
    for (most, max) in most.into_iter().zip(maxima) {
        *max = l.store(most);
    }
}

/// Rows of a chunk that queries see, where they do not all see all of it. First and last row of each query.
#[derive(Clone, Copy)]
pub(super) struct Seen<const P: usize> {
    first: Wide<P>,
    last: Wide<P>,
}

impl<const P: usize> Seen<P> {
    pub(super) const NOTHING: Self = Self { first: [[0.0; LANES]; P], last: [[-1.0; LANES]; P] };

    /// Some vectors of them.
    #[inline(always)]
    pub(super) fn part<const N: usize>(&self, at: usize) -> Seen<N> {
        let mut part = Seen::NOTHING;
        part.first.copy_from_slice(&self.first[at..at + N]);
        part.last.copy_from_slice(&self.last[at..at + N]);
        part
    }

    /// The other way round.
    #[inline(always)]
    pub(super) fn set_part<const N: usize>(&mut self, at: usize, part: &Seen<N>) {
        self.first[at..at + N].copy_from_slice(&part.first);
        self.last[at..at + N].copy_from_slice(&part.last);
    }

    /// What queries from vector `at` on see of a chunk. Places without a query see what the last one does.
    pub(super) fn new(queries: &[Range<usize>], at: usize, chunk: &Range<usize>) -> Self {
        let mut seen = Self::NOTHING;
        let places = seen.first.iter_mut().flatten().zip(seen.last.iter_mut().flatten());
        for (place, (first, last)) in places.enumerate() {
            let range = &queries[(at * LANES + place).min(queries.len() - 1)];
            let (start, end) = (range.start.max(chunk.start), range.end.min(chunk.end));
            if start < end {
                (*first, *last) = ((start - chunk.start) as f32, (end - 1 - chunk.start) as f32);
            }
        }
        seen
    }

    /// Lets queries without a maximum see nothing.
    pub(super) fn hide(&mut self, maxima: &Wide<P>) {
        for (last, max) in self.last.iter_mut().flatten().zip(maxima.iter().flatten()) {
            if *max == f32::NEG_INFINITY {
                *last = -1.0;
            }
        }
    }

    /// `a` where a query sees the row, `b` where it does not.
    #[inline(always)]
    fn choose<L: Lanes>(
        &self,
        l: L,
        vector: usize,
        row: usize,
        a: L::Floats,
        b: L::Floats,
    ) -> L::Floats {
        let row = row as f32;
        let behind_first = l.mul_add(l.floats(&self.first[vector]), l.float(-1.0), l.float(row));
        let before_last = l.add(l.floats(&self.last[vector]), l.float(-row));
        l.choose(behind_first, l.choose(before_last, a, b), b)
    }
}

/// Caps the scores of some rows, hides those that queries do not see, and finds the maxima.
#[inline(always)]
pub(super) fn mask<L: Lanes, const P: usize>(
    l: L,
    rows: Range<usize>,
    seen: Option<&Seen<P>>,
    softcap: f32,
    scores: &mut [Wide<P>],
) -> Wide<P> {
    let mut maxima = [[f32::NEG_INFINITY; LANES]; P];
    for (row, scores) in scores[rows.clone()].iter_mut().enumerate() {
        for (vector, (score, max)) in scores.iter_mut().zip(&mut maxima).enumerate() {
            if softcap > 0.0 {
                *score = score.map(|score| math::soft_cap(score, softcap) * LOG2_E);
            }
            if let Some(seen) = seen {
                let hidden = l.float(f32::NEG_INFINITY);
                let score_or = seen.choose(l, vector, rows.start + row, l.floats(score), hidden);
                *score = l.store(score_or);
            }
            *max = l.store(l.larger(l.floats(score), l.floats(max)));
        }
    }
    maxima
}

/// What to subtract from scores, and whether a query has seen nothing: any number does there, since all weights are zero.
#[inline(always)]
pub(super) fn base<const P: usize>(maxima: &Wide<P>) -> (Wide<P>, bool) {
    let mut nothing = false;
    let base = maxima.map(|max| {
        max.map(|max| {
            nothing |= max == f32::NEG_INFINITY;
            if max == f32::NEG_INFINITY { 0.0 } else { max }
        })
    });
    (base, nothing)
}

/// Turns scores of some rows into weights `2^(score - base)` and gives their sums: rows at a distance of sixteen are
/// summed first.
#[inline(always)]
pub(super) fn weigh<L: Lanes, const P: usize>(
    l: L,
    rows: Range<usize>,
    base: &Wide<P>,
    scores: &mut [Wide<P>],
) -> Wide<P> {
    let mut less = [l.float(0.0); P];
    for (less, base) in less.iter_mut().zip(base) {
        *less = l.mul(l.floats(base), l.float(-1.0));
    }
    let mut sums = [[l.float(0.0); P]; LANES];
    for (row, scores) in scores[rows.clone()].iter_mut().enumerate() {
        let sums = &mut sums[(rows.start + row) % LANES];
        for ((score, less), sum) in scores.iter_mut().zip(less).zip(sums) {
            let weight = math::exp2_lanes(l, l.add(l.floats(score), less));
            *score = l.store(weight);
            *sum = l.add(*sum, weight);
        }
    }
    let mut totals = [l.float(0.0); P];
    for sums in sums {
        for (total, sum) in totals.iter_mut().zip(sums) {
            *total = l.add(*total, sum);
        }
    }
    totals.map(|total| l.store(total))
}

/// Sums sixteen elements of the values of some rows by the weights that queries give them, `T` elements at a time. With
/// `factors` the sums by the second are added to the totals by the first.
#[inline(always)]
pub(super) fn sum_values<L: Lanes, const P: usize, const T: usize>(
    l: L,
    rows: Range<usize>,
    seen: Option<&Seen<P>>,
    weights: &[Wide<P>],
    panel: &[[f32; LANES]],
    factors: Option<(&Wide<P>, &Wide<P>)>,
    out: &mut [Wide<P>],
) {
    let (weights, panel) = (&weights[rows.clone()], &panel[rows.clone()]);
    for (part, out) in out.chunks_exact_mut(T).enumerate() {
        let mut sums = [[l.float(0.0); P]; T];
        for (row, (weights, values)) in weights.iter().zip(panel).enumerate() {
            let mut vectors = [l.float(0.0); P];
            for (vector, weights) in vectors.iter_mut().zip(weights) {
                *vector = l.floats(weights);
            }
            let Some(values) = values.as_chunks::<T>().0.get(part) else { continue };
            for (sums, value) in sums.iter_mut().zip(values) {
                let value = l.float(*value);
                for (vector, (sum, weight)) in sums.iter_mut().zip(vectors).enumerate() {
                    let more = l.mul_add(weight, value, *sum);
                    *sum = match seen {
                        Some(seen) => seen.choose(l, vector, rows.start + row, more, *sum),
                        None => more,
                    };
                }
            }
        }
        let Some(out) = out.first_chunk_mut::<T>() else { continue };
        match factors {
            None => {
                for (out, sum) in out.iter_mut().flatten().zip(sums.into_iter().flatten()) {
                    *out = l.store(sum);
                }
            }
            Some((old, new)) => {
                for (out, sums) in out.iter_mut().zip(sums) {
                    for ((out, sum), (old, new)) in
                        out.iter_mut().zip(sums).zip(old.iter().zip(new))
                    {
                        let sum = l.mul(sum, l.floats(new));
                        *out = l.store(l.mul_add(l.floats(out), l.floats(old), sum));
                    }
                }
            }
        }
    }
}
