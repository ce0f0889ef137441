//! Byte ranges with a role: the one fact every later decision is made from.

use serde::Serialize;

use crate::error::{GraphError, Result};
use crate::ids::serialize_buf;

/// Whether a range is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemRangeRole {
    /// Read.
    Src,
    /// Written.
    Dst,
}

/// A byte window of one buffer, as the layers above know it.
pub trait View {
    /// Identity of the whole buffer; slices of one buffer share it.
    fn buf_id(&self) -> usize;
    /// Bytes in the whole buffer.
    fn buf_len(&self) -> u64;
    /// First byte of the window.
    fn byte_offset(&self) -> u64;
    /// Bytes in the window.
    fn byte_len(&self) -> u64;
}

/// A half-open byte range `p0..p1` of one buffer with its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct BufferRange {
    /// Identity of the buffer.
    #[serde(rename = "buf", serialize_with = "serialize_buf")]
    pub buf_id: usize,
    /// First byte.
    pub p0: u64,
    /// One past the last byte.
    pub p1: u64,
    /// Read or written.
    pub role: MemRangeRole,
}

impl BufferRange {
    /// A range that is known to be well formed.
    pub fn new(buf_id: usize, p0: u64, p1: u64, role: MemRangeRole) -> Result<Self> {
        let range = Self { buf_id, p0, p1, role };
        range.check()?;
        Ok(range)
    }

    /// The bytes of a view: they end where the view ends, not where its buffer ends.
    ///
    /// # Errors
    /// [`GraphError::ViewOutOfBounds`] if the view reaches outside its buffer.
    pub fn from_buffer(view: &impl View, role: MemRangeRole) -> Result<Self> {
        let (offset, len, buf_len) = (view.byte_offset(), view.byte_len(), view.buf_len());
        match offset.checked_add(len) {
            Some(end) if end <= buf_len => {
                Ok(Self { buf_id: view.buf_id(), p0: offset, p1: end, role })
            }
            _ => Err(GraphError::ViewOutOfBounds { buf_id: view.buf_id(), offset, len, buf_len }),
        }
    }

    /// Whether the range holds no byte.
    pub const fn is_empty(&self) -> bool {
        self.p0 >= self.p1
    }

    /// Whether the range is written.
    pub const fn is_write(&self) -> bool {
        matches!(self.role, MemRangeRole::Dst)
    }

    /// The bytes both ranges hold, if any: touching ranges share none, nor does an empty one.
    pub fn overlap(&self, other: &Self) -> Option<(u64, u64)> {
        if self.buf_id != other.buf_id {
            return None;
        }
        let (p0, p1) = (self.p0.max(other.p0), self.p1.min(other.p1));
        (p0 < p1).then_some((p0, p1))
    }

    /// Whether the order of two accesses matters: they share a byte and at least one writes.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        (self.is_write() || other.is_write()) && self.overlap(other).is_some()
    }

    /// Rejects a range that ends before it starts.
    pub(crate) fn check(&self) -> Result<()> {
        if self.p1 < self.p0 {
            return Err(GraphError::InvertedRange {
                buf_id: self.buf_id,
                p0: self.p0,
                p1: self.p1,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
