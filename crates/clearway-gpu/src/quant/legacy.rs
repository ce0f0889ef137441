//! Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: one scale, and for the `_1` types one minimum, per 32 weights.
//!
//! The encoders give the bytes of ggml's reference: the scale maps the largest magnitude (or the
//! range) onto the outermost quant, and quants are rounded with the scale *before* it becomes f16.

use super::blocks::{BLOCK_32, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0};
use super::{Block, f16_value, finite_f16};

impl Block<BLOCK_32> for BlockQ4_0 {
    fn decode(&self, out: &mut [f32; BLOCK_32]) {
        let d = f16_value(self.d);
        for (y, q) in out.iter_mut().zip(unpack_nibbles(&self.qs)) {
            *y = d * (i32::from(q) - 8) as f32;
        }
    }

    fn encode(x: &[f32; BLOCK_32]) -> Option<Self> {
        let d = peak(x) / -8.0;
        let inverse = inverse_or_zero(d);
        let q = x.map(|v| ((v * inverse + 8.5) as u8).min(15));
        Some(Self { d: finite_f16(d)?.to_le_bytes(), qs: pack_nibbles(&q) })
    }
}

impl Block<BLOCK_32> for BlockQ4_1 {
    fn decode(&self, out: &mut [f32; BLOCK_32]) {
        let (d, m) = (f16_value(self.d), f16_value(self.m));
        for (y, q) in out.iter_mut().zip(unpack_nibbles(&self.qs)) {
            *y = d * f32::from(q) + m;
        }
    }

    fn encode(x: &[f32; BLOCK_32]) -> Option<Self> {
        let (min, max) = range(x);
        let d = (max - min) / 15.0;
        let inverse = inverse_or_zero(d);
        let q = x.map(|v| (((v - min) * inverse + 0.5) as u8).min(15));
        Some(Self {
            d: finite_f16(d)?.to_le_bytes(),
            m: finite_f16(min)?.to_le_bytes(),
            qs: pack_nibbles(&q),
        })
    }
}

impl Block<BLOCK_32> for BlockQ5_0 {
    fn decode(&self, out: &mut [f32; BLOCK_32]) {
        let d = f16_value(self.d);
        for (y, q) in out.iter_mut().zip(unpack_fives(&self.qs, self.qh)) {
            *y = d * (i32::from(q) - 16) as f32;
        }
    }

    fn encode(x: &[f32; BLOCK_32]) -> Option<Self> {
        let d = peak(x) / -16.0;
        let inverse = inverse_or_zero(d);
        let q = x.map(|v| ((v * inverse + 16.5) as u8).min(31));
        Some(Self {
            d: finite_f16(d)?.to_le_bytes(),
            qh: pack_fifth_bits(&q),
            qs: pack_nibbles(&q),
        })
    }
}

impl Block<BLOCK_32> for BlockQ5_1 {
    fn decode(&self, out: &mut [f32; BLOCK_32]) {
        let (d, m) = (f16_value(self.d), f16_value(self.m));
        for (y, q) in out.iter_mut().zip(unpack_fives(&self.qs, self.qh)) {
            *y = d * f32::from(q) + m;
        }
    }

    fn encode(x: &[f32; BLOCK_32]) -> Option<Self> {
        let (min, max) = range(x);
        let d = (max - min) / 31.0;
        let inverse = inverse_or_zero(d);
        let q = x.map(|v| (((v - min) * inverse + 0.5) as u8).min(31));
        Some(Self {
            d: finite_f16(d)?.to_le_bytes(),
            m: finite_f16(min)?.to_le_bytes(),
            qh: pack_fifth_bits(&q),
            qs: pack_nibbles(&q),
        })
    }
}

impl Block<BLOCK_32> for BlockQ8_0 {
    fn decode(&self, out: &mut [f32; BLOCK_32]) {
        let d = f16_value(self.d);
        for (y, q) in out.iter_mut().zip(self.qs) {
            *y = d * f32::from(q);
        }
    }

    fn encode(x: &[f32; BLOCK_32]) -> Option<Self> {
        let d = peak(x).abs() / 127.0;
        let inverse = inverse_or_zero(d);
        // Ties away from zero, as the reference rounds this type.
        let qs = x.map(|v| (v * inverse).round() as i8);
        Some(Self { d: finite_f16(d)?.to_le_bytes(), qs })
    }
}

/// Nibbles of a block: weight `j` below, weight `j + 16` above.
pub(super) fn unpack_nibbles(qs: &[u8; 16]) -> [u8; BLOCK_32] {
    let mut q = [0; BLOCK_32];
    for (j, byte) in qs.iter().enumerate() {
        q[j] = byte & 15;
        q[j + 16] = byte >> 4;
    }
    q
}

/// The inverse of [`unpack_nibbles`]; higher bits are dropped.
pub(super) fn pack_nibbles(q: &[u8; BLOCK_32]) -> [u8; 16] {
    std::array::from_fn(|j| q[j] & 15 | q[j + 16] << 4)
}

pub(super) fn unpack_fives(qs: &[u8; 16], qh: [u8; 4]) -> [u8; BLOCK_32] {
    let high = u32::from_le_bytes(qh);
    let mut q = unpack_nibbles(qs);
    for (j, q) in q.iter_mut().enumerate() {
        *q |= ((high >> j & 1) as u8) << 4;
    }
    q
}

fn pack_fifth_bits(q: &[u8; BLOCK_32]) -> [u8; 4] {
    let bits = q.iter().enumerate().map(|(j, &q)| u32::from(q >> 4 & 1) << j);
    bits.fold(0, |word, bit| word | bit).to_le_bytes()
}

/// The first element of the largest magnitude, with its sign.
pub(super) fn peak(x: &[f32]) -> f32 {
    x.iter().fold(0.0_f32, |best, &v| if v.abs() > best.abs() { v } else { best })
}

fn range(x: &[f32; BLOCK_32]) -> (f32, f32) {
    x.iter().fold((x[0], x[0]), |(lo, hi), &v| (lo.min(v), hi.max(v)))
}

/// `1 / d`, or zero where that is not finite: such a scale is zero as f16, and a product of zero and
/// infinity would be NaN.
fn inverse_or_zero(d: f32) -> f32 {
    let inverse = 1.0 / d;
    if inverse.is_finite() { inverse } else { 0.0 }
}
