//! Tensor layouts and the concrete view a dispatch binds.

use std::ops::Range;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use smallvec::SmallVec;

use crate::dtype::DType;
use crate::error::{GraphError, Result};
use crate::ids::{NodeId, serialize_buf};
use crate::range::View;

/// Most dimensions a tensor may have.
pub const MAX_DIMS: usize = 4;

/// Element type, shape and strides of a tensor; outermost dimension first.
///
/// Strides count elements. The innermost dimension of a quantised tensor is always contiguous.
/// Unused leading dimensions have extent 1, so kernels may index all four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    dtype: DType,
    rank: u8,
    shape: [u32; MAX_DIMS],
    strides: [u32; MAX_DIMS],
}

impl Layout {
    /// A dense row-major layout.
    ///
    /// # Errors
    /// [`GraphError::BadLayout`] for more than four dimensions, an extent of zero, more than
    /// `u32::MAX` elements, or a quantised row that is not whole blocks.
    pub fn new(dtype: DType, shape: &[usize]) -> Result<Self> {
        let bad = |reason| GraphError::BadLayout { dtype, shape: shape.to_vec(), reason };
        if shape.is_empty() || shape.len() > MAX_DIMS {
            return Err(bad("a tensor has 1 to 4 dimensions"));
        }
        if !shape[shape.len() - 1].is_multiple_of(dtype.block_elems()) {
            return Err(bad("a quantised row must be whole blocks"));
        }
        let mut layout =
            Self { dtype, rank: shape.len() as u8, shape: [1; MAX_DIMS], strides: [0; MAX_DIMS] };
        let lead = MAX_DIMS - shape.len();
        let mut stride = 1u32;
        for dim in (0..MAX_DIMS).rev() {
            let extent = if dim >= lead { shape[dim - lead] } else { 1 };
            let extent = u32::try_from(extent).map_err(|_| bad("an extent exceeds 32 bits"))?;
            if extent == 0 {
                return Err(bad("an extent is zero"));
            }
            layout.shape[dim] = extent;
            layout.strides[dim] = stride;
            stride =
                stride.checked_mul(extent).ok_or_else(|| bad("more than 2^32 - 1 elements"))?;
        }
        Ok(layout)
    }

    /// The same shape with other strides (elements, outermost first, as many as dimensions).
    ///
    /// # Errors
    /// [`GraphError::BadLayout`] if the count is wrong, a quantised row would not be contiguous, or
    /// the span exceeds 32 bits.
    pub fn with_strides(self, strides: &[usize]) -> Result<Self> {
        let bad = |reason| GraphError::BadLayout {
            dtype: self.dtype,
            shape: self.dims().iter().map(|&d| d as usize).collect(),
            reason,
        };
        if strides.len() != self.rank() {
            return Err(bad("as many strides as dimensions are needed"));
        }
        let mut layout = self;
        for (slot, &stride) in layout.strides[MAX_DIMS - self.rank()..].iter_mut().zip(strides) {
            *slot = u32::try_from(stride).map_err(|_| bad("a stride exceeds 32 bits"))?;
        }
        if self.dtype == DType::C8 && !layout.is_dense() {
            return Err(bad("a cache of 8 bits is dense"));
        }
        if self.dtype.is_quantised() {
            let inner_ok = layout.strides[MAX_DIMS - 1] == 1;
            let block = self.dtype.block_elems() as u32;
            let rows_ok = layout.strides[..MAX_DIMS - 1]
                .iter()
                .zip(&layout.shape)
                .all(|(&stride, &extent)| extent == 1 || stride % block == 0);
            if !inner_ok || !rows_ok {
                return Err(bad("quantised rows are contiguous whole blocks"));
            }
        }
        if layout.span_elems() > u64::from(u32::MAX) {
            return Err(bad("the span exceeds 2^32 - 1 elements"));
        }
        Ok(layout)
    }

    /// The same tensor with its elements rounded for products ([`DType::A8`]), in the same bytes; `None`
    /// if it is not dense, not of f32, or its rows are no whole chunks.
    pub fn quantised(&self) -> Option<Self> {
        self.in_form(DType::A8)
    }

