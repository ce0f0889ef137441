//! The block formats as vectors: 32 weights of sixteen rows at a time.
//!
//! A weight is `d * (q - OFFSET) + m` with an unsigned `q`. Scales have the exact values of the scalar
//! decoder: their products fit the 24 bits of an f32.

use clearway_graph::DType;

use super::lanes::Lanes;
use crate::quant::blocks::{BlockMxfp4, IQ4_LEVELS, MXFP4_LEVELS};

/// A block format, packed in row blocks.
pub(super) trait Format {
    /// The type in files.
    const DTYPE: DType;
    /// Bytes of a packed block.
    const BYTES: usize = 16 * Self::DTYPE.block_bytes();
    /// Runs of 32 weights in a block.
    const UNITS: usize = Self::DTYPE.block_elems() / 32;
    /// Whether each 16 weights have a scale of their own.
    const HALVES: bool = false;
    /// Whether there are offsets `m`.
    const AFFINE: bool = false;
    /// What is taken from a quant.
    const OFFSET: i32;
    /// Largest quant.
    const TOP: usize;
    /// Whether it takes so long to take a run apart that it is worth a place in memory where many tokens meet it.
    const COSTLY: bool = true;

    /// Word `i` of the eight of a run: four quants of each row. Less 128 if [`TOP`](Self::TOP) is above 127
    /// and the machine wants them [signed](Lanes::SIGNED).
    fn word<L: Lanes>(l: L, block: &[u8], unit: usize, i: usize) -> L::Bytes;

    /// Scale and offset of a run, or of one half of it.
    fn scales<L: Lanes>(l: L, block: &[u8], unit: usize, half: usize) -> (L::Floats, L::Floats);
}

/// Part of a packed block: starts at byte `at` of a plain one.
#[inline(always)]
fn part<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    const { assert!(N == 16 || N == 32 || N == 64) };
    // Blocks have their full length, see `product::tile`; the check folds away.
    match block.get(16 * at..).and_then(|rest| rest.first_chunk()) {
        Some(part) => part,
        None => crate::cpu::piece::misuse("a packed block is too short"),
    }
}

/// Word `word` of quants that start at byte `at`.
#[inline(always)]
fn word<L: Lanes>(l: L, block: &[u8], at: usize, word: usize) -> L::Bytes {
    l.bytes(part(block, at + 4 * word))
}

#[inline(always)]
fn f16<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Floats {
    l.floats_f16(part(block, at))
}

/// Word `i` of sixteen bytes of quants at `at`: low nibbles, then high ones.
#[inline(always)]
fn nibble<L: Lanes>(l: L, block: &[u8], at: usize, i: usize) -> L::Bytes {
    l.and(l.shr(word(l, block, at, i % 4), i as u32 / 4 * 4), l.byte(15))
}

/// The bits of `mask`, which start at bit `to`, from those that start at bit `from`.
#[inline(always)]
fn moved<L: Lanes>(l: L, bytes: L::Bytes, from: usize, to: usize, mask: u8) -> L::Bytes {
    let shifted = if from > to {
        l.shr(bytes, (from - to) as u32)
    } else if from < to {
        l.shl(bytes, (to - from) as u32)
    } else {
        bytes
    };
    l.and(shifted, l.byte(mask))
}

/// Word `i` of nibbles with a fifth bit, whose word is at `high`.
#[inline(always)]
fn nibble_and_bit<L: Lanes>(l: L, block: &[u8], at: usize, high: usize, i: usize) -> L::Bytes {
    let bit = moved(l, word(l, block, high, 0), i, 4, 0x10);
    l.or(nibble(l, block, at, i), bit)
}

/// Word `i` of 32 bytes of quants at `at`, in the low or the high nibbles.
#[inline(always)]
fn half_byte<L: Lanes>(l: L, block: &[u8], at: usize, high: bool, i: usize) -> L::Bytes {
    l.and(l.shr(word(l, block, at, i), if high { 4 } else { 0 }), l.byte(15))
}

