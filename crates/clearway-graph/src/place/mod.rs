//! The place stage: every value gets a slab and an offset.

mod classes;
mod front;
mod lifetimes;
pub mod peers;
mod plan;

pub use classes::{AliasClass, alias_classes};
pub use front::{CostModel, FrontPoint, fit_budget, front, live_bytes};
pub use lifetimes::{Lifetime, lifetimes};
pub use plan::{MemoryPlan, Slot};

use std::sync::Arc;

use crate::error::{GraphError, Result};
use crate::graph::ComputeGraph;
use crate::ids::{DispatchId, NodeId};
use crate::node::{Accesses, CapturedNode, Dispatch};
use crate::pack::{Effort, Item, PackOptions, pack};

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

/// Nodes the exact search may visit when the heuristics miss the bound: a few milliseconds.
const SEARCH_NODES: u64 = 20_000;

/// Gives every value of a list with barriers its bytes, sharing them where lives do not meet.
///
/// # Errors
/// [`GraphError::TooLarge`] if the values need more than 64-bit addresses.
pub fn plan(graph: &ComputeGraph, align: u64) -> Result<MemoryPlan> {
    let classes = alias_classes(graph);
    let align = align.max(1).next_power_of_two();
    let items: Vec<Item> = (0..)
        .zip(&classes)
        .map(|(id, class)| Item {
            id,
            lower: u64::from(class.first),
            upper: u64::from(class.last) + 1,
            size: class.bytes,
        })
        .collect();
    let options = PackOptions {
        effort: Effort::Exact { node_budget: SEARCH_NODES },
        threads: 1,
        alignment: align,
        ..PackOptions::default()
    };
    let packing = pack(&items, &options)
        .map_err(|error| GraphError::TooLarge { reason: error.to_string() })?;
    let mut slots = vec![None; graph.values().len()];
    for (class, &offset) in classes.iter().zip(&packing.offsets) {
        for value in &class.values {
            let bytes = graph.values()[value.index()].bytes;
            slots[value.index()] = Some(Slot { slab: 0, offset, bytes });
        }
    }
    let plan = MemoryPlan::new(slots, vec![packing.height]);
    Ok(plan.with_lower_bound(packing.lower_bound))
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
