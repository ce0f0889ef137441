//! Products of packed block weights with inputs rounded to 8 bits.
//!
//! Each 32 inputs are rounded to whole multiples of a scale of their own, the largest magnitude over
//! 127. The products of quants are summed as integers, exactly; one fused multiply-add for each run of
//! 32 weights (16 in some formats) brings them to scale. Sums go from the first run to the last, so a
//! result depends on the row of weights and the row of inputs alone: not on the machine's
//! instructions, nor on how many tokens or rows are multiplied together.

use bytemuck::{Pod, Zeroable};

use super::formats::Format;
use super::lanes::Lanes;
use super::packed::ROWS;

/// Inputs in a run.
pub(in crate::cpu) const RUN: usize = 32;

/// Thirty-two rounded inputs, one cache line.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(in crate::cpu) struct Run {
    /// The inputs are `scale` times these.
    quants: [[i8; 4]; 8],
    scale: f32,
    /// `scale` times the sum of the quants.
    sum: f32,
    /// The same for each half.
    half_sums: [f32; 2],
    /// What the offset of the weights' quants takes from the integer sum.
    start: i32,
    half_starts: [i32; 2],
    unused: u32,
}

/// Floats of memory for the runs of a row of `cols` inputs.
pub(in crate::cpu) const fn run_floats(cols: usize) -> usize {
    cols / RUN * size_of::<Run>() / size_of::<f32>()
}

/// First token and width of the tile that a token is multiplied in.
#[inline(always)]
pub(super) fn tile_of(tile: usize, token: usize, tokens: usize) -> (usize, usize) {
    let eights = if tile >= 8 { tokens / 8 * 8 } else { 0 };
    let fours = if tile >= 4 { tokens / 4 * 4 } else { 0 };
    match token {
        _ if token < eights => (token / 8 * 8, 8),
        _ if token < fours => (token / 4 * 4, 4),
        _ => (token, 1),
    }
}

/// Rounds a row of inputs into every `step`th run.
#[inline(always)]
pub(super) fn round(offset: i32, x: &[f32], step: usize, runs: &mut [Run]) {
    for (x, run) in x.as_chunks::<RUN>().0.iter().zip(runs.iter_mut().step_by(step)) {
        // As integers, magnitudes have the same order, with infinity and NaN above all.
        let largest = x.iter().fold(0, |max: u32, x| max.max(x.to_bits() & 0x7fff_ffff));
        let largest = f32::from_bits(largest);
        // Not a number where an input is not finite, and so will the product be. Too small for a
        // reciprocal is nothing.
        let scale = if largest.is_finite() { largest / 127.0 } else { f32::NAN };
        let inverse = if largest > 1e-30 && largest.is_finite() { 127.0 / largest } else { 0.0 };
        let mut quants = [0_i8; RUN];
        let mut sums = [0_i32; 2];
        for (half, sum) in sums.iter_mut().enumerate() {
            for i in half * 16..half * 16 + 16 {
                // Adding it rounds to an integer, which is then in the lowest bits.
                const WHOLE: f32 = 12_582_912.0;
                let whole = (x[i] * inverse + WHOLE).to_bits().wrapping_sub(WHOLE.to_bits()) as i32;
                let whole = if inverse == 0.0 { 0 } else { whole };
                quants[i] = whole as i8;
                *sum += whole;
            }
        }
        *run = Run {
            quants: bytemuck::cast(quants),
            scale,
            sum: scale * (sums[0] + sums[1]) as f32,
            half_sums: [scale * sums[0] as f32, scale * sums[1] as f32],
            start: -offset * (sums[0] + sums[1]),
            half_starts: [-offset * sums[0], -offset * sums[1]],
            unused: 0,
        };
    }
}

/// Multiplies sixteen packed rows with all tokens.
#[inline(always)]
pub(super) fn product<L: Lanes, F: Format>(
    l: L,
    group: &[u8],
    runs: &[Run],
    out: &mut [[f32; ROWS]],
) {
    let count = group.len() / F::BYTES * F::UNITS;
    let (mut token, tokens) = (0, out.len());
    while token < tokens {
        let (first, width) = tile_of(L::TILE, token, tokens);
        let (runs, out) = (&runs[first * count..], &mut out[first..]);
        token += width;
        match width {
            8 => tile::<L, F, 8>(l, group, runs, out),
            4 => tile::<L, F, 4>(l, group, runs, out),
            _ => tile::<L, F, 1>(l, group, runs, out),
        }
    }
}

/// Multiplies sixteen packed rows with `T` tokens, whose runs take turns.
#[inline(always)]
fn tile<L: Lanes, F: Format, const T: usize>(
    l: L,
    group: &[u8],
    runs: &[Run],
    out: &mut [[f32; ROWS]],
) {
    let mut sums = [l.float(0.0); T];
    let runs = runs.as_chunks::<T>().0.chunks_exact(F::UNITS);
    for (block, runs) in group.chunks_exact(F::BYTES).zip(runs) {
        for (unit, runs) in runs.iter().enumerate() {
            let quants = F::quants(l, block, unit);
            if F::HALVES {
                for half in 0..2 {
                    let (d, m) = F::scales(l, block, unit, half);
                    let at = 4 * half;
                    let quants = [quants[at], quants[at + 1], quants[at + 2], quants[at + 3]];
                    for (sum, run) in sums.iter_mut().zip(runs) {
                        let x = &run.quants;
                        let x = [x[at], x[at + 1], x[at + 2], x[at + 3]];
                        let dot = l.dot(F::TOP, run.half_starts[half], &quants, &x);
                        let d = l.mul(d, l.float(run.scale));
                        *sum = l.mul_add(l.to_floats(dot), d, *sum);
                        if F::AFFINE {
                            *sum = l.mul_add(m, l.float(run.half_sums[half]), *sum);
                        }
                    }
                }
            } else {
                let (d, m) = F::scales(l, block, unit, 0);
                for (sum, run) in sums.iter_mut().zip(runs) {
                    let dot = l.dot(F::TOP, run.start, &quants, &run.quants);
                    let d = l.mul(d, l.float(run.scale));
                    *sum = l.mul_add(l.to_floats(dot), d, *sum);
                    if F::AFFINE {
                        *sum = l.mul_add(m, l.float(run.sum), *sum);
                    }
                }
            }
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = l.store(sum);
    }
}
