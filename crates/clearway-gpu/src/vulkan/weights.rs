//! Weight tensors on the device: block formats packed into planes on all cores while they travel.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use clearway_graph::Layout;

use super::context::Context;
use super::memory::VulkanMemory;
use super::split::RowPart;
use crate::device::DeviceMemory;
use crate::error::{GpuError, Result};
use crate::wgsl::{Packing, parts, planes};

/// Blocks a thread packs at a time. A multiple of 64 chunks, so that its part of every plane is
/// whole 16-byte words.
const BLOCKS: usize = 8192;

/// Memory that holds a weight tensor the way kernels like it.
pub(super) fn upload(
    context: &Arc<Context>,
    layout: &Layout,
    bytes: &[u8],
) -> Result<VulkanMemory> {
    let expected = layout.span_bytes();
    if bytes.len() as u64 != expected {
        return Err(GpuError::TransferMismatch {
            what: "weights",
            found: format!("{} bytes", bytes.len()),
            expected: format!("{expected} for {layout}"),
        });
    }
    let planes = in_planes(context, layout);
    let packing = if planes { Packing::Planes } else { Packing::Plain };
    let limit = context.adapter.target.max_binding;
    let row_bytes = expected / layout.rows() as u64;
    let Some(rows) = parts::rows_of_part(layout, planes, limit) else {
        return upload_whole(context, layout, bytes);
    };
    let mut memory = VulkanMemory::new(context, 0, packing)?;
    memory.tensor = Some(*layout);
    for first in (0..layout.rows()).step_by(rows) {
        let rows = rows.min(layout.rows() - first);
        let part = Layout::new(layout.dtype(), &[rows, layout.cols()])?;
        let start = first * row_bytes as usize;
        let bytes = &bytes[start..start + part.span_bytes() as usize];
        let piece = Arc::new(upload_whole(context, &part, bytes)?);
        memory.parts.push(RowPart { first: first as u32, rows: rows as u32, memory: piece });
    }
    Ok(memory)
}

/// Whether a tensor is packed into planes. Kernels that read them round activations.
fn in_planes(context: &Context, layout: &Layout) -> bool {
    planes::supports(layout) && !context.instance.options.float_activations
}

fn upload_whole(context: &Arc<Context>, layout: &Layout, bytes: &[u8]) -> Result<VulkanMemory> {
    let expected = layout.span_bytes();
    if !in_planes(context, layout) {
        let memory = VulkanMemory::new(context, expected, Packing::Plain)?;
        memory.write(0, bytes)?;
        return Ok(memory);
    }
    let dtype = layout.dtype();
    let chunks_per_block = (dtype.block_elems() / planes::CHUNK) as u64;
    let chunks = (layout.elems() / planes::CHUNK) as u64;
    let (starts, end) = planes::offsets(dtype, chunks);
    let mut memory = VulkanMemory::new(context, end, Packing::Planes)?;
    memory.tensor = Some(*layout);
    let memory = memory;
    let parts: Vec<&[u8]> = bytes.chunks(BLOCKS * dtype.block_bytes()).collect();
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(part) = parts.get(index) else { return };
            let first = (index * BLOCKS) as u64 * chunks_per_block;
            if let Err(error) = upload_part(&memory, layout, part, first, &starts) {
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                next.store(parts.len(), Ordering::Relaxed);
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 1..cores.min(parts.len()) {
            scope.spawn(work);
        }
        work();
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(memory),
    }
}

/// Packs some blocks, the first of which is chunk `first`, and writes their part of each plane.
fn upload_part(
    memory: &VulkanMemory,
    layout: &Layout,
    blocks: &[u8],
    first: u64,
    starts: &[u64],
) -> Result<()> {
    let dtype = layout.dtype();
    let packed = planes::pack(dtype, blocks).ok_or_else(|| GpuError::TransferMismatch {
        what: "weights",
        found: format!("{} bytes", blocks.len()),
        expected: format!("whole blocks of {dtype}"),
    })?;
    let count = (blocks.len() / dtype.block_bytes() * dtype.block_elems() / planes::CHUNK) as u64;
    let (part_starts, _) = planes::offsets(dtype, count);
    for plane in 0..planes::count(dtype) {
        let start = part_starts[plane] as usize;
        let bytes = &packed[start..start + planes::plane_bytes(dtype, plane, count) as usize];
        let at = starts[plane] + planes::plane_bytes(dtype, plane, first);
        // SAFETY: every part but the last holds whole units, so in each plane it begins where the one before it
        // ends: parts of different threads are different bytes.
        unsafe { memory.write_apart(at, bytes) }?;
    }
    Ok(())
}
