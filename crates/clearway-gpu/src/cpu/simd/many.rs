//! Products of packed block weights with eights of tokens, for machines that multiply as many together.
//!
//! Runs of two groups of rows are taken apart once, as few at a time as stay in the nearest cache with the inputs they meet; then
//! four tokens at a time meet them, with their sums in registers. Formats that are cheap to take apart are multiplied where
//! they lie.
//!
//! Each step is compiled for every set of instructions on its own ([`vectorise_as`]). Only taking apart knows the format: what is
//! taken apart is multiplied by code that many formats share ([`Class`]). As one function for each format they took minutes to compile.

use std::marker::PhantomData;
use std::ops::Range;

use smallvec::SmallVec;

use super::formats::Format;
use super::lanes::Lanes;
use super::packed::ROWS;
use super::product::{self, Kind, RUN, Run, Shape, Weights};
use super::{Isa, Vectorised, vectorise_as};

/// Runs that are taken apart at a time.
const CHUNK: usize = 8;

/// Multiplies `count` groups of sixteen packed rows, one behind the other, with the first tokens, which are `eights`. The results
/// of a group follow those of the one before.
pub(super) fn product<F: Format>(
    isa: Isa,
    groups: &[u8],
    count: usize,
    eights: usize,
    runs: &[Run],
    out: &mut [[f32; ROWS]],
) {
    let (bytes, tokens) = (groups.len() / count, out.len() / count);
    let units = bytes / F::BYTES * F::UNITS;
    let tiles: &[[Run; 8]] = runs[..eights * units].as_chunks().0;
    // Looked for once for all groups: the runs of a tile lie far apart, and outliers are rare.
    let marked = (0..tiles.len()).filter(|&at| product::has_outlier(&tiles[at])).collect();
    let inputs = Inputs { tiles, units, marked };
    let mut groups = groups.chunks_exact(2 * bytes);
    let mut out = out.chunks_exact_mut(2 * tokens);
    for (pair, out) in groups.by_ref().zip(out.by_ref()) {
        let (one, two) = pair.split_at(bytes);
        let (out_one, out_two) = out.split_at_mut(tokens);
        let out = [&mut out_one[..eights], &mut out_two[..eights]];
        multiply::<F, 2>(isa, [one, two], &inputs, out);
    }
    let (rest, out) = (groups.remainder(), out.into_remainder());
    if !rest.is_empty() {
        multiply::<F, 1>(isa, [rest], &inputs, [&mut out[..eights]]);
    }
}

/// Tiles of eight tokens, whose runs take turns.
struct Inputs<'a> {
    /// Those of a tile behind those of the one before.
    tiles: &'a [[Run; 8]],
    /// Runs of a token.
    units: usize,
    /// Which of `tiles` have an outlier.
    marked: SmallVec<[usize; 32]>,
}

/// Multiplies `R` groups with tiles of tokens.
fn multiply<F: Format, const R: usize>(
    isa: Isa,
    groups: [&[u8]; R],
    inputs: &Inputs<'_>,
    mut out: [&mut [[f32; ROWS]]; R],
) {
    const { assert!(F::UNITS == 1 || F::UNITS == CHUNK) };
    let Inputs { tiles, units, ref marked } = *inputs;
    let format = PhantomData::<F>;
    if F::COSTLY {
        for out in &mut out {
            out.fill([0.0; ROWS]);
        }
        let mut apart = [const { Apart::NOTHING }; R];
        for first in (0..units).step_by(CHUNK) {
            for (apart, group) in apart.iter_mut().zip(groups) {
                vectorise_as(isa, Take { apart, group, first, format });
            }
            let chunk = first..units.min(first + CHUNK);
            meet::<F, R>(isa, Meet { apart: &apart, tiles, units, chunk, out: &mut out });
        }
    } else {
        vectorise_as(isa, MeetPacked { groups, tiles, units, out: &mut out, format });
    }
    for (group, out) in groups.into_iter().zip(out) {
        if !marked.is_empty() {
            vectorise_as(isa, Outliers { group, tiles, units, marked, out, format });
        }
    }
}

/// Some runs of a group, taken apart: vectors in memory.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Apart {
    words: [[[u8; 64]; RUN / 4]; CHUNK],
    /// Of each half, or of the run in the first.
    scales: [[[f32; ROWS]; 2]; CHUNK],
    offsets: [[[f32; ROWS]; 2]; CHUNK],
}

impl Apart {
    const NOTHING: Self = Self {
        words: [[[0; 64]; RUN / 4]; CHUNK],
        scales: [[[0.0; ROWS]; 2]; CHUNK],
        offsets: [[[0.0; ROWS]; 2]; CHUNK],
    };

