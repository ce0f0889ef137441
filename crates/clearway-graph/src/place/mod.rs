//! The place stage: every value gets a slab and an offset.

mod plan;

pub use plan::{MemoryPlan, Slot};

use std::sync::Arc;

use crate::error::{GraphError, Result};
use crate::graph::ComputeGraph;
use crate::ids::{DispatchId, NodeId};
use crate::node::{Accesses, CapturedNode, Dispatch};

/// Rewrites every range and view of a value into one of its slab's buffer.
pub(crate) fn assign(
    graph: &mut ComputeGraph,
    plan: &MemoryPlan,
    slab_buf_ids: &[usize],
) -> Result<()> {
    let address = |value: NodeId, dispatch: DispatchId| {
        let slot = plan.slot(value).ok_or(GraphError::Unplaced { value, dispatch })?;
        let slab_bytes = plan.slab_bytes().get(slot.slab).copied();
        let (Some(slab_bytes), Some(&buf_id)) = (slab_bytes, slab_buf_ids.get(slot.slab)) else {
            return Err(GraphError::Unplaced { value, dispatch });
        };
        match slot.offset.checked_add(slot.bytes) {
            Some(end) if end <= slab_bytes => Ok((buf_id, slot.offset, slab_bytes)),
            _ => Err(GraphError::PlacedOutOfSlab {
                value,
                offset: slot.offset,
                bytes: slot.bytes,
                buf_id,
                slab_bytes,
            }),
        }
    };
    let place = |dispatch: &Dispatch| -> Result<Dispatch> {
        let mut placed = dispatch.clone();
        for view in &mut placed.bindings {
            if let Some(value) = view.value() {
                let (buf_id, offset, slab_bytes) = address(value, dispatch.id)?;
                view.buf_id = buf_id;
                view.offset += offset;
                view.buf_len = slab_bytes;
            }
        }
        if let Accesses::Known(list) = &mut placed.accesses {
            for range in list.iter_mut().map(|access| &mut access.range) {
                if let Some(value) = NodeId::from_buf_id(range.buf_id) {
                    let (buf_id, offset, _) = address(value, dispatch.id)?;
                    range.buf_id = buf_id;
                    range.p0 += offset;
                    range.p1 += offset;
                }
            }
        }
        Ok(placed)
    };
    let nodes = graph
        .nodes()
        .iter()
        .map(|node| {
            Ok(match node {
                CapturedNode::Dispatch(dispatch) => {
                    CapturedNode::Dispatch(Arc::new(place(dispatch)?))
                }
                CapturedNode::Barrier(reason) => CapturedNode::Barrier(*reason),
            })
        })
        .collect::<Result<_>>()?;
    graph.set_nodes(nodes);
    Ok(())
}
