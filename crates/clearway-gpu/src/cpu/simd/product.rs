//! Products of packed block weights with inputs rounded to 8 bits.
//!
//! Each 32 inputs are rounded to whole multiples of a scale of their own, the largest magnitude over
//! 127. The products of quants are summed as integers, exactly; one fused multiply-add for each run of
//! 32 weights brings them to scale. Sums go from the first run to the last, then over
//! the outliers in the same order, so a result depends on the row of weights and the row of inputs alone: not on the machine's
//! instructions, nor on how many tokens or rows are multiplied together.
//!
//! Language models have outlier channels: one input of twenty times the root mean square of its row. It
//! would stretch the scale of its whole run. Such an input is clipped to the next largest of its run, and
//! what was clipped is multiplied as a float of its own ([`Run::clipped`]). Outlier channels are the same
//! for most tokens, so a whole tile asks once a run whether any of its tokens has one, and looks up the
//! weights of that channel once for all of them.
//!
//! Closures are not inlined as surely as functions that ask for it, and one that is not lacks the instructions of its
//! machine. So there are none around instructions.

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};

use super::formats::Format;
use super::lanes::{Lanes, ROUND};
use super::packed::ROWS;
use super::{Isa, Vectorised, many, vectorise_as};

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
pub(super) fn round<L: Lanes>(
    l: L,
    rounding: Rounding,
    x: &[f32],
    lane: usize,
    width: usize,
    runs: &mut [Run],
) {
    let x = x.as_chunks::<RUN>().0;
    let mut total = 0.0;
    for (x, run) in x.iter().zip(runs[lane..].iter_mut().step_by(width)) {
        // As integers, magnitudes have the same order, with infinity and NaN above all.
        let magnitude = l.int(0x7fff_ffff);
        let [low, high] = halves(x);
        let low = l.int_and(l.bits(l.floats(low)), magnitude);
        let high = l.int_and(l.bits(l.floats(high)), magnitude);
        let largest = f32::from_bits(l.largest_int(l.int_max(low, high)) as u32);
        *run = round_run(l, rounding, x, largest);
        total += run.scale;
    }
    // Outliers are rare: only a run far above the others of its row is looked at again.
    let limit = total * (OUTLIER_RUN / x.len() as f32);
    for (x, runs) in x.iter().zip(runs.chunks_exact_mut(width)) {
        if runs[lane].scale > limit
            && let Some(run) = round_outlier(l, rounding, x)
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

/// The two vectors of a run.
#[inline(always)]
fn halves(x: &[f32; RUN]) -> [&[f32; ROWS]; 2] {
    let (halves, _) = x.as_chunks();
    [&halves[0], &halves[1]]
}

/// Rounds 32 inputs whose largest magnitude, or what is clipped to it, is `largest`.
#[inline(always)]
fn round_run<L: Lanes>(l: L, rounding: Rounding, x: &[f32; RUN], largest: f32) -> Run {
    // Not a number where an input is not finite, and so will the product be. Too small for a
    // reciprocal is nothing. A sum and no condition: of a constant that is chosen by one, compilers make a load under a
    // mask, and where nothing else brings the constant's page into memory, each such load takes hundreds of cycles.
    let scale = largest * (1.0 / 127.0) + largest * 0.0;
    let mut quants = [[0; ROWS]; 2];
    let mut sums = [0; 2];
    if largest > 1e-30 && largest.is_finite() {
        let inverse = l.float(127.0 / largest);
        let mut wholes = [l.int(0); 2];
        for ((quants, whole), x) in quants.iter_mut().zip(&mut wholes).zip(halves(x)) {
            let rounded = l.bits(l.add(l.mul(l.floats(x), inverse), l.float(ROUND)));
            *whole = l.int_add(rounded, l.int((ROUND.to_bits() as i32).wrapping_neg()));
            *quants = l.low_bytes(*whole);
        }
        let [low, high] = wholes;
        sums = match rounding.halves {
            true => [l.sum(low), l.sum(high)],
            false => [l.sum(l.int_add(low, high)), 0],
        };
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
fn round_outlier<L: Lanes>(l: L, rounding: Rounding, x: &[f32; RUN]) -> Option<Run> {
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
    let mut run = round_run(l, rounding, &within, next);
    // What is multiplied as a quant is 127 steps.
    run.clipped = x[outlier] - (run.scale * 127.0).copysign(x[outlier]);
    run.outlier = outlier as u32;
    run.sums[if rounding.halves { outlier / 16 } else { 0 }] += run.clipped;
    Some(run)
}

/// Multiplies `count` groups of sixteen packed rows, one behind the other, with all tokens. The results of a group
/// follow those of the one before.
pub(super) fn product<F: Format>(
    isa: Isa,
    groups: &[u8],
    count: usize,
    runs: &[Run],
    out: &mut [[f32; ROWS]],
) {
    let (bytes, tokens) = (groups.len() / count, out.len() / count);
    // Many tokens go eight at a time, if the machine can.
    let eights = if isa.tile() >= 8 { tokens / 8 * 8 } else { 0 };
    if eights > 0 {
        many::product::<F>(isa, groups, count, eights, runs, out);
    }
    if eights < tokens {
        let format = PhantomData::<F>;
        vectorise_as(isa, Rest { groups, bytes, tokens, first: eights, runs, out, format });
    }
}

/// Products of groups with the tokens from `first` on, a few at a time.
struct Rest<'a, F> {
    groups: &'a [u8],
    bytes: usize,
    tokens: usize,
    first: usize,
    runs: &'a [Run],
    out: &'a mut [[f32; ROWS]],
    format: PhantomData<F>,
}

impl<F: Format> Vectorised for Rest<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { groups, bytes, tokens, runs, out, .. } = self;
        let units = bytes / F::BYTES * F::UNITS;
        for (group, out) in groups.chunks_exact(bytes).zip(out.chunks_exact_mut(tokens)) {
            let mut token = self.first;
            while token < tokens {
                let (first, width) = tile_of(L::TILE, token, tokens);
                let (runs, out) = (&runs[first * units..], &mut out[first..first + width]);
                token += width;
                // Widths that a machine does not have are not compiled for it.
                if const { L::TILE >= 4 } && width == 4 {
                    few::<L, F, 4>(l, group, runs, out);
                } else if const { L::TILE >= 4 } && width == 2 {
                    few::<L, F, 2>(l, group, runs, out);
                } else {
                    few::<L, F, 1>(l, group, runs, out);
                }
            }
        }
    }
}

/// Multiplies a group with `T` tokens, whose runs take turns.
#[inline(always)]
fn few<L: Lanes, F: Format, const T: usize>(
    l: L,
    group: &[u8],
    runs: &[Run],
    out: &mut [[f32; ROWS]],
) {
    let mut sums = [[l.float(0.0); T]];
    let blocks = group.chunks_exact(F::BYTES);
    let all = &runs.as_chunks::<T>().0[..blocks.len() * F::UNITS];
    for (block, runs) in blocks.zip(all.chunks_exact(F::UNITS)) {
        let weights = [&Packed { block, format: PhantomData::<F> }];
        // For one token with a number that the compiler knows, and with it all shifts and masks. Several tokens share
        // that work, so there it would only make the program larger.
        if const { L::TILE > 1 && F::UNITS == 8 && T == 1 }
            && let [r0, r1, r2, r3, r4, r5, r6, r7] = runs
        {
            unit::<L, F, _, 1, T>(l, weights, 0, r0, &mut sums);
            unit::<L, F, _, 1, T>(l, weights, 1, r1, &mut sums);
            unit::<L, F, _, 1, T>(l, weights, 2, r2, &mut sums);
            unit::<L, F, _, 1, T>(l, weights, 3, r3, &mut sums);
            unit::<L, F, _, 1, T>(l, weights, 4, r4, &mut sums);
            unit::<L, F, _, 1, T>(l, weights, 5, r5, &mut sums);
            unit::<L, F, _, 1, T>(l, weights, 6, r6, &mut sums);
            unit::<L, F, _, 1, T>(l, weights, 7, r7, &mut sums);
        } else {
            for (index, runs) in runs.iter().enumerate() {
                unit::<L, F, _, 1, T>(l, weights, index % F::UNITS, runs, &mut sums);
            }
        }
    }
    let [sums] = sums;
    let Some(out) = out.first_chunk_mut::<T>() else { return };
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = l.store(sum);
    }
    add_outliers::<L, F, T>(l, group, all, out);
}

