//! Products with weight matrices of any type.
//!
//! Block weights meet inputs rounded to 8 bits, sixteen rows at a time (see [`simd`]). Plain weights
//! meet f32 inputs: sixteen rows at a time where they were packed as weights ([`plain_products`]), eight at a time
//! where they lie as they are ([`float::products`]). In each way an element does not depend on
//! what else is computed with it. A device that keeps activations float multiplies block weights like
//! plain ones ([`Activations`]).
//!
//! [`simd`]: crate::cpu::simd

use std::ops::Range;
use std::sync::LazyLock;

use clearway_graph::{DType, Layout, TensorView};
use half::{bf16, f16};

use super::cut;
use super::rows::{CHUNK, Sink, Source, f32_row, f32_row_memory, is_f32};
use crate::cpu::piece::row_start;
use crate::cpu::simd::float::{self, Element, GROUP, product_floats};
use crate::cpu::simd::packed::{ROWS, pack_rows};
use crate::cpu::simd::{Products, RUN, Run, plain_products, run_floats};
use crate::cpu::{Grid, Piece};

/// Most input rows that meet a weight row while it is in the nearest cache. Together they stay in the
/// second cache.
pub(super) const ROW_BLOCK: usize = 64;

/// Rows whose results take less memory: to clear all of it takes longer than a small piece with one row.
const FEW_TOKENS: usize = 8;

/// Columns computed before they are stored: whole cache lines of each row, and whole row blocks.
const COL_BLOCK: usize = 64;

/// Work to decode a plain weight, in multiply-adds.
const DECODE_WORK: usize = 8;

/// Fewest columns of a piece that multiplies several rows, unless there are no more: the rows are
/// rounded anew for each piece.
const FEWEST_COLS: usize = 512;

/// Pieces of a product that rounds its inputs, as far as rows alone do not make more: four for each core, but two for each of 16.
static ROUNDED_PIECES: LazyLock<usize> = LazyLock::new(|| (4 * *cut::CORES).clamp(16, 32));

/// Most pieces of a product of few rows, which is as fast as its weights come: four for each core. Each piece rounds the inputs anew, and
/// what it asks for ahead of its end is for nobody.
static STREAMED_PIECES: LazyLock<usize> = LazyLock::new(|| 4 * *cut::CORES);

/// Weights of a matrix that fits the second cache.
const SMALL_MATRIX: usize = 2 << 20;

/// Most columns of [`ROW_BLOCK`] rows of rounded inputs, two bytes each, that take half of the second cache.
const LARGE_INNER: usize = 4096;

/// What block weights are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activations {
    /// Inputs rounded to 8 bits.
    Rounded,
    /// Inputs as they are.
    Float,
}

impl Activations {
    /// Whether products with weights of this type round their inputs.
    pub(super) fn round(self, weights: DType) -> bool {
        self == Self::Rounded && weights.is_quantised()
    }
}

/// `matmul` and `matmul_add`.
pub(super) fn grid(views: &[TensorView], _: &[u32]) -> Grid {
    grid_with(views, Activations::Rounded)
}

/// The same with float activations.
pub(super) fn float_grid(views: &[TensorView], _: &[u32]) -> Grid {
    grid_with(views, Activations::Float)
}

fn grid_with(views: &[TensorView], activations: Activations) -> Grid {
    let (x, w) = (&views[0].layout, &views[1].layout);
    let rounds = activations.round(w.dtype());
    let (row_block, col_block) = blocks(x.rows(), w.rows(), x.cols(), rounds);
    let scratch = scratch(row_block, x, w, activations);
    Grid::tiles(x.rows(), row_block, w.rows(), col_block).with_scratch(scratch)
}

/// Rows and columns of a piece.
pub(super) fn blocks(rows: usize, outer: usize, inner: usize, rounds: bool) -> (usize, usize) {
    blocks_of(*ROUNDED_PIECES, rows, outer, inner, rounds)
}

