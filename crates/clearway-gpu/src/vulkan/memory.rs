//! Buffers of a Vulkan device.
//!
//! Handles of a buffer may be used by many threads at once, so every transfer takes the lock of its memory: one
//! that writes takes it alone, those that read take it together. Programs are kept away by `Transfers`.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ash::vk;
use clearway_graph::Layout;

use super::context::Context;
use super::heap::Piece;
use crate::device::DeviceMemory;
use crate::error::Result;
use crate::lowering::{Bytes, Piece as _, RowPart};
use crate::wgsl::Packing;

/// The memory behind a buffer.
pub(super) struct VulkanMemory {
    pub(super) piece: Piece,
    /// Bytes that were asked for. The piece may be a little longer.
    pub(super) len: u64,
    /// How block weights lie in it.
    pub(super) packing: Packing,
    /// Rows of a tensor that is larger than one binding; the piece is empty then.
    pub(super) parts: Vec<RowPart<Self>>,
    /// The tensor that was uploaded, where it lies in planes or parts: what a view says about it is the
    /// caller's word only.
    pub(super) tensor: Option<Layout>,
    /// Whether it is the host's.
    host_visible: bool,
    /// Held by the host's transfers.
    host: RwLock<()>,
    context: Arc<Context>,
}

impl VulkanMemory {
    /// Memory that holds anything.
    pub(super) fn new(context: &Arc<Context>, bytes: u64, packing: Packing) -> Result<Self> {
        let piece = context.heap.alloc(context, bytes)?;
        Ok(Self::of(context, piece, bytes, packing, false))
    }

    fn of(
        context: &Arc<Context>,
        piece: Piece,
        len: u64,
        packing: Packing,
        host_visible: bool,
    ) -> Self {
        let (parts, host, context) = (Vec::new(), RwLock::new(()), context.clone());
        Self { piece, len, packing, parts, tensor: None, host_visible, host, context }
    }

    /// Memory of the host, filled with zeros.
    pub(super) fn host_visible(context: &Arc<Context>, bytes: u64) -> Result<Self> {
        let piece = context.host_visible.alloc(context, bytes)?;
        let memory = Self::of(context, piece, bytes, Packing::Plain, true);
        // Looks into it wait for nothing, so the zeros must be there first.
        context.wait(context.transfers.fill_zero(context, &memory.piece)?)?;
        Ok(memory)
    }

    /// Memory filled with zeros.
    pub(super) fn zeroed(context: &Arc<Context>, bytes: u64) -> Result<Self> {
        let memory = Self::new(context, bytes, Packing::Plain)?;
        context.transfers.fill_zero(context, &memory.piece)?;
        Ok(memory)
    }

    /// Writes beside other calls of this function.
    ///
    /// # Safety
    /// Calls that run at the same time write different bytes.
    pub(super) unsafe fn write_apart(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_transfer(offset, bytes.len())?;
        let _beside = self.lock_shared();
        // SAFETY: the bytes lie inside the piece, which was just checked. The lock keeps other transfers away,
        // and the caller promises that this function is called for other bytes only.
        unsafe { self.context.transfers.write(&self.context, &self.piece, offset, bytes) }
    }

    fn lock_shared(&self) -> RwLockReadGuard<'_, ()> {
        self.host.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.host.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl crate::lowering::Piece for VulkanMemory {
    type Range = vk::DescriptorBufferInfo;

    fn len(&self) -> u64 {
        self.len
    }

    fn base(&self) -> u64 {
        self.piece.offset
    }

    fn bound_len(&self) -> u64 {
        self.piece.len
    }

    fn packing(&self) -> Packing {
        self.packing
    }

    fn parts(&self) -> &[RowPart<Self>] {
        &self.parts
    }

    fn tensor(&self) -> Option<Layout> {
        self.tensor
    }

    fn range(&self, start: u64, bytes: u64) -> vk::DescriptorBufferInfo {
        vk::DescriptorBufferInfo { buffer: self.piece.buffer, offset: start, range: bytes }
    }
}

impl Bytes for vk::DescriptorBufferInfo {
    fn bytes(&self) -> u64 {
        self.range
    }
}

impl DeviceMemory for VulkanMemory {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_transfer(offset, bytes.len())?;
        let _alone = self.lock_alone();
        // SAFETY: the bytes lie inside the piece, which was just checked, and the lock keeps all other
        // transfers of this memory away.
        unsafe { self.context.transfers.write(&self.context, &self.piece, offset, bytes) }
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.check_transfer(offset, bytes.len())?;
        let _shared = self.lock_shared();
        // SAFETY: the bytes lie inside the piece, which was just checked, and the lock keeps transfers that
        // write this memory away.
        unsafe { self.context.transfers.read(&self.context, &self.piece, offset, bytes) }
    }

    fn peek(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        if !self.host_visible {
            return self.read(offset, bytes);
        }
        self.check_transfer(offset, bytes.len())?;
        let _shared = self.lock_shared();
        // SAFETY: as for reading: checked, and locked against transfers that write.
        unsafe { self.context.transfers.peek(&self.context, &self.piece, offset, bytes) }
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for VulkanMemory {
    fn drop(&mut self) {
        // Programs hold the memory they use until they are done with it.
        let heap = if self.host_visible { &self.context.host_visible } else { &self.context.heap };
        heap.free(&self.context, &self.piece);
    }
}
