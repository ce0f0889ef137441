//! What a kernel sees: its operands, and the part of the outputs that is its own.
//!
//! A dispatch is cut into pieces by its [`Grid`]; every piece owns some rows (or a tile) of each
//! output and nothing else, so pieces of one dispatch may run at the same time. Pieces of different
//! dispatches may too, since the list was proven. Kernels themselves are safe code: a piece hands
//! out shared slices of operands that are only read, and exclusive slices of what it owns. It hands out
//! no byte that the kernel's contract does not declare, since the proof knows of no other.

use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use clearway_graph::{BindingRole, DType, Layout, TensorView};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::simd::float;
use super::simd::packed::PackedView;
use crate::quant::{self, BlockDecoder, cache};

/// How a dispatch is cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    split: Split,
    scratch: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    /// Blocks of whole rows.
    Rows { rows: usize, block: usize },
    /// Blocks of rows that are cut into runs: the index modulo `period` says which run a row is in.
    Runs { rows: usize, block: usize, period: usize, run: usize },
    /// Blocks of rows by blocks of columns.
    Tiles { rows: usize, row_block: usize, cols: usize, col_block: usize },
    /// Piece `i` of `lanes` owns the rows whose index is `i` modulo `lanes`.
    Lanes { lanes: usize },
    /// Parts own nothing but `floats` floats each; who is done last joins them.
    Joint { rows: usize, parts: usize, floats: usize },
}

impl Grid {
    /// Blocks of whole rows. Every output has `rows` rows.
    pub fn rows(rows: usize, block: usize) -> Self {
        let block = block.clamp(1, rows.max(1));
        Self { split: Split::Rows { rows, block }, scratch: 0 }
    }

    /// Blocks of `block` rows, each cut into runs of `run` rows in every `period`: some heads of some tokens, where
    /// tokens have `period` heads. Every output has `rows` rows.
    pub fn runs(rows: usize, block: usize, period: usize, run: usize) -> Self {
        let block = block.clamp(1, rows.max(1));
        let period = period.max(1);
        let run = run.clamp(1, period);
        Self { split: Split::Runs { rows, block, period, run }, scratch: 0 }
    }

    /// Tiles. Every output has `rows` rows of `cols` columns.
    pub fn tiles(rows: usize, row_block: usize, cols: usize, col_block: usize) -> Self {
        let row_block = row_block.clamp(1, rows.max(1));
        let col_block = col_block.clamp(1, cols.max(1));
        Self { split: Split::Tiles { rows, row_block, cols, col_block }, scratch: 0 }
    }

    /// Piece `i` of `lanes` owns the rows whose index is `i` modulo `lanes`: for kernels that find
    /// out only when they run which rows they write.
    pub fn lanes(lanes: usize) -> Self {
        Self { split: Split::Lanes { lanes: lanes.max(1) }, scratch: 0 }
    }

    /// Parts that own no row of the outputs, but `floats` floats each for what they find. Once all parts
    /// are done, the kernel is run once more, to join them: that piece owns all rows and sees the floats of
    /// all parts. For kernels with few rows and long sums.
    pub fn joint(rows: usize, parts: usize, floats: usize) -> Self {
        Self { split: Split::Joint { rows, parts: parts.max(1), floats }, scratch: 0 }
    }

    /// Asks for `elems` floats of memory for each worker.
    #[must_use]
    pub fn with_scratch(mut self, elems: usize) -> Self {
        self.scratch = elems;
        self
    }

    /// How many pieces there are.
    pub fn pieces(&self) -> usize {
        match self.split {
            Split::Rows { rows, block } => rows.div_ceil(block),
            Split::Runs { rows, block, period, run } => {
                rows.div_ceil(block).saturating_mul(period.div_ceil(run))
            }
            Split::Tiles { rows, row_block, cols, col_block } => {
                rows.div_ceil(row_block).saturating_mul(cols.div_ceil(col_block))
            }
            Split::Lanes { lanes } => lanes,
            Split::Joint { parts, .. } => parts,
        }
    }

    pub(super) fn scratch(&self) -> usize {
        self.scratch
    }

    /// Whether the kernel is run once more to join the pieces.
    pub(super) fn is_joint(&self) -> bool {
        matches!(self.split, Split::Joint { .. })
    }