/// The same, where products that round their inputs want so many pieces.
pub(super) fn blocks_of(
    rounded_pieces: usize,
    rows: usize,
    outer: usize,
    inner: usize,
    rounds: bool,
) -> (usize, usize) {
    let matrix = outer.saturating_mul(inner);
    let (most_rows, pieces) = if !rounds {
        let wanted = cut::pieces(matrix.saturating_mul(rows.saturating_add(DECODE_WORK)));
        (ROW_BLOCK, if rows < 8 { wanted.min(*STREAMED_PIECES) } else { wanted })
    } else if rows < 8 {
        // As long as it takes to fetch the weights.
        (ROW_BLOCK, cut::pieces(matrix / 4).min(*STREAMED_PIECES))
    } else {
        // A matrix that fits the second cache may be fetched again for every few rows. Of another, more rows share the work to
        // take its weights apart, if their inputs leave room in that cache.
        let most_rows = match matrix {
            0..SMALL_MATRIX => 16,
            _ if rows / ROW_BLOCK >= rounded_pieces / 8 && inner <= LARGE_INNER => ROW_BLOCK,
            _ => 32,
        };
        let row_blocks = rows.div_ceil(most_rows);
        let across = (rounded_pieces / row_blocks).clamp(1, 16);
        (most_rows, row_blocks * outer.div_ceil(FEWEST_COLS).min(across))
    };
    let row_blocks = rows.div_ceil(most_rows);
    let col_blocks = pieces.div_ceil(row_blocks);
    let row_block = rows.div_ceil(row_blocks).next_multiple_of(if rows < 8 { 1 } else { 8 });
    (row_block, outer.div_ceil(col_blocks).next_multiple_of(ROWS))
}

pub(super) fn matmul(piece: &mut Piece<'_>) {
    run(piece, None, Activations::Rounded);
}

pub(super) fn matmul_add(piece: &mut Piece<'_>) {
    run(piece, Some(2), Activations::Rounded);
}

pub(super) fn float_matmul(piece: &mut Piece<'_>) {
    run(piece, None, Activations::Float);
}

pub(super) fn float_matmul_add(piece: &mut Piece<'_>) {
    run(piece, Some(2), Activations::Float);
}

fn run(piece: &mut Piece<'_>, addend: Option<usize>, activations: Activations) {
    let rows = piece.rows();
    let mut inputs = Inputs::take(piece, 0, 1, activations);
    for row in rows {
        // The grid makes no block larger than the inputs hold.
        inputs.push(row, row);
    }
    let target = Target { y: piece.operand_count() - 1, addend };
    inputs.multiply(piece, 0, &target);
}

/// Floats that [`Inputs`] of this many rows of `x` take for products with `w`.
pub(super) fn scratch(rows: usize, x: &Layout, w: &Layout, activations: Activations) -> usize {
    let rows = rows.min(ROW_BLOCK);
    let decoded = |layout: &Layout| usize::from(layout.dtype() != DType::F32);
    if activations.round(w.dtype()) {
        return rows * run_floats(x.cols()) + decoded(x) * x.cols() + group_floats(w);
    }
    let weights = match w.dtype().is_quantised() {
        true => GROUP * x.cols() + product_floats(rows),
        // Packed or not.
        false => group_floats(w).max(product_floats(rows)),
    };
    decoded(x) * rows * x.cols() + weights
}

/// Floats of memory for sixteen rows of weights.
fn group_floats(w: &Layout) -> usize {
    ROWS * row_bytes(w) / size_of::<f32>()
}

fn row_bytes(w: &Layout) -> usize {
    w.cols() / w.dtype().block_elems() * w.dtype().block_bytes()
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
    memory: &'a mut [f32],
    activations: Activations,
}

impl<'a> Inputs<'a> {
    /// An empty block for products of operands `x` and `w`, in the scratch of the piece.
    pub(super) fn take(
        piece: &mut Piece<'a>,
        x: usize,
        w: usize,
        activations: Activations,
    ) -> Self {
        let (rows, outputs) = ([0; ROW_BLOCK], [0; ROW_BLOCK]);
        Self { x, w, rows, outputs, len: 0, memory: piece.take_scratch(), activations }
    }

