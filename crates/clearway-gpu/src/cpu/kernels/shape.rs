//! Ops that move elements: gathers, copies, joins, fills, cache writes.

use std::ops::Range;

use bytemuck::Pod;
use clearway_graph::{DType, Layout, TensorView};
use half::{bf16, f16};

use super::cut;
use super::rows::{CHUNK, Sink};
use crate::cpu::piece::row_start;
use crate::cpu::{Grid, Piece};

pub(super) fn gather_grid(views: &[TensorView], _: &[u32]) -> Grid {
    let y = &views[2].layout;
    cut::rows(y.rows(), 1, 8 * y.cols()).with_scratch(y.cols())
}

pub(super) fn gather(piece: &mut Piece<'_>) {
    let (ids, scale) = (piece.src_row::<u32>(1, 0), piece.float(0));
    let row = piece.take_scratch();
    for token in piece.rows() {
        let id = ids[token] as usize;
        if id < piece.layout(0).rows() {
            piece.load_row(0, id, row);
            for x in &mut *row {
                *x *= scale;
            }
        } else {
            row.fill(0.0);
        }
        piece.store_row(2, token, row);
    }
}

/// Tiles if rows of the output are contiguous, else whole rows, which are written by elements.
pub(super) fn copy_grid(views: &[TensorView], _: &[u32]) -> Grid {
    let y = &views[views.len() - 1].layout;
    if has_contiguous_rows(y) { cut::tiles(y, 2) } else { cut::rows(y.rows(), 1, 64 * y.cols()) }
}

pub(super) fn copy(piece: &mut Piece<'_>) {
    let contiguous = has_contiguous_rows(piece.layout(1));
    let cols = if contiguous { piece.cols() } else { 0..piece.layout(1).cols() };
    let mut buffer = [0.0; CHUNK];
    for row in piece.rows() {
        for start in cols.clone().step_by(CHUNK) {
            let range = start..cols.end.min(start + CHUNK);
            let chunk = &mut buffer[..range.len()];
            load(piece, 0, row, range, chunk);
            if contiguous {
                Sink::row(piece, 1, row).store(start - cols.start, chunk);
                continue;
            }
            for (index, &value) in chunk.iter().enumerate() {
                piece.put(1, row, start + index, value);
            }
        }
    }
}

/// Loads elements of a row that need not be contiguous.
fn load(piece: &Piece<'_>, operand: usize, row: usize, cols: Range<usize>, out: &mut [f32]) {
    let layout = piece.layout(operand);
    if has_contiguous_rows(layout) {
        return piece.load(operand, row, cols.start, out);
    }
    let stride = layout.strides4()[3] as usize;
    let start = row_start(layout, row) + cols.start * stride;
    match layout.dtype() {
        DType::F32 => load_strided(&piece.src(operand)[start..], stride, out, |x: f32| x),
        DType::F16 => load_strided(&piece.src(operand)[start..], stride, out, f16::to_f32),
        _ => load_strided(&piece.src(operand)[start..], stride, out, bf16::to_f32),
    }
}

fn load_strided<T: Copy>(x: &[T], stride: usize, out: &mut [f32], convert: impl Fn(T) -> f32) {
    for (index, out) in out.iter_mut().enumerate() {
        *out = convert(x[index * stride]);
    }
}

pub(super) fn concat_grid(views: &[TensorView], _: &[u32]) -> Grid {
    let y = &views[2].layout;
    cut::rows(y.rows(), 1, 2 * y.cols())
}

pub(super) fn concat(piece: &mut Piece<'_>) {
    // All three have one type, so bits are moved as they are.
    match piece.layout(2).dtype() {
        DType::F32 => concat_rows::<f32>(piece),
        _ => concat_rows::<f16>(piece),
    }
}

fn concat_rows<T: Pod>(piece: &mut Piece<'_>) {
    for row in piece.rows() {
        let (a, b) = (piece.src_row::<T>(0, row), piece.src_row::<T>(1, row));
        let (low, high) = piece.dst_row(2, row).split_at_mut(a.len());
        low.copy_from_slice(a);
        high.copy_from_slice(b);
    }
}

pub(super) fn fill_grid(views: &[TensorView], params: &[u32]) -> Grid {
    copy_grid(views, params)
}

pub(super) fn fill(piece: &mut Piece<'_>) {
    let value = piece.float(0);
    let mut buffer = [0.0; CHUNK];
    for row in piece.rows() {
        if has_contiguous_rows(piece.layout(0)) {
            Sink::row(piece, 0, row).fill(&mut buffer, |_, y| y.fill(value));
            continue;
        }
        for col in 0..piece.layout(0).cols() {
            piece.put(0, row, col, value);
        }
    }
}

pub(super) fn kv_write_grid(views: &[TensorView], _: &[u32]) -> Grid {
    let x = &views[0].layout;
    lanes(x).with_scratch(x.cols())
}

/// Tokens in order, so that the last one wins where two have one position.
pub(super) fn kv_write(piece: &mut Piece<'_>) {
    let head = piece.take_scratch();
    each_cache_row(piece, 1, 2, |piece, row, cache_row| {
        piece.load_row(0, row, head);
        piece.store_row(2, cache_row, head);
    });
}

/// Cut for an op that writes the rows of `x` wherever their positions say.
pub(super) fn lanes(x: &Layout) -> Grid {
    // A few lanes are enough, and every one looks at all rows.
    Grid::lanes(cut::pieces(x.elems().saturating_mul(4)).min(16))
}

/// Calls `f` with each row of operand 0 and the row of the cache it goes to, if that one exists and
/// belongs to this piece.
pub(super) fn each_cache_row<'a>(
    piece: &mut Piece<'a>,
    positions: usize,
    cache: usize,
    mut f: impl FnMut(&mut Piece<'a>, usize, usize),
) {
    let shape = piece.layout(cache).shape4();
    let (cache_rows, heads) = (shape[1] as usize, shape[2] as usize);
    let positions = piece.src_row::<u32>(positions, 0);
    for (token, &position) in positions.iter().enumerate() {
        if position as usize >= cache_rows {
            continue;
        }
        for head in 0..heads {
            let cache_row = position as usize * heads + head;
            if piece.owns(cache_row) {
                f(piece, token * heads + head, cache_row);
            }
        }
    }
}

fn has_contiguous_rows(layout: &Layout) -> bool {
    layout.cols() == 1 || layout.strides4()[3] == 1
}
