//! Q2_K to Q6_K: super-blocks of 256 weights whose sub-block scales are themselves quantised.
//!
//! Bit planes run over 32 weights at a time: plane `p` of a half of 128 weights is bits
//! `2 * p .. 2 * p + 2` of its 32 bytes.

use super::blocks::{
    BLOCK_256, BlockQ2K, BlockQ3K, BlockQ4K, BlockQ5K, BlockQ6K, pack_scale_mins, unpack_scale_mins,
};
use super::fit_affine::{AffineCode, encode_affine};
use super::fit_signed::{Linear, SignedCode, encode_signed};
use super::{Block, f16_value};

impl Block<BLOCK_256> for BlockQ2K {
    fn decode(&self, out: &mut [f32; BLOCK_256]) {
        let (d, dmin) = (f16_value(self.d), f16_value(self.dmin));
        let q = unpack_pairs(&self.qs);
        for ((out, q), packed) in out.chunks_exact_mut(16).zip(q.chunks_exact(16)).zip(self.scales)
        {
            let (scale, min) = (d * f32::from(packed & 15), dmin * f32::from(packed >> 4));
            affine(out, q, scale, min);
        }
    }

    fn encode(x: &[f32; BLOCK_256]) -> Option<Self> {
        let AffineCode { d, dmin, scales, mins, quants } = encode_affine::<16>(x, 3.0, 15.0)?;
        Some(Self {
            scales: std::array::from_fn(|i| scales[i] | mins[i] << 4),
            qs: pack_pairs(&quants),
            d: d.to_le_bytes(),
            dmin: dmin.to_le_bytes(),
        })
    }
}

impl Block<BLOCK_256> for BlockQ3K {
    fn decode(&self, out: &mut [f32; BLOCK_256]) {
        let d = f16_value(self.d);
        let q = unpack_threes(self);
        for ((out, q), scale) in out.chunks_exact_mut(16).zip(q.chunks_exact(16)).zip(self.scales())
        {
            signed(out, q, d * (i32::from(scale) - 32) as f32, 4);
        }
    }

    fn encode(x: &[f32; BLOCK_256]) -> Option<Self> {
        let SignedCode { d, scales, quants } = encode_signed::<16, Linear<4>>(x, -32.0)?;
        let mut hmask = [0; 32];
        for (i, q) in quants.iter().enumerate() {
            hmask[i % 32] |= (q >> 2) << (i / 32);
        }
        Some(Self {
            hmask,
            qs: pack_pairs(&quants),
            scales: Self::pack_scales(scales.map(|s| (i32::from(s) + 32) as u8)),
            d: d.to_le_bytes(),
        })
    }
}

impl Block<BLOCK_256> for BlockQ4K {
    fn decode(&self, out: &mut [f32; BLOCK_256]) {
        let q = unpack_nibble_runs(&self.qs);
        decode_scale_mins(out, &q, [self.d, self.dmin], &self.scales);
    }

    fn encode(x: &[f32; BLOCK_256]) -> Option<Self> {
        let AffineCode { d, dmin, scales, mins, quants } = encode_affine::<8>(x, 15.0, 63.0)?;
        Some(Self {
            d: d.to_le_bytes(),
            dmin: dmin.to_le_bytes(),
            scales: pack_scale_mins(&scales, &mins),
            qs: pack_nibble_runs(&quants),
        })
    }
}

impl Block<BLOCK_256> for BlockQ5K {
    fn decode(&self, out: &mut [f32; BLOCK_256]) {
        let q = unpack_five_runs(self);
        decode_scale_mins(out, &q, [self.d, self.dmin], &self.scales);
    }

    fn encode(x: &[f32; BLOCK_256]) -> Option<Self> {
        let AffineCode { d, dmin, scales, mins, quants } = encode_affine::<8>(x, 31.0, 63.0)?;
        let mut qh = [0; 32];
        for (i, q) in quants.iter().enumerate() {
            qh[i % 32] |= (q >> 4) << (i / 32);
        }
        Some(Self {
            d: d.to_le_bytes(),
            dmin: dmin.to_le_bytes(),
            scales: pack_scale_mins(&scales, &mins),
            qh,
            qs: pack_nibble_runs(&quants),
        })
    }
}

impl Block<BLOCK_256> for BlockQ6K {
    fn decode(&self, out: &mut [f32; BLOCK_256]) {
        let d = f16_value(self.d);
        let q = unpack_sixes(self);
        for ((out, q), scale) in out.chunks_exact_mut(16).zip(q.chunks_exact(16)).zip(self.scales) {
            signed(out, q, d * f32::from(scale), 32);
        }
    }