    /// Whether no further row fits.
    pub(super) fn is_full(&self) -> bool {
        self.len == ROW_BLOCK
    }

    /// Adds row `row` of the input, for row `output` of the output.
    pub(super) fn push(&mut self, row: usize, output: usize) {
        self.rows[self.len] = row;
        self.outputs[self.len] = output;
        self.len += 1;
    }

    /// Multiplies all rows with the weight rows from `first` on that belong to the columns of the
    /// piece, and empties the block.
    pub(super) fn multiply(&mut self, piece: &mut Piece<'_>, first: usize, target: &Target) {
        if self.len > 0 {
            let dtype = piece.layout(self.w).dtype();
            match Products::of(dtype).filter(|_| self.activations.round(dtype)) {
                Some(products) => self.multiply_blocks(piece, first, target, products),
                None if !dtype.is_quantised() && piece.packed(self.w).is_some() => {
                    self.multiply_packed(piece, first, target);
                }
                None => self.multiply_floats(piece, first, target),
            }
        }
        self.len = 0;
    }

    fn multiply_blocks(
        &mut self,
        piece: &mut Piece<'_>,
        first: usize,
        target: &Target,
        products: Products,
    ) {
        let inner = piece.layout(self.x).cols();
        let (runs, rest) = self.memory.split_at_mut(self.len * run_floats(inner));
        let runs: &mut [Run] = bytemuck::cast_slice_mut(runs);
        let (group, row_memory) = rest.split_at_mut(group_floats(piece.layout(self.w)));
        let row_memory = &mut row_memory[..f32_row_memory(piece.layout(self.x))];
        for (token, &row) in self.rows[..self.len].iter().enumerate() {
            let x = f32_row(piece, self.x, row, row_memory);
            products.round(x, token, self.len, &mut runs[..self.len * (inner / RUN)]);
        }
        let outputs = &self.outputs[..self.len];
        each_group(piece, self.w, first, target, outputs, group, |groups, count, found| {
            products.multiply(groups, count, runs, found);
        });
    }

    /// Weights of a plain type that are packed.
    fn multiply_packed(&mut self, piece: &mut Piece<'_>, first: usize, target: &Target) {
        let weights = piece.layout(self.w);
        let (group, memory) = self.memory.split_at_mut(group_floats(weights));
        let mut inputs: [&[f32]; ROW_BLOCK] = [&[]; ROW_BLOCK];
        load_inputs(piece, self.x, &self.rows[..self.len], memory, &mut inputs);
        let (inputs, outputs) = (&inputs[..self.len], &self.outputs[..self.len]);
        each_group(piece, self.w, first, target, outputs, group, |groups, count, found| {
            plain_products(weights.dtype(), groups, count, inputs, found);
        });
    }

    fn multiply_floats(&mut self, piece: &mut Piece<'_>, first: usize, target: &Target) {
        match piece.layout(self.w).dtype() {
            DType::F32 => self.multiply_rows::<f32>(piece, first, target),
            DType::F16 => self.multiply_rows::<f16>(piece, first, target),
            DType::BF16 => self.multiply_rows::<bf16>(piece, first, target),
            // Decoded.
            _ => self.multiply_rows::<f32>(piece, first, target),
        }
    }

