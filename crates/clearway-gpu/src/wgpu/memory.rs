//! Buffers of a wgpu device.
//!
//! Each is a buffer of its own: wgpu follows whole buffers, so memory that shares one shares its barriers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use clearway_graph::Layout;
use wgpu::BufferUsages;

use super::context::Context;
use super::host_visible::HostVisible;
use crate::device::DeviceMemory;
use crate::error::{GpuError, Result};
use crate::lowering::{Bytes, Piece, RowPart};
use crate::wgsl::Packing;

/// Buffers are as long as a multiple of this: whole words can be copied and bound to the end.
const UNIT: u64 = 16;

/// The memory behind a buffer.
pub(super) struct WgpuMemory {
    pub(super) buffer: wgpu::Buffer,
    /// Bytes that were asked for. The buffer may be a little longer.
    len: u64,
    pub(super) packing: Packing,
    pub(super) parts: Vec<RowPart<Self>>,
    pub(super) tensor: Option<Layout>,
    /// What the host may look at while work is under way.
    pub(super) host_visible: Option<HostVisible>,
    pub(super) context: Arc<Context>,
}

/// Bytes of a buffer.
#[derive(Clone)]
pub(super) struct Range {
    pub(super) buffer: wgpu::Buffer,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Bytes for Range {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl WgpuMemory {
    /// Memory filled with zeros: wgpu sees to that where it is first used.
    pub(super) fn new(context: &Arc<Context>, bytes: u64) -> Result<Self> {
        let size = bytes.max(UNIT).checked_next_multiple_of(UNIT);
        let limit = context.adapter.limits.max_buffer_size;
        let size = size.filter(|&size| size <= limit).ok_or_else(|| GpuError::OutOfMemory {
            device: context.info.name.clone(),
            wanted: bytes,
            available: limit,
        })?;
        let description = wgpu::BufferDescriptor {
            label: None,
            size,
            usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        let make = || context.device.create_buffer(&description);
        let buffer = context.scoped("Device::create_buffer", bytes, make)?;
        context.counters.allocations.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            buffer,
            len: bytes,
            packing: Packing::Plain,
            parts: Vec::new(),
            tensor: None,
            host_visible: None,
            context: context.clone(),
        })
    }

    /// Memory that the host may look at while work is under way.
    pub(super) fn host_visible(context: &Arc<Context>, bytes: u64) -> Result<Self> {
        let host_visible = Some(HostVisible::new(bytes));
        Ok(Self { host_visible, ..Self::new(context, bytes)? })
    }

    /// Copies from the host, beside other calls.
    pub(super) fn put(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_transfer(offset, bytes.len())?;
        self.context.staging.write(self, offset, bytes)
    }
}

impl Piece for WgpuMemory {
    type Range = Range;

    fn len(&self) -> u64 {
        self.len
    }

    fn base(&self) -> u64 {
        0
    }

    fn bound_len(&self) -> u64 {
        self.buffer.size()
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

    fn range(&self, start: u64, bytes: u64) -> Range {
        Range { buffer: self.buffer.clone(), offset: start, bytes }
    }
}

impl DeviceMemory for WgpuMemory {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.put(offset, bytes)?;
        if let Some(host_visible) = &self.host_visible {
            host_visible.written(offset, bytes);
        }
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.check_transfer(offset, bytes.len())?;
        self.context.staging.read(self, offset, bytes)
    }

    fn peek(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let Some(host_visible) = &self.host_visible else { return self.read(offset, bytes) };
        self.check_transfer(offset, bytes.len())?;
        host_visible.look(&self.context, offset, bytes)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}
