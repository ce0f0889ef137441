//! Weight tensors on their way to a device: cut into parts, and block formats packed into planes on all cores.

use clearway_graph::Layout;

use super::parallel;
use crate::error::{GpuError, Result};
use crate::wgsl::{parts, planes};

/// Blocks a thread packs at a time. A multiple of 64 chunks, so that its part of every plane is
/// whole 16-byte words.
const BLOCKS: usize = 8192;

/// Refuses bytes that are not a tensor of this layout.
pub(crate) fn check(layout: &Layout, bytes: &[u8]) -> Result<()> {
    let expected = layout.span_bytes();
    if bytes.len() as u64 == expected {
        return Ok(());
    }
    Err(GpuError::TransferMismatch {
        what: "weights",
        found: format!("{} bytes", bytes.len()),
        expected: format!("{expected} for {layout}"),
    })
}

/// One part of a tensor that is larger than a binding.
pub(crate) struct Part<'a> {
    /// Its first row in the tensor.
    pub(crate) first: usize,
    /// Its rows as a tensor of their own.
    pub(crate) layout: Layout,
    /// Their bytes.
    pub(crate) bytes: &'a [u8],
}

/// The parts of a tensor whose bindings hold at most `limit` bytes; `None` where it is one piece.
pub(crate) fn cut<'a>(
    layout: &Layout,
    bytes: &'a [u8],
    planes: bool,
    limit: u64,
) -> Option<Result<Vec<Part<'a>>>> {
    let rows = parts::rows_of_part(layout, planes, limit)?;
    let row_bytes = bytes.len() / layout.rows();
    let part = |first: usize| {
        let rows = rows.min(layout.rows() - first);
        let layout = Layout::new(layout.dtype(), &[rows, layout.cols()])?;
        let bytes = &bytes[first * row_bytes..(first + rows) * row_bytes];
        Ok(Part { first, layout, bytes })
    };
    Some((0..layout.rows()).step_by(rows).map(part).collect())
}

/// Bytes that a tensor in planes takes on the device.
pub(crate) fn plane_bytes(layout: &Layout) -> u64 {
    planes::offsets(layout.dtype(), (layout.elems() / planes::CHUNK) as u64).1
}

/// Packs a tensor into planes on all cores. `write` gets bytes and where they go, from several threads at once
/// and never the same place twice.
pub(crate) fn pack(
    layout: &Layout,
    bytes: &[u8],
    write: impl Fn(u64, &[u8]) -> Result<()> + Sync,
) -> Result<()> {
    let dtype = layout.dtype();
    let chunks_per_block = (dtype.block_elems() / planes::CHUNK) as u64;
    let (starts, _) = planes::offsets(dtype, (layout.elems() / planes::CHUNK) as u64);
    let parts: Vec<&[u8]> = bytes.chunks(BLOCKS * dtype.block_bytes()).collect();
    parallel::for_each(&parts, |index, part| {
        let first = (index * BLOCKS) as u64 * chunks_per_block;
        pack_part(layout, part, first, &starts, &write)
    })
}

/// Packs some blocks, the first of which is chunk `first`, and writes their part of each plane.
fn pack_part(
    layout: &Layout,
    blocks: &[u8],
    first: u64,
    starts: &[u64],
    write: impl Fn(u64, &[u8]) -> Result<()>,
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
        // Every part but the last holds whole units, so in each plane it begins where the one before it ends:
        // parts of different threads are different bytes.
        write(starts[plane] + planes::plane_bytes(dtype, plane, first), bytes)?;
    }
    Ok(())
}