#[inline(always)]
fn zero<L: Lanes>(l: L) -> L::Floats {
    l.float(0.0)
}

pub(super) struct Q4_0;

impl Format for Q4_0 {
    const DTYPE: DType = DType::Q4_0;
    const OFFSET: i32 = 8;
    const COSTLY: bool = false;
    const TOP: usize = 15;

    #[inline(always)]
    fn word<L: Lanes>(l: L, block: &[u8], _: usize, i: usize) -> L::Bytes {
        nibble(l, block, 2, i)
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8], _: usize, _: usize) -> (L::Floats, L::Floats) {
        (f16(l, block, 0), zero(l))
    }
}

pub(super) struct Q4_1;

impl Format for Q4_1 {
    const DTYPE: DType = DType::Q4_1;
    const AFFINE: bool = true;
    const OFFSET: i32 = 0;
    const COSTLY: bool = false;
    const TOP: usize = 15;

    #[inline(always)]
    fn word<L: Lanes>(l: L, block: &[u8], _: usize, i: usize) -> L::Bytes {
        nibble(l, block, 4, i)
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8], _: usize, _: usize) -> (L::Floats, L::Floats) {
        (f16(l, block, 0), f16(l, block, 2))
    }
}

pub(super) struct Q5_0;

impl Format for Q5_0 {
    const DTYPE: DType = DType::Q5_0;
    const OFFSET: i32 = 16;
    const TOP: usize = 31;

    #[inline(always)]
    fn word<L: Lanes>(l: L, block: &[u8], _: usize, i: usize) -> L::Bytes {
        nibble_and_bit(l, block, 6, 2, i)
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8], _: usize, _: usize) -> (L::Floats, L::Floats) {
        (f16(l, block, 0), zero(l))
    }
}

pub(super) struct Q5_1;

impl Format for Q5_1 {
    const DTYPE: DType = DType::Q5_1;
    const AFFINE: bool = true;
    const OFFSET: i32 = 0;
    const TOP: usize = 31;

    #[inline(always)]
    fn word<L: Lanes>(l: L, block: &[u8], _: usize, i: usize) -> L::Bytes {
        nibble_and_bit(l, block, 8, 4, i)
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8], _: usize, _: usize) -> (L::Floats, L::Floats) {
        (f16(l, block, 0), f16(l, block, 2))
    }
}

pub(super) struct Q8_0;

impl Format for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const OFFSET: i32 = 128;
    const COSTLY: bool = false;
    const TOP: usize = 255;

    #[inline(always)]
    fn word<L: Lanes>(l: L, block: &[u8], _: usize, i: usize) -> L::Bytes {
        // The highest bit is turned over: without a carry, that is adding 128.
        let quants = word(l, block, 2, i);
        if L::SIGNED { quants } else { l.xor(quants, l.byte(0x80)) }
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8], _: usize, _: usize) -> (L::Floats, L::Floats) {
        (f16(l, block, 0), zero(l))
    }
}

/// Levels with a number added to each.
const fn levels(from: &[i8; 16], offset: i32) -> [u8; 16] {
    let mut levels = [0; 16];
    let mut i = 0;
    while i < 16 {
        levels[i] = (from[i] as i32 + offset) as u8;
        i += 1;
    }
    levels
}

/// Levels of indices.
#[inline(always)]
fn level<L: Lanes>(l: L, index: L::Bytes) -> L::Bytes {
    let levels =
        const { if L::SIGNED { &levels(&IQ4_LEVELS, 0) } else { &levels(&IQ4_LEVELS, 128) } };
    l.lookup(levels, index)
}

pub(super) struct Iq4Nl;

impl Format for Iq4Nl {
    const DTYPE: DType = DType::IQ4_NL;
    const OFFSET: i32 = 128;
    const TOP: usize = 255;

