//! Weight tensors on the device, packed while they travel.

use std::sync::Arc;

use clearway_graph::Layout;

use super::context::Context;
use super::memory::VulkanMemory;
use crate::device::DeviceMemory;
use crate::error::Result;
use crate::lowering::{RowPart, weights};
use crate::wgsl::{Packing, planes};

/// Memory that holds a weight tensor the way kernels like it.
pub(super) fn upload(
    context: &Arc<Context>,
    layout: &Layout,
    bytes: &[u8],
) -> Result<VulkanMemory> {
    weights::check(layout, bytes)?;
    let planes = in_planes(context, layout);
    let limit = context.adapter.target.max_binding;
    let Some(parts) = weights::cut(layout, bytes, planes, limit) else {
        return upload_whole(context, layout, bytes);
    };
    let packing = if planes { Packing::Planes } else { Packing::Plain };
    let mut memory = VulkanMemory::new(context, 0, packing)?;
    memory.tensor = Some(*layout);
    for part in parts? {
        let rows = part.layout.rows() as u32;
        let piece = Arc::new(upload_whole(context, &part.layout, part.bytes)?);
        memory.parts.push(RowPart { first: part.first as u32, rows, memory: piece });
    }
    Ok(memory)
}

/// Whether a tensor is packed into planes. Kernels that read them round activations.
fn in_planes(context: &Context, layout: &Layout) -> bool {
    planes::supports(layout) && !context.instance.options.float_activations
}

fn upload_whole(context: &Arc<Context>, layout: &Layout, bytes: &[u8]) -> Result<VulkanMemory> {
    if !in_planes(context, layout) {
        let memory = VulkanMemory::new(context, layout.span_bytes(), Packing::Plain)?;
        memory.write(0, bytes)?;
        return Ok(memory);
    }
    let mut memory = VulkanMemory::new(context, weights::plane_bytes(layout), Packing::Planes)?;
    memory.tensor = Some(*layout);
    // SAFETY: `pack` writes no place twice, so calls that run at the same time write different bytes.
    weights::pack(layout, bytes, |at, part| unsafe { memory.write_apart(at, part) })?;
    Ok(memory)
}