    /// The same tensor with its elements as f16 ([`DType::A16`]), in the same bytes; `None` as for
    /// [`quantised`](Self::quantised).
    pub fn halved(&self) -> Option<Self> {
        self.in_form(DType::A16)
    }

    /// The same tensor in one of the forms that values have between kernels.
    pub(crate) fn in_form(&self, form: DType) -> Option<Self> {
        let chunks = self.cols().is_multiple_of(form.block_elems());
        let ok = form.is_form() && self.dtype == DType::F32 && chunks && self.is_dense();
        ok.then_some(Self { dtype: form, ..*self })
    }

    /// Element type.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of dimensions.
    pub const fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Extents, outermost first, only the dimensions that were given.
    pub fn dims(&self) -> &[u32] {
        &self.shape[MAX_DIMS - self.rank()..]
    }

    /// Extents padded with ones in front to four dimensions.
    pub const fn shape4(&self) -> [u32; MAX_DIMS] {
        self.shape
    }

    /// Element strides belonging to [`shape4`](Self::shape4).
    pub const fn strides4(&self) -> [u32; MAX_DIMS] {
        self.strides
    }

    /// Extent of the innermost dimension.
    pub const fn cols(&self) -> usize {
        self.shape[MAX_DIMS - 1] as usize
    }

    /// Product of all other extents.
    pub fn rows(&self) -> usize {
        self.elems() / self.cols()
    }

    /// Number of elements.
    pub fn elems(&self) -> usize {
        self.shape.iter().map(|&d| d as usize).product()
    }

    /// Whether the elements lie densely in row-major order.
    pub fn is_dense(&self) -> bool {
        let mut expected = 1u64;
        for dim in (0..MAX_DIMS).rev() {
            if self.shape[dim] != 1 && u64::from(self.strides[dim]) != expected {
                return false;
            }
            expected *= u64::from(self.shape[dim]);
        }
        true
    }

    /// Whether no two elements share bytes: what a layout that is written needs.
    pub fn is_injective(&self) -> bool {
        let dims = (0..MAX_DIMS).filter(|&d| self.shape[d] > 1);
        let mut dims: SmallVec<[(u64, u64); MAX_DIMS]> =
            dims.map(|d| (u64::from(self.strides[d]), u64::from(self.shape[d]))).collect();
        dims.sort_unstable();
        let mut span = 1;
        dims.into_iter().all(|(stride, extent)| {
            let apart = stride >= span;
            span += stride * (extent - 1);
            apart
        })
    }

    /// Whether bytes between the first and the last element belong to no element. Only of an
    /// [injective](Self::is_injective) layout.
    pub fn has_gaps(&self) -> bool {
        !self.is_dense() && (self.elems() as u64) < self.span_elems()
    }

    /// The bytes that belong to elements, as runs relative to the first byte. The runs of an injective
    /// layout are disjoint; otherwise some may share bytes. They come in no particular order.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let mut dims: SmallVec<[(u64, u64); MAX_DIMS]> = (0..MAX_DIMS)
            .map(|d| (u64::from(self.strides[d]), u64::from(self.shape[d])))
            .filter(|&(stride, extent)| stride > 0 && extent > 1)
            .collect();
        dims.sort_unstable();
        // Dimensions whose steps leave no gap make one run; the others repeat it.
        let mut elems = 1;
        let inner = dims.iter().take_while(|&&(stride, extent)| {
            let joined = stride <= elems;
            if joined {
                elems += stride * (extent - 1);
            }
            joined
        });
        let inner = inner.count();
        let outer: SmallVec<[(u64, u64); MAX_DIMS]> = dims[inner..].into();
        let (block, block_bytes) =
            (self.dtype.block_elems() as u64, self.dtype.block_bytes() as u64);
        let len = elems.div_ceil(block) * block_bytes;
        let count: u64 = outer.iter().map(|&(_, extent)| extent).product();
        (0..count).map(move |mut index| {
            let mut start = 0;
            for &(stride, extent) in &outer {
                start += stride * (index % extent);
                index /= extent;
            }
            let start = start / block * block_bytes;
            start..start + len
        })
    }

    /// Bytes from the first element to one past the last.
    pub fn span_bytes(&self) -> u64 {
        let block = self.dtype.block_elems() as u64;
        self.span_elems().div_ceil(block) * self.dtype.block_bytes() as u64
    }

    fn span_elems(&self) -> u64 {
        let last: u64 =
            (0..MAX_DIMS).map(|d| u64::from(self.shape[d] - 1) * u64::from(self.strides[d])).sum();
        last + 1
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, extent) in self.dims().iter().enumerate() {
            write!(f, "{}{extent}", if i == 0 { "" } else { "x" })?;
        }
        f.write_str("]")?;
        if !self.is_dense() {
            write!(f, "/{:?}", &self.strides[MAX_DIMS - self.rank()..])?;
        }
        Ok(())
    }
}

