//! Rows of plain floats: f16 and bf16 as f32, and products of weights with inputs.
//!
//! In a product element `i` goes to partial sum `i % 16` by a fused multiply-add; those are folded in halves.
//! The order depends on the length alone: not on the machine, nor on how many rows or inputs are
//! multiplied together.

use bytemuck::Pod;
use half::{bf16, f16};

use super::lanes::Lanes;
use super::{Vectorised, vectorise};

/// Floats that are computed together.
pub(in crate::cpu) const LANES: usize = 16;

/// Rows of weights that are multiplied together.
pub(in crate::cpu) const GROUP: usize = 8;

/// Elements of a group of rows that stay in the nearest cache while several inputs meet them.
const BLOCK: usize = 512;

/// Bytes that memory gives at once.
const LINE: usize = 64;

/// A number that a vector can be made of.
pub(in crate::cpu) trait Element: Pod {
    /// Sixteen of them as f32.
    fn floats<L: Lanes>(l: L, elems: &[Self; LANES]) -> L::Floats;
}

impl Element for f32 {
    #[inline(always)]
    fn floats<L: Lanes>(l: L, elems: &[Self; LANES]) -> L::Floats {
        l.floats(elems)
    }
}

impl Element for f16 {
    #[inline(always)]
    fn floats<L: Lanes>(l: L, elems: &[Self; LANES]) -> L::Floats {
        l.floats_f16(bytemuck::cast_ref(elems))
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn floats<L: Lanes>(l: L, elems: &[Self; LANES]) -> L::Floats {
        // The upper half of the f32 with the same value.
        l.cast(l.int_shl(l.ints_u16(bytemuck::cast_ref(elems)), 16))
    }
}

/// Elements from `at` on, with zeros behind the row.
#[inline(always)]
pub(in crate::cpu) fn sixteen<L: Lanes, E: Element>(l: L, row: &[E], at: usize) -> L::Floats {
    let rest = row.get(at..).unwrap_or_default();
    match rest.first_chunk() {
        Some(elems) => E::floats(l, elems),
        None => {
            let mut elems = [E::zeroed(); LANES];
            elems[..rest.len()].copy_from_slice(rest);
            E::floats(l, &elems)
        }
    }
}

#[inline(always)]
fn fold(sums: &[f32; 16]) -> f32 {
    let mut eight = [0.0; 8];
    for i in 0..8 {
        eight[i] = sums[i] + sums[i + 8];
    }
    let four = [eight[0] + eight[4], eight[1] + eight[5], eight[2] + eight[6], eight[3] + eight[7]];
    (four[0] + four[2]) + (four[1] + four[3])
}

/// Floats of memory that products with so many inputs need.
pub(in crate::cpu) const fn product_floats(inputs: usize) -> usize {
    if inputs == 1 { 0 } else { GROUP * BLOCK + inputs * GROUP * LANES }
}

/// Multiplies up to [`GROUP`] rows of weights with all inputs. All have the same length.
pub(in crate::cpu) fn products<E: Element>(
    rows: &[&[E]],
    inputs: &[&[f32]],
    memory: &mut [f32],
    out: &mut [[f32; GROUP]],
) {
    struct Work<'a, E> {
        rows: &'a [&'a [E]],
        inputs: &'a [&'a [f32]],
        memory: &'a mut [f32],
        out: &'a mut [[f32; GROUP]],
    }
    impl<E: Element> Vectorised for Work<'_, E> {
        type Output = ();

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) {
            match self.inputs {
                [x] => one(l, self.rows, x, &mut self.out[0]),
                inputs => many(l, self.rows, inputs, self.memory, self.out),
            }
        }
    }
    vectorise(Work { rows, inputs, memory, out });
}

/// One input, which stays in the nearest cache. Weights are used where they lie.
#[inline(always)]
fn one<L: Lanes, E: Element>(l: L, rows: &[&[E]], x: &[f32], out: &mut [f32; GROUP]) {
    let (fours, rest) = rows.as_chunks::<4>();
    let (out_fours, out_rest) = out.split_at_mut(4 * fours.len());
    for (rows, out) in fours.iter().zip(out_fours.as_chunks_mut().0) {
        *out = few(l, rows, x);
    }
    for (row, out) in rest.iter().zip(out_rest) {
        [*out] = few(l, &[row], x);
    }
}