    /// Weights of type `E`, or block weights, which are decoded to f32.
    fn multiply_rows<E: Element>(&mut self, piece: &mut Piece<'_>, first: usize, target: &Target) {
        let inner = piece.layout(self.x).cols();
        let decode = piece.layout(self.w).dtype().is_quantised();
        let (sums, memory) = self.memory.split_at_mut(product_floats(self.len));
        let (decoded, memory) = memory.split_at_mut(if decode { GROUP * inner } else { 0 });
        let mut inputs: [&[f32]; ROW_BLOCK] = [&[]; ROW_BLOCK];
        load_inputs(piece, self.x, &self.rows[..self.len], memory, &mut inputs);
        let (inputs, outputs) = (&inputs[..self.len], &self.outputs[..self.len]);
        let mut found = [[[0.0; GROUP]; ROW_BLOCK]; COL_BLOCK / GROUP];
        let cols = piece.cols();
        for start in cols.clone().step_by(COL_BLOCK) {
            let block = start..cols.end.min(start + COL_BLOCK);
            for (col, found) in block.clone().step_by(GROUP).zip(&mut found) {
                let count = GROUP.min(block.end - col);
                let mut rows: [&[E]; GROUP] = [&[]; GROUP];
                if decode {
                    for (row, decoded) in decoded.chunks_exact_mut(inner).take(count).enumerate() {
                        piece.load_row(self.w, first + col + row, decoded);
                    }
                    for (row, decoded) in rows.iter_mut().zip(decoded.chunks_exact(inner)) {
                        *row = bytemuck::cast_slice(decoded);
                    }
                } else {
                    for (row, slot) in rows.iter_mut().take(count).enumerate() {
                        *slot = piece.src_row(self.w, first + col + row);
                    }
                }
                float::products(&rows[..count], inputs, sums, &mut found[..self.len]);
            }
            for (token, &row) in outputs.iter().enumerate() {
                let mut line = [0.0; COL_BLOCK];
                for (line, found) in line.as_chunks_mut().0.iter_mut().zip(&found) {
                    *line = found[token];
                }
                store(piece, target, row, block.clone(), &mut line[..block.len()]);
            }
        }
    }
}

/// Rows of the input as f32: where they lie if they are that, else decoded into memory.
fn load_inputs<'b, 'a: 'b>(
    piece: &Piece<'a>,
    x: usize,
    rows: &[usize],
    memory: &'b mut [f32],
    inputs: &mut [&'b [f32]; ROW_BLOCK],
) {
    let mut memory = memory;
    let inner = piece.layout(x).cols();
    for (slot, &row) in inputs.iter_mut().zip(rows) {
        *slot = if is_f32(piece, x) {
            piece.src_row(x, row)
        } else {
            let (decoded, rest) = memory.split_at_mut(inner);
            memory = rest;
            piece.load_row(x, row, decoded);
            decoded
        };
    }
}

/// Has `multiply` compute the weight rows from `first` on that belong to the columns of the piece, some groups of sixteen at a
/// time, and stores what it finds.
fn each_group(
    piece: &mut Piece<'_>,
    w: usize,
    first: usize,
    target: &Target,
    outputs: &[usize],
    memory: &mut [f32],
    mut multiply: impl FnMut(&[u8], usize, &mut [[f32; ROWS]]),
) {
    let tokens = outputs.len();
    let mut weights = Groups::new(piece, w, bytemuck::cast_slice_mut(memory));
    let mut few = [[0.0; ROWS]; FEW_TOKENS * COL_BLOCK / ROWS];
    let mut many;
    let found = if tokens <= FEW_TOKENS {
        few.as_mut_slice()
    } else {
        many = [[0.0; ROWS]; ROW_BLOCK * COL_BLOCK / ROWS];
        &mut many
    };
    let plain = is_f32(piece, target.y) && target.addend.is_none_or(|addend| is_f32(piece, addend));
    let cols = piece.cols();
    let mut start = cols.start;
    while start < cols.end {
        // Up to four row blocks, the first and the last perhaps in part.
        let (groups, count, within) = weights.next(piece, first + start..first + cols.end);
        let end = start + within.len();
        multiply(groups, count, &mut found[..count * tokens]);
        let whole = within.len() == count * ROWS && plain;
        for (token, &row) in outputs.iter().enumerate() {
            let found = found[token..].iter().step_by(tokens).take(count);
            if whole {
                store_groups(piece, target, row, start..end, found);
                continue;
            }
            let mut line = [0.0; COL_BLOCK];
            for (line, found) in line.as_chunks_mut().0.iter_mut().zip(found) {
                *line = *found;
            }
            store(piece, target, row, start..end, &mut line[within.clone()]);
        }
        start = end;
    }
}

