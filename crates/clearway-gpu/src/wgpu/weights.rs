//! Weight tensors on the device, packed while they travel.

use std::sync::Arc;

use clearway_graph::Layout;

use super::context::Context;
use super::memory::WgpuMemory;
use crate::error::Result;
use crate::lowering::{RowPart, weights};
use crate::wgsl::{Packing, planes};

/// Memory that holds a weight tensor the way kernels like it.
pub(super) fn upload(context: &Arc<Context>, layout: &Layout, bytes: &[u8]) -> Result<WgpuMemory> {
    weights::check(layout, bytes)?;
    let planes = in_planes(context, layout);
    let limit = context.adapter.target.max_binding;
    let Some(parts) = weights::cut(layout, bytes, planes, limit) else {
        return upload_whole(context, layout, bytes);
    };
    let mut memory = WgpuMemory::new(context, 0)?;
    memory.packing = if planes { Packing::Planes } else { Packing::Plain };
    memory.tensor = Some(*layout);
    for part in parts? {
        let rows = part.layout.rows() as u32;
        let piece = Arc::new(upload_whole(context, &part.layout, part.bytes)?);
        memory.parts.push(RowPart { first: part.first as u32, rows, memory: piece });
    }
    Ok(memory)
}

/// Whether a tensor is packed into planes. Kernels that read them round activations and need subgroups.
fn in_planes(context: &Context, layout: &Layout) -> bool {
    planes::supports(layout) && super::packs_weights(context)
}

fn upload_whole(context: &Arc<Context>, layout: &Layout, bytes: &[u8]) -> Result<WgpuMemory> {
    if !in_planes(context, layout) {
        let memory = WgpuMemory::new(context, layout.span_bytes())?;
        memory.put(0, bytes)?;
        return Ok(memory);
    }
    let mut memory = WgpuMemory::new(context, weights::plane_bytes(layout))?;
    memory.packing = Packing::Planes;
    memory.tensor = Some(*layout);
    weights::pack(layout, bytes, |at, part| memory.put(at, part))?;
    Ok(memory)
}