/// Adds what was clipped from outliers. Behind the loops over all runs, which have no registers to spare for what is rare.
#[inline(always)]
fn add_outliers<L: Lanes, F: Format, const T: usize>(
    l: L,
    group: &[u8],
    runs: &[[Run; T]],
    out: &mut [[f32; ROWS]; T],
) {
    for (index, runs) in runs.iter().enumerate() {
        if has_outlier(runs) {
            add_outlier::<L, F, T>(l, group, index, runs, out);
        }
    }
}

/// Whether any token of a tile has an outlier in these runs.
#[inline(always)]
pub(super) fn has_outlier<const T: usize>(runs: &[Run; T]) -> bool {
    runs[0].outlier_in_tile != NONE
}

/// Adds what was clipped in run `index` of the tokens of a tile, any of which has an outlier there.
#[inline(always)]
pub(super) fn add_outlier<L: Lanes, F: Format, const T: usize>(
    l: L,
    group: &[u8],
    index: usize,
    runs: &[Run; T],
    out: &mut [[f32; ROWS]; T],
) {
    let mut place = runs[0].outlier_in_tile - 1;
    let mut weights = weights_at::<L, F>(l, group, index, place);
    for (out, run) in out.iter_mut().zip(runs) {
        if run.clipped != 0.0 {
            if run.outlier != place {
                place = run.outlier;
                weights = weights_at::<L, F>(l, group, index, place);
            }
            *out = l.store(l.mul_add(weights, l.float(run.clipped), l.floats(out)));
        }
    }
}

