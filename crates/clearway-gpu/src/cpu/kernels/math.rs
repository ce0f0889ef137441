//! Exponentials, sines and cosines without branches or calls in their loops, so that they become vector code and give
//! the same bits on every machine.

use crate::cpu::simd::{Lanes, ROUND};

// Polynomials by Remez exchange: the relative error of each is below a tenth of the rounding error.

/// `(e^r - 1 - r) / r^2` on half an octave.
const EXP: [f32; 5] = [0.499_999_94, 0.166_665_15, 0.041_668_456, 0.008_369_419, 0.001_381_314_5];
/// `(2^r - 1) / r` on one octave.
const EXP2: [f32; 6] =
    [0.693_147_24, 0.240_226_52, 0.055_503_104, 0.009_617_693, 0.001_340_664_3, 0.000_155_946_78];
/// `(tanh x - x) / x^3` by powers of `x^2`, for `|x| < 0.65`.
const TANH: [f32; 5] = [-0.333_332_63, 0.133_308_99, -0.053_692_967, 0.020_483_317, -0.005_528_634];

/// ln 2 in two parts; products of the first with exponents are exact.
const LN_2_HIGH: f32 = 355.0 / 512.0;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// `e^x`, within 2 units in the last place; 0 and infinity where they are the nearest.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // The results are 0 and infinity already at these. NaN passes both comparisons.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -105.0 { -105.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let r = x - whole * LN_2_HIGH - whole * LN_2_LOW;
    let y = r * r * polynomial(&EXP, r) + r + 1.0;
    let exponent = shifted.to_bits() as i32 - ROUND.to_bits() as i32;
    // In two steps, since the exponent alone may be beyond the normal numbers.
    let half = exponent >> 1;
    y * power_of_two(half) * power_of_two(exponent - half)
}

/// `2^x` of sixteen numbers up to 60, within 2 units in the last place.
#[inline(always)]
pub(super) fn exp2_lanes<L: Lanes>(l: L, x: L::Floats) -> L::Floats {
    // The result is 0 already there. NaN stays what it is.
    let x = l.larger(l.float(-152.0), x);
    let whole = l.add(l.add(x, l.float(ROUND)), l.float(-ROUND));
    let r = l.add(x, l.mul(whole, l.float(-1.0)));
    let [rest @ .., last] = EXP2;
    let mut y = l.float(last);
    for c in rest.into_iter().rev() {
        y = l.mul_add(y, r, l.float(c));
    }
    l.scale(l.mul_add(y, r, l.float(1.0)), whole)
}

/// Terms of the series of sine and cosine: within an eighth of a turn the next one is below 3e-14.
const SIN_COS: usize = 7;

/// `1 / 3!`, `1 / 5!` and so on with alternating signs, from the last to the first.
const SIN: [f64; SIN_COS - 1] = series(3);
/// The same for `1 / 2!`, `1 / 4!` and so on.
const COS: [f64; SIN_COS] = series(2);

const fn series<const N: usize>(first: usize) -> [f64; N] {
    let mut terms = [0.0; N];
    let mut term = 1.0;
    let (mut at, mut i) = (0, 2);
    while at < N {
        term /= i as f64;
        if i == first + 2 * at {
            terms[N - 1 - at] = if at.is_multiple_of(2) { -term } else { term };
            at += 1;
        }
        i += 1;
    }
    terms
}

/// A quarter of a turn in two parts. The first has 33 bits, so that products with whole numbers up to [`MOST_QUARTERS`]
/// are exact.
const QUARTER_HIGH: f64 = f64::from_bits(std::f64::consts::FRAC_PI_2.to_bits() >> 20 << 20);
/// The rest of it, and what is missing in the nearest f64.
const QUARTER_LOW: f64 = (std::f64::consts::FRAC_PI_2 - QUARTER_HIGH) + 6.123_233_995_736_766e-17;
const MOST_QUARTERS: f64 = (1 << 20) as f64;

/// 1.5 * 2^52: a number that is added to it and taken away again is rounded to the nearest whole one.
const ROUND_F64: f64 = 6_755_399_441_055_744.0;

