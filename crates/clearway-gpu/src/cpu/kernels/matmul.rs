//! Products with weight matrices of any type.
//!
//! A weight row is decoded once and used for all input rows of a block; f32 rows are used where they
//! lie. Every output element is one [`dot`](reduce::dot), whatever block it falls into.

use std::ops::Range;

use clearway_graph::{DType, Layout, TensorView};

use super::rows::{CHUNK, Sink, Source, f32_row, is_f32};
use super::{cut, reduce};
use crate::cpu::{Grid, Piece};

/// Most input rows a decoded weight row is used for before the next one is decoded. Together they
/// stay in the second cache.
pub(super) const ROW_BLOCK: usize = 64;

/// Columns computed before they are stored: one cache line of f32 in each row.
const COL_BLOCK: usize = 16;

/// Work to decode a weight, in multiply-adds.
pub(super) const DECODE_WORK: usize = 8;

/// `matmul` and `matmul_add`.
pub(super) fn grid(views: &[TensorView], _: &[u32]) -> Grid {
    let (x, w) = (&views[0].layout, &views[1].layout);
    let (rows, inner, outer) = (x.rows(), x.cols(), w.rows());
    let work = outer.saturating_mul(inner).saturating_mul(rows.saturating_add(DECODE_WORK));
    let row_blocks = rows.div_ceil(ROW_BLOCK);
    let col_blocks = cut::pieces(work).div_ceil(row_blocks);
    let row_block = rows.div_ceil(row_blocks);
    let col_block = outer.div_ceil(col_blocks).next_multiple_of(COL_BLOCK);
    Grid::tiles(rows, row_block, outer, col_block).with_scratch(scratch(row_block, x, w))
}

pub(super) fn matmul(piece: &mut Piece<'_>) {
    run(piece, None);
}

pub(super) fn matmul_add(piece: &mut Piece<'_>) {
    run(piece, Some(2));
}

fn run(piece: &mut Piece<'_>, addend: Option<usize>) {
    let rows = piece.rows();
    let mut inputs = Inputs::take(piece, 0, 1);
    for row in rows {
        // The grid makes no block larger than the inputs hold.
        inputs.push(piece, row, row);
    }
    let target = Target { y: piece.operand_count() - 1, addend };
    inputs.multiply(piece, 0, &target);
}

/// Floats that [`Inputs`] of this many rows of `x` and a row of `w` take, as far as they are not f32
/// already.
pub(super) fn scratch(rows: usize, x: &Layout, w: &Layout) -> usize {
    let decoded = |layout: &Layout| usize::from(layout.dtype() != DType::F32);
    (decoded(x) * rows.min(ROW_BLOCK) + decoded(w)) * x.cols()
}

/// Where products go.
pub(super) struct Target {
    /// The output.
    pub(super) y: usize,
    /// Operand added to it: as many rows, or one.
    pub(super) addend: Option<usize>,
}

/// A block of input rows, each with the output row it belongs to.
pub(super) struct Inputs<'a> {
    x: usize,
    w: usize,
    rows: [usize; ROW_BLOCK],
    outputs: [usize; ROW_BLOCK],
    len: usize,
    /// The rows as f32, if they are not so already.
    decoded: &'a mut [f32],
    /// Memory for a weight row that is not f32.
    weights: &'a mut [f32],
}

impl<'a> Inputs<'a> {
    /// An empty block for products of operands `x` and `w`, in the scratch of the piece.
    pub(super) fn take(piece: &mut Piece<'a>, x: usize, w: usize) -> Self {
        let weights = if is_f32(piece, w) { 0 } else { piece.layout(w).cols() };
        let (weights, decoded) = piece.take_scratch().split_at_mut(weights);
        let none = [0; ROW_BLOCK];
        Self { x, w, rows: none, outputs: none, len: 0, decoded, weights }
    }

    /// Whether no further row fits.
    pub(super) fn is_full(&self) -> bool {
        self.len == ROW_BLOCK
    }

    /// Adds row `row` of the input, for row `output` of the output.
    pub(super) fn push(&mut self, piece: &Piece<'_>, row: usize, output: usize) {
        if !is_f32(piece, self.x) {
            let inner = piece.layout(self.x).cols();
            let decoded = &mut self.decoded[self.len * inner..][..inner];
            piece.load_row(self.x, row, decoded);
        }
        self.rows[self.len] = row;
        self.outputs[self.len] = output;
        self.len += 1;
    }

    /// Multiplies all rows with the weight rows from `first` on that belong to the columns of the
    /// piece, and empties the block.
    pub(super) fn multiply(&mut self, piece: &mut Piece<'_>, first: usize, target: &Target) {
        let len = std::mem::take(&mut self.len);
        let inner = piece.layout(self.x).cols();
        let mut rows: [&[f32]; ROW_BLOCK] = [&[]; ROW_BLOCK];
        for (index, slot) in rows[..len].iter_mut().enumerate() {
            *slot = if is_f32(piece, self.x) {
                piece.src_row(self.x, self.rows[index])
            } else {
                &self.decoded[index * inner..][..inner]
            };
        }
        let (rows, outputs) = (&rows[..len], &self.outputs[..len]);
        let mut products = [[0.0; COL_BLOCK]; ROW_BLOCK];
        let cols = if len == 0 { 0..0 } else { piece.cols() };
        for start in cols.clone().step_by(COL_BLOCK) {
            let block = start..cols.end.min(start + COL_BLOCK);
            for (index, col) in block.clone().enumerate() {
                let weights = f32_row(piece, self.w, first + col, self.weights);
                for (products, row) in products.iter_mut().zip(rows) {
                    products[index] = reduce::dot(row, weights);
                }
            }
            for (products, &row) in products.iter_mut().zip(outputs) {
                let products = &mut products[..block.len()];
                if let Some(addend) = target.addend {
                    add(piece, addend, row, block.clone(), products);
                }
                Sink::row(piece, target.y, row).store(block.start - cols.start, products);
            }
        }
    }
}

/// Adds columns `cols` of a row of an operand, or of its only row.
fn add(piece: &Piece<'_>, operand: usize, row: usize, cols: Range<usize>, y: &mut [f32]) {
    let mut buffer = [0.0; CHUNK];
    let addend = Source::row_or_only(piece, operand, row, cols.clone());
    for (y, &addend) in y.iter_mut().zip(addend.chunk(0..cols.len(), &mut buffer)) {
        *y += addend;
    }
}
