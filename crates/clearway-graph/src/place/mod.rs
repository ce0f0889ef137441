//! The place stage: every value gets a slab and an offset.

mod lifetimes;
mod plan;

pub use lifetimes::{Lifetime, lifetimes};
pub use plan::{MemoryPlan, Slot};

use std::sync::Arc;

use crate::error::{GraphError, Result};
use crate::graph::ComputeGraph;
use crate::ids::{DispatchId, NodeId};
use crate::node::{Accesses, CapturedNode, Dispatch};

/// Where bytes that a list names by `buf_id` really lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Buffer that holds them.
    pub buf_id: usize,
    /// Where in it they start.
    pub offset: u64,
    /// Bytes in that buffer.
    pub buf_len: u64,
}

/// Gives every value of a list with barriers its bytes, sharing them where lives do not meet.
pub fn plan(graph: &ComputeGraph, align: u64) -> MemoryPlan {
    let mut lives = lifetimes(graph);
    lives.sort_by_key(|life| (std::cmp::Reverse(life.bytes), life.value));
    let mut slots = vec![None; graph.values().len()];
    let mut placed: Vec<(Lifetime, u64, u64)> = Vec::new();
    let mut height = 0;
    for life in lives {
        let bytes = life.bytes.next_multiple_of(align.max(1));
        let beside = placed.iter().filter(|(b, ..)| b.first <= life.last && life.first <= b.last);
        let mut taken: Vec<_> = beside.map(|&(_, start, end)| (start, end)).collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, end) in taken {
            if offset + bytes <= start {
                break;
            }
            offset = offset.max(end);
        }
        placed.push((life, offset, offset + bytes));
        height = height.max(offset + bytes);
        slots[life.value.index()] = Some(Slot { slab: 0, offset, bytes: life.bytes });
    }
    MemoryPlan::new(slots, vec![height])
}

/// Rewrites every range and view of a value into one of its slab's buffer.
pub(crate) fn assign(
    graph: &mut ComputeGraph,
    plan: &MemoryPlan,
    slab_buf_ids: &[usize],
) -> Result<()> {
    relocate(graph, |buf_id, dispatch| {
        let Some(value) = NodeId::from_buf_id(buf_id) else {
            return Ok(None);
        };
        let slot = plan.slot(value).ok_or(GraphError::Unplaced { value, dispatch })?;
        let slab_bytes = plan.slab_bytes().get(slot.slab).copied();
        let (Some(slab_bytes), Some(&buf_id)) = (slab_bytes, slab_buf_ids.get(slot.slab)) else {
            return Err(GraphError::Unplaced { value, dispatch });
        };
        match slot.offset.checked_add(slot.bytes) {
            Some(end) if end <= slab_bytes => {
                Ok(Some(Address { buf_id, offset: slot.offset, buf_len: slab_bytes }))
            }
            _ => Err(GraphError::PlacedOutOfSlab {
                value,
                offset: slot.offset,
                bytes: slot.bytes,
                buf_id,
                slab_bytes,
            }),
        }
    })
}

/// Moves every range and view whose buffer `address` knows to where it says. The list is unchanged
/// on error.
pub(crate) fn relocate(
    graph: &mut ComputeGraph,
    address: impl Fn(usize, DispatchId) -> Result<Option<Address>>,
) -> Result<()> {
    let moved = |dispatch: &Dispatch| -> Result<Dispatch> {
        let mut moved = dispatch.clone();
        for view in &mut moved.bindings {
            if let Some(to) = address(view.buf_id, dispatch.id)? {
                view.buf_id = to.buf_id;
                view.offset += to.offset;
                view.buf_len = to.buf_len;
            }
        }
        if let Accesses::Known(list) = &mut moved.accesses {
            for range in list.iter_mut().map(|access| &mut access.range) {
                if let Some(to) = address(range.buf_id, dispatch.id)? {
                    range.buf_id = to.buf_id;
                    range.p0 += to.offset;
                    range.p1 += to.offset;
                }
            }
        }
        Ok(moved)
    };
    let nodes = graph
        .nodes()
        .iter()
        .map(|node| {
            Ok(match node {
                CapturedNode::Dispatch(dispatch) => {
                    CapturedNode::Dispatch(Arc::new(moved(dispatch)?))
                }
                CapturedNode::Barrier(reason) => CapturedNode::Barrier(*reason),
            })
        })
        .collect::<Result<_>>()?;
    graph.set_nodes(nodes);
    Ok(())
}
