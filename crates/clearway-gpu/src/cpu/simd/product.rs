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
//!
//! Closures are not inlined as surely as functions that ask for it, and one that is not lacks the instructions of its
//! machine. So there are none around instructions.

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};

use super::formats::Format;
use super::lanes::{Lanes, ROUND};
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
        for ((quants, sum), x) in quants.iter_mut().zip(&mut sums).zip(halves(x)) {
            let rounded = l.bits(l.add(l.mul(l.floats(x), inverse), l.float(ROUND)));
            let whole = l.int_add(rounded, l.int((ROUND.to_bits() as i32).wrapping_neg()));
            *quants = l.low_bytes(whole);
            *sum = l.sum(whole);
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
#[inline(always)]
pub(super) fn product<L: Lanes, F: Format>(
    l: L,
    groups: &[u8],
    count: usize,
    runs: &[Run],
    out: &mut [[f32; ROWS]],
) {
    let (bytes, tokens) = (groups.len() / count, out.len() / count);
    let units = bytes / F::BYTES * F::UNITS;
    // Many tokens go eight at a time, if the machine can.
    let eights = if const { L::TILE >= 8 } { tokens / 8 * 8 } else { 0 };
    if eights > 0 {
        let mut groups = groups.chunks_exact(2 * bytes);
        let mut out = out.chunks_exact_mut(2 * tokens);
        for (pair, out) in groups.by_ref().zip(out.by_ref()) {
            let (one, two) = pair.split_at(bytes);
            let (out_one, out_two) = out.split_at_mut(tokens);
            let out = [&mut out_one[..eights], &mut out_two[..eights]];
            many::<L, F, 2>(l, [one, two], &runs[..eights * units], out);
        }
        let (rest, out) = (groups.remainder(), out.into_remainder());
        if !rest.is_empty() {
            many::<L, F, 1>(l, [rest], &runs[..eights * units], [&mut out[..eights]]);
        }
    }
    for (group, out) in groups.chunks_exact(bytes).zip(out.chunks_exact_mut(tokens)) {
        let mut token = eights;
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

/// Runs that are taken apart at a time.
const CHUNK: usize = 8;

/// Some runs of a group, taken apart.
#[derive(Clone, Copy)]
struct Apart<L: Lanes> {
    words: [[L::Bytes; RUN / 4]; CHUNK],
    scales: [[(L::Floats, L::Floats); 2]; CHUNK],
}

impl<L: Lanes> Apart<L> {
    #[inline(always)]
    fn new(l: L) -> Self {
        let none = (l.float(0.0), l.float(0.0));
        Self { words: [[l.byte(0); RUN / 4]; CHUNK], scales: [[none; 2]; CHUNK] }
    }

    /// Takes run `unit` of a block apart.
    #[inline(always)]
    fn take<F: Format>(&mut self, l: L, at: usize, block: &[u8], unit: usize) {
        fetch_ahead::<L, F>(l, block, unit);
        for (i, word) in self.words[at].iter_mut().enumerate() {
            *word = F::word(l, block, unit, i);
        }
        self.scales[at][0] = F::scales(l, block, unit, 0);
        if const { F::HALVES } {
            self.scales[at][1] = F::scales(l, block, unit, 1);
        }
    }

    /// Takes up to [`CHUNK`] runs apart, the first of which is run `first` of the group.
    #[inline(always)]
    fn take_chunk<F: Format>(&mut self, l: L, group: &[u8], first: usize) {
        let blocks = group[first / F::UNITS * F::BYTES..].chunks_exact(F::BYTES);
        if const { F::UNITS == CHUNK } {
            if let Some(block) = blocks.take(1).next() {
                // With numbers that the compiler knows, and with them all shifts and masks.
                self.take::<F>(l, 0, block, 0);
                self.take::<F>(l, 1, block, 1);
                self.take::<F>(l, 2, block, 2);
                self.take::<F>(l, 3, block, 3);
                self.take::<F>(l, 4, block, 4);
                self.take::<F>(l, 5, block, 5);
                self.take::<F>(l, 6, block, 6);
                self.take::<F>(l, 7, block, 7);
            }
        } else {
            for (at, block) in blocks.take(CHUNK).enumerate() {
                self.take::<F>(l, at, block, 0);
            }
        }
    }
}

/// Multiplies `R` groups with eights of tokens. What all tokens meet is taken apart once, as little at a time as stays in
/// the nearest cache with the inputs it meets; sums wait in `out` meanwhile.
#[inline(always)]
fn many<L: Lanes, F: Format, const R: usize>(
    l: L,
    groups: [&[u8]; R],
    runs: &[Run],
    mut out: [&mut [[f32; ROWS]]; R],
) {
    const { assert!(F::UNITS == 1 || F::UNITS == CHUNK) };
    let units = groups[0].len() / F::BYTES * F::UNITS;
    let tiles = runs.as_chunks::<8>().0;
    for out in &mut out {
        out.fill([0.0; ROWS]);
    }
    if const { F::COSTLY } {
        meet_apart::<L, F, R>(l, groups, tiles, &mut out);
    } else {
        for (tile, runs) in tiles.chunks_exact(units).enumerate() {
            for first in [0, 4] {
                meet_packed::<L, F, R>(l, groups, runs, (tile, first), &mut out);
            }
        }
    }
    for (group, out) in groups.into_iter().zip(out) {
        for (runs, out) in tiles.chunks_exact(units).zip(out.as_chunks_mut().0) {
            add_outliers::<L, F, 8>(l, group, runs, out);
        }
    }
}

/// Multiplies runs that are taken apart, some at a time.
#[inline(always)]
fn meet_apart<L: Lanes, F: Format, const R: usize>(
    l: L,
    groups: [&[u8]; R],
    tiles: &[[Run; 8]],
    out: &mut [&mut [[f32; ROWS]]; R],
) {
    let units = groups[0].len() / F::BYTES * F::UNITS;
    let mut apart = [Apart::new(l); R];
    for first in (0..units).step_by(CHUNK) {
        for (apart, group) in apart.iter_mut().zip(groups) {
            apart.take_chunk::<F>(l, group, first);
        }
        let chunk = first..units.min(first + CHUNK);
        let mut weights = [&apart[0]; R];
        for (weights, apart) in weights.iter_mut().zip(&apart) {
            *weights = apart;
        }
        for (tile, runs) in tiles.chunks_exact(units).enumerate() {
            let runs = &runs[chunk.clone()];
            for first in [0, 4] {
                meet::<L, F, R>(l, weights, runs, (tile, first), out);
            }
        }
    }
}

/// Multiplies all runs of packed rows, each a block, with four tokens of a tile, from one of it on. Nothing is fetched ahead: blocks
/// are small, and lie in the nearest cache for all tokens but the first.
#[inline(always)]
fn meet_packed<L: Lanes, F: Format, const R: usize>(
    l: L,
    groups: [&[u8]; R],
    runs: &[[Run; 8]],
    (tile, first): (usize, usize),
    out: &mut [&mut [[f32; ROWS]]; R],
) {
    let mut sums = [[l.float(0.0); 4]; R];
    for (index, runs) in runs.iter().enumerate() {
        let Some(runs) = runs[first..].first_chunk() else { return };
        let mut blocks = [Near { block: &[][..], format: PhantomData::<F> }; R];
        for (near, group) in blocks.iter_mut().zip(groups) {
            near.block = &group[index * F::BYTES..][..F::BYTES];
        }
        let mut weights = [&blocks[0]; R];
        for (weights, block) in weights.iter_mut().zip(&blocks) {
            *weights = block;
        }
        unit::<L, F, _, R, 4>(l, weights, 0, runs, &mut sums);
    }
    for (sums, out) in sums.iter().zip(out) {
        for (sum, out) in sums.iter().zip(&mut out[8 * tile + first..]) {
            *out = l.store(*sum);
        }
    }
}

/// Adds the products of some runs with four tokens of a tile, from one of it on. The sums of two groups and of four tokens
/// fit the registers, and nothing has to wait in memory.
#[inline(always)]
fn meet<L: Lanes, F: Format, const R: usize>(
    l: L,
    weights: [&Apart<L>; R],
    runs: &[[Run; 8]],
    (tile, first): (usize, usize),
    out: &mut [&mut [[f32; ROWS]]; R],
) {
    let token = 8 * tile + first;
    let mut sums = [[l.float(0.0); 4]; R];
    for (sums, out) in sums.iter_mut().zip(&*out) {
        for (sum, out) in sums.iter_mut().zip(&out[token..]) {
            *sum = l.floats(out);
        }
    }
    for (at, runs) in runs.iter().enumerate() {
        if let Some(runs) = runs[first..].first_chunk() {
            unit::<L, F, _, R, 4>(l, weights, at % CHUNK, runs, &mut sums);
        }
    }
    for (sums, out) in sums.iter().zip(out) {
        for (sum, out) in sums.iter().zip(&mut out[token..]) {
            *out = l.store(*sum);
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
        if runs[0].outlier_in_tile == NONE {
            continue;
        }
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
}

/// Runs of a group, wherever they lie.
trait Weights<L: Lanes> {
    /// Word `i` of run `unit`.
    fn word(&self, l: L, unit: usize, i: usize) -> L::Bytes;
    /// Scale and offset of run `unit`, or of one half of it.
    fn scales(&self, l: L, unit: usize, half: usize) -> (L::Floats, L::Floats);
    /// Fetches what comes after run `unit`, if that is not near already.
    fn fetch_ahead(&self, l: L, unit: usize);
}

impl<L: Lanes> Weights<L> for Apart<L> {
    #[inline(always)]
    fn word(&self, _: L, unit: usize, i: usize) -> L::Bytes {
        self.words[unit][i]
    }

    #[inline(always)]
    fn scales(&self, _: L, unit: usize, half: usize) -> (L::Floats, L::Floats) {
        self.scales[unit][half]
    }

    #[inline(always)]
    fn fetch_ahead(&self, _: L, _: usize) {}
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

/// A packed block that is in the nearest cache.
struct Near<'a, F> {
    block: &'a [u8],
    format: PhantomData<F>,
}

impl<F> Clone for Near<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Near<'_, F> {}

impl<L: Lanes, F: Format> Weights<L> for Near<'_, F> {
    #[inline(always)]
    fn word(&self, l: L, unit: usize, i: usize) -> L::Bytes {
        F::word(l, self.block, unit, i)
    }

    #[inline(always)]
    fn scales(&self, l: L, unit: usize, half: usize) -> (L::Floats, L::Floats) {
        F::scales(l, self.block, unit, half)
    }

    #[inline(always)]
    fn fetch_ahead(&self, _: L, _: usize) {}
}

/// Bytes between what is used and what is fetched meanwhile. Processors see that memory is read in order only where that is
/// so from line to line: fields of large blocks are not.
const AHEAD: usize = 6 << 10;

/// Fetches as much as a run takes, far behind run `unit` of a block.
#[inline(always)]
fn fetch_ahead<L: Lanes, F: Format>(l: L, block: &[u8], unit: usize) {
    const LINE: usize = 64;
    let share = const { (F::BYTES / F::UNITS).div_ceil(LINE) };
    for line in 0..share {
        l.fetch(block, AHEAD + (unit * share + line) * LINE);
    }
}

/// Adds the products of one run of weights of `R` groups with those of `T` tokens.
#[inline(always)]
fn unit<L: Lanes, F: Format, W: Weights<L>, const R: usize, const T: usize>(
    l: L,
    weights: [&W; R],
    unit: usize,
    runs: &[Run; T],
    sums: &mut [[L::Floats; T]; R],
) {
    for weights in weights {
        weights.fetch_ahead(l, unit);
    }
    if const { F::HALVES } {
        part::<L, F, W, R, T, 0, 4>(l, weights, unit, runs, sums);
        part::<L, F, W, R, T, 4, 4>(l, weights, unit, runs, sums);
    } else {
        part::<L, F, W, R, T, 0, 8>(l, weights, unit, runs, sums);
    }
}

/// What the integer sum of a run, or of one half of it, starts with.
#[inline(always)]
fn start<L: Lanes, F: Format>(run: &Run, half: usize) -> i32 {
    // The offset is in signed weights already.
    let signed = const { L::SIGNED && F::TOP > 127 };
    if const { F::OFFSET != 0 } && !signed { run.starts[half] } else { 0 }
}

/// `N` words of a run from word `FIRST` on, which have one scale. Words take the outer loop: sums of all
/// tokens stay in registers, and of the weights only a few must.
#[inline(always)]
fn part<
    L: Lanes,
    F: Format,
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
    sums: &mut [[L::Floats; T]; R],
) {
    let half = FIRST / 4;
    let mut dots = [[l.dot(0); T]; R];
    for dots in &mut dots {
        for (dot, run) in dots.iter_mut().zip(runs) {
            *dot = l.dot(start::<L, F>(run, half));
        }
    }
    macro_rules! words {
        ($($index:literal)*) => {$(
            if const { $index < N } {
                let mut words = [l.byte(0); R];
                for (word, weights) in words.iter_mut().zip(weights) {
                    *word = weights.word(l, unit, FIRST + $index);
                }
                for (token, run) in runs.iter().enumerate() {
                    for (dots, &word) in dots.iter_mut().zip(&words) {
                        let x = run.quants[FIRST + $index];
                        dots[token] = l.dot_add(F::TOP, $index, dots[token], word, x);
                    }
                }
            }
        )*};
    }
    words!(0 1 2 3 4 5 6 7);
    for ((sums, dots), weights) in sums.iter_mut().zip(&dots).zip(weights) {
        let (d, m) = weights.scales(l, unit, half);
        for ((sum, dot), run) in sums.iter_mut().zip(dots).zip(runs) {
            let dot = l.dot_end(F::TOP, start::<L, F>(run, half), *dot);
            let d = l.mul(d, l.float(run.scale));
            *sum = l.mul_add(l.to_floats(dot), d, *sum);
            if const { F::AFFINE } {
                *sum = l.mul_add(m, l.float(run.sums[half]), *sum);
            }
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
