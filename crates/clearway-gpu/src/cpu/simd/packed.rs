//! Weights in row blocks: sixteen rows interleaved, so that one vector holds the same few weights of
//! all of them.
//!
//! Rows of a tensor are taken sixteen at a time. Their blocks number `b` together form one packed
//! block, in which every field of the format is sixteen times as long: unit `u` (a byte, an f16, or
//! four bytes of quants) of row `r` is unit `u * 16 + r`. The order of the fields is that of the file,
//! so a packed tensor has as many bytes as a plain one. Rows behind the last full sixteen stay plain.
//!
//! Plain types are packed alike: their blocks are single elements.
//!
//! The fifth bits of Q5_0 and Q5_1 are also put in another order: bit `g` of byte `c` belongs to
//! weight `4 * g + c`, so that one shift finds those of four neighbours.

use bytemuck::Pod;
use clearway_graph::{DType, Layout};

use crate::quant::BlockDecoder;

/// Bytes of the largest block.
const LARGEST_BLOCK: usize = 256;

/// Rows in a block.
pub(in crate::cpu) const ROWS: usize = 16;

/// Which bytes of a buffer are packed: those of one tensor that starts at its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cpu) struct Packed {
    pub(in crate::cpu) dtype: DType,
    /// Elements of a row.
    pub(in crate::cpu) cols: usize,
    /// Rows of the tensor; the last `rows % 16` are plain.
    pub(in crate::cpu) rows: usize,
}

/// A run of units of one size in a block.
#[derive(Clone, Copy)]
struct Field {
    unit: usize,
    count: usize,
    spread: bool,
}

const fn field(unit: usize, count: usize) -> Field {
    Field { unit, count, spread: false }
}

/// Fifth bits, put in another order.
const SPREAD: Field = Field { unit: 4, count: 1, spread: true };

/// Fields of a block in the order of the file; none for types that are not packed.
const fn fields(dtype: DType) -> &'static [Field] {
    match dtype {
        DType::Q4_0 | DType::IQ4_NL => const { &[field(2, 1), field(4, 4)] },
        DType::Q4_1 => const { &[field(2, 2), field(4, 4)] },
        DType::Q5_0 => const { &[field(2, 1), SPREAD, field(4, 4)] },
        DType::Q5_1 => const { &[field(2, 2), SPREAD, field(4, 4)] },
        DType::Q8_0 => const { &[field(2, 1), field(4, 8)] },
        DType::Q2_K => const { &[field(1, 16), field(4, 16), field(2, 2)] },
        DType::Q3_K => const { &[field(4, 24), field(1, 12), field(2, 1)] },
        DType::Q4_K => const { &[field(2, 2), field(1, 12), field(4, 32)] },
        DType::Q5_K => const { &[field(2, 2), field(1, 12), field(4, 40)] },
        DType::Q6_K => const { &[field(4, 48), field(1, 16), field(2, 1)] },
        DType::IQ4_XS => const { &[field(2, 2), field(1, 4), field(4, 32)] },
        DType::MXFP4 => const { &[field(1, 1), field(4, 4)] },
        DType::F16 | DType::BF16 => const { &[field(2, 1)] },
        DType::F32 => const { &[field(4, 1)] },
        DType::U32 | DType::A8 | DType::A16 | DType::C8 => &[],
    }
}

impl Packed {
    /// How a weight tensor of this layout is packed; `None` if it is left as it is.
    pub(in crate::cpu) fn of(layout: &Layout) -> Option<Self> {
        let (dtype, cols, rows) = (layout.dtype(), layout.cols(), layout.rows());
        let packs = !fields(dtype).is_empty() && layout.is_dense() && rows >= ROWS;
        packs.then_some(Self { dtype, cols, rows })
    }

    /// Bytes of a row.
    pub(in crate::cpu) fn row_bytes(&self) -> usize {
        self.cols / self.dtype.block_elems() * self.dtype.block_bytes()
    }

    /// Rows that are packed.
    pub(in crate::cpu) fn packed_rows(&self) -> usize {
        self.rows / ROWS * ROWS
    }

    /// Packs sixteen rows at a time: both slices hold the same whole row blocks.
    pub(in crate::cpu) fn pack(&self, plain: &[u8], packed: &mut [u8]) {
        let group = ROWS * self.row_bytes();
        for (plain, packed) in plain.chunks_exact(group).zip(packed.chunks_exact_mut(group)) {
            pack_rows(self.dtype, plain, self.row_bytes(), packed);
        }
    }