/// What the products of a format depend on, apart from how its blocks lie.
pub(super) struct Shape {
    /// Whether each 16 weights have a scale of their own.
    pub(super) halves: bool,
    /// Whether there are offsets.
    pub(super) affine: bool,
    /// Whether something is taken from quants.
    pub(super) offset: bool,
    /// Largest quant, or a larger number.
    pub(super) top: usize,
}

/// Formats whose products are the same code.
pub(super) trait Kind {
    const SHAPE: Shape;
}

impl<F: Format> Kind for F {
    const SHAPE: Shape =
        Shape { halves: F::HALVES, affine: F::AFFINE, offset: F::OFFSET != 0, top: F::TOP };
}

/// Runs of a group, wherever they lie.
pub(super) trait Weights<L: Lanes> {
    /// Word `i` of run `unit`.
    fn word(&self, l: L, unit: usize, i: usize) -> L::Bytes;
    /// Scale and offset of run `unit`, or of one half of it.
    fn scales(&self, l: L, unit: usize, half: usize) -> (L::Floats, L::Floats);
    /// Fetches what comes after run `unit`, if that is not near already.
    fn fetch_ahead(&self, l: L, unit: usize);
}

/// A packed block.
struct Packed<'a, F> {
    block: &'a [u8],
    format: PhantomData<F>,
}

impl<L: Lanes, F: Format> Weights<L> for Packed<'_, F> {
    #[inline(always)]
    fn word(&self, l: L, unit: usize, i: usize) -> L::Bytes {
        F::word(l, self.block, unit, i)
    }

    #[inline(always)]
    fn scales(&self, l: L, unit: usize, half: usize) -> (L::Floats, L::Floats) {
        F::scales(l, self.block, unit, half)
    }

    #[inline(always)]
    fn fetch_ahead(&self, l: L, unit: usize) {
        fetch_ahead::<L, F>(l, self.block, unit);
    }
}

/// Bytes between what is used and what is fetched meanwhile. Processors see that memory is read in order only where that is
/// so from line to line: fields of large blocks are not.
const AHEAD: usize = 6 << 10;

/// Fetches as much as a run takes, far behind run `unit` of a block.
#[inline(always)]
pub(super) fn fetch_ahead<L: Lanes, F: Format>(l: L, block: &[u8], unit: usize) {
    const LINE: usize = 64;
    let share = const { (F::BYTES / F::UNITS).div_ceil(LINE) };
    for line in 0..share {
        l.fetch(block, AHEAD + (unit * share + line) * LINE);
    }
}