impl Serialize for Layout {
    /// Only the dimensions that were given.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Layout", 3)?;
        fields.serialize_field("dtype", &self.dtype)?;
        fields.serialize_field("shape", self.dims())?;
        fields.serialize_field("strides", &self.strides[MAX_DIMS - self.rank()..])?;
        fields.end()
    }
}

/// A tensor in a buffer: what a dispatch binds. The buffer is real, or an arena value without an
/// address ([`NodeId::buf_id`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TensorView {
    /// Identity of the buffer.
    #[serde(rename = "buf", serialize_with = "serialize_buf")]
    pub buf_id: usize,
    /// Bytes in the whole buffer.
    pub buf_len: u64,
    /// First byte of the tensor.
    pub offset: u64,
    /// Element type, shape and strides.
    pub layout: Layout,
}

impl TensorView {
    /// A whole arena value.
    pub fn of_value(value: NodeId, layout: Layout) -> Self {
        Self { buf_id: value.buf_id(), buf_len: layout.span_bytes(), offset: 0, layout }
    }

    /// The arena value behind this view, if it is one.
    pub const fn value(&self) -> Option<NodeId> {
        NodeId::from_buf_id(self.buf_id)
    }

    /// The same bytes seen with another layout at `byte_offset` further on.
    ///
    /// # Errors
    /// [`GraphError::ViewOutOfBounds`] if it does not fit into the buffer.
    pub fn reinterpret(&self, byte_offset: u64, layout: Layout) -> Result<Self> {
        let offset = self.offset.saturating_add(byte_offset);
        let view = Self { offset, layout, ..*self };
        match offset.checked_add(layout.span_bytes()) {
            Some(end) if end <= self.buf_len => Ok(view),
            _ => Err(GraphError::ViewOutOfBounds {
                buf_id: self.buf_id,
                offset,
                len: layout.span_bytes(),
                buf_len: self.buf_len,
            }),
        }
    }
}

