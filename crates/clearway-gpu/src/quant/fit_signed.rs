//! Encoding of `d * scale * level`: the search for scales of least squared error, where the levels
//! are a fixed grid around zero.
//!
//! Each sub-block is first fitted alone with a real-valued scale; then the scales become integer
//! multiples of a common `d`, where neighbouring integers are tried as well. No grid here is
//! symmetric, so a negative scale is a different grid, and both are tried.

use half::f16;

use super::blocks::{BLOCK_32, BLOCK_256};
use super::finite_f16;
use super::fit::{LARGEST, common_scale, higher, lane_sums, lower, round_within, subs};
use super::legacy::peak;

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
    let d = common_scale(peak(&fitted), lowest)?;
    let (mut scales, mut quants) = ([0; SUBS], [0; BLOCK_256]);
    let runs = subs::<SUBS>(x).zip(quants.chunks_exact_mut(BLOCK_256 / SUBS));
    for (i, (x, quants)) in runs.enumerate() {
        let scale = nearest_step::<G>(x, fitted[i], d.to_f32(), lowest);
        scales[i] = scale as i8;
        quantise::<G>(x, d.to_f32() * scale, quants);
    }
    Some(SignedCode { d, scales, quants })
}

/// Encodes 32 weights with one f16 scale; `None` when it is beyond f16.
pub(super) fn encode_one<G: Grid>(x: &[f32; BLOCK_32]) -> Option<(f16, [u8; BLOCK_32])> {
    if peak(x).abs() > LARGEST {
        return None;
    }
    let nearest = finite_f16(fit_scale::<G>(x))?;
    let mut best = nearest;
    // Among subnormals the nearest f16 need not be the best one.
    for d in [lower(nearest), higher(nearest)] {
        if d.is_finite() && scale_error::<G>(x, d.to_f32()) < scale_error::<G>(x, best.to_f32()) {
            best = d;
        }
    }
    let mut quants = [0; BLOCK_32];
    quantise::<G>(x, best.to_f32(), &mut quants);
    Some((best, quants))
}

/// The scale of least error found for a run of weights.
fn fit_scale<G: Grid>(x: &[f32]) -> f32 {
    let peak = peak(x);
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

/// The multiple of `d` of least error among those nearest to the fitted scale.
fn nearest_step<G: Grid>(x: &[f32], fitted: f32, d: f32, lowest: f32) -> f32 {
    let snap = |v| round_within(v, lowest, -lowest - 1.0);
    let middle = snap(fitted * inverse(d));
    let mut best = middle;
    let mut best_error = f32::INFINITY;
    for step in [0.0, -1.0, 1.0] {
        let s = snap(middle + step);
        let error = scale_error::<G>(x, d * s);
        if error < best_error {
            (best, best_error) = (s, error);
        }
    }
    best
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
