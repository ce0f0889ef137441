//! IQ4_NL and IQ4_XS: 4-bit quants that index sixteen levels, denser around zero.

use super::blocks::{BLOCK_32, BLOCK_256, BlockIq4Nl, BlockIq4Xs, IQ4_LEVELS};
use super::fit_signed::{Grid, SignedCode, encode_one, encode_signed};
use super::legacy::{pack_nibbles, unpack_nibbles};
use super::{Block, f16_value};

impl Block<BLOCK_32> for BlockIq4Nl {
    fn decode(&self, out: &mut [f32; BLOCK_32]) {
        let d = f16_value(self.d);
        for (y, q) in out.iter_mut().zip(unpack_nibbles(&self.qs)) {
            *y = d * level(q);
        }
    }

    fn encode(x: &[f32; BLOCK_32]) -> Option<Self> {
        let (d, quants) = encode_one::<Levels>(x)?;
        Some(Self { d: d.to_le_bytes(), qs: pack_nibbles(&quants) })
    }
}

impl Block<BLOCK_256> for BlockIq4Xs {
    fn decode(&self, out: &mut [f32; BLOCK_256]) {
        let d = f16_value(self.d);
        let (out, _) = out.as_chunks_mut::<BLOCK_32>();
        let (qs, _) = self.qs.as_chunks::<16>();
        for ((out, qs), scale) in out.iter_mut().zip(qs).zip(self.scales()) {
            let scale = d * (i32::from(scale) - 32) as f32;
            for (y, q) in out.iter_mut().zip(unpack_nibbles(qs)) {
                *y = scale * level(q);
            }
        }
    }

    fn encode(x: &[f32; BLOCK_256]) -> Option<Self> {
        let SignedCode { d, scales, quants } = encode_signed::<8, Levels>(x, -32.0)?;
        let mut block =
            Self { d: d.to_le_bytes(), scales_h: [0; 2], scales_l: [0; 4], qs: [0; 128] };
        let mut high = 0;
        for (i, scale) in scales.into_iter().enumerate() {
            let stored = (i32::from(scale) + 32) as u8;
            block.scales_l[i / 2] |= (stored & 15) << (4 * (i % 2));
            high |= u16::from(stored >> 4) << (2 * i);
        }
        block.scales_h = high.to_le_bytes();
        let (quants, _) = quants.as_chunks::<BLOCK_32>();
        for (qs, q) in block.qs.chunks_exact_mut(16).zip(quants) {
            qs.copy_from_slice(&pack_nibbles(q));
        }
        Some(block)
    }
}

/// The level of a 4-bit quant.
fn level(q: u8) -> f32 {
    f32::from(IQ4_LEVELS[usize::from(q & 15)])
}

/// The levels as a grid to fit a scale to.
struct Levels;

impl Levels {
    /// Index of the level nearest to any number in `[-128 + k / 2, -128 + (k + 1) / 2)`.
    ///
    /// Midpoints of neighbouring levels are multiples of a half, so none lies inside such an interval.
    const NEAREST: [u8; 512] = {
        let mut table = [0; 512];
        let mut q = 0;
        let mut k = 0;
        while k < 512 {
            // Everything in quarters: the middle of the interval against the next midpoint.
            let middle = 2 * k as i32 - 511;
            while q < 15 && 2 * (IQ4_LEVELS[q] as i32 + IQ4_LEVELS[q + 1] as i32) < middle {
                q += 1;
            }
            table[k] = q as u8;
            k += 1;
        }
        table
    };
}

impl Grid for Levels {
    const PEAKS: [f32; 2] = [-127.0, 113.0];
    const STEP: f32 = 4.0;

    fn index(v: f32) -> u8 {
        // In range for any `v`, and for NaN, since the cast saturates.
        Self::NEAREST[((v + 128.0) * 2.0).min(511.0) as usize]
    }

    fn snap(v: f32) -> f32 {
        level(Self::index(v))
    }
}
