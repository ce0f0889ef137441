//! Rows of plain floats, seen as f32 a chunk at a time.

use std::ops::Range;

use clearway_graph::{DType, Layout};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::cpu::Piece;
use crate::cpu::piece::misuse;

/// Elements converted at a time: the buffers stay in the nearest cache.
pub(super) const CHUNK: usize = 512;

/// Memory for a chunk. f32 rows leave it alone.
pub(super) type Buffer = [f32; CHUNK];

/// A row, or part of one, that is only read.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

impl<'a> Source<'a> {
    /// Columns `cols` of a contiguous row.
    pub(super) fn row(piece: &Piece<'a>, operand: usize, row: usize, cols: Range<usize>) -> Self {
        match piece.layout(operand).dtype() {
            DType::F32 => Self::F32(&piece.src_row(operand, row)[cols]),
            DType::F16 => Self::F16(&piece.src_row(operand, row)[cols]),
            DType::BF16 => Self::Bf16(&piece.src_row(operand, row)[cols]),
            _ => misuse("operand holds no plain floats"),
        }
    }

    /// Row `row` of an operand that has as many as the output, or else its only row.
    pub(super) fn row_or_only(
        piece: &Piece<'a>,
        operand: usize,
        row: usize,
        cols: Range<usize>,
    ) -> Self {
        let row = if piece.layout(operand).rows() == 1 { 0 } else { row };
        Self::row(piece, operand, row, cols)
    }

    /// Elements of at most a chunk.
    #[inline]
    pub(super) fn chunk<'b>(&self, range: Range<usize>, buffer: &'b mut Buffer) -> &'b [f32]
    where
        'a: 'b,
    {
        let buffer = &mut buffer[..range.len()];
        match self {
            Self::F32(row) => return &row[range],
            Self::F16(row) => row[range].convert_to_f32_slice(buffer),
            Self::Bf16(row) => row[range].convert_to_f32_slice(buffer),
        }
        buffer
    }
}

/// The part of a contiguous row of an output that a piece owns.
pub(super) enum Sink<'b> {
    F32(&'b mut [f32]),
    F16(&'b mut [f16]),
    Bf16(&'b mut [bf16]),
}

impl<'b> Sink<'b> {
    pub(super) fn row(piece: &'b mut Piece<'_>, operand: usize, row: usize) -> Self {
        match piece.layout(operand).dtype() {
            DType::F32 => Self::F32(piece.dst_row(operand, row)),
            DType::F16 => Self::F16(piece.dst_row(operand, row)),
            DType::BF16 => Self::Bf16(piece.dst_row(operand, row)),
            _ => misuse("outputs are f32, f16 or bf16"),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::F32(row) => row.len(),
            Self::F16(row) => row.len(),
            Self::Bf16(row) => row.len(),
        }
    }

    /// Has `f` compute all elements, a chunk at a time.
    #[inline]
    pub(super) fn fill(mut self, buffer: &mut Buffer, mut f: impl FnMut(Range<usize>, &mut [f32])) {
        for start in (0..self.len()).step_by(CHUNK) {
            let range = start..self.len().min(start + CHUNK);
            if let Self::F32(row) = &mut self {
                f(range.clone(), &mut row[range]);
                continue;
            }
            let chunk = &mut buffer[..range.len()];
            f(range.clone(), chunk);
            self.store(range.start, chunk);
        }
    }

    /// Encodes floats from element `start` on.
    pub(super) fn store(&mut self, start: usize, values: &[f32]) {
        let range = start..start + values.len();
        match self {
            Self::F32(row) => row[range].copy_from_slice(values),
            Self::F16(row) => row[range].convert_from_f32_slice(values),
            Self::Bf16(row) => row[range].convert_from_f32_slice(values),
        }
    }
}

/// Whether rows of an operand are f32 already.
pub(super) fn is_f32(piece: &Piece<'_>, operand: usize) -> bool {
    piece.layout(operand).dtype() == DType::F32
}

/// One row of an operand of any float or block type: where it lies if it is f32, else decoded into
/// `memory`.
pub(super) fn f32_row<'b, 'a: 'b>(
    piece: &Piece<'a>,
    operand: usize,
    row: usize,
    memory: &'b mut [f32],
) -> &'b [f32] {
    if is_f32(piece, operand) {
        return piece.src_row(operand, row);
    }
    piece.load_row(operand, row, memory);
    memory
}

/// Floats of memory [`f32_row`] needs for rows of this layout.
pub(super) fn f32_row_memory(layout: &Layout) -> usize {
    if layout.dtype() == DType::F32 { 0 } else { layout.cols() }
}
