//! Ops on each element by itself.

use std::ops::Range;

use clearway_graph::{Map, TensorView};
use half::slice::HalfFloatSliceExt;

use super::rows::{Buffer, CHUNK, Sink, Source};
use super::{GridFn, RunFn, cut, math, vectorised};
use crate::cpu::{Grid, Piece};

/// How the kernel of an op is cut, and what it does with a piece.
pub(super) fn parts(map: Map) -> (GridFn, RunFn) {
    match map {
        Map::Add => (light, vectorised!(add)),
        Map::Mul => (light, vectorised!(mul)),
        Map::Scale => (light, vectorised!(scale)),
        Map::Silu => (heavy, vectorised!(silu)),
        Map::Gelu => (heavy, vectorised!(gelu)),
        Map::SiluMul => (heavy, vectorised!(silu_mul)),
        Map::GeluMul => (heavy, vectorised!(gelu_mul)),
        Map::ReluSquared => (light, vectorised!(relu_squared)),
        Map::SoftCap => (heavy, vectorised!(soft_cap)),
        Map::ClampedGate => (heavy, vectorised!(clamped_gate)),
    }
}

/// Cut for an op that only moves memory.
fn light(views: &[TensorView], _: &[u32]) -> Grid {
    cut::tiles(&views[views.len() - 1].layout, 2)
}

/// Cut for an op with an exponential.
fn heavy(views: &[TensorView], _: &[u32]) -> Grid {
    cut::tiles(&views[views.len() - 1].layout, 12)
}

/// A kernel from a function of one element, or of two; `piece` gives the constants.
macro_rules! kernels {
    ($($name:ident $inputs:ident |$piece:ident| $function:expr;)+) => {
        $(#[inline(always)]
        fn $name($piece: &mut Piece<'_>) {
            let function = $function;
            $inputs($piece, function);
        })+
    };
}

kernels! {
    add binary |piece| |a: f32, b: f32| a + b;
    mul binary |piece| |a: f32, b: f32| a * b;
    scale unary |piece| { let factor = piece.float(0); move |x: f32| x * factor };
    silu unary |piece| math::silu;
    gelu unary |piece| math::gelu;
    silu_mul binary |piece| |gate: f32, up: f32| math::silu(gate) * up;
    gelu_mul binary |piece| |gate: f32, up: f32| math::gelu(gate) * up;
    relu_squared unary |piece| |x: f32| if x < 0.0 { 0.0 } else { x * x };
    soft_cap unary |piece| { let cap = piece.float(0); move |x: f32| math::soft_cap(x, cap) };
    clamped_gate binary |piece| {
        let (limit, alpha) = (piece.float(0), piece.float(1));
        move |gate: f32, up: f32| math::clamped_gate(gate, up, limit, alpha)
    };
}

#[inline(always)]
fn unary(piece: &mut Piece<'_>, f: impl Fn(f32) -> f32) {
    let (mut x_buffer, mut y_buffer) = ([0.0; CHUNK], [0.0; CHUNK]);
    let cols = piece.cols();
    for row in piece.rows() {
        if piece.over(1).is_some() {
            update(Sink::row(piece, 1, row), &mut y_buffer, |_, y| {
                y.iter_mut().for_each(|y| *y = f(*y));
            });
            continue;
        }
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
    match piece.over(2) {
        Some(0) => return binary_over(piece, 1, &f),
        Some(_) => return binary_over(piece, 0, |y, a| f(a, y)),
        None => {}
    }
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

/// A binary op whose output lies over the operand that is not `other`.
#[inline(always)]
fn binary_over(piece: &mut Piece<'_>, other: usize, f: impl Fn(f32, f32) -> f32) {
    let (mut buffer, mut y_buffer) = ([0.0; CHUNK], [0.0; CHUNK]);
    let cols = piece.cols();
    for row in piece.rows() {
        let x = Source::row_or_only(piece, other, row, cols.clone());
        update(Sink::row(piece, 2, row), &mut y_buffer, |range, y| {
            for (y, &x) in y.iter_mut().zip(x.chunk(range, &mut buffer)) {
                *y = f(*y, x);
            }
        });
    }
}

/// Has `f` change all elements of a row, a chunk at a time, with the roundings of reading and writing
/// them apart.
#[inline(always)]
fn update(mut row: Sink<'_>, buffer: &mut Buffer, mut f: impl FnMut(Range<usize>, &mut [f32])) {
    let len = match &row {
        Sink::F32(row) => row.len(),
        Sink::F16(row) => row.len(),
        Sink::Bf16(row) => row.len(),
    };
    for start in (0..len).step_by(CHUNK) {
        let range = start..len.min(start + CHUNK);
        let chunk = &mut buffer[..range.len()];
        match &mut row {
            Sink::F32(row) => {
                f(range.clone(), &mut row[range]);
                continue;
            }
            Sink::F16(row) => row[range.clone()].convert_to_f32_slice(chunk),
            Sink::Bf16(row) => row[range.clone()].convert_to_f32_slice(chunk),
        }
        f(range, chunk);
        row.store(start, chunk);
    }
}