#[inline(always)]
fn few<L: Lanes, E: Element, const R: usize>(l: L, rows: &[&[E]; R], x: &[f32]) -> [f32; R] {
    let (whole, rest) = x.as_chunks::<LANES>();
    let mut vectors: [&[[E; LANES]]; R] = [&[]; R];
    for (vectors, row) in vectors.iter_mut().zip(rows) {
        *vectors = &row.as_chunks().0[..whole.len()];
    }
    let mut sums = [l.float(0.0); R];
    for (at, x) in whole.iter().enumerate() {
        let x = l.floats(x);
        for ((sum, vectors), row) in sums.iter_mut().zip(&vectors).zip(rows) {
            *sum = l.mul_add(E::floats(l, &vectors[at]), x, *sum);
            if (at * size_of::<[E; LANES]>()).is_multiple_of(LINE) {
                // The same place of the rows that come next, which lie behind these.
                l.fetch(bytemuck::cast_slice(row), (R * row.len() + at * LANES) * size_of::<E>());
            }
        }
    }
    if !rest.is_empty() {
        let at = whole.len() * LANES;
        for (sum, row) in sums.iter_mut().zip(rows) {
            *sum = l.mul_add(sixteen(l, row, at), sixteen(l, x, at), *sum);
        }
    }
    let mut out = [0.0; R];
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = fold(&l.store(sum));
    }
    out
}

/// Several inputs. A block of the weights is decoded, then a few inputs at a time meet a few rows of it,
/// with their sums in registers.
#[inline(always)]
fn many<L: Lanes, E: Element>(
    l: L,
    rows: &[&[E]],
    inputs: &[&[f32]],
    memory: &mut [f32],
    out: &mut [[f32; GROUP]],
) {
    let (weights, sums) = memory.split_at_mut(GROUP * BLOCK);
    let sums: &mut [Partial] = sums.as_chunks_mut().0.as_chunks_mut().0;
    let sums = &mut sums[..inputs.len()];
    for sums in sums.iter_mut() {
        *sums = [[0.0; LANES]; GROUP];
    }
    let len = inputs.first().map_or(0, |input| input.len());
    for start in (0..len).step_by(BLOCK) {
        let part = start..len.min(start + BLOCK);
        for (row, weights) in weights.chunks_exact_mut(BLOCK).enumerate() {
            // Rows that do not exist are zeros.
            let row = rows.get(row).map_or(&[][..], |row| &row[part.clone()]);
            let vectors = part.len().div_ceil(LANES);
            for (at, weights) in weights.as_chunks_mut().0.iter_mut().take(vectors).enumerate() {
                *weights = l.store(sixteen(l, row, at * LANES));
            }
        }
        // What is decoded next: the same rows further on, or the rows behind them from their start on.
        let lines = BLOCK * size_of::<E>() / LINE;
        let turns = inputs.len().div_ceil(4);
        let behind = if part.end < len { part.end } else { rows.len() * len } * size_of::<E>();
        let mut input = 0;
        while input < inputs.len() {
            let turn = input / 4;
            for row in rows {
                for line in lines * turn / turns..lines * (turn + 1) / turns {
                    l.fetch(bytemuck::cast_slice(row), behind + line * LINE);
                }
            }
            let mut parts: [&[f32]; 4] = [&[]; 4];
            for (part_of, x) in parts.iter_mut().zip(&inputs[input..]) {
                *part_of = &x[part.clone()];
            }
            let sums = &mut sums[input..];
            let [a, b, c, d] = parts;
            input += match inputs.len() - input {
                4.. if const { L::TILE >= 8 } => meet::<L, 4, 4>(l, weights, [a, b, c, d], sums),
                3.. => meet::<L, 2, 3>(l, weights, [a, b, c], sums),
                2 => meet::<L, 2, 2>(l, weights, [a, b], sums),
                _ => meet::<L, 4, 1>(l, weights, [a], sums),
            };
        }
    }
    let (out, sums) = match const { L::TILE >= 8 } {
        true => fold_pairs(l, out, sums),
        false => (out, &*sums),
    };
    for (out, sums) in out.iter_mut().zip(sums) {
        for (out, sums) in out.iter_mut().zip(sums) {
            *out = fold(sums);
        }
    }
}

