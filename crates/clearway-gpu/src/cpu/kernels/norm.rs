//! Norms of rows with what is fused around them, and softmax.
//!
//! A row is loaded into scratch as f32 and changed there step by step, by the same steps in plain
//! and fused kernels. Sums of squares are in double precision.

use clearway_graph::TensorView;

use super::rows::{CHUNK, Source};
use super::{cut, math, reduce};
use crate::cpu::{Grid, Piece};

/// Cut for an op on whole rows of its last operand, with memory for one row.
pub(super) fn grid(views: &[TensorView], _: &[u32]) -> Grid {
    let output = &views[views.len() - 1].layout;
    cut::rows(output.rows(), 1, 8 * output.cols()).with_scratch(output.cols())
}

#[inline(always)]
pub(super) fn rms_norm(piece: &mut Piece<'_>) {
    let eps = piece.float(0);
    each_row(piece, |piece, row, x| {
        normalise(x, eps);
        piece.store_row(1, row, x);
    });
}

#[inline(always)]
pub(super) fn rms_norm_mul(piece: &mut Piece<'_>) {
    let eps = piece.float(0);
    each_row(piece, |piece, row, x| {
        normalise(x, eps);
        mul(piece, 1, row, x);
        piece.store_row(2, row, x);
    });
}

#[inline(always)]
pub(super) fn rms_norm_mul_add(piece: &mut Piece<'_>) {
    let eps = piece.float(0);
    each_row(piece, |piece, row, x| {
        normalise(x, eps);
        mul(piece, 1, row, x);
        add(piece, 2, row, x);
        piece.store_row(3, row, x);
    });
}

#[inline(always)]
pub(super) fn add_rms_norm(piece: &mut Piece<'_>) {
    let (eps, y) = (piece.float(0), piece.operand_count() - 1);
    let sum = (y == 3).then_some(2);
    each_row(piece, |piece, row, x| {
        add(piece, 1, row, x);
        if let Some(sum) = sum {
            piece.store_row(sum, row, x);
        }
        normalise(x, eps);
        piece.store_row(y, row, x);
    });
}

#[inline(always)]
pub(super) fn add_rms_norm_mul(piece: &mut Piece<'_>) {
    let (eps, y) = (piece.float(0), piece.operand_count() - 1);
    let sum = (y == 4).then_some(3);
    each_row(piece, |piece, row, x| {
        add(piece, 1, row, x);
        if let Some(sum) = sum {
            piece.store_row(sum, row, x);
        }
        normalise(x, eps);
        mul(piece, 2, row, x);
        piece.store_row(y, row, x);
    });
}

#[inline(always)]
pub(super) fn layer_norm(piece: &mut Piece<'_>) {
    let eps = f64::from(piece.float(0));
    each_row(piece, |piece, row, x| {
        let count = x.len() as f64;
        let mean = reduce::sum_f64(x) / count;
        let factor = 1.0 / (reduce::squares_f64(x, mean) / count + eps).sqrt();
        for x in &mut *x {
            *x = ((f64::from(*x) - mean) * factor) as f32;
        }
        mul(piece, 1, 0, x);
        add(piece, 2, 0, x);
        piece.store_row(3, row, x);
    });
}

/// `softmax(x * scale + mask)`.
#[inline(always)]
pub(super) fn softmax(piece: &mut Piece<'_>) {
    let scale = piece.float(0);
    let mask_rows = piece.layout(1).rows();
    each_row(piece, |piece, row, x| {
        for x in &mut *x {
            *x *= scale;
        }
        add(piece, 1, row % mask_rows, x);
        softmax_row(x);
        piece.store_row(2, row, x);
    });
}

/// Softmax in place. A row of negative infinities, masked as a whole, becomes zeros.
#[inline(always)]
pub(super) fn softmax_row(x: &mut [f32]) {
    let max = reduce::max_or_nan(x);
    if max == f32::NEG_INFINITY {
        return x.fill(0.0);
    }
    for x in &mut *x {
        *x = math::exp(*x - max);
    }
    let sum = reduce::sum(x);
    for x in x {
        *x /= sum;
    }
}

/// Loads each row of operand 0 that the piece owns.
#[inline(always)]
fn each_row(piece: &mut Piece<'_>, mut f: impl FnMut(&mut Piece<'_>, usize, &mut [f32])) {
    let x = piece.take_scratch();
    for row in piece.rows() {
        piece.load_row(0, row, x);
        f(piece, row, x);
    }
}

/// Divides a row by its root mean square.
#[inline(always)]
fn normalise(x: &mut [f32], eps: f32) {
    let mean = reduce::squares_f64(x, 0.0) / x.len() as f64;
    let factor = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
    for x in x {
        *x *= factor;
    }
}

#[inline(always)]
fn mul(piece: &Piece<'_>, operand: usize, row: usize, x: &mut [f32]) {
    combine(piece, operand, row, x, |x, w| x * w);
}

#[inline(always)]
fn add(piece: &Piece<'_>, operand: usize, row: usize, x: &mut [f32]) {
    combine(piece, operand, row, x, |x, b| x + b);
}

/// Combines a row with that of an operand, or with its only row.
#[inline(always)]
fn combine(
    piece: &Piece<'_>,
    operand: usize,
    row: usize,
    x: &mut [f32],
    f: impl Fn(f32, f32) -> f32,
) {
    let mut buffer = [0.0; CHUNK];
    let other = Source::row_or_only(piece, operand, row, 0..x.len());
    for (index, x) in x.chunks_mut(CHUNK).enumerate() {
        let range = index * CHUNK..index * CHUNK + x.len();
        for (x, &other) in x.iter_mut().zip(other.chunk(range, &mut buffer)) {
            *x = f(*x, other);
        }
    }
}