    /// Takes run `unit` of a block apart.
    #[inline(always)]
    fn take<L: Lanes, F: Format>(&mut self, l: L, at: usize, block: &[u8], unit: usize) {
        product::fetch_ahead::<L, F>(l, block, unit);
        for (i, word) in self.words[at].iter_mut().enumerate() {
            *word = l.store_bytes(F::word(l, block, unit, i));
        }
        for half in 0..if F::HALVES { 2 } else { 1 } {
            let (scale, offset) = F::scales(l, block, unit, half);
            self.scales[at][half] = l.store(scale);
            if const { F::AFFINE } {
                self.offsets[at][half] = l.store(offset);
            }
        }
    }
}

impl<L: Lanes> Weights<L> for Apart {
    #[inline(always)]
    fn word(&self, l: L, unit: usize, i: usize) -> L::Bytes {
        l.bytes(&self.words[unit][i])
    }

    #[inline(always)]
    fn scales(&self, l: L, unit: usize, half: usize) -> (L::Floats, L::Floats) {
        (l.floats(&self.scales[unit][half]), l.floats(&self.offsets[unit][half]))
    }

    #[inline(always)]
    fn fetch_ahead(&self, _: L, _: usize) {}
}

/// Takes up to [`CHUNK`] runs apart, the first of which is run `first` of the group.
struct Take<'a, F> {
    apart: &'a mut Apart,
    group: &'a [u8],
    first: usize,
    format: PhantomData<F>,
}

impl<F: Format> Vectorised for Take<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        if const { L::TILE < 8 } {
            return;
        }
        let apart = self.apart;
        let blocks = self.group[self.first / F::UNITS * F::BYTES..].chunks_exact(F::BYTES);
        if const { F::UNITS == CHUNK } {
            if let Some(block) = blocks.take(1).next() {
                // With numbers that the compiler knows, and with them all shifts and masks.
                apart.take::<L, F>(l, 0, block, 0);
                apart.take::<L, F>(l, 1, block, 1);
                apart.take::<L, F>(l, 2, block, 2);
                apart.take::<L, F>(l, 3, block, 3);
                apart.take::<L, F>(l, 4, block, 4);
                apart.take::<L, F>(l, 5, block, 5);
                apart.take::<L, F>(l, 6, block, 6);
                apart.take::<L, F>(l, 7, block, 7);
            }
        } else {
            for (at, block) in blocks.take(CHUNK).enumerate() {
                apart.take::<L, F>(l, at, block, 0);
            }
        }
    }
}

/// Formats that are multiplied by the same code once they are taken apart. Those without anything taken from their quants have
/// zeros for it in the inputs.
struct Class<const HALVES: bool, const AFFINE: bool, const TOP: usize>;

impl<const HALVES: bool, const AFFINE: bool, const TOP: usize> Kind for Class<HALVES, AFFINE, TOP> {
    const SHAPE: Shape = Shape { halves: HALVES, affine: AFFINE, offset: true, top: TOP };
}

/// Multiplies what was taken apart with all tokens. `chunk` says which of the `units` runs that is.
struct Meet<'a, 'o, const R: usize> {
    apart: &'a [Apart; R],
    tiles: &'a [[Run; 8]],
    units: usize,
    chunk: Range<usize>,
    out: &'a mut [&'o mut [[f32; ROWS]]; R],
}

/// The same for a class of formats.
struct MeetClass<'a, 'o, K, const R: usize> {
    meet: Meet<'a, 'o, R>,
    class: PhantomData<K>,
}

fn meet<F: Format, const R: usize>(isa: Isa, meet: Meet<'_, '_, R>) {
    macro_rules! classes {
        ($($halves:literal $affine:literal $top:literal),*) => {
            match (F::HALVES, F::AFFINE, top(isa, F::TOP)) {
                $(($halves, $affine, $top) => {
                    let class = PhantomData::<Class<$halves, $affine, $top>>;
                    vectorise_as(isa, MeetClass { meet, class });
                })*
                _ => unreachable!("{} belongs to no class", F::DTYPE),
            }
        };
    }
    classes!(
        false false 31, false false 255, false true 15, false true 31, false true 255,
        true false 15, true false 63, true false 255, true true 15, true true 255
    );
}

/// Largest quant of the class of formats with this largest quant.
fn top(isa: Isa, top: usize) -> usize {
    match top {
        // Sums of products of bytes have 32 bits at once, so that it does not matter.
        #[cfg(target_arch = "x86_64")]
        _ if isa == Isa::Avx512Vnni => 255,
        0..=15 => 15,
        16..=31 => 31,
        32..=63 => 63,
        _ => 255,
    }
}

