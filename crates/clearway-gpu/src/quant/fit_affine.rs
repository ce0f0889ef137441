//! Encoding of `d * scale * q - dmin * min`: the search for scales and minimums of least squared
//! error.
//!
//! Each sub-block is first fitted alone with real-valued scale and offset; then these become integer
//! multiples of a common `d` and `dmin`, where neighbouring integers are tried as well, because the
//! rounding of one can be made good by the other. Fitting `d` and `dmin` once more to those integers
//! would gain half a per cent.

use half::f16;

use super::blocks::BLOCK_256;
use super::fit::{LARGEST, common_scale, lane_sums, round_within, subs};
use super::legacy::peak;

/// An encoded super-block before packing.
pub(super) struct AffineCode<const SUBS: usize> {
    pub(super) d: f16,
    pub(super) dmin: f16,
    pub(super) scales: [u8; SUBS],
    pub(super) mins: [u8; SUBS],
    pub(super) quants: [u8; BLOCK_256],
}

/// Encodes with quants `0..=levels` and scales and minimums `0..=steps`; `None` when a scale is
/// beyond f16.
pub(super) fn encode_affine<const SUBS: usize>(
    x: &[f32; BLOCK_256],
    levels: f32,
    steps: f32,
) -> Option<AffineCode<SUBS>> {
    if peak(x).abs() > LARGEST {
        return None;
    }
    let mut lines = [Line::default(); SUBS];
    for (line, x) in lines.iter_mut().zip(subs::<SUBS>(x)) {
        *line = Line::fit(x, levels);
    }
    let d = common_scale(peak(&lines.map(|line| line.scale)), steps)?;
    let dmin = common_scale(peak(&lines.map(|line| line.offset)), steps)?;
    let (mut scales, mut mins, mut quants) = ([0; SUBS], [0; SUBS], [0; BLOCK_256]);
    let runs = subs::<SUBS>(x).zip(quants.chunks_exact_mut(BLOCK_256 / SUBS));
    for (i, (x, quants)) in runs.enumerate() {
        let (scale, min) = nearest_steps(x, lines[i], d.to_f32(), dmin.to_f32(), levels, steps);
        (scales[i], mins[i]) = (scale as u8, min as u8);
        let line = Line { scale: d.to_f32() * scale, offset: dmin.to_f32() * min };
        let inverse = line.inverse();
        for (q, &v) in quants.iter_mut().zip(x) {
            *q = line.quant(v, inverse, levels) as u8;
        }
    }
    Some(AffineCode { d, dmin, scales, mins, quants })
}

/// The multiples of `d` and `dmin` of least error among those nearest to the line.
fn nearest_steps(x: &[f32], line: Line, d: f32, dmin: f32, levels: f32, steps: f32) -> (f32, f32) {
    let (scale, min) = (ratio(line.scale, d, steps), ratio(line.offset, dmin, steps));
    let mut best = (scale, min);
    let mut best_error = f32::INFINITY;
    for up in [0.0, -1.0, 1.0] {
        for down in [0.0, -1.0, 1.0] {
            let (s, m) = (snap(scale + up, steps), snap(min + down, steps));
            let error = Line { scale: d * s, offset: dmin * m }.error(x, levels);
            if error < best_error {
                (best, best_error) = ((s, m), error);
            }
        }
    }
    best
}

/// Weights `scale * q - offset`, neither negative.
#[derive(Clone, Copy, Default)]
struct Line {
    scale: f32,
    offset: f32,
}

impl Line {
    /// The line of least error found, for quants `0..=levels`.
    fn fit(x: &[f32], levels: f32) -> Self {
        let (low, high) = x
            .iter()
            .fold((0.0_f32, f32::NEG_INFINITY), |(low, high), &v| (low.min(v), high.max(v)));
        let span = high - low;
        let mut best = Self { scale: span / levels, offset: -low };
        let mut best_error = best.error(x, levels);
        // Stretching the grid clips the ends; starting it below the lowest weight lets the levels fall
        // on the bulk of the weights, which is what counts when one of them lies far out.
        for shift in [0.0, 0.33, 0.67] {
            let start = low - shift * span / levels;
            for k in -3..=2 {
                let inverse = (levels + 0.4 * k as f32) / (high - start);
                let line = Self::regress(x, inverse, start, levels);
                let error = line.error(x, levels);
                if error < best_error {
                    (best, best_error) = (line, error);
                }
            }
        }
        best
    }

    /// The line of least squares through the quants that `(x - low) * inverse` rounds to.
    fn regress(x: &[f32], inverse: f32, low: f32, levels: f32) -> Self {
        let [sx, sq, sqq, sxq] = lane_sums(x, |v| {
            let q = snap((v - low) * inverse, levels);
            [v, q, q * q, v * q]
        });
        let n = x.len() as f32;
        let determinant = n * sqq - sq * sq;
        if determinant > 0.0 {
            let scale = (n * sxq - sx * sq) / determinant;
            let offset = (scale * sq - sx) / n;
            if scale > 0.0 && offset >= 0.0 {
                return Self { scale, offset };
            }
        }
        let scale = if sqq > 0.0 { (sxq / sqq).max(0.0) } else { 0.0 };
        Self { scale, offset: 0.0 }
    }

    fn quant(self, v: f32, inverse: f32, levels: f32) -> f32 {
        snap((v + self.offset) * inverse, levels)
    }

    fn error(self, x: &[f32], levels: f32) -> f32 {
        let inverse = self.inverse();
        let [error] = lane_sums(x, |v| {
            let miss = self.scale * self.quant(v, inverse, levels) - self.offset - v;
            [miss * miss]
        });
        error
    }

    fn inverse(self) -> f32 {
        if self.scale > 0.0 { 1.0 / self.scale } else { 0.0 }
    }
}

/// The nearest integer of `0..=last`.
fn snap(v: f32, last: f32) -> f32 {
    round_within(v, 0.0, last)
}

/// The multiple of `unit` nearest to `value`, in `0..=steps`.
fn ratio(value: f32, unit: f32, steps: f32) -> f32 {
    if unit > 0.0 { snap(value / unit, steps) } else { 0.0 }
}
