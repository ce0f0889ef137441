//! The block layouts, byte for byte those of GGUF files.
//!
//! Every field is made of bytes, so a block has alignment 1 and no padding and may be viewed at any
//! offset of a mapped file. Multi-byte numbers are little-endian. "Low nibbles first" means that
//! byte `j` of a run of `n` bytes holds weight `j` below and weight `j + n` above.

use bytemuck::{Pod, Zeroable};
use clearway_graph::DType;

/// Weights of one block of the types with a single scale.
pub const BLOCK_32: usize = 32;

/// Weights of one super-block of the K types and of IQ4_XS.
pub const BLOCK_256: usize = 256;

/// The sixteen levels that the quants of IQ4_NL and IQ4_XS index.
pub const IQ4_LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the sixteen values that a nibble of MXFP4 stands for: a sign, two bits of exponent and one of
/// mantissa. Both zeros are plain ones.
pub const MXFP4_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 32 weights `d * (q - 8)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// 4-bit quants, low nibbles first.
    pub qs: [u8; 16],
}

/// 32 weights `d * q + m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4_1 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Minimum, f16.
    pub m: [u8; 2],
    /// 4-bit quants, low nibbles first.
    pub qs: [u8; 16],
}

/// 32 weights `d * (q - 16)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Fifth bits: bit `j` of the little-endian word belongs to weight `j`.
    pub qh: [u8; 4],
    /// Lower four bits, low nibbles first.
    pub qs: [u8; 16],
}

/// 32 weights `d * q + m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5_1 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Minimum, f16.
    pub m: [u8; 2],
    /// Fifth bits: bit `j` of the little-endian word belongs to weight `j`.
    pub qh: [u8; 4],
    /// Lower four bits, low nibbles first.
    pub qs: [u8; 16],
}

/// 32 weights `d * q`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ8_0 {
    /// Scale, f16.
    pub d: [u8; 2],
    /// Signed quants.
    pub qs: [i8; 32],
}

/// 256 weights `d * scale * q - dmin * min`, in 16 sub-blocks of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ2K {
    /// Per sub-block: scale in the low nibble, minimum in the high one.
    pub scales: [u8; 16],
    /// 2-bit quants: each half of 128 weights takes 32 bytes, 32 weights per bit pair.
    pub qs: [u8; 64],
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Scale of the minimums, f16.
    pub dmin: [u8; 2],
}

/// 256 weights `d * (scale - 32) * (q - 4)`, in 16 sub-blocks of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ3K {
    /// Third bits: bit `k` of byte `l` belongs to weight `32 * k + l`.
    pub hmask: [u8; 32],
    /// Lower two bits: each half of 128 weights takes 32 bytes, 32 weights per bit pair.
    pub qs: [u8; 64],
    /// 6-bit scales; see [`BlockQ3K::scales`].
    pub scales: [u8; 12],
    /// Scale of the scales, f16.
    pub d: [u8; 2],
}

/// 256 weights `d * scale * q - dmin * min`, in 8 sub-blocks of 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4K {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Scale of the minimums, f16.
    pub dmin: [u8; 2],
    /// 6-bit scales and minimums; see [`unpack_scale_mins`].
    pub scales: [u8; 12],
    /// 4-bit quants, low nibbles first in runs of 32 bytes.
    pub qs: [u8; 128],
}

/// 256 weights `d * scale * q - dmin * min`, in 8 sub-blocks of 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ5K {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Scale of the minimums, f16.
    pub dmin: [u8; 2],
    /// 6-bit scales and minimums; see [`unpack_scale_mins`].
    pub scales: [u8; 12],
    /// Fifth bits: bit `k` of byte `l` belongs to weight `32 * k + l`.
    pub qh: [u8; 32],
    /// Lower four bits, low nibbles first in runs of 32 bytes.
    pub qs: [u8; 128],
}

/// 256 weights `d * scale * (q - 32)`, in 16 sub-blocks of 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ6K {
    /// Lower four bits: each half of 128 weights takes 64 bytes, low nibbles first.
    pub ql: [u8; 128],
    /// Upper two bits: each half of 128 weights takes 32 bytes, 32 weights per bit pair.
    pub qh: [u8; 64],
    /// Signed scales of the sub-blocks.
    pub scales: [i8; 16],
    /// Scale of the scales, f16.
    pub d: [u8; 2],
}

/// 32 weights `d * IQ4_LEVELS[q]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq4Nl {
    /// Scale, f16.
    pub d: [u8; 2],
    /// 4-bit quants, low nibbles first.
    pub qs: [u8; 16],
}

/// 256 weights `d * (scale - 32) * IQ4_LEVELS[q]`, in 8 sub-blocks of 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq4Xs {
    /// Scale of the scales, f16.
    pub d: [u8; 2],
    /// Upper two bits of the 6-bit scales, sub-block 0 in the lowest bits of the word.
    pub scales_h: [u8; 2],
    /// Lower four bits of the scales, even sub-blocks in the low nibbles.
    pub scales_l: [u8; 4],
    /// 4-bit quants, low nibbles first in runs of 16 bytes.
    pub qs: [u8; 128],
}