    /// Widens elements of a row of a plain type, from column `col` on.
    pub(in crate::cpu) fn load_plain<E: Pod>(
        &self,
        bytes: &[u8],
        row: usize,
        col: usize,
        widen: fn(E) -> f32,
        out: &mut [f32],
    ) {
        // The first element and how far they are apart.
        let (first, step) = match row < self.packed_rows() {
            true => (row / ROWS * ROWS * self.cols + col * ROWS + row % ROWS, ROWS),
            false => (row * self.cols + col, 1),
        };
        let elems: &[E] = bytemuck::cast_slice(bytes);
        for (out, elem) in out.iter_mut().zip(elems[first..].iter().step_by(step)) {
            *out = widen(*elem);
        }
    }

    /// Decodes elements of a row, from column `col` on, which starts a block.
    pub(in crate::cpu) fn load(
        &self,
        bytes: &[u8],
        row: usize,
        col: usize,
        decode: BlockDecoder,
        out: &mut [f32],
    ) {
        let (size, elems) = (self.dtype.block_bytes(), self.dtype.block_elems());
        let first = col / elems;
        if row >= self.packed_rows() {
            let bytes = &bytes[row * self.row_bytes() + first * size..];
            return decode(&bytes[..out.len() / elems * size], out);
        }
        let group = &bytes[row / ROWS * ROWS * self.row_bytes()..][..ROWS * self.row_bytes()];
        let blocks = group.chunks_exact(ROWS * size).skip(first);
        let mut block = [0; LARGEST_BLOCK];
        for (packed, out) in blocks.zip(out.chunks_exact_mut(elems)) {
            unpack_block(self.dtype, packed, row % ROWS, &mut block[..size]);
            decode(&block[..size], out);
        }
    }
}

/// A tensor that is packed, as a dispatch sees it.
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct PackedView {
    pub(in crate::cpu) tensor: Packed,
    /// Row of the tensor that is row 0 of the view.
    pub(in crate::cpu) first_row: usize,
}

impl PackedView {
    /// The rows of a packed tensor that a view at byte `offset` covers; `None` if they are not whole
    /// rows, one after another.
    pub(in crate::cpu) fn new(tensor: Packed, offset: u64, layout: &Layout) -> Option<Self> {
        let row_bytes = tensor.row_bytes() as u64;
        let whole = layout.is_dense()
            && layout.dtype() == tensor.dtype
            && layout.cols() == tensor.cols
            && offset.is_multiple_of(row_bytes);
        whole.then(|| Self { tensor, first_row: (offset / row_bytes) as usize })
    }
}

/// Packs up to sixteen rows that lie `stride` bytes apart; rows that are missing are zeros.
pub(in crate::cpu) fn pack_rows(dtype: DType, plain: &[u8], stride: usize, packed: &mut [u8]) {
    let size = dtype.block_bytes();
    let rows = plain.len().div_ceil(stride).min(ROWS);
    if rows < ROWS {
        packed.fill(0);
    }
    if dtype.block_elems() == 1 {
        return match size {
            2 => pack_plain::<2>(plain, stride, rows, packed),
            _ => pack_plain::<4>(plain, stride, rows, packed),
        };
    }
    let fields = fields(dtype);
    for (index, packed) in packed.chunks_exact_mut(ROWS * size).enumerate() {
        let mut start = 0;
        for field in fields {
            let end = start + field.unit * field.count;
            let target = &mut packed[ROWS * start..ROWS * end];
            for row in 0..rows {
                let source = &plain[row * stride + index * size..][..size][start..end];
                match (field.unit, field.spread) {
                    (1, _) => scatter::<1>(source, row, target),
                    (2, _) => scatter::<2>(source, row, target),
                    (_, false) => scatter::<4>(source, row, target),
                    (_, true) => {
                        let bits = source.first_chunk().map_or(0, |bits| u32::from_le_bytes(*bits));
                        scatter::<4>(&spread(bits).to_le_bytes(), row, target);
                    }
                }
            }
            start = end;
        }
    }
}

/// Packs rows of elements of `N` bytes. Some columns at a time, which stay in the nearest cache until all rows have been there.
fn pack_plain<const N: usize>(plain: &[u8], stride: usize, rows: usize, packed: &mut [u8]) {
    const COLUMNS: usize = 64;
    let columns: &mut [[[u8; N]; ROWS]] = packed.as_chunks_mut().0.as_chunks_mut().0;
    for (index, columns) in columns.chunks_mut(COLUMNS).enumerate() {
        for row in 0..rows {
            let source = plain[row * stride + index * COLUMNS * N..].as_chunks::<N>().0;
            for (column, elem) in columns.iter_mut().zip(source) {
                column[row] = *elem;
            }
        }
    }
}