/// Sines and cosines, within 1e-13.
#[inline(always)]
pub(super) fn sin_cos<const N: usize>(angles: &[f64; N]) -> ([f64; N], [f64; N]) {
    let (mut sines, mut cosines) = ([0.0; N], [0.0; N]);
    let mut largest = 0.0;
    for ((&angle, sin), cos) in angles.iter().zip(&mut sines).zip(&mut cosines) {
        let shifted = angle * std::f64::consts::FRAC_2_PI + ROUND_F64;
        let quarters = shifted - ROUND_F64;
        let r = angle - quarters * QUARTER_HIGH - quarters * QUARTER_LOW;
        let square = r * r;
        let s = SIN.iter().fold(0.0, |sum, term| sum * square + term);
        let s = r + r * square * s;
        let c = 1.0 + square * COS.iter().fold(0.0, |sum, term| sum * square + term);
        let turns = shifted.to_bits();
        let (s, c) = if turns & 1 == 0 { (s, c) } else { (c, s) };
        *sin = if turns & 2 == 0 { s } else { -s };
        *cos = if turns.wrapping_add(1) & 2 == 0 { c } else { -c };
        let quarters = quarters.abs();
        largest = if quarters <= MOST_QUARTERS { largest } else { quarters };
    }
    // NaN and infinity are among these.
    if largest != 0.0 {
        for ((angle, sin), cos) in angles.iter().zip(&mut sines).zip(&mut cosines) {
            (*sin, *cos) = angle.sin_cos();
        }
    }
    (sines, cosines)
}