    /// Floats of one piece that the joining one sees.
    pub(super) fn joint_floats(&self) -> usize {
        match self.split {
            Split::Joint { floats, .. } => floats,
            Split::Rows { .. } | Split::Runs { .. } | Split::Tiles { .. } | Split::Lanes { .. } => {
                0
            }
        }
    }

    /// Whether pieces own disjoint bytes of an output of this layout.
    pub(super) fn fits(&self, layout: &Layout) -> bool {
        let shape = match self.split {
            Split::Rows { rows, .. } | Split::Runs { rows, .. } | Split::Joint { rows, .. } => {
                layout.rows() == rows
            }
            Split::Tiles { rows, cols, .. } => layout.rows() == rows && layout.cols() == cols,
            Split::Lanes { .. } => true,
        };
        shape && layout.is_injective()
    }

    fn part(&self, piece: usize) -> Part {
        let none = Part { rows: 0..0, runs: None, cols: None, lanes: None };
        match self.split {
            Split::Rows { rows, block } => {
                Part { rows: piece * block..rows.min((piece + 1) * block), ..none }
            }
            Split::Runs { rows, block, period, run } => {
                let across = period.div_ceil(run);
                let (r, c) = (piece / across, piece % across);
                Part {
                    rows: r * block..rows.min((r + 1) * block),
                    runs: Some((period, c * run..period.min((c + 1) * run))),
                    ..none
                }
            }
            Split::Tiles { rows, row_block, cols, col_block } => {
                let across = cols.div_ceil(col_block);
                let (r, c) = (piece / across, piece % across);
                Part {
                    rows: r * row_block..rows.min((r + 1) * row_block),
                    cols: Some(c * col_block..cols.min((c + 1) * col_block)),
                    ..none
                }
            }
            Split::Lanes { lanes } => Part { lanes: Some((piece, lanes)), ..none },
            // The one behind the last joins.
            Split::Joint { rows, parts, .. } => {
                Part { rows: 0..if piece == parts { rows } else { 0 }, ..none }
            }
        }
    }
}

/// The rows and columns of the outputs a piece owns.
#[derive(Clone, Debug)]
struct Part {
    rows: Range<usize>,
    /// Of the rows, those whose index modulo the number is in the range.
    runs: Option<(usize, Range<usize>)>,
    cols: Option<Range<usize>>,
    lanes: Option<(usize, usize)>,
}

/// An operand of a lowered dispatch: the bytes of a view that the kernel's contract declares. They are
/// inside a buffer that the program keeps alive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub(super) start: *mut u8,
    pub(super) bytes: usize,
    /// Bytes of the view in front of those that are declared.
    pub(super) skipped: usize,
    pub(super) layout: Layout,
    pub(super) role: BindingRole,
    /// For weights in row blocks: where among them the tensor lies. `start` and `bytes` are then those
    /// of the whole buffer.
    pub(super) packed: Option<PackedView>,
    /// The operand that this output lies exactly over.
    pub(super) over: Option<usize>,
    /// An output lies over it: it is reached through that output alone.
    pub(super) aliased: bool,
}

// SAFETY: the pointer is to plain bytes of a `HostMemory`, which any thread may touch. It is followed by
// `Piece` only, whose maker (`Work::run_piece`) answers for who touches what at the same time.
unsafe impl Send for Operand {}
// SAFETY: `&Operand` follows the pointer nowhere; `Piece` does, under the contract of `Piece::new`.
unsafe impl Sync for Operand {}

/// How a kernel is cut, and what it does to one piece.
#[derive(Clone)]
pub struct CpuKernel {
    grid: Arc<GridFn>,
    run: Arc<RunFn>,
}