    #[inline(always)]
    fn word<L: Lanes>(l: L, block: &[u8], _: usize, i: usize) -> L::Bytes {
        level(l, nibble(l, block, 2, i))
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8], _: usize, _: usize) -> (L::Floats, L::Floats) {
        (f16(l, block, 0), zero(l))
    }
}

pub(super) struct Iq4Xs;

impl Format for Iq4Xs {
    const DTYPE: DType = DType::IQ4_XS;
    const OFFSET: i32 = 128;
    const TOP: usize = 255;

    #[inline(always)]
    fn word<L: Lanes>(l: L, block: &[u8], unit: usize, i: usize) -> L::Bytes {
        level(l, nibble(l, block, 8 + 16 * unit, i))
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8], unit: usize, _: usize) -> (L::Floats, L::Floats) {
        let low = l.ints_u8(part(block, 4 + unit / 2));
        let low = l.int_and(l.int_shr(low, 4 * (unit as u32 % 2)), l.int(15));
        let high = l.int_shr(l.ints_u16(part(block, 2)), 2 * unit as u32);
        let high = l.int_shl(l.int_and(high, l.int(3)), 4);
        let scale = l.int_add(l.int_add(low, high), l.int(-32));
        (l.mul(f16(l, block, 0), l.to_floats(scale)), zero(l))
    }
}

pub(super) struct Mxfp4;

impl Format for Mxfp4 {
    const DTYPE: DType = DType::MXFP4;
    const OFFSET: i32 = 12;
    const TOP: usize = 24;

    #[inline(always)]
    fn word<L: Lanes>(l: L, block: &[u8], _: usize, i: usize) -> L::Bytes {
        l.lookup(const { &levels(&MXFP4_LEVELS, 12) }, nibble(l, block, 1, i))
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8], _: usize, _: usize) -> (L::Floats, L::Floats) {
        let exponents: &[u8; 16] = part(block, 0);
        (l.floats(&exponents.map(BlockMxfp4::half_scale)), zero(l))
    }
}

/// A byte of each row as integers.
#[inline(always)]
fn bytes<L: Lanes>(l: L, block: &[u8], at: usize) -> L::Ints {
    l.ints_u8(part(block, at))
}

/// Six-bit scale and minimum of a Q4_K or Q5_K block, whose twelve bytes are at `at`.
#[inline(always)]
fn scale_and_min<L: Lanes>(l: L, block: &[u8], at: usize, unit: usize) -> (L::Floats, L::Floats) {
    let (scale, min) = if unit < 4 {
        let (scale, min) = (bytes(l, block, at + unit), bytes(l, block, at + unit + 4));
        (l.int_and(scale, l.int(63)), l.int_and(min, l.int(63)))
    } else {
        let both = bytes(l, block, at + unit + 4);
        let scale = l.int_and(bytes(l, block, at + unit - 4), l.int(0xc0));
        let min = l.int_and(bytes(l, block, at + unit), l.int(0xc0));
        let low = l.int_and(both, l.int(15));
        (l.int_add(low, l.int_shr(scale, 2)), l.int_add(l.int_shr(both, 4), l.int_shr(min, 2)))
    };
    let d = l.mul(f16(l, block, 0), l.to_floats(scale));
    let negative = l.mul(l.float(-1.0), f16(l, block, 2));
    (d, l.mul(negative, l.to_floats(min)))
}

pub(super) struct Q4K;

impl Format for Q4K {
    const DTYPE: DType = DType::Q4_K;
    const AFFINE: bool = true;
    const OFFSET: i32 = 0;
    const TOP: usize = 15;

    #[inline(always)]
    fn word<L: Lanes>(l: L, block: &[u8], unit: usize, i: usize) -> L::Bytes {
        half_byte(l, block, 16 + unit / 2 * 32, unit % 2 == 1, i)
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8], unit: usize, _: usize) -> (L::Floats, L::Floats) {
        scale_and_min(l, block, 4, unit)
    }
}

pub(super) struct Q5K;