/// `tanh(x)`.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let square = x * x;
    let near = x + x * square * polynomial(&TANH, square);
    let far = 1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0);
    if x.abs() < 0.625 { near } else { far.copysign(x) }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x * sigmoid(x)`; goes to 0 for large negative `x`.
#[inline(always)]
pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// GELU, tanh form. `(1 + tanh u) / 2` is `sigmoid(2 u)`, which cancels nothing.
#[inline(always)]
pub(super) fn gelu(x: f32) -> f32 {
    const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;
    x / (1.0 + exp(-TWICE_SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)))
}

/// `g * sigmoid(alpha * g) * (u + 1)`, where `g` is `gate` and at most `limit`, and `u` is `up` within
/// `limit` of zero. Comparisons leave NaN what it is.
#[inline(always)]
pub(super) fn clamped_gate(gate: f32, up: f32, limit: f32, alpha: f32) -> f32 {
    let gate = if gate > limit { limit } else { gate };
    let up = if up > limit { limit } else { up };
    let up = if up < -limit { -limit } else { up };
    gate / (1.0 + exp(-alpha * gate)) * (up + 1.0)
}

/// `cap * tanh(x / cap)`.
#[inline(always)]
pub(super) fn soft_cap(x: f32, cap: f32) -> f32 {
    cap * tanh(x / cap)
}

#[inline(always)]
fn polynomial(coefficients: &[f32; 5], x: f32) -> f32 {
    let [c0, c1, c2, c3, c4] = *coefficients;
    c0 + x * (c1 + x * (c2 + x * (c3 + x * c4)))
}

#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) << 23) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::{Vectorised, available, vectorise_as};

    /// Distance of a result from the exact one, in units of the last place of the exact one.
    fn ulps(found: f32, exact: f64) -> f64 {
        let nearest = exact as f32;
        if nearest.is_infinite() || found.is_infinite() {
            return if nearest == found { 0.0 } else { f64::INFINITY };
        }
        let above = f32::from_bits((nearest.abs().to_bits()) + 1);
        let unit = f64::from(above) - f64::from(nearest.abs());
        (f64::from(found) - exact).abs() / unit
    }

    #[test]
    fn sines_and_cosines_are_those_of_the_library() {
        let near = (0..200_000).map(|i| f64::from(i) * 1e-4);
        let far = (0..200_000).map(|i| f64::from(i) * 8.123_456);
        // Whole quarters of a turn, and where another way is taken.
        let quarters = (0..1000).map(|i| f64::from(i * i + 1) * std::f64::consts::FRAC_PI_2);
        let odd = [0.0, 1.6e6, 1.7e6, 1e12, 1e300, f64::INFINITY, f64::NAN];
        for angle in near.chain(far).chain(quarters).chain(odd) {
            for angle in [angle, -angle] {
                let ([_, sin], [_, cos]) = sin_cos(&[0.5, angle]);
                let (s, c) = angle.sin_cos();
                let same = |a: f64, b: f64| (a - b).abs() < 1e-13 || a.is_nan() && b.is_nan();
                assert!(same(sin, s) && same(cos, c), "{angle}: {sin} {cos}, not {s} {c}");
            }
        }
    }

    #[test]
    fn exponentials_are_right_to_the_last_bits() {
        for i in -420_000..400_000 {
            let x = i as f32 * 2.5e-4;
            let error = ulps(exp(x), f64::from(x).exp());
            assert!(error <= 2.0, "exp({x}) = {} is {error} units off", exp(x));
        }
        for i in -200_000..200_000 {
            let x = i as f32 * 5e-5;
            let error = ulps(tanh(x), f64::from(x).tanh());
            assert!(error <= 2.5, "tanh({x}) = {} is {error} units off", tanh(x));
        }
    }

    #[test]
    fn exponentials_of_vectors_are_right_and_the_same_on_every_machine() {
        struct Exp<'a>(&'a [[f32; 16]], &'a mut Vec<[f32; 16]>);
        impl Vectorised for Exp<'_> {
            type Output = ();

            #[inline(always)]
            fn run<L: Lanes>(self, l: L) {
                for x in self.0 {
                    self.1.push(l.store(exp2_lanes(l, l.floats(x))));
                }
            }
        }
        let mut inputs: Vec<[f32; 16]> = (0..36_000)
            .map(|i| std::array::from_fn(|j| (16 * i + j) as f32 * 3.5e-4 - 151.0))
            .collect();
        inputs.push([0.0; 16]);
        inputs.push([f32::NEG_INFINITY; 16]);
        inputs.push([f32::NAN; 16]);
        let mut first: Option<Vec<[f32; 16]>> = None;
        for isa in available() {
            let mut found = Vec::new();
            vectorise_as(isa, Exp(&inputs, &mut found));
            let bits =
                |all: &[[f32; 16]]| all.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
            let known = first.get_or_insert_with(|| found.clone());
            let numbers = inputs.len() - 1;
            assert!(bits(&known[..numbers]) == bits(&found[..numbers]), "{}", isa.name());
            for (x, y) in inputs[..numbers - 2].iter().flatten().zip(found.iter().flatten()) {
                let error = ulps(*y, f64::from(*x).exp2());
                assert!(error <= 2.0, "2^{x} = {y} is {error} units off");
            }
            assert_eq!(found[numbers - 2..numbers], [[1.0; 16], [0.0; 16]]);
            assert!(found[numbers].iter().all(|y| y.is_nan()));
        }
    }

    #[test]
    fn ends_of_the_range_are_zero_one_or_infinite() {
        assert_eq!([exp(f32::NEG_INFINITY), exp(-1e30), exp(-104.0)], [0.0; 3]);
        assert_eq!([exp(f32::INFINITY), exp(1e30), exp(88.73)], [f32::INFINITY; 3]);
        assert_eq!([exp(0.0), tanh(40.0), -tanh(-1e30), tanh(f32::INFINITY)], [1.0; 4]);
        assert!(exp(-103.0) > 0.0, "the smallest results are not normal numbers, but not 0");
        for x in [1e5, 1e20, 3e38] {
            assert_eq!((silu(x), gelu(x), silu(-x), gelu(-x)), (x, x, 0.0, 0.0));
        }
        for f in [exp, tanh, sigmoid, silu, gelu] {
            assert!(f(f32::NAN).is_nan() && f(-f32::NAN).is_nan());
        }
    }
}