impl<K: Kind, const R: usize> Vectorised for MeetClass<'_, '_, K, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        // Classes that a machine does not use are not compiled for it.
        let used = const {
            let any = K::SHAPE.top == 255;
            let signed = any && !K::SHAPE.halves && !K::SHAPE.affine;
            L::TILE >= 8 && if L::SIGNED { !any || signed } else { any }
        };
        if !used {
            return;
        }
        let Meet { apart, tiles, units, chunk, out } = self.meet;
        let mut weights = [&apart[0]; R];
        for (weights, apart) in weights.iter_mut().zip(apart) {
            *weights = apart;
        }
        for (tile, runs) in tiles.chunks_exact(units).enumerate() {
            let runs = &runs[chunk.clone()];
            for first in [0, 4] {
                meet_four::<L, K, R>(l, weights, runs, (tile, first), out);
            }
        }
    }
}

/// Adds the products of some runs with four tokens of a tile, from one of it on. The sums of two groups and of four tokens
/// fit the registers, and nothing has to wait in memory.
#[inline(always)]
fn meet_four<L: Lanes, K: Kind, const R: usize>(
    l: L,
    weights: [&Apart; R],
    runs: &[[Run; 8]],
    (tile, first): (usize, usize),
    out: &mut [&mut [[f32; ROWS]]; R],
) {
    let token = 8 * tile + first;
    let mut sums = [[l.float(0.0); 4]; R];
    for (sums, out) in sums.iter_mut().zip(&*out) {
        // Of a length that the compiler knows, here and below: otherwise sums have places in memory, and are stored with every run.
        let Some(out) = out[token..].first_chunk::<4>() else { return };
        for (sum, out) in sums.iter_mut().zip(out) {
            *sum = l.floats(out);
        }
    }
    for (at, runs) in runs.iter().enumerate() {
        if let Some(runs) = runs[first..].first_chunk() {
            product::unit::<L, K, _, R, 4>(l, weights, at % CHUNK, runs, &mut sums);
        }
    }
    store_four(l, &sums, token, out);
}

/// Stores the sums of four tokens.
#[inline(always)]
fn store_four<L: Lanes, const R: usize>(
    l: L,
    sums: &[[L::Floats; 4]; R],
    token: usize,
    out: &mut [&mut [[f32; ROWS]]; R],
) {
    for (sums, out) in sums.iter().zip(out) {
        let Some(out) = out[token..].first_chunk_mut::<4>() else { return };
        for (sum, out) in sums.iter().zip(out) {
            *out = l.store(*sum);
        }
    }
}

/// Multiplies all runs of packed rows, each a block, with all tokens. Nothing is fetched ahead: blocks are small, and lie in the
/// nearest cache for all tokens but the first.
struct MeetPacked<'a, 'o, F, const R: usize> {
    groups: [&'a [u8]; R],
    tiles: &'a [[Run; 8]],
    units: usize,
    out: &'a mut [&'o mut [[f32; ROWS]]; R],
    format: PhantomData<F>,
}

impl<F: Format, const R: usize> Vectorised for MeetPacked<'_, '_, F, R> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        if const { L::TILE < 8 || F::COSTLY } {
            return;
        }
        for (tile, runs) in self.tiles.chunks_exact(self.units).enumerate() {
            for first in [0, 4] {
                let mut sums = [[l.float(0.0); 4]; R];
                for (index, runs) in runs.iter().enumerate() {
                    let Some(runs) = runs[first..].first_chunk() else { return };
                    let mut blocks = [Near { block: &[][..], format: PhantomData::<F> }; R];
                    for (near, group) in blocks.iter_mut().zip(self.groups) {
                        near.block = &group[index * F::BYTES..][..F::BYTES];
                    }
                    let mut weights = [&blocks[0]; R];
                    for (weights, block) in weights.iter_mut().zip(&blocks) {
                        *weights = block;
                    }
                    product::unit::<L, F, _, R, 4>(l, weights, 0, runs, &mut sums);
                }
                store_four(l, &sums, 8 * tile + first, self.out);
            }
        }
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

/// Adds what was clipped from outliers of all tokens, in the order of the runs.
struct Outliers<'a, F> {
    group: &'a [u8],
    tiles: &'a [[Run; 8]],
    units: usize,
    /// Which of `tiles` have any.
    marked: &'a [usize],
    out: &'a mut [[f32; ROWS]],
    format: PhantomData<F>,
}

impl<F: Format> Vectorised for Outliers<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        if const { L::TILE < 8 } {
            return;
        }
        let out = self.out.as_chunks_mut().0;
        for &at in self.marked {
            let (tile, unit) = (at / self.units, at % self.units);
            product::add_outlier::<L, F, 8>(l, self.group, unit, &self.tiles[at], &mut out[tile]);
        }
    }
}
