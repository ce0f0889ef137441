//! Products with weight matrices of any type.
//!
//! A weight row is decoded once and used for all input rows of a block; f32 rows are used where they
//! lie. Every output element is one [`dot`](reduce::dot), whatever block it falls into.

use clearway_graph::{DType, TensorView};

use super::rows::{CHUNK, Sink, Source};
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
    let scratch = Scratch::of(row_block, &views[0], &views[1]).elems();
    Grid::tiles(rows, row_block, outer, col_block).with_scratch(scratch)
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

/// Floats a piece needs for what is not f32 already.
#[derive(Clone, Copy)]
pub(super) struct Scratch {
    inputs: usize,
    weights: usize,
}

impl Scratch {
    /// For this many input rows of `x` and one row of `w`.
    pub(super) fn of(rows: usize, x: &TensorView, w: &TensorView) -> Self {
        let inner = x.layout.cols();
        let decoded = |view: &TensorView| view.layout.dtype() != DType::F32;
        Self {
            inputs: if decoded(x) { rows.min(ROW_BLOCK) * inner } else { 0 },
            weights: if decoded(w) { inner } else { 0 },
        }
    }

    pub(super) fn elems(self) -> usize {
        self.inputs + self.weights
    }
}

/// Where products go.
pub(super) struct Target {
    /// The output.
    pub(super) y: usize,
    /// Operand added to it: as many rows, or one.
    pub(super) addend: Option<usize>,
}

/// A block of input rows as f32, each with the output row it belongs to.
pub(super) struct Inputs<'a> {
    x: usize,
    w: usize,
    rows: [&'a [f32]; ROW_BLOCK],
    outputs: [usize; ROW_BLOCK],
    len: usize,
    /// Memory for input rows that are not f32.
    memory: &'a mut [f32],
    /// Memory for a weight row that is not f32.
    weight: &'a mut [f32],
}

impl<'a> Inputs<'a> {
    /// An empty block for products of operands `x` and `w`, in the scratch of the piece.
    pub(super) fn take(piece: &mut Piece<'a>, x: usize, w: usize) -> Self {
        let scratch = piece.take_scratch();
        let decoded = piece.layout(w).dtype() != DType::F32;
        let weights = if decoded { piece.layout(w).cols() } else { 0 };
        let (weight, memory) = scratch.split_at_mut(weights);
        Self { x, w, rows: [&[]; ROW_BLOCK], outputs: [0; ROW_BLOCK], len: 0, memory, weight }
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == ROW_BLOCK
    }

    /// Adds row `row` of the input, for row `output` of the output.
    pub(super) fn push(&mut self, piece: &Piece<'a>, row: usize, output: usize) {
        self.rows[self.len] = if piece.layout(self.x).dtype() == DType::F32 {
            piece.src_row(self.x, row)
        } else {
            let inner = piece.layout(self.x).cols();
            let (decoded, rest) = std::mem::take(&mut self.memory).split_at_mut(inner);
            self.memory = rest;
            piece.load_row(self.x, row, decoded);
            decoded
        };
        self.outputs[self.len] = output;
        self.len += 1;
    }

    /// Multiplies all rows with the weight rows from `first` on that belong to the columns of the
    /// piece.
    pub(super) fn multiply(&mut self, piece: &mut Piece<'a>, first: usize, target: &Target) {
        let cols = piece.cols();
        let mut products = [[0.0; COL_BLOCK]; ROW_BLOCK];
        let mut buffer = [0.0; CHUNK];
        for start in cols.clone().step_by(COL_BLOCK) {
            let block = start..cols.end.min(start + COL_BLOCK);
            for (index, col) in block.clone().enumerate() {
                let weights = weight_row(piece, self.w, first + col, self.weight);
                for (products, row) in products.iter_mut().zip(&self.rows[..self.len]) {
                    products[index] = reduce::dot(row, weights);
                }
            }
            for (products, &row) in products.iter_mut().zip(&self.outputs[..self.len]) {
                let products = &mut products[..block.len()];
                if let Some(addend) = target.addend {
                    let addend = Source::row_or_only(piece, addend, row, block.clone());
                    let addend = addend.chunk(0..block.len(), &mut buffer);
                    for (product, &addend) in products.iter_mut().zip(addend) {
                        *product += addend;
                    }
                }
                Sink::row(piece, target.y, row).store(block.start - cols.start, products);
            }
        }
    }
}

fn weight_row<'b, 'a: 'b>(
    piece: &Piece<'a>,
    w: usize,
    row: usize,
    memory: &'b mut [f32],
) -> &'b [f32] {
    if piece.layout(w).dtype() == DType::F32 {
        return piece.src_row(w, row);
    }
    piece.load_row(w, row, memory);
    memory
}