impl View for TensorView {
    fn buf_id(&self) -> usize {
        self.buf_id
    }
    fn buf_len(&self) -> u64 {
        self.buf_len
    }
    fn byte_offset(&self) -> u64 {
        self.offset
    }
    fn byte_len(&self) -> u64 {
        self.layout.span_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_layouts_know_rows_and_bytes() {
        let l = Layout::new(DType::Q4_0, &[3, 64]).unwrap();
        assert_eq!((l.rows(), l.cols(), l.span_bytes()), (3, 64, 3 * 2 * 18));
        assert!(l.is_dense());
        assert_eq!(l.to_string(), "q4_0[3x64]");
    }

    #[test]
    fn a_strided_view_spans_from_first_to_last_element() {
        let l = Layout::new(DType::F32, &[4, 8]).unwrap();
        let l = l.with_strides(&[32, 1]).unwrap();
        assert_eq!(l.span_bytes(), (3 * 32 + 8) * 4);
        assert!(!l.is_dense());
        assert_eq!(l.to_string(), "f32[4x8]/[32, 1]");
    }

    #[test]
    fn elements_that_share_bytes_are_seen() {
        let dense = Layout::new(DType::F32, &[2, 3, 4]).unwrap();
        assert!(dense.is_injective());
        assert!(dense.with_strides(&[4, 8, 1]).unwrap().is_injective()); // transposed
        assert!(!dense.with_strides(&[0, 4, 1]).unwrap().is_injective());
        assert!(!dense.with_strides(&[3, 1, 1]).unwrap().is_injective());
    }

    #[test]
    fn runs_are_the_bytes_of_elements() {
        let runs = |dtype, shape: &[usize], strides: &[usize]| -> Vec<(u64, u64)> {
            let layout = Layout::new(dtype, shape).unwrap().with_strides(strides).unwrap();
            layout.runs().map(|run| (run.start, run.end)).collect()
        };
        assert_eq!(runs(DType::F32, &[2, 4], &[4, 1]), [(0, 32)]);
        assert_eq!(runs(DType::F32, &[2, 4], &[8, 1]), [(0, 16), (32, 48)]);
        assert_eq!(runs(DType::F32, &[4, 2], &[1, 4]), [(0, 32)]); // transposed
        assert_eq!(runs(DType::F32, &[3, 2], &[1, 4]), [(0, 12), (16, 28)]);
        assert_eq!(runs(DType::F32, &[5, 2], &[0, 1]), [(0, 8)]); // broadcast
        assert_eq!(runs(DType::F32, &[3, 4], &[2, 1]), [(0, 32)]); // windows that overlap
        assert_eq!(
            runs(DType::F16, &[2, 2, 1], &[16, 4, 1]),
            [(0, 2), (8, 10), (32, 34), (40, 42)]
        );
        assert_eq!(runs(DType::Q4_0, &[2, 32], &[64, 1]), [(0, 18), (36, 54)]);
        let gaps = |shape: &[usize], strides: &[usize]| {
            Layout::new(DType::F32, shape).unwrap().with_strides(strides).unwrap().has_gaps()
        };
        assert!(gaps(&[2, 4], &[8, 1]) && gaps(&[3, 2], &[1, 4]) && gaps(&[4], &[2]));
        assert!(!gaps(&[2, 4], &[4, 1]) && !gaps(&[4, 2], &[1, 4]) && !gaps(&[1, 4], &[99, 1]));
    }

    #[test]
    fn bad_shapes_are_errors() {
        for (dtype, shape) in [
            (DType::F32, &[][..]),
            (DType::F32, &[1, 1, 1, 1, 1][..]),
            (DType::F32, &[0][..]),
            (DType::Q4_0, &[33][..]),
            (DType::F32, &[1 << 20, 1 << 20][..]),
        ] {
            let error = Layout::new(dtype, shape).unwrap_err();
            assert!(matches!(error, GraphError::BadLayout { .. }), "{shape:?}");
        }
        let q = Layout::new(DType::Q4_0, &[2, 64]).unwrap();
        assert!(q.with_strides(&[1, 64]).is_err());
    }

    #[test]
    fn a_cache_of_eight_bits_is_dense_and_takes_the_bytes_of_its_blocks() {
        let cache = Layout::new(DType::C8, &[4, 2, 96]).unwrap();
        assert_eq!(cache.span_bytes(), 4 * 2 * 96 / 32 * 34);
        assert_eq!(cache.with_strides(&[192, 96, 1]).unwrap(), cache);
        // Every other row: whole blocks, but their scales would lie elsewhere.
        assert!(cache.with_strides(&[384, 96, 1]).is_err());
        assert!(Layout::new(DType::C8, &[4, 2, 80]).is_err());
    }

    #[test]
    fn a_reinterpreted_view_must_fit_its_buffer() {
        let whole = TensorView::of_value(NodeId(0), Layout::new(DType::F32, &[8]).unwrap());
        let half = Layout::new(DType::F32, &[4]).unwrap();
        assert_eq!(whole.reinterpret(16, half).unwrap().offset, 16);
        assert!(matches!(whole.reinterpret(17, half), Err(GraphError::ViewOutOfBounds { .. })));
    }
}
