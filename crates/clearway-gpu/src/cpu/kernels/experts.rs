//! Products with the experts chosen for each row, and their weighted sum.

use clearway_graph::TensorView;

use super::cut;
use super::matmul::{Activations, Inputs, Target, blocks, scratch};
use super::rows::{CHUNK, Sink, Source};
use crate::cpu::simd::packed::ROWS;
use crate::cpu::{Grid, Piece};

/// Output rows a piece covers at most: rows of one expert are looked for among them, so more means
/// fewer times each weight is decoded.
const MOST_ROWS: usize = 1024;

pub(super) fn matmul_grid(views: &[TensorView], _: &[u32]) -> Grid {
    grid_with(views, Activations::Rounded)
}

pub(super) fn float_matmul_grid(views: &[TensorView], _: &[u32]) -> Grid {
    grid_with(views, Activations::Float)
}

fn grid_with(views: &[TensorView], activations: Activations) -> Grid {
    // The order of the rows, if it is given, is found anyway.
    let (x, w, y) = (&views[0].layout, &views[1].layout, &views[views.len() - 1].layout);
    let (rows, outer, inner) = (y.rows(), y.cols(), x.cols());
    // As far as the cut is concerned, each row has an expert of its own.
    let row_blocks = rows.div_ceil(MOST_ROWS);
    let row_block = rows.div_ceil(row_blocks);
    let all = outer.saturating_mul(row_block);
    let (_, cols) = blocks(1, all, inner, activations.round(w.dtype()));
    let col_blocks = all.div_ceil(cols).div_ceil(row_blocks).min(outer.div_ceil(ROWS));
    let col_block = outer.div_ceil(col_blocks).next_multiple_of(ROWS);
    let scratch = scratch(row_block, x, w, activations);
    Grid::tiles(rows, row_block, outer, col_block).with_scratch(scratch)
}

pub(super) fn matmul_experts(piece: &mut Piece<'_>) {
    run(piece, Activations::Rounded);
}

pub(super) fn float_matmul_experts(piece: &mut Piece<'_>) {
    run(piece, Activations::Float);
}

/// Rows of one expert are multiplied together, up to a block at a time.
fn run(piece: &mut Piece<'_>, activations: Activations) {
    let weights = piece.layout(1).shape4();
    let (experts, outer) = (weights[1] as usize, weights[2] as usize);
    let used = piece.layout(2).cols();
    let own_rows = piece.layout(0).rank() == 3;
    let expert_of =
        |piece: &Piece<'_>, row: usize| piece.src_row::<u32>(2, row / used)[row % used] as usize;
    let rows = piece.rows();
    let y = piece.operand_count() - 1;
    let target = Target { y, addend: None };
    let mut inputs = Inputs::take(piece, 0, 1, activations);
    let mut buffer = [0.0; CHUNK];
    for first in rows.clone() {
        let expert = expert_of(piece, first);
        if expert >= experts {
            Sink::row(piece, y, first).fill(&mut buffer, |_, y| y.fill(0.0));
            continue;
        }
        if (rows.start..first).any(|row| expert_of(piece, row) == expert) {
            continue; // done together with that row
        }
        for row in first..rows.end {
            if expert_of(piece, row) != expert {
                continue;
            }
            inputs.push(if own_rows { row } else { row / used }, row);
            if inputs.is_full() {
                inputs.multiply(piece, expert * outer, &target);
            }
        }
        inputs.multiply(piece, expert * outer, &target);
    }
}

/// One piece: there are few words.
pub(super) fn order_grid(views: &[TensorView], _: &[u32]) -> Grid {
    let words = views[1].layout.elems();
    Grid::tiles(1, 1, words, words)
}

/// Pairs by expert; those of ids beyond the last come behind.
pub(super) fn expert_order(piece: &mut Piece<'_>) {
    let experts = piece.int(0) as usize;
    let (rows, used) = (piece.layout(0).rows(), piece.layout(0).cols());
    let ids: Vec<&[u32]> = (0..rows).map(|row| piece.src_row::<u32>(0, row)).collect();
    let order = piece.dst_row::<u32>(1, 0);
    let (starts, pairs) = order.split_at_mut(experts + 2);
    starts.fill(0);
    let expert_of = |pair: usize| (ids[pair / used][pair % used] as usize).min(experts);
    for pair in 0..rows * used {
        starts[expert_of(pair) + 1] += 1;
    }
    for expert in 0..=experts {
        starts[expert + 1] += starts[expert];
    }
    // Starts move on as pairs are placed, and back afterwards.
    for pair in 0..rows * used {
        let start = &mut starts[expert_of(pair)];
        pairs[*start as usize] = pair as u32;
        *start += 1;
    }
    starts.copy_within(..experts + 1, 1);
    starts[0] = 0;
}

pub(super) fn sum_grid(views: &[TensorView], _: &[u32]) -> Grid {
    let used = views[1].layout.cols();
    cut::tiles(&views[views.len() - 1].layout, used.saturating_mul(2))
}

/// Experts are added in the order of the router.
#[inline(always)]
pub(super) fn expert_sum(piece: &mut Piece<'_>) {
    sum_to(piece, None, 2);
}

/// The same, then the sum with a residual.
#[inline(always)]
pub(super) fn expert_sum_add(piece: &mut Piece<'_>) {
    sum_to(piece, Some(2), 3);
}

#[inline(always)]
fn sum_to(piece: &mut Piece<'_>, addend: Option<usize>, to: usize) {
    let (mut x_buffer, mut y_buffer) = ([0.0; CHUNK], [0.0; CHUNK]);
    let cols = piece.cols();
    for row in piece.rows() {
        let weights = piece.src_row::<f32>(1, row);
        for start in (0..cols.len()).step_by(CHUNK) {
            let range = start..cols.len().min(start + CHUNK);
            let y = &mut y_buffer[..range.len()];
            y.fill(0.0);
            for (index, &weight) in weights.iter().enumerate() {
                let x = Source::row(piece, 0, row * weights.len() + index, cols.clone());
                for (y, &x) in y.iter_mut().zip(x.chunk(range.clone(), &mut x_buffer)) {
                    *y += weight * x;
                }
            }
            if let Some(addend) = addend {
                let c = Source::row_or_only(piece, addend, row, cols.clone());
                for (y, &c) in y.iter_mut().zip(c.chunk(range.clone(), &mut x_buffer)) {
                    *y += c;
                }
            }
            Sink::row(piece, to, row).store(start, y);
        }
    }
}
