//! Sums and extremes of rows, in one fixed order.
//!
//! Element `i` goes to partial result `i % LANES`; the partial results are then folded in halves.
//! The order depends on the length alone, and the loops over lanes become vector code.

/// Partial results. The compiler unrolls shorter inner loops into scalar code before it looks for
/// vectors, which makes 16 lanes ten times slower than 32.
const LANES: usize = 32;

/// Sum.
#[inline(always)]
pub(super) fn sum(x: &[f32]) -> f32 {
    lanes(x, 0.0, |sum, x| sum + x, |a, b| a + b)
}

/// Sum in double precision.
#[inline(always)]
pub(super) fn sum_f64(x: &[f32]) -> f64 {
    lanes(x, 0.0, |sum, x| sum + f64::from(x), |a, b| a + b)
}

/// Sum of the squares of `x - mean`, in double precision.
#[inline(always)]
pub(super) fn squares_f64(x: &[f32], mean: f64) -> f64 {
    let square = |x: f32| (f64::from(x) - mean) * (f64::from(x) - mean);
    lanes(x, 0.0, |sum, x| sum + square(x), |a, b| a + b)
}

/// Largest element, NaN if there is one; negative infinity for an empty row.
#[inline(always)]
pub(super) fn max_or_nan(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a || b.is_nan() { b } else { a };
    lanes(x, f32::NEG_INFINITY, larger, larger)
}

#[inline(always)]
fn lanes<A: Copy>(x: &[f32], start: A, take: impl Fn(A, f32) -> A, join: impl Fn(A, A) -> A) -> A {
    let (blocks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [start; LANES];
    for block in blocks {
        for lane in 0..LANES {
            lanes[lane] = take(lanes[lane], block[lane]);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = take(*lane, x);
    }
    fold(lanes, join)
}

#[inline(always)]
fn fold<A: Copy>(mut lanes: [A; LANES], join: impl Fn(A, A) -> A) -> A {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = join(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}
