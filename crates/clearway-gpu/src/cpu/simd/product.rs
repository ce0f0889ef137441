//! Products of packed block weights with inputs rounded to 8 bits.
//!
//! Each 32 inputs are rounded to whole multiples of a scale of their own, the largest magnitude over
//! 127. The products of quants are summed as integers, exactly; one fused multiply-add for each run of
//! 32 weights (16 in some formats) brings them to scale. Sums go from the first run to the last, so a
//! result depends on the row of weights and the row of inputs alone: not on the machine's
//! instructions, nor on how many tokens or rows are multiplied together.
//!
//! Language models have a few channels that are some twenty times as large as a usual input. Such an outlier
//! would stretch the scale of its run until the 31 inputs beside it round to a few steps, which is most of
//! the error that rounding makes. So it is cut down to the next largest input, and what was cut off is
//! multiplied by a further run of its own.

use bytemuck::{Pod, Zeroable};

use super::formats::{Format, Quants};
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
    /// One more than the place of the further run that holds what was cut off; 0 without one.
    further: u32,
}

impl Run {
    /// The run that holds what was cut off from this one.
    #[inline(always)]
    fn further<'a>(&self, further: &'a [Self]) -> Option<&'a Self> {
        further.get((self.further as usize).wrapping_sub(1))
    }
}

/// An input is an outlier if it is this many times the root of the mean square of its row.
const OUTLIER: f32 = 8.0;

/// And this many times the next largest input of its run: else little is gained.
const ALONE: f32 = 2.0;

/// Floats of memory for the runs of a row of `cols` inputs, each with a further one.
pub(in crate::cpu) const fn run_floats(cols: usize) -> usize {
    2 * (cols / RUN) * size_of::<Run>() / size_of::<f32>()
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

/// Rounds a row of inputs into every `step`th run. `further` is room for as many further runs, the first of
/// which has the place `first`.
#[inline(always)]
pub(super) fn round(
    offset: i32,
    x: &[f32],
    step: usize,
    runs: &mut [Run],
    first: usize,
    further: &mut [Run],
) {
    let inputs = x.as_chunks::<RUN>().0;
    let limit = OUTLIER * OUTLIER * mean_square(inputs);
    let mut used = 0;
    for (x, run) in inputs.iter().zip(runs.iter_mut().step_by(step)) {
        // As integers, magnitudes have the same order, with infinity and NaN above all.
        let largest = x.iter().fold(0, |max: u32, x| max.max(x.to_bits() & 0x7fff_ffff));
        let largest = f32::from_bits(largest);
        *run = rounded(offset, x, largest);
        if largest * largest > limit
            && let Some((at, next)) = lone(x, largest)
            && let Some(rest) = further.get_mut(used)
        {
            let mut cut = *x;
            cut[at] = next.copysign(x[at]);
            *run = rounded(offset, &cut, next);
            *rest = single(offset, at, x[at] - run.scale * f32::from(run.quants[at / 4][at % 4]));
            used += 1;
            run.further = (first + used) as u32;
        }
    }
}

/// Mean of the squares of a row, added up in an order that suits every machine.
#[inline(always)]
fn mean_square(inputs: &[[f32; RUN]]) -> f32 {
    let mut sums = [0.0_f32; RUN];
    for x in inputs {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum += x * x;
        }
    }
    sums.iter().sum::<f32>() / (inputs.len() * RUN) as f32
}

/// Place of the largest input and the size of the next largest, if that is much smaller.
#[inline(always)]
fn lone(x: &[f32; RUN], largest: f32) -> Option<(usize, f32)> {
    let at = x.iter().position(|x| x.abs() == largest)?;
    let others = x.iter().enumerate().filter(|&(i, _)| i != at);
    let next = others.fold(0.0, |max: f32, (_, x)| max.max(x.abs()));
    (largest > ALONE * next).then_some((at, next))
}

/// A run of inputs of which none is larger than `largest`.
#[inline(always)]
fn rounded(offset: i32, x: &[f32; RUN], largest: f32) -> Run {
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
    run(offset, quants, scale, sums)
}

/// A run of zeros but for one input, which it holds exactly.
#[inline(always)]
fn single(offset: i32, at: usize, x: f32) -> Run {
    let (mut quants, mut sums) = ([0_i8; RUN], [0; 2]);
    quants[at] = 127;
    sums[at / 16] = 127;
    run(offset, quants, x / 127.0, sums)
}

