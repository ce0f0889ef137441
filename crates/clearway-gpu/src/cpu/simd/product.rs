//! Products of packed block weights with inputs rounded to 8 bits.
//!
//! Each 32 inputs are rounded to whole multiples of a scale of their own, the largest magnitude over
//! 127. The products of quants are summed as integers, exactly; one fused multiply-add for each run of
//! 32 weights (16 in some formats) brings them to scale. Sums go from the first run to the last, then over
//! the outliers in the same order, so a result depends on the row of weights and the row of inputs alone: not on the machine's
//! instructions, nor on how many tokens or rows are multiplied together.
//!
//! Language models have outlier channels: one input of twenty times the root mean square of its row. It
//! would stretch the scale of its whole run. Such an input is clipped to the next largest of its run, and
//! what was clipped is multiplied as a float of its own ([`Run::clipped`]). Outlier channels are the same
//! for most tokens, so a whole tile asks once a run whether any of its tokens has one, and looks up the
//! weights of that channel once for all of them.

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
    /// Sum of the inputs as they are multiplied: of each half, or of all in the first.
    sums: [f32; 2],
    /// What the offset of the weights' quants takes from the integer sum: of each half, or of all in
    /// the first.
    starts: [i32; 2],
    /// What was clipped from the outlier; 0 for none.
    clipped: f32,
    /// Which input that is.
    outlier: u32,
    /// In the run of a tile's first token: one more than the place of an outlier that any token of the tile
    /// has here, or [`NONE`].
    outlier_in_tile: u32,
}

/// [`Run::outlier_in_tile`] of a tile without any.
const NONE: u32 = 0;

/// How the weights of a format want their inputs rounded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounding {
    /// What is taken from a quant of the weights.
    pub(super) offset: i32,
    /// Whether each 16 weights have a scale of their own.
    pub(super) halves: bool,
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
        _ if tile >= 4 && token < tokens / 2 * 2 => (token / 2 * 2, 2),
        _ => (token, 1),
    }
}

/// Rounds the row of inputs of token `lane` of a tile that is `width` tokens wide. `runs` are those of
/// the tile; tokens come in order, since the first clears [`Run::outlier_in_tile`].
#[inline(always)]
pub(super) fn round(rounding: Rounding, x: &[f32], lane: usize, width: usize, runs: &mut [Run]) {
    let x = x.as_chunks::<RUN>().0;
    let mut total = 0.0;
    for (x, run) in x.iter().zip(runs[lane..].iter_mut().step_by(width)) {
        // As integers, magnitudes have the same order, with infinity and NaN above all.
        let largest = x.iter().fold(0, |max: u32, x| max.max(x.to_bits() & 0x7fff_ffff));
        *run = round_run(rounding, x, f32::from_bits(largest));
        total += run.scale;
    }
    // Outliers are rare: only a run far above the others of its row is looked at again.
    let limit = total * (OUTLIER_RUN / x.len() as f32);
    for (x, runs) in x.iter().zip(runs.chunks_exact_mut(width)) {
        if runs[lane].scale > limit
            && let Some(run) = round_outlier(rounding, x)
        {
            runs[lane] = run;
            runs[0].outlier_in_tile = run.outlier + 1;
        }
    }
}

/// A run may have an outlier if its scale is so many times the mean scale of its row.
const OUTLIER_RUN: f32 = 6.0;

/// An input is an outlier if it is so many times the next largest of its run.
const OUTLIER: f32 = 2.0;

/// Rounds 32 inputs whose largest magnitude, or what is clipped to it, is `largest`.
#[inline(always)]
fn round_run(rounding: Rounding, x: &[f32; RUN], largest: f32) -> Run {
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
    if !rounding.halves {
        sums = [sums[0] + sums[1], 0];
    }
    Run {
        quants: bytemuck::cast(quants),
        scale,
        sums: sums.map(|sum| scale * sum as f32),
        starts: sums.map(|sum| -rounding.offset * sum),
        clipped: 0.0,
        outlier: 0,
        outlier_in_tile: NONE,
    }
}