/// Rows of weights, sixteen at a time: where they lie if they are packed, else packed into
/// memory.
struct Groups<'a> {
    w: usize,
    bytes: &'a [u8],
    row_bytes: usize,
    memory: &'a mut [u8],
}

impl<'a> Groups<'a> {
    fn new(piece: &Piece<'a>, w: usize, memory: &'a mut [u8]) -> Self {
        Self { w, bytes: piece.src_bytes(w), row_bytes: row_bytes(piece.layout(w)), memory }
    }

    /// Groups from that with the first of these rows on, at most [`COL_BLOCK`] rows, how many they are, and which of their rows
    /// are among these.
    fn next(&mut self, piece: &Piece<'_>, rows: Range<usize>) -> (&[u8], usize, Range<usize>) {
        let layout = piece.layout(self.w);
        let count = rows.len().min(ROWS);
        let (start, stride) = match piece.packed(self.w) {
            Some(view) => {
                let row = view.first_row + rows.start;
                if row < view.tensor.packed_rows() {
                    let within = row % ROWS;
                    let first = row - within;
                    let packed = (view.tensor.packed_rows() - first).min(COL_BLOCK);
                    let end = packed.min(within + rows.len());
                    let count = end.div_ceil(ROWS);
                    let groups = &self.bytes[first * self.row_bytes..];
                    return (&groups[..count * ROWS * self.row_bytes], count, within..end);
                }
                (row * self.row_bytes, self.row_bytes)
            }
            None => {
                // Rows of one matrix lie evenly apart.
                let bytes = |elems: usize| {
                    elems / layout.dtype().block_elems() * layout.dtype().block_bytes()
                };
                let stride = bytes(layout.strides4()[2] as usize);
                (bytes(row_start(layout, rows.start)), stride.max(self.row_bytes))
            }
        };
        let plain = &self.bytes[start..][..(count - 1) * stride + self.row_bytes];
        pack_rows(layout.dtype(), plain, stride, self.memory);
        (self.memory, 1, 0..count)
    }
}

/// Stores whole groups of f32 where they belong, with what is added to them. Nothing lies in between: a copy that reads with one
/// instruction what several have written waits until all they have written, and all that was stored before, is in the cache.
fn store_groups<'f>(
    piece: &mut Piece<'_>,
    target: &Target,
    row: usize,
    cols: Range<usize>,
    found: impl Iterator<Item = &'f [f32; ROWS]>,
) {
    let start = cols.start - piece.cols().start;
    let len = cols.len();
    let addend = target.addend.map(|addend| Source::row_or_only(piece, addend, row, cols));
    let Sink::F32(out) = Sink::row(piece, target.y, row) else { return };
    let groups = out[start..start + len].as_chunks_mut().0.iter_mut().zip(found);
    if let Some(Source::F32(addend)) = addend {
        for ((out, found), addend) in groups.zip(addend.as_chunks::<ROWS>().0) {
            for ((out, found), addend) in out.iter_mut().zip(found).zip(addend) {
                *out = found + addend;
            }
        }
        return;
    }
    groups.for_each(|(out, found)| *out = *found);
}

/// Stores columns `cols` of a row of the output, with what is added to them.
fn store(piece: &mut Piece<'_>, target: &Target, row: usize, cols: Range<usize>, y: &mut [f32]) {
    if let Some(addend) = target.addend {
        add(piece, addend, row, cols.clone(), y);
    }
    let start = cols.start - piece.cols().start;
    Sink::row(piece, target.y, row).store(start, y);
}

/// Adds columns `cols` of a row of an operand, or of its only row.
fn add(piece: &Piece<'_>, operand: usize, row: usize, cols: Range<usize>, y: &mut [f32]) {
    let mut buffer = [0.0; CHUNK];
    let addend = Source::row_or_only(piece, operand, row, cols.clone());
    for (y, &addend) in y.iter_mut().zip(addend.chunk(0..cols.len(), &mut buffer)) {
        *y += addend;
    }
}
