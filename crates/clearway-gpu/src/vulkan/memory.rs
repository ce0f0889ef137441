//! Buffers of a Vulkan device.

use std::sync::Arc;

use clearway_graph::Layout;

use super::context::Context;
use super::heap::Piece;
use super::split::RowPart;
use crate::device::DeviceMemory;
use crate::error::{GpuError, Result};
use crate::wgsl::Packing;

/// The memory behind a buffer.
pub(super) struct VulkanMemory {
    pub(super) piece: Piece,
    /// Bytes that were asked for. The piece may be a little longer.
    pub(super) len: u64,
    /// How block weights lie in it.
    pub(super) packing: Packing,
    /// Rows of a tensor that is larger than one binding; the piece is empty then.
    pub(super) parts: Vec<RowPart>,
    /// The tensor that was uploaded, where it lies in planes or parts: what a view says about it is the
    /// caller's word only.
    pub(super) tensor: Option<Layout>,
    /// Whether it is the host's.
    mailbox: bool,
    context: Arc<Context>,
}

impl VulkanMemory {
    /// Memory that holds anything.
    pub(super) fn new(context: &Arc<Context>, bytes: u64, packing: Packing) -> Result<Self> {
        let piece = context.heap.alloc(context, bytes)?;
        let (parts, tensor, context) = (Vec::new(), None, context.clone());
        Ok(Self { piece, len: bytes, packing, parts, tensor, mailbox: false, context })
    }

    /// Memory of the host, filled with zeros.
    pub(super) fn mailbox(context: &Arc<Context>, bytes: u64) -> Result<Self> {
        let piece = context.mailboxes.alloc(context, bytes)?;
        let memory = Self {
            piece,
            len: bytes,
            packing: Packing::Plain,
            parts: Vec::new(),
            tensor: None,
            mailbox: true,
            context: context.clone(),
        };
        context.transfers.fill_zero(context, &memory.piece)?;
        Ok(memory)
    }

    /// Refuses bytes that are not there. A buffer of weights that lie in parts has none of its own.
    fn check(&self, offset: u64, len: usize) -> Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(()),
            _ if self.parts.is_empty() => Err(GpuError::TransferMismatch {
                what: "transfer",
                found: format!("{len} bytes at byte {offset}"),
                expected: format!("bytes of a buffer of {}", self.len),
            }),
            _ => Err(GpuError::TransferMismatch {
                what: "packed weights",
                found: format!("a transfer of {len} bytes at byte {offset}"),
                expected: "a device that keeps them in one piece".into(),
            }),
        }
    }

    /// Memory filled with zeros.
    pub(super) fn zeroed(context: &Arc<Context>, bytes: u64) -> Result<Self> {
        let memory = Self::new(context, bytes, Packing::Plain)?;
        context.transfers.fill_zero(context, &memory.piece)?;
        Ok(memory)
    }
}

impl DeviceMemory for VulkanMemory {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        self.context.transfers.write(&self.context, &self.piece, offset, bytes)
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        self.context.transfers.read(&self.context, &self.piece, offset, bytes)
    }

    fn peek(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.check(offset, bytes.len())?;
        self.context.transfers.peek(&self.context, &self.piece, offset, bytes)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for VulkanMemory {
    fn drop(&mut self) {
        // Programs hold the memory they use until they are done with it.
        let heap = if self.mailbox { &self.context.mailboxes } else { &self.context.heap };
        heap.free(&self.context, &self.piece);
    }
}
