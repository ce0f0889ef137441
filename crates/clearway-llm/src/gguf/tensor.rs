//! The tensor table of one file: names, types, dimensions, and byte ranges that are proven to lie
//! inside the file, on its alignment, and apart from each other.

use clearway_graph::DType;

use super::{
    cursor::Cursor,
    error::{GgufError, printable},
    source::Source,
    types::{dtype_of_id, id_of_dtype},
};

/// Longest tensor name. ggml stops at 64 bytes, some of its users at 128.
pub(super) const MAX_NAME_BYTES: u64 = 255;
/// Most tensors of a file. The largest models have some thousands.
pub(super) const MAX_TENSORS: u64 = 1 << 16;
/// Most dimensions of a tensor.
pub(super) const MAX_DIMS: usize = 4;
/// Smallest table entry: length of an empty name, number of dimensions, one dimension, type, offset.
const MIN_ENTRY_BYTES: usize = 32;

/// A tensor in a file.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    pub(super) info: &'a TensorInfo,
    /// What holds its bytes.
    pub(super) source: &'a Source,
}

/// What the table says about a tensor, after all checks.
#[derive(Clone, Debug)]
pub(super) struct TensorInfo {
    pub name: Box<str>,
    pub dtype: DType,
    dims: [usize; MAX_DIMS],
    n_dims: u8,
    /// First byte in the file.
    pub start: usize,
    /// Byte after the last.
    pub end: usize,
}

impl<'a> Tensor<'a> {
    /// Name, unique in the model.
    pub fn name(&self) -> &'a str {
        &self.info.name
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.info.dtype
    }

    /// Dimensions in file order: the first is the row, whose elements lie side by side.
    pub fn dims(&self) -> &'a [usize] {
        self.info.dims()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// The data as it lies in the file: little-endian, aligned only as far as the file is.
    pub fn bytes(&self) -> &'a [u8] {
        // Proven inside its part when the table was read, and a map keeps its length.
        &self.source[self.info.start..self.info.end]
    }

    /// Offset of the data from the start of the file (of its part, where the model is split).
    pub fn file_offset(&self) -> usize {
        self.info.start
    }
}

impl std::fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({} {} {:?})", self.name(), self.dtype(), self.dims())
    }
}

impl TensorInfo {
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.n_dims.into()]
    }

    /// A tensor that is all of a source of its own; of more dimensions than there can be, none.
    pub fn made(name: &str, dtype: DType, dims: &[usize], len: usize) -> Option<Self> {
        let mut all = [0; MAX_DIMS];
        all.get_mut(..dims.len())?.copy_from_slice(dims);
        let n_dims = dims.len() as u8;
        Some(Self { name: name.into(), dtype, dims: all, n_dims, start: 0, end: len })
    }

    /// Some of its rows, which lie in these bytes of the file, under another name.
    pub fn part(&self, name: &str, rows: usize, bytes: std::ops::Range<usize>) -> Self {
        let mut part =
            Self { name: name.into(), start: bytes.start, end: bytes.end, ..self.clone() };
        part.dims[usize::from(self.n_dims) - 1] = rows;
        part
    }

    /// Reads `count` entries at the cursor and checks them against the data section behind them.
    pub fn read_table(
        cursor: &mut Cursor<'_>,
        count: u64,
        alignment: usize,
    ) -> Result<Vec<Self>, GgufError> {
        let mut table = Self::read_entries(cursor, count, alignment)?;
        place(&mut table, cursor, alignment)?;
        Ok(table)
    }

    /// Reads `count` entries at the cursor; their ranges count from the start of the data section.
    pub fn read_entries(
        cursor: &mut Cursor<'_>,
        count: u64,
        alignment: usize,
    ) -> Result<Vec<Self>, GgufError> {
        cursor.check_table(count, "number of tensors", MIN_ENTRY_BYTES, MAX_TENSORS)?;
        // Grown while reading and not reserved: a false count then costs nothing.
        let mut table = Vec::new();
        for _ in 0..count {
            table.push(Self::read(cursor, alignment)?);
        }
        Ok(table)
    }

    /// Reads one entry; `start` and `end` still count from the start of the data section.
    fn read(cursor: &mut Cursor<'_>, alignment: usize) -> Result<Self, GgufError> {
        const WHAT: &str = "the tensor table";
        let name = cursor.name("tensor name", MAX_NAME_BYTES)?;
        let tensor = || printable(name.as_bytes());
        let count = cursor.u32(WHAT)?;
        if count == 0 || count as usize > MAX_DIMS {
            return Err(GgufError::DimCount { tensor: tensor(), count });
        }
        let mut dims = [0_u64; MAX_DIMS];
        for dim in &mut dims[..count as usize] {
            *dim = cursor.u64(WHAT)?;
        }
        let id = cursor.u32(WHAT)?;
        let offset = cursor.u64(WHAT)?;

        let dtype = dtype_of_id(id)
            .map_err(|type_name| GgufError::UnsupportedType { tensor: tensor(), type_name })?;
        let bytes = tensor_bytes(name, dtype, &dims[..count as usize])?;
        if offset % alignment as u64 != 0 {
            return Err(GgufError::Misaligned {
                tensor: tensor(),
                offset,
                alignment: alignment as u64,
            });
        }
        let range = || {
            let start = usize::try_from(offset).ok()?;
            Some((start, start.checked_add(usize::try_from(bytes).ok()?)?))
        };
        let (start, end) = range().ok_or_else(|| GgufError::TensorRange {
            tensor: tensor(),
            offset,
            bytes,
            available: cursor.remaining() as u64,
        })?;
        Ok(Self {
            name: name.into(),
            dtype,
            // Each divides the number of elements, which `tensor_bytes` bounds.
            dims: dims.map(|dim| usize::try_from(dim).unwrap_or(usize::MAX)),
            n_dims: count as u8,
            start,
            end,
        })
    }
}