#[inline(always)]
fn run(offset: i32, quants: [i8; RUN], scale: f32, sums: [i32; 2]) -> Run {
    Run {
        quants: bytemuck::cast(quants),
        scale,
        sum: scale * (sums[0] + sums[1]) as f32,
        half_sums: [scale * sums[0] as f32, scale * sums[1] as f32],
        start: -offset * (sums[0] + sums[1]),
        half_starts: [-offset * sums[0], -offset * sums[1]],
        further: 0,
    }
}

/// Multiplies sixteen packed rows with all tokens. Further runs lie behind the runs of all of them.
#[inline(always)]
pub(super) fn product<L: Lanes, F: Format>(
    l: L,
    group: &[u8],
    runs: &[Run],
    out: &mut [[f32; ROWS]],
) {
    let count = group.len() / F::BYTES * F::UNITS;
    let (mut token, tokens) = (0, out.len());
    let (runs, further) = runs.split_at(tokens * count);
    while token < tokens {
        let (first, width) = tile_of(L::TILE, token, tokens);
        let (runs, out) = (&runs[first * count..], &mut out[first..]);
        token += width;
        match width {
            8 => tile::<L, F, 8>(l, group, runs, further, out),
            4 => tile::<L, F, 4>(l, group, runs, further, out),
            _ => tile::<L, F, 1>(l, group, runs, further, out),
        }
    }
}

/// Multiplies sixteen packed rows with `T` tokens, whose runs take turns.
#[inline(always)]
fn tile<L: Lanes, F: Format, const T: usize>(
    l: L,
    group: &[u8],
    runs: &[Run],
    further: &[Run],
    out: &mut [[f32; ROWS]],
) {
    let mut sums = [l.float(0.0); T];
    let runs = runs.as_chunks::<T>().0.chunks_exact(F::UNITS);
    for (block, runs) in group.chunks_exact(F::BYTES).zip(runs) {
        for (unit, runs) in runs.iter().enumerate() {
            let quants = F::quants(l, block, unit);
            if F::HALVES {
                for half in 0..2 {
                    let scales = F::scales(l, block, unit, half);
                    for (sum, run) in sums.iter_mut().zip(runs) {
                        *sum = add_half::<L, F>(l, &quants, scales, half, run, *sum);
                        if let Some(run) = run.further(further) {
                            *sum = add_half::<L, F>(l, &quants, scales, half, run, *sum);
                        }
                    }
                }
            } else {
                let scales = F::scales(l, block, unit, 0);
                for (sum, run) in sums.iter_mut().zip(runs) {
                    *sum = add::<L, F>(l, &quants, scales, run, *sum);
                    if let Some(run) = run.further(further) {
                        *sum = add::<L, F>(l, &quants, scales, run, *sum);
                    }
                }
            }
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = l.store(sum);
    }
}

/// Adds the products of 32 weights of sixteen rows with a run.
#[inline(always)]
fn add<L: Lanes, F: Format>(
    l: L,
    quants: &Quants<L>,
    (d, m): (L::Floats, L::Floats),
    run: &Run,
    sum: L::Floats,
) -> L::Floats {
    let dot = l.dot(F::TOP, run.start, quants, &run.quants);
    let sum = l.mul_add(l.to_floats(dot), l.mul(d, l.float(run.scale)), sum);
    if F::AFFINE { l.mul_add(m, l.float(run.sum), sum) } else { sum }
}

/// The same for one half, where each half has scales of its own.
#[inline(always)]
fn add_half<L: Lanes, F: Format>(
    l: L,
    quants: &Quants<L>,
    (d, m): (L::Floats, L::Floats),
    half: usize,
    run: &Run,
    sum: L::Floats,
) -> L::Floats {
    let (at, x) = (4 * half, &run.quants);
    let quants = [quants[at], quants[at + 1], quants[at + 2], quants[at + 3]];
    let x = [x[at], x[at + 1], x[at + 2], x[at + 3]];
    let dot = l.dot(F::TOP, run.half_starts[half], &quants, &x);
    let sum = l.mul_add(l.to_floats(dot), l.mul(d, l.float(run.scale)), sum);
    if F::AFFINE { l.mul_add(m, l.float(run.half_sums[half]), sum) } else { sum }
}