/// The plain block of one row.
fn unpack_block(dtype: DType, packed: &[u8], row: usize, plain: &mut [u8]) {
    let mut start = 0;
    for field in fields(dtype) {
        let end = start + field.unit * field.count;
        let (source, target) = (&packed[ROWS * start..ROWS * end], &mut plain[start..end]);
        match field.unit {
            1 => gather::<1>(source, row, target),
            2 => gather::<2>(source, row, target),
            _ => gather::<4>(source, row, target),
        }
        if field.spread
            && let Some(bits) = target.first_chunk_mut()
        {
            *bits = unspread(u32::from_le_bytes(*bits)).to_le_bytes();
        }
        start = end;
    }
}

#[inline(always)]
fn scatter<const N: usize>(source: &[u8], row: usize, target: &mut [u8]) {
    let (units, slots) = (source.as_chunks::<N>().0, target.as_chunks_mut::<N>().0);
    for (unit, slots) in units.iter().zip(slots.chunks_exact_mut(ROWS)) {
        slots[row] = *unit;
    }
}

#[inline(always)]
fn gather<const N: usize>(source: &[u8], row: usize, target: &mut [u8]) {
    let (units, slots) = (target.as_chunks_mut::<N>().0, source.as_chunks::<N>().0);
    for (unit, slots) in units.iter_mut().zip(slots.chunks_exact(ROWS)) {
        *unit = slots[row];
    }
}

/// Bit `4 * g + c` to bit `8 * c + g`.
fn spread(bits: u32) -> u32 {
    (0..32).fold(0, |out, bit| out | (bits >> bit & 1) << (8 * (bit % 4) + bit / 4))
}

fn unspread(bits: u32) -> u32 {
    (0..32).fold(0, |out, bit| out | (bits >> (8 * (bit % 4) + bit / 4) & 1) << bit)
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::quant;

    const PLAIN: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

    #[test]
    fn fields_fill_their_blocks() {
        for dtype in DType::ALL {
            let bytes = |fields: &[Field]| fields.iter().map(|f| f.unit * f.count).sum::<usize>();
            let packs = dtype.is_quantised() || PLAIN.contains(&dtype);
            let expected = if packs { dtype.block_bytes() } else { 0 };
            assert_eq!(bytes(fields(dtype)), expected, "{dtype}");
        }
    }

    #[test]
    fn rows_come_back_as_they_went_in() {
        for dtype in DType::ALL.into_iter().filter(|d| d.is_quantised()) {
            let cols = 3 * dtype.block_elems();
            let layout = Layout::new(dtype, &[37, cols]).unwrap();
            let packed = Packed::of(&layout).unwrap();
            let plain: Vec<u8> = (0..layout.span_bytes()).map(|i| (i * 37 % 251) as u8).collect();
            let mut bytes = plain.clone();
            packed.pack(&plain, &mut bytes[..packed.packed_rows() * packed.row_bytes()]);
            assert_ne!(bytes, plain, "{dtype}");
            let decode = quant::block_decoder(dtype).unwrap();
            let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            for (row, plain) in plain.chunks(packed.row_bytes()).enumerate() {
                for first in 0..3 {
                    let col = first * dtype.block_elems();
                    let (mut expected, mut found) = (vec![0.0; cols - col], vec![0.0; cols - col]);
                    decode(&plain[first * dtype.block_bytes()..], &mut expected);
                    packed.load(&bytes, row, col, decode, &mut found);
                    assert_eq!(bits(&found), bits(&expected), "{dtype}, row {row}");
                }
            }
        }
    }
    #[test]
    fn plain_rows_come_back_as_they_went_in() {
        // More columns than are packed at a time, and rows that stay as they are.
        let (rows, cols) = (37, 67);
        let elems: Vec<f32> = (0..rows * cols).map(|i| i as f32 - 700.0).collect();
        for dtype in PLAIN {
            let layout = Layout::new(dtype, &[rows, cols]).unwrap();
            let packed = Packed::of(&layout).unwrap();
            let mut plain = vec![0; layout.span_bytes() as usize];
            quant::encode(dtype, &elems, &mut plain).unwrap();
            let mut expected = vec![0.0; elems.len()];
            quant::decode(dtype, &plain, &mut expected).unwrap();
            let mut bytes = plain.clone();
            let end = packed.packed_rows() * packed.row_bytes();
            packed.pack(&plain[..end], &mut bytes[..end]);
            assert_ne!(bytes, plain, "{dtype}");
            for (row, expected) in expected.chunks(cols).enumerate() {
                for col in [0, 5] {
                    let mut found = vec![0.0; cols - col];
                    match dtype {
                        DType::F16 => packed.load_plain(&bytes, row, col, f16::to_f32, &mut found),
                        DType::BF16 => {
                            packed.load_plain(&bytes, row, col, bf16::to_f32, &mut found)
                        }
                        _ => packed.load_plain(&bytes, row, col, |x: f32| x, &mut found),
                    }
                    assert_eq!(found, expected[col..], "{dtype}, row {row}");
                }
            }
        }
    }
}
