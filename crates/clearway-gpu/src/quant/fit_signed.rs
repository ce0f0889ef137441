//! Encoding of `d * scale * level`: the search for scales of least squared error, where the levels
//! are a fixed grid around zero.
//!
//! Each sub-block is first fitted alone with a real-valued scale; then the scales become integers of
//! a common `d`, where neighbouring integers are tried; then `d` is fitted to those integers, and the
//! last two steps repeat while they gain. No grid here is symmetric, so a negative scale is a
//! different grid, and both are tried.

use half::f16;

use super::blocks::{BLOCK_32, BLOCK_256};
use super::finite_f16;
use super::legacy::peak;

/// Beyond what any format holds (Q6_K: 65504 * 128 * 32); below it no sum of squares overflows.
pub(super) const LARGEST: f32 = 3e8;

/// How often common scales are fitted again.
pub(super) const ROUNDS: usize = 3;

/// The levels that a quant stands for.
pub(super) trait Grid {
    /// The outermost levels.
    const PEAKS: [f32; 2];
    /// How much the image of the largest weight moves from one candidate to the next.
    const STEP: f32;

    /// The nearest quant.
    fn index(v: f32) -> u8;
    /// The nearest level.
    fn snap(v: f32) -> f32;
}

/// Consecutive integers `-ZERO..ZERO`.
pub(super) struct Linear<const ZERO: i32>;

impl<const ZERO: i32> Grid for Linear<ZERO> {
    const PEAKS: [f32; 2] = [-ZERO as f32, (ZERO - 1) as f32];
    const STEP: f32 = 0.2;

    fn index(v: f32) -> u8 {
        (Self::snap(v) + ZERO as f32) as u8
    }

    fn snap(v: f32) -> f32 {
        round_within(v, Self::PEAKS[0], Self::PEAKS[1])
    }
}

/// An encoded super-block before packing.
pub(super) struct SignedCode<const SUBS: usize> {
    pub(super) d: f16,
    pub(super) scales: [i8; SUBS],
    pub(super) quants: [u8; BLOCK_256],
}

/// Encodes with integer scales `lowest..-lowest`; `None` when `d` is beyond f16.
pub(super) fn encode_signed<const SUBS: usize, G: Grid>(
    x: &[f32; BLOCK_256],
    lowest: f32,
) -> Option<SignedCode<SUBS>> {
    if peak(x).abs() > LARGEST {
        return None;
    }
    let mut fitted = [0.0; SUBS];
    for (scale, x) in fitted.iter_mut().zip(subs::<SUBS>(x)) {
        *scale = fit_scale::<G>(x);
    }
    let mut d = common_scale(peak(&fitted) / lowest)?;
    let mut best = (d, [0; SUBS]);
    let mut best_error = f32::INFINITY;
    for _ in 0..ROUNDS {
        let (scales, error) = nearest_scales::<SUBS, G>(x, &fitted, d, lowest);
        if error < best_error {
            (best, best_error) = ((d, scales), error);
        }
        match refit::<SUBS, G>(x, &scales, d) {
            Some(refit) if refit != d => d = refit,
            _ => break,
        }
    }
    let (d, scales) = best;
    let mut quants = [0; BLOCK_256];
    let runs = quants
        .chunks_exact_mut(BLOCK_256 / SUBS)
        .zip(subs::<SUBS>(x));
    for ((q, x), &scale) in runs.zip(&scales) {
        quantise::<G>(x, d.to_f32() * f32::from(scale), q);
    }
    Some(SignedCode { d, scales, quants })
}

/// Encodes 32 weights with one f16 scale; `None` when it is beyond f16.
pub(super) fn encode_one<G: Grid>(x: &[f32; BLOCK_32]) -> Option<(f16, [u8; BLOCK_32])> {
    if peak(x).abs() > LARGEST {
        return None;
    }
    let d = common_scale(fit_scale::<G>(x))?;
    let mut quants = [0; BLOCK_32];
    quantise::<G>(x, d.to_f32(), &mut quants);
    Some((d, quants))
}

