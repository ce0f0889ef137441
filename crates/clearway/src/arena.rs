//! The memory a plan describes.

use std::sync::Arc;

use bytemuck::Pod;
use clearway_gpu::{Buffer, Device, GpuError};
use clearway_graph::{MemoryPlan, NodeId};
use rustc_hash::FxHashMap;

use crate::error::{Error, Result};

/// Memory of a device laid out by a [`MemoryPlan`]: a buffer for each slab, the f16 shadow included
/// where there is one. It lives as long as the executable graph that uses it.
#[derive(Debug)]
pub struct Arena {
    plan: Arc<MemoryPlan>,
    slabs: Vec<Buffer>,
    /// True lengths in bytes where they are shorter than the slot.
    actual_len: FxHashMap<NodeId, u64>,
}

impl Arena {
    /// Allocates what the plan asks for.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn from_plan(device: &dyn Device, plan: &MemoryPlan) -> Result<Self> {
        let slabs = plan.slab_bytes().iter().map(|&bytes| device.alloc(bytes));
        let slabs = slabs.collect::<clearway_gpu::Result<_>>()?;
        Ok(Self { plan: Arc::new(plan.clone()), slabs, actual_len: FxHashMap::default() })
    }

    /// Whether the plan has memory for a value.
    pub fn has(&self, value: NodeId) -> bool {
        self.plan.slot(value).is_some()
    }

    /// Where a value starts, in bytes from the start of its slab.
    ///
    /// # Errors
    /// [`Error::NotInArena`].
    pub fn offset(&self, value: NodeId) -> Result<u64> {
        self.plan.slot(value).map(|slot| slot.offset).ok_or(Error::NotInArena(value))
    }

    /// Bytes of a value: its true length where that was set, its slot's otherwise.
    ///
    /// # Errors
    /// [`Error::NotInArena`].
    pub fn len_of(&self, value: NodeId) -> Result<u64> {
        let slot = self.plan.slot(value).ok_or(Error::NotInArena(value))?;
        Ok(self.actual_len.get(&value).copied().unwrap_or(slot.bytes))
    }

    /// Replaces the padded length of a slot by the true one.
    ///
    /// # Errors
    /// [`Error::NotInArena`], or [`GpuError::TransferMismatch`] if it is longer than the slot.
    pub fn set_actual_len(&mut self, value: NodeId, bytes: u64) -> Result<()> {
        let slot = self.plan.slot(value).ok_or(Error::NotInArena(value))?;
        if bytes > slot.bytes {
            return Err(mismatch("actual length", bytes, slot.bytes).into());
        }
        self.actual_len.insert(value, bytes);
        Ok(())
    }

    /// Uploads all elements of an f32 value; ordered before later dispatches.
    ///
    /// # Errors
    /// [`Error::NotInArena`], a wrong length, and what the device reports.
    pub fn write_f32(&self, value: NodeId, elems: &[f32]) -> Result<()> {
        self.write(value, elems)
    }

    /// Reads all elements of an f32 value back.
    ///
    /// # Errors
    /// As [`write_f32`](Self::write_f32).
    pub fn read_f32(&self, value: NodeId) -> Result<Vec<f32>> {
        self.read(value)
    }

    /// Uploads all elements of a value of any plain type.
    ///
    /// # Errors
    /// As [`write_f32`](Self::write_f32).
    pub fn write<T: Pod>(&self, value: NodeId, elems: &[T]) -> Result<()> {
        let (slab, offset, len) = self.window(value)?;
        if size_of_val(elems) as u64 != len {
            return Err(mismatch("upload", size_of_val(elems) as u64, len).into());
        }
        Ok(slab.write_slice(offset, elems)?)
    }

    /// Reads all elements of a value of any plain type back.
    ///
    /// # Errors
    /// As [`write_f32`](Self::write_f32).
    pub fn read<T: Pod>(&self, value: NodeId) -> Result<Vec<T>> {
        let (slab, offset, len) = self.window(value)?;
        let size = size_of::<T>() as u64;
        if size == 0 || !len.is_multiple_of(size) {
            return Err(mismatch("readback element", size, len).into());
        }
        Ok(slab.read_vec(offset, (len / size) as usize)?)
    }

    /// Reads `count` elements of a value, from byte `start` of it on.
    ///
    /// # Errors
    /// As [`write_f32`](Self::write_f32); a part that reaches beyond the value.
    pub fn read_part<T: Pod>(&self, value: NodeId, start: u64, count: usize) -> Result<Vec<T>> {
        let (slab, offset, len) = self.window(value)?;
        let bytes = (size_of::<T>() as u64).saturating_mul(count as u64);
        if start.saturating_add(bytes) > len {
            return Err(mismatch("readback", start.saturating_add(bytes), len).into());
        }
        Ok(slab.read_vec(offset + start, count)?)
    }

    /// Whether a value has an f16 shadow: the f16 of the f32 at byte `o` lies at byte `o / 2` of a
    /// second buffer.
    pub fn has_shadow(&self, value: NodeId) -> bool {
        self.shadow(value).is_ok()
    }

    /// Where the shadow of a value starts, in bytes from the start of its slab.
    ///
    /// # Errors
    /// [`Error::NotInArena`] if it has none.
    pub fn shadow_offset(&self, value: NodeId) -> Result<u64> {
        self.offset(self.shadow(value)?)
    }

    /// Reads the shadow of a value back. It holds what the last run wrote; a value the host has
    /// uploaded since gets its shadow with the next run.
    ///
    /// # Errors
    /// As [`shadow_offset`](Self::shadow_offset), and what the device reports.
    pub fn read_shadow(&self, value: NodeId) -> Result<Vec<half::f16>> {
        self.read(self.shadow(value)?)
    }

    /// Writes raw bytes at `offset` of the arena; slabs follow each other.
    ///
    /// # Errors
    /// [`GpuError::TransferOutOfBounds`] if it reaches outside a slab.
    pub fn write_bytes_range(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (slab, offset) = self.locate(offset, bytes.len() as u64)?;
        Ok(slab.write(offset, bytes)?)
    }

    /// Reads raw bytes at `offset` of the arena; slabs follow each other.
    ///
    /// # Errors
    /// [`GpuError::TransferOutOfBounds`] if it reaches outside a slab.
    pub fn read_bytes_range(&self, offset: u64, len: u64) -> Result<Vec<u8>> {
        let (slab, offset) = self.locate(offset, len)?;
        Ok(slab.read_vec(offset, len as usize)?)
    }

    /// The plan it was made from.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// The buffers of its slabs.
    pub fn slabs(&self) -> &[Buffer] {
        &self.slabs
    }

    fn shadow(&self, value: NodeId) -> Result<NodeId> {
        let shadow = self.plan.shadows().iter().find(|(of, _)| *of == value);
        shadow.map(|(_, shadow)| *shadow).ok_or(Error::NotInArena(value))
    }

    fn window(&self, value: NodeId) -> Result<(&Buffer, u64, u64)> {
        let slot = self.plan.slot(value).ok_or(Error::NotInArena(value))?;
        let slab = self.slabs.get(slot.slab).ok_or(Error::NotInArena(value))?;
        Ok((slab, slot.offset, self.len_of(value)?))
    }

    fn locate(&self, offset: u64, len: u64) -> Result<(&Buffer, u64)> {
        let mut start = 0;
        for slab in &self.slabs {
            if offset < start + slab.len() {
                return Ok((slab, offset - start));
            }
            start += slab.len();
        }
        let error = GpuError::TransferOutOfBounds {
            buf_id: self.slabs.last().map_or(0, Buffer::id),
            offset,
            len,
            buf_len: start,
        };
        Err(error.into())
    }
}

fn mismatch(what: &'static str, found: u64, expected: u64) -> GpuError {
    GpuError::TransferMismatch {
        what,
        found: format!("{found} bytes"),
        expected: format!("{expected} bytes"),
    }
}
