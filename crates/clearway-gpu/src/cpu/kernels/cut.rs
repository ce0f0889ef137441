//! Into how many pieces a dispatch is cut.
//!
//! A piece is worth some microseconds, so that claiming it costs nothing; a large op has enough of
//! them that 16 workers end together. The cut never changes a result.
//!
//! Work is counted in units of about a tenth of a nanosecond: one multiply-add of a vectorised loop.

use std::sync::LazyLock;

use clearway_graph::Layout;

use crate::cpu::Grid;

/// Cores of the machine.
pub(super) static CORES: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));

/// Least work of a piece, unless the op has less.
const PIECE_WORK: usize = 32 << 10;

/// Most pieces that work alone asks for.
const MOST_PIECES: usize = 64;

/// Columns of a tile are a multiple of this many: whole cache lines, and whole blocks of every
/// block type.
const COLUMN_STEP: usize = 256;

/// Pieces for this much work.
pub(super) fn pieces(work: usize) -> usize {
    (work / PIECE_WORK).clamp(1, MOST_PIECES)
}

/// Blocks of whole rows, each a multiple of `step` rows.
pub(super) fn rows(rows: usize, step: usize, work_per_row: usize) -> Grid {
    let wanted = pieces(rows.saturating_mul(work_per_row));
    Grid::rows(rows, rows.div_ceil(wanted).next_multiple_of(step))
}

/// Tiles of an output of this layout: whole rows where there are enough of them.
pub(super) fn tiles(output: &Layout, work_per_elem: usize) -> Grid {
    let (rows, cols) = (output.rows(), output.cols());
    let wanted = pieces(output.elems().saturating_mul(work_per_elem));
    if rows >= wanted {
        return Grid::tiles(rows, rows.div_ceil(wanted), cols, cols);
    }
    let across = wanted.div_ceil(rows);
    let block = cols.div_ceil(across).next_multiple_of(COLUMN_STEP).min(cols);
    Grid::tiles(rows, 1, cols, block)
}