/// Rounds 32 inputs, the largest of which is clipped if it is an outlier; `None` if it is none.
#[inline(always)]
fn round_outlier(rounding: Rounding, x: &[f32; RUN]) -> Option<Run> {
    let (mut outlier, mut largest, mut next) = (0, 0.0, 0.0);
    for (index, magnitude) in x.iter().map(|x| x.abs()).enumerate() {
        if magnitude > largest {
            (outlier, next, largest) = (index, largest, magnitude);
        } else if magnitude > next {
            next = magnitude;
        }
    }
    if !(largest.is_finite() && next > 1e-30 && largest >= OUTLIER * next) {
        return None;
    }
    let mut within = *x;
    within[outlier] = next.copysign(x[outlier]);
    let mut run = round_run(rounding, &within, next);
    // What is multiplied as a quant is 127 steps.
    run.clipped = x[outlier] - (run.scale * 127.0).copysign(x[outlier]);
    run.outlier = outlier as u32;
    run.sums[if rounding.halves { outlier / 16 } else { 0 }] += run.clipped;
    Some(run)
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
        // Widths that a machine does not have are not compiled for it.
        if const { L::TILE >= 8 } && width == 8 {
            tile::<L, F, 8>(l, group, runs, out);
        } else if const { L::TILE >= 4 } && width == 4 {
            tile::<L, F, 4>(l, group, runs, out);
        } else if const { L::TILE >= 4 } && width == 2 {
            tile::<L, F, 2>(l, group, runs, out);
        } else {
            tile::<L, F, 1>(l, group, runs, out);
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
    let blocks = group.chunks_exact(F::BYTES);
    let all = &runs.as_chunks::<T>().0[..blocks.len() * F::UNITS];
    for (block, runs) in blocks.zip(all.chunks_exact(F::UNITS)) {
        // For one token with a number that the compiler knows, and with it all shifts and masks. Several tokens share
        // that work, so there it would only make the program larger.
        if const { L::TILE > 1 && F::UNITS == 8 && T == 1 }
            && let [r0, r1, r2, r3, r4, r5, r6, r7] = runs
        {
            unit::<L, F, T>(l, block, 0, r0, &mut sums);
            unit::<L, F, T>(l, block, 1, r1, &mut sums);
            unit::<L, F, T>(l, block, 2, r2, &mut sums);
            unit::<L, F, T>(l, block, 3, r3, &mut sums);
            unit::<L, F, T>(l, block, 4, r4, &mut sums);
            unit::<L, F, T>(l, block, 5, r5, &mut sums);
            unit::<L, F, T>(l, block, 6, r6, &mut sums);
            unit::<L, F, T>(l, block, 7, r7, &mut sums);
        } else {
            for (index, runs) in runs.iter().enumerate() {
                unit::<L, F, T>(l, block, index % F::UNITS, runs, &mut sums);
            }
        }
    }
    // Behind the loop above, which has no registers to spare for what is rare.
    for (index, runs) in all.iter().enumerate() {
        if runs[0].outlier_in_tile == NONE {
            continue;
        }
        let mut place = runs[0].outlier_in_tile - 1;
        let mut weights = weights_at::<L, F>(l, group, index, place);
        for (sum, run) in sums.iter_mut().zip(runs) {
            if run.clipped != 0.0 {
                if run.outlier != place {
                    place = run.outlier;
                    weights = weights_at::<L, F>(l, group, index, place);
                }
                *sum = l.mul_add(weights, l.float(run.clipped), *sum);
            }
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = l.store(sum);
    }
}

/// Adds the products of one run of weights with those of `T` tokens.
#[inline(always)]
fn unit<L: Lanes, F: Format, const T: usize>(
    l: L,
    block: &[u8],
    unit: usize,
    runs: &[Run; T],
    sums: &mut [L::Floats; T],
) {
    if const { F::HALVES } {
        part::<L, F, T, 0, 4>(l, block, unit, runs, sums);
        part::<L, F, T, 4, 4>(l, block, unit, runs, sums);
    } else {
        part::<L, F, T, 0, 8>(l, block, unit, runs, sums);
    }
}

/// `N` words of a run from word `FIRST` on, which have one scale. Words take the outer loop: sums of all
/// tokens stay in registers, and of the weights only a few must.
#[inline(always)]
fn part<L: Lanes, F: Format, const T: usize, const FIRST: usize, const N: usize>(
    l: L,
    block: &[u8],
    unit: usize,
    runs: &[Run; T],
    sums: &mut [L::Floats; T],
) {
    let half = FIRST / 4;
    // The offset is in signed weights already.
    let signed = L::SIGNED && F::TOP > 127;
    let mut starts = [0; T];
    if F::OFFSET != 0 && !signed {
        for (start, run) in starts.iter_mut().zip(runs) {
            *start = run.starts[half];
        }
    }
    let mut dots = [l.dot(0); T];
    for (dot, start) in dots.iter_mut().zip(starts) {
        *dot = l.dot(start);
    }
    macro_rules! words {
        ($($index:literal)*) => {$(
            if const { $index < N } {
                let w = F::word(l, block, unit, FIRST + $index);
                for (dot, run) in dots.iter_mut().zip(runs) {
                    *dot = l.dot_add(F::TOP, $index, *dot, w, run.quants[FIRST + $index]);
                }
            }
        )*};
    }
    words!(0 1 2 3 4 5 6 7);
    let (d, m) = F::scales(l, block, unit, half);
    for (index, (sum, run)) in sums.iter_mut().zip(runs).enumerate() {
        let dot = l.dot_end(F::TOP, starts[index], dots[index]);
        let d = l.mul(d, l.float(run.scale));
        *sum = l.mul_add(l.to_floats(dot), d, *sum);
        if const { F::AFFINE } {
            *sum = l.mul_add(m, l.float(run.sums[half]), *sum);
        }
    }
}

/// The weights that input `place` of run `index` meets, without their minimum: that is in the sums of the
/// run.
#[inline(always)]
fn weights_at<L: Lanes, F: Format>(l: L, group: &[u8], index: usize, place: u32) -> L::Floats {
    let (block, unit) = (&group[index / F::UNITS * F::BYTES..][..F::BYTES], index % F::UNITS);
    let (word, byte) = (place as usize / 4, place as usize % 4);
    let mut one = [0; 4];
    one[byte] = 1;
    let start = if L::SIGNED && F::TOP > 127 { 0 } else { -F::OFFSET };
    let dot = l.dot_add(F::TOP, 0, l.dot(start), F::word(l, block, unit, word), one);
    let weights = l.dot_end(F::TOP, start, dot);
    let (d, _) = F::scales(l, block, unit, word / 4);
    l.mul(l.to_floats(weights), d)
}
