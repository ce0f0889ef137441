//! Ops on each element by itself.

use clearway_graph::TensorView;

use super::cut;
use super::math;
use super::rows::{CHUNK, Sink, Source};
use crate::cpu::{Grid, Piece};

/// Cut for an op that only moves memory.
pub(super) fn light_grid(views: &[TensorView], _: &[u32]) -> Grid {
    cut::tiles(&views[views.len() - 1].layout, 2)
}

/// Cut for an op with an exponential.
pub(super) fn heavy_grid(views: &[TensorView], _: &[u32]) -> Grid {
    cut::tiles(&views[views.len() - 1].layout, 12)
}

pub(super) fn add(piece: &mut Piece<'_>) {
    binary(piece, |a, b| a + b);
}

pub(super) fn mul(piece: &mut Piece<'_>) {
    binary(piece, |a, b| a * b);
}

pub(super) fn scale(piece: &mut Piece<'_>) {
    let factor = piece.float(0);
    unary(piece, |x| x * factor);
}

pub(super) fn silu(piece: &mut Piece<'_>) {
    unary(piece, math::silu);
}

pub(super) fn gelu(piece: &mut Piece<'_>) {
    unary(piece, math::gelu);
}

pub(super) fn silu_mul(piece: &mut Piece<'_>) {
    binary(piece, |gate, up| math::silu(gate) * up);
}

pub(super) fn gelu_mul(piece: &mut Piece<'_>) {
    binary(piece, |gate, up| math::gelu(gate) * up);
}

pub(super) fn soft_cap(piece: &mut Piece<'_>) {
    let cap = piece.float(0);
    unary(piece, |x| math::soft_cap(x, cap));
}

#[inline(always)]
fn unary(piece: &mut Piece<'_>, f: impl Fn(f32) -> f32) {
    let (mut x_buffer, mut y_buffer) = ([0.0; CHUNK], [0.0; CHUNK]);
    let cols = piece.cols();
    for row in piece.rows() {
        let x = Source::row(piece, 0, row, cols.clone());
        Sink::row(piece, 1, row).fill(&mut y_buffer, |range, y| {
            for (y, &x) in y.iter_mut().zip(x.chunk(range, &mut x_buffer)) {
                *y = f(x);
            }
        });
    }
}

#[inline(always)]
fn binary(piece: &mut Piece<'_>, f: impl Fn(f32, f32) -> f32) {
    let (mut a_buffer, mut b_buffer, mut y_buffer) = ([0.0; CHUNK], [0.0; CHUNK], [0.0; CHUNK]);
    let cols = piece.cols();
    for row in piece.rows() {
        let a = Source::row(piece, 0, row, cols.clone());
        let b = Source::row_or_only(piece, 1, row, cols.clone());
        Sink::row(piece, 2, row).fill(&mut y_buffer, |range, y| {
            let a = a.chunk(range.clone(), &mut a_buffer);
            let b = b.chunk(range, &mut b_buffer);
            for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
                *y = f(a, b);
            }
        });
    }
}