    fn encode(x: &[f32; BLOCK_256]) -> Option<Self> {
        let SignedCode { d, scales, quants } = encode_signed::<16, Linear<32>>(x, -128.0)?;
        let mut ql = [0; 128];
        for (i, q) in quants.iter().enumerate() {
            let (byte, shift) = sixes_low(i);
            ql[byte] |= (q & 15) << shift;
        }
        Some(Self { ql, qh: pack_pairs(&quants.map(|q| q >> 4)), scales, d: d.to_le_bytes() })
    }
}

/// The codes of a Q3_K block.
pub(super) fn unpack_threes(block: &BlockQ3K) -> [u8; BLOCK_256] {
    let mut q = unpack_pairs(&block.qs);
    for (i, q) in q.iter_mut().enumerate() {
        *q |= (block.hmask[i % 32] >> (i / 32) & 1) << 2;
    }
    q
}

/// The codes of a Q5_K block.
pub(super) fn unpack_five_runs(block: &BlockQ5K) -> [u8; BLOCK_256] {
    let mut q = unpack_nibble_runs(&block.qs);
    for (i, q) in q.iter_mut().enumerate() {
        *q |= (block.qh[i % 32] >> (i / 32) & 1) << 4;
    }
    q
}

/// The codes of a Q6_K block.
pub(super) fn unpack_sixes(block: &BlockQ6K) -> [u8; BLOCK_256] {
    let mut q = unpack_pairs(&block.qh).map(|high| high << 4);
    for (i, q) in q.iter_mut().enumerate() {
        let (byte, shift) = sixes_low(i);
        *q |= block.ql[byte] >> shift & 15;
    }
    q
}

/// Where the lower four bits of weight `i` of a Q6_K block lie: byte of `ql` and shift.
fn sixes_low(i: usize) -> (usize, usize) {
    (i / 128 * 64 + i % 64, i % 128 / 64 * 4)
}

/// Sub-blocks of 32 weights with the 6-bit scales and minimums of Q4_K and Q5_K.
fn decode_scale_mins(
    out: &mut [f32; BLOCK_256],
    q: &[u8; BLOCK_256],
    [d, dmin]: [[u8; 2]; 2],
    packed: &[u8; 12],
) {
    let (d, dmin) = (f16_value(d), f16_value(dmin));
    let (scales, mins) = unpack_scale_mins(packed);
    let runs = out.chunks_exact_mut(32).zip(q.chunks_exact(32));
    for ((out, q), (scale, min)) in runs.zip(scales.into_iter().zip(mins)) {
        affine(out, q, d * f32::from(scale), dmin * f32::from(min));
    }
}

fn affine(out: &mut [f32], q: &[u8], scale: f32, min: f32) {
    for (y, &q) in out.iter_mut().zip(q) {
        *y = scale * f32::from(q) - min;
    }
}

fn signed(out: &mut [f32], q: &[u8], scale: f32, zero: i32) {
    for (y, &q) in out.iter_mut().zip(q) {
        *y = scale * (i32::from(q) - zero) as f32;
    }
}

/// Two bits per weight, in planes of 32 weights.
pub(super) fn unpack_pairs(qs: &[u8; 64]) -> [u8; BLOCK_256] {
    std::array::from_fn(|i| qs[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3)
}

/// The inverse of [`unpack_pairs`]; higher bits are dropped.
fn pack_pairs(q: &[u8; BLOCK_256]) -> [u8; 64] {
    let mut qs = [0; 64];
    for (i, q) in q.iter().enumerate() {
        qs[i / 128 * 32 + i % 32] |= (q & 3) << (i % 128 / 32 * 2);
    }
    qs
}

/// Four bits per weight: each run of 32 bytes holds 32 weights below and the next 32 above.
pub(super) fn unpack_nibble_runs(qs: &[u8; 128]) -> [u8; BLOCK_256] {
    std::array::from_fn(|i| qs[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15)
}

/// The inverse of [`unpack_nibble_runs`]; higher bits are dropped.
fn pack_nibble_runs(q: &[u8; BLOCK_256]) -> [u8; 128] {
    let mut qs = [0; 128];
    for (i, q) in q.iter().enumerate() {
        qs[i / 64 * 32 + i % 32] |= (q & 15) << (i % 64 / 32 * 4);
    }
    qs
}