/// Bytes of a tensor; dimensions that are zero, overflow or split a block are errors.
pub(super) fn tensor_bytes(name: &str, dtype: DType, dims: &[u64]) -> Result<u64, GgufError> {
    let wrong = |reason| GgufError::Dims {
        tensor: printable(name.as_bytes()),
        dims: dims.to_vec(),
        reason,
    };
    const TOO_LARGE: &str = "too many elements";
    let elements = dims
        .iter()
        .try_fold(1_u64, |n, &dim| n.checked_mul(dim))
        .ok_or_else(|| wrong(TOO_LARGE))?;
    if elements == 0 {
        return Err(wrong("a dimension is zero"));
    }
    if usize::try_from(elements).is_err() {
        return Err(wrong(TOO_LARGE));
    }
    let block = dtype.block_elems();
    let row = dims.first().copied().unwrap_or_default();
    if row % block as u64 != 0 {
        return Err(GgufError::RowBlocks { tensor: printable(name.as_bytes()), dtype, row, block });
    }
    (elements / block as u64)
        .checked_mul(dtype.block_bytes() as u64)
        .ok_or_else(|| wrong(TOO_LARGE))
}

/// The number of a type in files, or the error that it has none.
pub(super) fn file_type_id(name: &str, dtype: DType) -> Result<u32, GgufError> {
    id_of_dtype(dtype)
        .ok_or_else(|| GgufError::NotInFormat { tensor: printable(name.as_bytes()), dtype })
}

/// Turns offsets in the data section, which begins on the next aligned byte, into file offsets.
fn place(table: &mut [TensorInfo], cursor: &Cursor<'_>, alignment: usize) -> Result<(), GgufError> {
    let len = cursor.at() + cursor.remaining();
    // Neither can overflow: slices end below isize::MAX, and alignments are small.
    let data = cursor.at().next_multiple_of(alignment);
    let available = len.saturating_sub(data);
    for tensor in table {
        if tensor.end > available {
            return Err(GgufError::TensorRange {
                tensor: printable(tensor.name.as_bytes()),
                offset: tensor.start as u64,
                bytes: (tensor.end - tensor.start) as u64,
                available: available as u64,
            });
        }
        tensor.start += data;
        tensor.end += data;
    }
    Ok(())
}

/// No two tensors of a file may share bytes: a table that says so is wrong in at least one place.
pub(super) fn check_apart(table: &[TensorInfo]) -> Result<(), GgufError> {
    let mut by_start: Vec<&TensorInfo> = table.iter().collect();
    by_start.sort_unstable_by_key(|tensor| tensor.start);
    match by_start.windows(2).find(|pair| pair[1].start < pair[0].end) {
        None => Ok(()),
        Some(pair) => Err(GgufError::Overlap {
            first: printable(pair[0].name.as_bytes()),
            second: printable(pair[1].name.as_bytes()),
        }),
    }
}
