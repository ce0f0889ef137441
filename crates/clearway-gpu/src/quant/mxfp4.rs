//! MXFP4: 4-bit floats under a power of two.

use super::Block;
use super::blocks::{BLOCK_32, BlockMxfp4, MXFP4_LEVELS};
use super::legacy::{pack_nibbles, unpack_nibbles};

impl Block<BLOCK_32> for BlockMxfp4 {
    fn decode(&self, out: &mut [f32; BLOCK_32]) {
        let d = Self::half_scale(self.e);
        for (y, q) in out.iter_mut().zip(unpack_nibbles(&self.qs)) {
            *y = d * level(q);
        }
    }

    /// There is a block for all finite weights: the exponents reach as far as those of f32.
    fn encode(x: &[f32; BLOCK_32]) -> Option<Self> {
        let mut best = Self { e: 0, qs: [0; 16] };
        let mut best_error = f64::INFINITY;
        for e in candidates(x) {
            let block = with_exponent(x, e);
            let error = squared_error(x, &block);
            if error < best_error {
                (best, best_error) = (block, error);
            }
        }
        Some(best)
    }
}

/// The value of a nibble, doubled.
fn level(q: u8) -> f32 {
    f32::from(MXFP4_LEVELS[usize::from(q & 15)])
}

/// Exponents that may give the least error: under the first all weights fit, under each further one the
/// largest is cut off by more and the small ones are finer.
fn candidates(x: &[f32; BLOCK_32]) -> impl Iterator<Item = u8> {
    let largest = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    let fits = |e: &u8| BlockMxfp4::half_scale(*e) * 12.0 >= largest;
    // The last exponents cannot hold their largest level in an f32.
    let first = (0..=252).find(fits).unwrap_or(252);
    (first.saturating_sub(3)..=first).rev()
}

fn with_exponent(x: &[f32; BLOCK_32], e: u8) -> BlockMxfp4 {
    let d = f64::from(BlockMxfp4::half_scale(e));
    let quants: [u8; BLOCK_32] = std::array::from_fn(|i| nearest(f64::from(x[i]) / d));
    BlockMxfp4 { e, qs: pack_nibbles(&quants) }
}

/// The nibble of the nearest level; of two the smaller one.
fn nearest(v: f64) -> u8 {
    let miss = |q: u8| (v.abs() - f64::from(level(q))).abs();
    let size = (1..8).fold(0, |best, q| if miss(q) < miss(best) { q } else { best });
    if v < 0.0 && size > 0 { size | 8 } else { size }
}

fn squared_error(x: &[f32; BLOCK_32], block: &BlockMxfp4) -> f64 {
    let mut back = [0.0; BLOCK_32];
    block.decode(&mut back);
    x.iter().zip(back).map(|(&x, y)| (f64::from(x) - f64::from(y)).powi(2)).sum()
}