/// Partial sums of all rows for one input.
type Partial = [[f32; LANES]; GROUP];

/// Folds the partial sums of two inputs at a time, turned round so that a vector has one of each; what is left.
#[inline(always)]
fn fold_pairs<'o, 's, L: Lanes>(
    l: L,
    out: &'o mut [[f32; GROUP]],
    sums: &'s [Partial],
) -> (&'o mut [[f32; GROUP]], &'s [Partial]) {
    let (pairs, rest) = sums.as_chunks::<2>();
    let (out, out_rest) = out.split_at_mut(2 * pairs.len());
    for (out, pair) in out.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
        let mut v = [l.float(0.0); LANES];
        for (v, partial) in v.iter_mut().zip(pair.as_flattened()) {
            *v = l.floats(partial);
        }
        let mut v = l.transpose(v);
        // In the order of `fold`.
        for half in [8, 4] {
            for i in 0..half {
                v[i] = l.add(v[i], v[i + half]);
            }
        }
        let both = l.store(l.add(l.add(v[0], v[2]), l.add(v[1], v[3])));
        out.as_flattened_mut().copy_from_slice(&both);
    }
    (out_rest, rest)
}

/// Adds the products of a block of all rows with that of `T` inputs, `R` rows at a time; gives `T`.
#[inline(always)]
fn meet<L: Lanes, const R: usize, const T: usize>(
    l: L,
    weights: &[f32],
    inputs: [&[f32]; T],
    sums: &mut [Partial],
) -> usize {
    let whole = inputs[0].len() / LANES;
    let mut vectors: [&[[f32; LANES]]; T] = [&[]; T];
    for (vectors, input) in vectors.iter_mut().zip(&inputs) {
        *vectors = &input.as_chunks().0[..whole];
    }
    for (group, weights) in weights.chunks_exact(R * BLOCK).enumerate() {
        let mut rows: [&[[f32; LANES]]; R] = [&[]; R];
        for (row, weights) in rows.iter_mut().zip(weights.chunks_exact(BLOCK)) {
            *row = weights.as_chunks().0;
        }
        let mut tile = [[l.float(0.0); R]; T];
        for (tile, sums) in tile.iter_mut().zip(&*sums) {
            for (row, sum) in tile.iter_mut().enumerate() {
                *sum = l.floats(&sums[group * R + row]);
            }
        }
        let mut starts = rows;
        for row in &mut starts {
            *row = &row[..whole];
        }
        for at in 0..whole {
            for (tile, input) in tile.iter_mut().zip(&vectors) {
                let x = l.floats(&input[at]);
                for (sum, row) in tile.iter_mut().zip(&starts) {
                    *sum = l.mul_add(l.floats(&row[at]), x, *sum);
                }
            }
        }
        if !inputs[0].len().is_multiple_of(LANES) {
            for (tile, input) in tile.iter_mut().zip(&inputs) {
                let x = sixteen(l, input, whole * LANES);
                for (sum, row) in tile.iter_mut().zip(&rows) {
                    *sum = l.mul_add(l.floats(&row[whole]), x, *sum);
                }
            }
        }
        for (tile, sums) in tile.iter().zip(&mut *sums) {
            for (row, sum) in tile.iter().enumerate() {
                sums[group * R + row] = l.store(*sum);
            }
        }
    }
    T
}

/// Widens f16 numbers.
pub(in crate::cpu) fn widen_f16(row: &[f16], out: &mut [f32]) {
    widen(row, out);
}

/// Widens bf16 numbers.
pub(in crate::cpu) fn widen_bf16(row: &[bf16], out: &mut [f32]) {
    widen(row, out);
}

fn widen<E: Element>(row: &[E], out: &mut [f32]) {
    struct Widen<'a, E>(&'a [E], &'a mut [f32]);
    impl<E: Element> Vectorised for Widen<'_, E> {
        type Output = ();

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) {
            let (out, rest) = self.1.as_chunks_mut::<LANES>();
            let at = out.len() * LANES;
            for (block, out) in self.0.as_chunks().0.iter().zip(out) {
                *out = l.store(E::floats(l, block));
            }
            if !rest.is_empty() {
                rest.copy_from_slice(&l.store(sixteen(l, self.0, at))[..rest.len()]);
            }
        }
    }
    vectorise(Widen(row, out));
}