/// Rounds a scale to f16, away from zero where it would vanish; `None` when it is beyond f16.
pub(super) fn common_scale(value: f32) -> Option<f16> {
    let rounded = finite_f16(value)?;
    if rounded == f16::ZERO && value != 0.0 {
        return Some(f16::MIN_POSITIVE_SUBNORMAL.copysign(f16::from_f32(value.signum())));
    }
    Some(rounded)
}

/// The scale of least error found for a run of weights.
fn fit_scale<G: Grid>(x: &[f32]) -> f32 {
    let peak = peak(x);
    // Below this, far under what f16 scales resolve, the inverse would overflow.
    if peak.abs() < 1e-30 {
        return 0.0;
    }
    let mut best = 0.0;
    let mut best_error = f32::INFINITY;
    for outermost in G::PEAKS {
        for k in -5..=5 {
            let scale = regress::<G>(x, (outermost + G::STEP * k as f32) / peak);
            let error = scale_error::<G>(x, scale);
            if error < best_error {
                (best, best_error) = (scale, error);
            }
        }
    }
    best
}

/// The scale of least squares for the levels that `x * inverse` rounds to.
fn regress<G: Grid>(x: &[f32], inverse: f32) -> f32 {
    let [xl, ll] = lane_sums(x, |v| {
        let level = G::snap(v * inverse);
        [v * level, level * level]
    });
    if ll > 0.0 { xl / ll } else { 0.0 }
}

fn scale_error<G: Grid>(x: &[f32], scale: f32) -> f32 {
    let inverse = inverse(scale);
    let [error] = lane_sums(x, |v| {
        let miss = scale * G::snap(v * inverse) - v;
        [miss * miss]
    });
    error
}

/// The best integers near the fitted scales, and the error of the whole block.
fn nearest_scales<const SUBS: usize, G: Grid>(
    x: &[f32; BLOCK_256],
    fitted: &[f32; SUBS],
    d: f16,
    lowest: f32,
) -> ([i8; SUBS], f32) {
    let mut scales = [0; SUBS];
    let mut total = 0.0;
    for ((x, &fitted), scale) in subs::<SUBS>(x).zip(fitted).zip(&mut scales) {
        let middle = round_within(fitted * inverse(d.to_f32()), lowest, -lowest - 1.0);
        let mut best_error = f32::INFINITY;
        for step in [0.0, -1.0, 1.0] {
            let s = (middle + step).max(lowest).min(-lowest - 1.0);
            let error = scale_error::<G>(x, d.to_f32() * s);
            if error < best_error {
                best_error = error;
                *scale = s as i8;
            }
        }
        total += best_error;
    }
    (scales, total)
}

/// `d` of least squares for these scales and the levels they give.
fn refit<const SUBS: usize, G: Grid>(
    x: &[f32; BLOCK_256],
    scales: &[i8; SUBS],
    d: f16,
) -> Option<f16> {
    let (mut xu, mut uu) = (0.0, 0.0);
    for (x, &scale) in subs::<SUBS>(x).zip(scales) {
        let inverse = inverse(d.to_f32() * f32::from(scale));
        for &v in x {
            let u = f64::from(f32::from(scale) * G::snap(v * inverse));
            xu += f64::from(v) * u;
            uu += u * u;
        }
    }
    if uu > 0.0 {
        common_scale((xu / uu) as f32)
    } else {
        None
    }
}

fn quantise<G: Grid>(x: &[f32], scale: f32, quants: &mut [u8]) {
    let inverse = inverse(scale);
    for (q, &v) in quants.iter_mut().zip(x) {
        *q = G::index(v * inverse);
    }
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

fn subs<const SUBS: usize>(x: &[f32; BLOCK_256]) -> impl Iterator<Item = &[f32]> {
    x.chunks_exact(BLOCK_256 / SUBS)
}

/// Rounds to the nearest integer of `low..=high`, both below 2^22, ties to even; NaN gives `low`.
///
/// Adding a number this large leaves no fraction bits; unlike `f32::round` that vectorises on every
/// target, as does the pair of comparisons, which unlike `f32::clamp` says nothing about NaN.
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
