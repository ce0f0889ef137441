//! What the two scale searches share: limits, rounding and sums.

use half::f16;

use super::blocks::BLOCK_256;
use super::finite_f16;

/// Beyond what any format holds (Q6_K: 65504 * 128 * 32); below it no sum of squares overflows.
pub(super) const LARGEST: f32 = 3e8;

/// The sub-blocks of a super-block.
pub(super) fn subs<const SUBS: usize>(x: &[f32; BLOCK_256]) -> impl Iterator<Item = &[f32]> {
    x.chunks_exact(BLOCK_256 / SUBS)
}

/// The f16 nearest to `largest / steps`, or the next one if `largest` would round to more than
/// `steps` of it, as happens among subnormals; `None` when it is beyond f16.
pub(super) fn common_scale(largest: f32, steps: f32) -> Option<f16> {
    let nearest = finite_f16(largest / steps)?;
    let beyond = largest / nearest.to_f32() / steps > 1.0 + 0.5 / steps.abs();
    Some(if beyond { higher(nearest) } else { nearest })
}

/// The neighbour of next larger magnitude.
pub(super) fn higher(v: f16) -> f16 {
    f16::from_bits(v.to_bits() + 1)
}

/// The neighbour of next smaller magnitude; zero for zero.
pub(super) fn lower(v: f16) -> f16 {
    if v == f16::ZERO { v } else { f16::from_bits(v.to_bits() - 1) }
}

/// Rounds to the nearest integer of `low..=high`, both below 2^22, ties to even; NaN gives `low`,
/// so that the zeros of a run without extent, times its infinite inverse scale, do no harm.
///
/// Adding a number this large leaves no fraction bits; unlike `f32::round` that vectorises on every
/// target, as do the comparisons, which unlike `f32::clamp` do not let NaN pass.
pub(super) fn round_within(v: f32, low: f32, high: f32) -> f32 {
    const ALIGN: f32 = 1.5 * (1_u32 << 23) as f32;
    let v = if v > low { v } else { low };
    let v = if v < high { v } else { high };
    (v + ALIGN) - ALIGN
}

/// Sums of the terms of every weight, in eight lanes so that the additions vectorise.
pub(super) fn lane_sums<const K: usize>(x: &[f32], terms: impl Fn(f32) -> [f32; K]) -> [f32; K] {
    const LANES: usize = 8;
    let mut sums = [[0.0; LANES]; K];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &v) in chunk.iter().enumerate() {
            for (sums, term) in sums.iter_mut().zip(terms(v)) {
                sums[lane] += term;
            }
        }
    }
    for &v in rest {
        for (sums, term) in sums.iter_mut().zip(terms(v)) {
            sums[0] += term;
        }
    }
    sums.map(|lanes| lanes.iter().sum())
}