type GridFn = dyn Fn(&[TensorView], &[u32]) -> Grid + Send + Sync;
type RunFn = dyn Fn(&mut Piece<'_>) + Send + Sync;

impl CpuKernel {
    /// A kernel from a function of the operands and constants that cuts it, and one that computes a
    /// piece.
    pub fn new(
        grid: impl Fn(&[TensorView], &[u32]) -> Grid + Send + Sync + 'static,
        run: impl Fn(&mut Piece<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self { grid: Arc::new(grid), run: Arc::new(run) }
    }

    pub(super) fn grid(&self, views: &[TensorView], params: &[u32]) -> Grid {
        (self.grid)(views, params)
    }

    pub(super) fn run(&self, piece: &mut Piece<'_>) {
        (self.run)(piece);
    }
}

/// One piece of a dispatch.
///
/// Misuse (an operand that does not exist, a row that is not the piece's own, a wrong element type) is
/// a bug of the kernel: it panics, and the program reports the kernel by name.
pub struct Piece<'a> {
    operands: &'a [Operand],
    params: &'a [u32],
    part: Part,
    index: usize,
    scratch: &'a mut [f32],
    joint: &'a mut [f32],
}

impl<'a> Piece<'a> {
    /// # Safety
    /// `grid` fits every written operand and `piece` is one of its pieces, of which no other `Piece`
    /// exists, or for a joint grid the number of its pieces, after all of them are done; no written operand
    /// overlaps another operand but an aliased one that it lies exactly over;
    /// all operands lie in live memory; and nobody else touches the bytes this piece owns or writes the
    /// bytes it reads while it exists.
    pub(super) unsafe fn new(
        operands: &'a [Operand],
        params: &'a [u32],
        grid: &Grid,
        piece: usize,
        scratch: &'a mut [f32],
        joint: &'a mut [f32],
    ) -> Self {
        let scratch = &mut scratch[..grid.scratch];
        Self { operands, params, part: grid.part(piece), index: piece, scratch, joint }
    }

    /// Which piece this is; of a [joint](Grid::joint) grid, as many as there are parts for the one that
    /// joins them.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The floats of this part of a [joint](Grid::joint) grid, or those of all parts for the piece that
    /// joins them; once, empty after that and for other grids.
    pub fn take_joint(&mut self) -> &'a mut [f32] {
        std::mem::take(&mut self.joint)
    }

    /// Rows of the outputs this piece owns, or owns runs of; empty for lanes.
    pub fn rows(&self) -> Range<usize> {
        self.part.rows.clone()
    }

    /// Which rows of each period this piece owns; empty unless cut into runs.
    pub fn run(&self) -> Range<usize> {
        self.part.runs.as_ref().map_or(0..0, |(_, run)| run.clone())
    }

    /// Columns of the outputs this piece owns; empty unless cut into tiles.
    pub fn cols(&self) -> Range<usize> {
        self.part.cols.clone().unwrap_or(0..0)
    }

    /// This piece's lane; 0 unless cut into lanes.
    pub fn lane(&self) -> usize {
        self.part.lanes.map_or(0, |(lane, _)| lane)
    }

    /// Whether this piece owns a row of the outputs, or its columns of it.
    pub fn owns(&self, row: usize) -> bool {
        match self.part.lanes {
            Some((lane, lanes)) => row % lanes == lane,
            None => {
                let of_run = |(period, run): &(usize, Range<usize>)| run.contains(&(row % period));
                self.part.rows.contains(&row) && self.part.runs.as_ref().is_none_or(of_run)
            }
        }
    }

    /// Operands given.
    pub fn operand_count(&self) -> usize {
        self.operands.len()
    }

    /// The operand that an output lies exactly over, as its contract allows: it is read where it is
    /// written, in [`dst_row`](Self::dst_row), and nowhere else.
    pub fn over(&self, output: usize) -> Option<usize> {
        self.operands[output].over
    }

    /// Layout of an operand.
    pub fn layout(&self, operand: usize) -> &'a Layout {
        &self.operands[operand].layout
    }

    /// Where an operand lies among packed weights, if it does; its bytes are then all of them.
    pub(super) fn packed(&self, operand: usize) -> Option<PackedView> {
        self.operands[operand].packed
    }

    /// A constant as an integer.
    pub fn int(&self, param: usize) -> u32 {
        self.params[param]
    }

    /// A constant as a float.
    pub fn float(&self, param: usize) -> f32 {
        f32::from_bits(self.params[param])
    }

    /// The floats asked for with [`Grid::with_scratch`]; once, empty after that.
    pub fn take_scratch(&mut self) -> &'a mut [f32] {
        std::mem::take(&mut self.scratch)
    }

    /// The bytes of an operand that the kernel's contract declares, counted from the first byte of its
    /// view: the whole view, unless its extent is [computed](clearway_graph::Extent::Computed).
    pub fn declared(&self, operand: usize) -> Range<usize> {
        let Operand { skipped, bytes, .. } = self.operands[operand];
        skipped..skipped + bytes
    }

    /// All [declared](Self::declared) bytes of an operand that is only read.
    pub fn src_bytes(&self, operand: usize) -> &'a [u8] {
        let operand = &self.operands[operand];
        assert!(operand.role == BindingRole::Read, "operand is written; use dst_row");
        assert!(!operand.aliased, "an output lies over this operand; read it in dst_row");
        // SAFETY: the encoder has seen that `bytes` bytes from `start` are inside a buffer, which the
        // program keeps alive, and that no output of this dispatch lies over them. By the contract of
        // `new`, which `Work::run_piece` upholds, nobody else writes them while this piece exists.
        unsafe { std::slice::from_raw_parts(operand.start, operand.bytes) }
    }

    /// All [declared](Self::declared) elements of an operand that is only read, gaps of a strided layout
    /// included.
    pub fn src<T: Pod>(&self, operand: usize) -> &'a [T] {
        assert!(self.packed(operand).is_none(), "rows of this operand are packed; use load_row");
        bytemuck::cast_slice(self.src_bytes(operand))
    }

    /// One row of an operand that is only read; rows count over all outer dimensions. All of it must be
    /// [declared](Self::declared).
    pub fn src_row<T: Pod>(&self, operand: usize, row: usize) -> &'a [T] {
        let layout = self.layout(operand);
        let start = row_start(layout, row);
        self.elems(operand, start..start + layout.cols())
    }

    /// Elements of an operand that is only read, counted from the first of its view.
    fn elems<T: Pod>(&self, operand: usize, elems: Range<usize>) -> &'a [T] {
        if self.operands[operand].skipped == 0 {
            return &self.src(operand)[elems];
        }
        let bytes = elems.start * size_of::<T>()..elems.end * size_of::<T>();
        bytemuck::cast_slice(self.view_bytes(operand, bytes))
    }

    /// Bytes of an operand that is only read, counted from the first of its view.
    fn view_bytes(&self, operand: usize, bytes: Range<usize>) -> &'a [u8] {
        let skipped = self.operands[operand].skipped;
        let start = bytes.start.checked_sub(skipped);
        let start = start.unwrap_or_else(|| misuse("bytes that the contract does not declare"));
        &self.src_bytes(operand)[start..bytes.end - skipped]
    }

    /// Decodes one row of an operand of any float or block type.
    pub fn load_row(&self, operand: usize, row: usize, out: &mut [f32]) {
        self.load(operand, row, 0, out);
    }

    /// Decodes `out.len()` elements from column `col` of a row. In block types `col` starts a block.
    pub fn load(&self, operand: usize, row: usize, col: usize, out: &mut [f32]) {
        let layout = self.layout(operand);
        if let Some(PackedView { tensor, first_row }) = self.packed(operand) {
            let (bytes, row) = (self.src_bytes(operand), first_row + row);
            return match layout.dtype() {
                DType::F32 => tensor.load_plain(bytes, row, col, |x: f32| x, out),
                DType::F16 => tensor.load_plain(bytes, row, col, f16::to_f32, out),
                DType::BF16 => tensor.load_plain(bytes, row, col, bf16::to_f32, out),
                dtype => tensor.load(bytes, row, col, block_decoder(dtype), out),
            };
        }
        let start = row_start(layout, row) + col;
        match layout.dtype() {
            DType::F32 => out.copy_from_slice(self.elems(operand, start..start + out.len())),
            DType::F16 => float::widen_f16(self.elems(operand, start..start + out.len()), out),
            DType::BF16 => float::widen_bf16(self.elems(operand, start..start + out.len()), out),
            DType::C8 => {
                let (quants, scales) = self.src_chunks(operand);
                let chunks = quants[start..].as_chunks::<{ cache::CHUNK }>().0.iter();
                let chunks = chunks.zip(&scales[start / cache::CHUNK..]);
                for ((quants, scale), out) in chunks.zip(out.chunks_exact_mut(cache::CHUNK)) {
                    let scale = cache::value(*scale);
                    for (out, &quant) in out.iter_mut().zip(quants) {
                        *out = scale * f32::from(quant);
                    }
                }
            }
            dtype => {
                let block = dtype.block_elems();
                let bytes = dtype.block_bytes();
                let (first, count) = (start / block, out.len() / block);
                block_decoder(dtype)(
                    self.view_bytes(operand, first * bytes..(first + count) * bytes),
                    out,
                );
            }
        }
    }

    /// Quants of a [`DType::C8`] operand that is only read, and the scales of its chunks. All of it must be
    /// [declared](Self::declared).
    pub fn src_chunks(&self, operand: usize) -> (&'a [i8], &'a [f16]) {
        let layout = self.layout(operand);
        assert!(layout.dtype() == DType::C8, "operand is no cache of 8 bits");
        let (elems, bytes) = (layout.elems(), layout.span_bytes() as usize);
        let (quants, scales) = self.view_bytes(operand, 0..bytes).split_at(elems);
        (bytemuck::cast_slice(quants), bytemuck::cast_slice(scales))
    }

    /// Quants of a row of a [`DType::C8`] output that this piece owns, and the scales of its chunks.
    pub fn dst_chunks(&mut self, operand: usize, row: usize) -> (&mut [i8], &mut [f16]) {
        let target = &self.operands[operand];
        let layout = &target.layout;
        assert!(target.role != BindingRole::Read, "operand is only read; use src_chunks");
        assert!(self.owns(row) && self.part.cols.is_none(), "row {row} belongs to another piece");
        assert!(row < layout.rows(), "row {row} does not exist");
        assert!(layout.dtype() == DType::C8 && layout.is_dense(), "operand is no cache of 8 bits");
        let (elems, cols) = (layout.elems(), layout.cols());
        let whole = target.skipped == 0 && target.bytes as u64 == layout.span_bytes();
        assert!(whole, "the whole cache is declared");
        let chunks = cols / cache::CHUNK;
        let (quants, scales) = (row * cols, elems + row * chunks * size_of::<f16>());
        // SAFETY: the operand is whole, which was just asserted. It has `elems` quants, of which the `cols` of an
        // existing row begin here.
        let quants = unsafe { target.start.add(quants) };
        // SAFETY: behind the quants of the whole operand come two bytes for each chunk of every row. Those of an
        // existing row begin here.
        let scales = unsafe { target.start.add(scales) };
        assert!(scales.cast::<f16>().is_aligned(), "operand is misaligned");
        // SAFETY: these bytes are inside the operand, which is inside a buffer that the program keeps alive, and i8 takes
        // any bits. They are this piece's alone: `owns` is true of one piece for each row, rows of a dense layout share no
        // quants, and `Work::run_piece` upholds the contract of `new`. `&mut self` keeps them from being handed out twice
        // at a time.
        let quants = unsafe { std::slice::from_raw_parts_mut(quants.cast(), cols) };
        // SAFETY: likewise: rows share no scales, f16 takes any bits and is aligned. All scales lie behind byte `elems` and all
        // quants before it, so that the two slices share no byte.
        let scales = unsafe { std::slice::from_raw_parts_mut(scales.cast(), chunks) };
        (quants, scales)
    }

    /// The part of a row of an output that this piece owns: the whole row, or its columns of it. All of it
    /// must be [declared](Self::declared).
    pub fn dst_row<T: Pod>(&mut self, operand: usize, row: usize) -> &mut [T] {
        let target = &self.operands[operand];
        assert!(target.role != BindingRole::Read, "operand is only read; use src_row");
        assert!(self.owns(row), "row {row} belongs to another piece");
        assert!(row < target.layout.rows(), "row {row} does not exist");
        let dtype = target.layout.dtype();
        let dense = target.layout.cols() == 1 || target.layout.strides4()[3] == 1;
        assert!(dense, "rows of this operand are not contiguous; use put");
        assert!(size_of::<T>() == dtype.block_bytes() && !dtype.is_quantised(), "wrong type");
        let cols = self.part.cols.clone().unwrap_or(0..target.layout.cols());
        let first = (row_start(&target.layout, row) + cols.start) * size_of::<T>();
        let first = first.checked_sub(target.skipped).unwrap_or(usize::MAX);
        let end = first.checked_add(cols.len() * size_of::<T>());
        assert!(end.is_some_and(|end| end <= target.bytes), "row reaches outside what is declared");
        // SAFETY: the assertion has seen that `first` is inside the operand or its end.
        let start = unsafe { target.start.add(first) };
        assert!(start.cast::<T>().is_aligned(), "operand is misaligned");
        // SAFETY: the assertions have seen that the elements are inside the operand, which is inside a
        // buffer that the program keeps alive, and aligned; a Pod type takes any bits. They are this
        // piece's alone: `owns` is true of one piece for each row, the encoder has seen that the layout
        // puts no two elements into one byte, and `Work::run_piece` upholds the contract of `new`.
        // `&mut self` keeps them from being handed out twice at a time.
        unsafe { std::slice::from_raw_parts_mut(start.cast(), cols.len()) }
    }

    /// Encodes floats into the part of a row of an f32, f16, bf16 or c8 output that this piece owns.
    pub fn store_row(&mut self, operand: usize, row: usize, values: &[f32]) {
        match self.layout(operand).dtype() {
            DType::C8 => {
                let (quants, scales) = self.dst_chunks(operand, row);
                let chunks = quants.as_chunks_mut().0.iter_mut().zip(scales);
                for (values, (quants, scale)) in values.as_chunks().0.iter().zip(chunks) {
                    *scale = cache::round_chunk(values, quants);
                }
            }
            DType::F32 => self.dst_row(operand, row).copy_from_slice(values),
            DType::F16 => self.dst_row::<f16>(operand, row).convert_from_f32_slice(values),
            DType::BF16 => self.dst_row::<bf16>(operand, row).convert_from_f32_slice(values),
            _ => misuse("outputs are f32, f16 or bf16"),
        }
    }

    /// Writes one element of an output whose rows need not be contiguous. Not for lanes or tiles.
    pub fn put(&mut self, operand: usize, row: usize, col: usize, value: f32) {
        let target = &self.operands[operand];
        let whole_rows = self.part.lanes.is_none() && self.part.cols.is_none();
        assert!(whole_rows && self.owns(row), "row {row} belongs to another piece");
        assert!(target.role != BindingRole::Read && col < target.layout.cols(), "not an output");
        let elem = row_start(&target.layout, row) + col * target.layout.strides4()[3] as usize;
        let mut bytes = [0u8; 4];
        let size = match target.layout.dtype() {
            DType::F32 => {
                bytes = value.to_ne_bytes();
                4
            }
            DType::F16 => {
                bytes[..2].copy_from_slice(&f16::from_f32(value).to_ne_bytes());
                2
            }
            DType::BF16 => {
                bytes[..2].copy_from_slice(&bf16::from_f32(value).to_ne_bytes());
                2
            }
            _ => misuse("outputs are f32, f16 or bf16"),
        };
        let first = (elem * size).checked_sub(target.skipped).unwrap_or(usize::MAX);
        let end = first.checked_add(size);
        assert!(end.is_some_and(|end| end <= target.bytes), "element is not declared");
        // SAFETY: the assertion has seen that the element is inside the operand.
        let start = unsafe { target.start.add(first) };
        // SAFETY: the assertion has seen that `size` bytes from `start` are inside the operand, which is
        // inside a buffer that the program keeps alive. They are this piece's alone: the row is, the
        // encoder has seen that the layout puts no two elements into one byte, and `Work::run_piece`
        // upholds the contract of `new`. `bytes` is a local array.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, size) }
    }
}

/// Element index of the first element of a row.
pub(super) fn row_start(layout: &Layout, row: usize) -> usize {
    let (shape, strides) = (layout.shape4(), layout.strides4());
    let (d1, d2) = (shape[1] as usize, shape[2] as usize);
    let (i2, rest) = (row % d2, row / d2);
    let (i1, i0) = (rest % d1, rest / d1);
    i0 * strides[0] as usize + i1 * strides[1] as usize + i2 * strides[2] as usize
}

fn block_decoder(dtype: DType) -> BlockDecoder {
    quant::block_decoder(dtype).unwrap_or_else(|| misuse("operand holds no numbers"))
}

#[cold]
#[allow(clippy::panic)] // a kernel's bug; the program catches it and names the kernel
pub(super) fn misuse(message: &str) -> ! {
    panic!("{message}")
}
