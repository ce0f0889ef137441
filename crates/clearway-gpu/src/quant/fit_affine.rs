//! Encoding of `d * scale * q - dmin * min`: the search for scales and minimums of least squared
//! error.
//!
//! Each sub-block is first fitted alone with real-valued scale and offset; then scales and minimums
//! become integers of a common `d` and `dmin`, where neighbouring integers are tried because the
//! rounding of one can be made good by the other; then `d` and `dmin` are fitted to those integers,
//! and the last two steps repeat while they gain.

use half::f16;

use super::blocks::BLOCK_256;
use super::fit_signed::{LARGEST, ROUNDS, common_scale, lane_sums, round_within};
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
    let largest = lines.iter().fold(Line::default(), |a, b| Line {
        scale: a.scale.max(b.scale),
        offset: a.offset.max(b.offset),
    });
    let mut d = common_scale(largest.scale / steps)?;
    let mut dmin = common_scale(largest.offset / steps)?;
    let mut best = Steps {
        d,
        dmin,
        ..Steps::ZERO
    };
    let mut best_error = f32::INFINITY;
    for _ in 0..ROUNDS {
        let (found, error) = Steps::nearest(x, &lines, d, dmin, levels, steps);
        if error < best_error {
            (best, best_error) = (found, error);
        }
        match found.refit(x, levels) {
            Some(refit) if refit != (d, dmin) => (d, dmin) = refit,
            _ => break,
        }
    }
    Some(best.finish(x, levels))
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
            .fold((0.0_f32, f32::NEG_INFINITY), |(low, high), &v| {
                (low.min(v), high.max(v))
            });
        let span = high - low;
        // Below this, far under what f16 scales resolve, the inverse would overflow.
        if span < 1e-30 {
            return Self {
                scale: 0.0,
                offset: -low,
            };
        }
        let mut best = Self {
            scale: span / levels,
            offset: -low,
        };
        let mut best_error = best.error(x, levels);
        // Stretching the grid clips the ends; starting it below the lowest weight lets the levels fall
        // on the bulk of the weights, which is what counts when one of them lies far out.
        for shift in [0.0, 0.33, 0.67] {
            let start = low - shift * span / levels;
            for k in -6..=4 {
                let inverse = (levels + 0.2 * k as f32) / (high - start);
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
        if self.scale > 0.0 {
            1.0 / self.scale
        } else {
            0.0
        }
    }
}

/// Integer scales and minimums with their common factors.
#[derive(Clone, Copy)]
struct Steps<const SUBS: usize> {
    d: f16,
    dmin: f16,
    scales: [u8; SUBS],
    mins: [u8; SUBS],
}

impl<const SUBS: usize> Steps<SUBS> {
    const ZERO: Self = Self {
        d: f16::ZERO,
        dmin: f16::ZERO,
        scales: [0; SUBS],
        mins: [0; SUBS],
    };

    /// The best integers near the fitted lines, and the error of the whole block.
    fn nearest(
        x: &[f32; BLOCK_256],
        lines: &[Line; SUBS],
        d: f16,
        dmin: f16,
        levels: f32,
        steps: f32,
    ) -> (Self, f32) {
        let mut found = Self {
            d,
            dmin,
            ..Self::ZERO
        };
        let mut total = 0.0;
        for (i, (x, line)) in subs::<SUBS>(x).zip(lines).enumerate() {
            let scale = ratio(line.scale, d, steps);
            let min = ratio(line.offset, dmin, steps);
            let mut best_error = f32::INFINITY;
            for ds in [0.0, -1.0, 1.0] {
                for dm in [0.0, -1.0, 1.0] {
                    let (s, m) = ((scale + ds).clamp(0.0, steps), (min + dm).clamp(0.0, steps));
                    let line = Line {
                        scale: d.to_f32() * s,
                        offset: dmin.to_f32() * m,
                    };
                    let error = line.error(x, levels);
                    if error < best_error {
                        best_error = error;
                        (found.scales[i], found.mins[i]) = (s as u8, m as u8);
                    }
                }
            }
            total += best_error;
        }
        (found, total)
    }

    fn line(&self, i: usize) -> Line {
        Line {
            scale: self.d.to_f32() * f32::from(self.scales[i]),
            offset: self.dmin.to_f32() * f32::from(self.mins[i]),
        }
    }

    /// `d` and `dmin` of least squares for these integers and the quants they give.
    fn refit(&self, x: &[f32; BLOCK_256], levels: f32) -> Option<(f16, f16)> {
        let (mut uu, mut uv, mut vv, mut xu, mut xv) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (i, x) in subs::<SUBS>(x).enumerate() {
            let line = self.line(i);
            let inverse = line.inverse();
            let v = f64::from(self.mins[i]);
            for &w in x {
                let u = f64::from(f32::from(self.scales[i]) * line.quant(w, inverse, levels));
                let w = f64::from(w);
                uu += u * u;
                uv += u * v;
                vv += v * v;
                xu += w * u;
                xv += w * v;
            }
        }
        let determinant = uu * vv - uv * uv;
        let (d, dmin) = if determinant > 0.0 {
            (
                (xu * vv - xv * uv) / determinant,
                (xu * uv - xv * uu) / determinant,
            )
        } else if uu > 0.0 {
            (xu / uu, 0.0)
        } else if vv > 0.0 {
            (0.0, -xv / vv)
        } else {
            return None;
        };
        if d < 0.0 || dmin < 0.0 {
            return None;
        }
        Some((common_scale(d as f32)?, common_scale(dmin as f32)?))
    }

    fn finish(&self, x: &[f32; BLOCK_256], levels: f32) -> AffineCode<SUBS> {
        let mut quants = [0; BLOCK_256];
        for (i, (x, q)) in subs::<SUBS>(x)
            .zip(quants.chunks_exact_mut(BLOCK_256 / SUBS))
            .enumerate()
        {
            let line = self.line(i);
            let inverse = line.inverse();
            for (q, &v) in q.iter_mut().zip(x) {
                *q = line.quant(v, inverse, levels) as u8;
            }
        }
        let Self {
            d,
            dmin,
            scales,
            mins,
        } = *self;
        AffineCode {
            d,
            dmin,
            scales,
            mins,
            quants,
        }
    }
}

fn subs<const SUBS: usize>(x: &[f32; BLOCK_256]) -> impl Iterator<Item = &[f32]> {
    x.chunks_exact(BLOCK_256 / SUBS)
}

/// The nearest quant.
fn snap(v: f32, levels: f32) -> f32 {
    round_within(v, 0.0, levels)
}

/// The integer multiple of `unit` nearest to `value`, in `0..=steps`.
fn ratio(value: f32, unit: f16, steps: f32) -> f32 {
    let unit = unit.to_f32();
    if unit > 0.0 {
        snap(value / unit, steps)
    } else {
        0.0
    }
}