/// Adds the products of one run of weights of `R` groups with those of `T` tokens.
#[inline(always)]
pub(super) fn unit<L: Lanes, K: Kind, W: Weights<L>, const R: usize, const T: usize>(
    l: L,
    weights: [&W; R],
    unit: usize,
    runs: &[Run; T],
    sums: &mut [[L::Floats; T]; R],
) {
    for weights in weights {
        weights.fetch_ahead(l, unit);
    }
    if const { !K::SHAPE.halves } {
        let dots = part::<L, K, W, R, T, 0, 8>(l, weights, unit, runs);
        for ((sums, dots), weights) in sums.iter_mut().zip(&dots).zip(weights) {
            let (d, m) = weights.scales(l, unit, 0);
            for ((sum, dot), run) in sums.iter_mut().zip(dots).zip(runs) {
                let d = l.mul(d, l.float(run.scale));
                *sum = l.mul_add(*dot, d, *sum);
                if const { K::SHAPE.affine } {
                    *sum = l.mul_add(m, l.float(run.sums[0]), *sum);
                }
            }
        }
        return;
    }
    // Both halves of a run have one scale of inputs.
    let mut scaled = part::<L, K, W, R, T, 0, 4>(l, weights, unit, runs);
    for (scaled, weights) in scaled.iter_mut().zip(weights) {
        let (d, _) = weights.scales(l, unit, 0);
        for scaled in scaled {
            *scaled = l.mul(*scaled, d);
        }
    }
    let dots = part::<L, K, W, R, T, 4, 4>(l, weights, unit, runs);
    for (((sums, scaled), dots), weights) in sums.iter_mut().zip(&scaled).zip(&dots).zip(weights) {
        let (d, _) = weights.scales(l, unit, 1);
        for (((sum, scaled), dot), run) in sums.iter_mut().zip(scaled).zip(dots).zip(runs) {
            *sum = l.mul_add(l.mul_add(*dot, d, *scaled), l.float(run.scale), *sum);
        }
        if const { K::SHAPE.affine } {
            let ((_, low), (_, high)) = (weights.scales(l, unit, 0), weights.scales(l, unit, 1));
            for (sum, run) in sums.iter_mut().zip(runs) {
                *sum = l.mul_add(low, l.float(run.sums[0]), *sum);
                *sum = l.mul_add(high, l.float(run.sums[1]), *sum);
            }
        }
    }
}

/// What the integer sum of a run, or of one half of it, starts with.
#[inline(always)]
fn start<L: Lanes, K: Kind>(run: &Run, half: usize) -> i32 {
    // The offset is in signed weights already.
    let signed = const { L::SIGNED && K::SHAPE.top > 127 };
    if const { K::SHAPE.offset } && !signed { run.starts[half] } else { 0 }
}

/// Sums of products of `N` words of a run from word `FIRST` on. Words take the outer loop: sums of all
/// tokens stay in registers, and of the weights only a few must.
#[inline(always)]
fn part<
    L: Lanes,
    K: Kind,
    W: Weights<L>,
    const R: usize,
    const T: usize,
    const FIRST: usize,
    const N: usize,
>(
    l: L,
    weights: [&W; R],
    unit: usize,
    runs: &[Run; T],
) -> [[L::Floats; T]; R] {
    let half = FIRST / 4;
    let mut dots = [[l.dot(0); T]; R];
    for dots in &mut dots {
        for (dot, run) in dots.iter_mut().zip(runs) {
            *dot = l.dot(start::<L, K>(run, half));
        }
    }
    macro_rules! word {
        ($index:expr) => {{
            let mut words = [l.byte(0); R];
            for (word, weights) in words.iter_mut().zip(weights) {
                *word = weights.word(l, unit, FIRST + $index);
            }
            for (token, run) in runs.iter().enumerate() {
                for (dots, &word) in dots.iter_mut().zip(&words) {
                    let x = run.quants[FIRST + $index];
                    dots[token] = l.dot_add(K::SHAPE.top, $index, dots[token], word, x);
                }
            }
        }};
    }
    macro_rules! words {
        ($($index:literal)*) => {$(
            if const { $index < N } {
                word!($index);
            }
        )*};
    }
    if const { L::TILE == 1 } {
        // Without vectors there is nothing to gain, and the program would be ten times as large.
        for index in 0..N {
            word!(index);
        }
    } else {
        words!(0 1 2 3 4 5 6 7);
    }
    let mut floats = [[l.float(0.0); T]; R];
    for (floats, dots) in floats.iter_mut().zip(dots) {
        for ((float, dot), run) in floats.iter_mut().zip(dots).zip(runs) {
            *float = l.to_floats(l.dot_end(K::SHAPE.top, start::<L, K>(run, half), dot));
        }
    }
    floats
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