impl Format for Q5K {
    const DTYPE: DType = DType::Q5_K;
    const AFFINE: bool = true;
    const OFFSET: i32 = 0;
    const TOP: usize = 31;

    #[inline(always)]
    fn word<L: Lanes>(l: L, block: &[u8], unit: usize, i: usize) -> L::Bytes {
        let low = half_byte(l, block, 48 + unit / 2 * 32, unit % 2 == 1, i);
        l.or(low, moved(l, word(l, block, 16, i), unit, 4, 0x10))
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8], unit: usize, _: usize) -> (L::Floats, L::Floats) {
        scale_and_min(l, block, 4, unit)
    }
}

/// Word `i` of the pairs of bits of run `unit`, moved to bit `to`: each four runs share 32 bytes.
#[inline(always)]
fn bit_pair<L: Lanes>(l: L, block: &[u8], at: usize, unit: usize, i: usize, to: usize) -> L::Bytes {
    let pairs = word(l, block, at + unit / 4 * 32, i);
    moved(l, pairs, 2 * (unit % 4), to, 3 << to)
}

pub(super) struct Q2K;

impl Format for Q2K {
    const DTYPE: DType = DType::Q2_K;
    const HALVES: bool = true;
    const AFFINE: bool = true;
    const OFFSET: i32 = 0;
    const TOP: usize = 3;

    #[inline(always)]
    fn word<L: Lanes>(l: L, block: &[u8], unit: usize, i: usize) -> L::Bytes {
        bit_pair(l, block, 16, unit, i, 0)
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8], unit: usize, half: usize) -> (L::Floats, L::Floats) {
        let both = l.ints_u8(part(block, 2 * unit + half));
        let (scale, min) = (l.int_and(both, l.int(15)), l.int_shr(both, 4));
        let negative = l.mul(l.float(-1.0), f16(l, block, 82));
        (l.mul(f16(l, block, 80), l.to_floats(scale)), l.mul(negative, l.to_floats(min)))
    }
}

pub(super) struct Q3K;

impl Format for Q3K {
    const DTYPE: DType = DType::Q3_K;
    const HALVES: bool = true;
    const OFFSET: i32 = 4;
    const TOP: usize = 7;

    #[inline(always)]
    fn word<L: Lanes>(l: L, block: &[u8], unit: usize, i: usize) -> L::Bytes {
        let high = moved(l, word(l, block, 0, i), unit, 2, 4);
        l.or(bit_pair(l, block, 32, unit, i, 0), high)
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8], unit: usize, half: usize) -> (L::Floats, L::Floats) {
        let i = 2 * unit + half;
        let low = l.int_shr(l.ints_u8(part(block, 96 + i % 8)), 4 * (i as u32 / 8));
        let high = l.int_shr(l.ints_u8(part(block, 104 + i % 4)), 2 * (i as u32 / 4));
        let high = l.int_shl(l.int_and(high, l.int(3)), 4);
        let scale = l.int_add(l.int_add(l.int_and(low, l.int(15)), high), l.int(-32));
        (l.mul(f16(l, block, 108), l.to_floats(scale)), zero(l))
    }
}

pub(super) struct Q6K;

impl Format for Q6K {
    const DTYPE: DType = DType::Q6_K;
    const HALVES: bool = true;
    const OFFSET: i32 = 32;
    const TOP: usize = 63;

    #[inline(always)]
    fn word<L: Lanes>(l: L, block: &[u8], unit: usize, i: usize) -> L::Bytes {
        let low = half_byte(l, block, unit / 4 * 64 + unit % 2 * 32, unit % 4 >= 2, i);
        l.or(low, bit_pair(l, block, 128, unit, i, 4))
    }

    #[inline(always)]
    fn scales<L: Lanes>(l: L, block: &[u8], unit: usize, half: usize) -> (L::Floats, L::Floats) {
        let scale = l.ints_i8(part(block, 192 + 2 * unit + half));
        (l.mul(f16(l, block, 208), l.to_floats(scale)), zero(l))
    }
}