/// 32 weights `d * MXFP4_LEVELS[q]`, where `d` is [`half_scale`](Self::half_scale).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockMxfp4 {
    /// Exponent `e` of the scale `2^(e - 127)`; 255 is not a number.
    pub e: u8,
    /// 4-bit floats, low nibbles first.
    pub qs: [u8; 16],
}

impl BlockQ3K {
    /// The sixteen scales as stored, 0..64; their meaning is 32 less.
    ///
    /// Scale `i` has its lower four bits in the nibbles of bytes 0..8 (the upper eight scales in the
    /// high nibbles) and its upper two in bits `2 * (i / 4)` of byte `8 + i % 4`.
    pub fn scales(&self) -> [u8; 16] {
        std::array::from_fn(|i| {
            let low = self.scales[i % 8] >> (4 * (i / 8)) & 15;
            let high = self.scales[8 + i % 4] >> (2 * (i / 4)) & 3;
            low | high << 4
        })
    }

    /// The inverse of [`BlockQ3K::scales`]; only the lower six bits of each scale count.
    pub fn pack_scales(scales: [u8; 16]) -> [u8; 12] {
        let mut packed = [0; 12];
        for (i, s) in scales.into_iter().enumerate() {
            packed[i % 8] |= (s & 15) << (4 * (i / 8));
            packed[8 + i % 4] |= (s >> 4 & 3) << (2 * (i / 4));
        }
        packed
    }
}

impl BlockMxfp4 {
    /// Half the scale, `2^(e - 128)`, for levels that are doubled.
    ///
    /// Every exponent but 255 has its exact value: those of 0 and 1 are subnormal. By the definition of
    /// the format 255 is NaN, and so are all weights of its block.
    #[inline(always)] // in the products of every instruction set
    pub const fn half_scale(e: u8) -> f32 {
        f32::from_bits(match e {
            0 | 1 => 1 << (21 + e),
            255 => 0x7fc0_0000,
            2..=254 => (e as u32 - 1) << 23,
        })
    }
}

impl BlockIq4Xs {
    /// The eight scales as stored, 0..64; their meaning is 32 less.
    pub fn scales(&self) -> [u8; 8] {
        let high = u16::from_le_bytes(self.scales_h);
        std::array::from_fn(|i| {
            let low = self.scales_l[i / 2] >> (4 * (i % 2)) & 15;
            low | ((high >> (2 * i) & 3) as u8) << 4
        })
    }
}

/// The 6-bit scales and minimums of a Q4_K or Q5_K block.
///
/// Those of sub-blocks 0..4 fill the lower six bits of bytes 0..4 and 4..8; those of 4..8 have their
/// lower four bits in the nibbles of bytes 8..12 and their upper two on top of bytes 0..8.
pub fn unpack_scale_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for i in 0..4 {
        scales[i] = packed[i] & 63;
        mins[i] = packed[i + 4] & 63;
        scales[i + 4] = packed[i + 8] & 15 | packed[i] >> 6 << 4;
        mins[i + 4] = packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4;
    }
    (scales, mins)
}

/// The inverse of [`unpack_scale_mins`]; every number must be below 64.
pub fn pack_scale_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for i in 0..4 {
        packed[i] = scales[i] & 63 | scales[i + 4] >> 4 << 6;
        packed[i + 4] = mins[i] & 63 | mins[i + 4] >> 4 << 6;
        packed[i + 8] = scales[i + 4] & 15 | mins[i + 4] << 4;
    }
    packed
}

const _: () = {
    assert!(size_of::<BlockQ4_0>() == DType::Q4_0.block_bytes());
    assert!(size_of::<BlockQ4_1>() == DType::Q4_1.block_bytes());
    assert!(size_of::<BlockQ5_0>() == DType::Q5_0.block_bytes());
    assert!(size_of::<BlockQ5_1>() == DType::Q5_1.block_bytes());
    assert!(size_of::<BlockQ8_0>() == DType::Q8_0.block_bytes());
    assert!(size_of::<BlockQ2K>() == DType::Q2_K.block_bytes());
    assert!(size_of::<BlockQ3K>() == DType::Q3_K.block_bytes());
    assert!(size_of::<BlockQ4K>() == DType::Q4_K.block_bytes());
    assert!(size_of::<BlockQ5K>() == DType::Q5_K.block_bytes());
    assert!(size_of::<BlockQ6K>() == DType::Q6_K.block_bytes());
    assert!(size_of::<BlockIq4Nl>() == DType::IQ4_NL.block_bytes());
    assert!(size_of::<BlockIq4Xs>() == DType::IQ4_XS.block_bytes());
    assert!(size_of::<BlockMxfp4>() == DType::MXFP4.block_bytes());
};
