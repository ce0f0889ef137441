//! The place stage: every value gets a slab and an offset.

mod arrange;
mod classes;
mod form;
mod front;
mod lifetimes;
mod plan;
mod shadow;
mod slabs;
mod tile;

pub use classes::{AliasClass, alias_classes};
pub use front::{CostModel, FrontPoint, fit_budget, front, live_bytes};
pub use lifetimes::{Lifetime, lifetimes};
pub use plan::{MemoryPlan, Slot};
pub use shadow::stale_shadow;

use std::sync::Arc;

use serde::Serialize;

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

/// What the device asks of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceOptions {
    /// Alignment of values, in bytes; rounded up to a power of two.
    pub align: u64,
    /// Bytes of the largest slab. A larger arena is split, without tearing a value.
    pub max_slab_bytes: u64,
    /// Which values may lie in one slab.
    pub rule: SlabRule,
    /// Further pairs of values that must not share a slab.
    pub apart: Vec<(NodeId, NodeId)>,
}

/// Which values may lie in one slab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SlabRule {
    /// All.
    #[default]
    Any,
    /// What a dispatch writes lies in another slab than what it reads, unless it runs in place: for
    /// backends that follow whole buffers and not ranges.
    WritesApart,
    /// As [`WritesApart`](Self::WritesApart), and no two dispatches of a group touch a slab that one of them writes.
    /// Where all values together take at most `spread_bytes`, each class of values has a slab of its own:
    /// a backend that puts a barrier in front of every write to a buffer it has seen then finds few of them.
    GroupsApart {
        /// Bytes up to which no memory is shared.
        spread_bytes: u64,
    },
}

impl SlabRule {
    /// The rule that both rules ask for.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        if self == Self::Any { other } else { self }
    }
}

impl Default for PlaceOptions {
    /// One slab, aligned to 256 bytes.
    fn default() -> Self {
        Self { align: 256, max_slab_bytes: u64::MAX, rule: SlabRule::Any, apart: Vec::new() }
    }
}

impl PlaceOptions {
    /// One slab of this alignment.
    pub fn aligned(align: u64) -> Self {
        Self { align, ..Self::default() }
    }
}

/// Gives every value of a list with barriers its bytes in one slab, sharing them where lives do not
/// meet.
///
/// # Errors
/// As [`plan_with`].
pub fn plan(graph: &ComputeGraph, align: u64) -> Result<MemoryPlan> {
    plan_with(graph, &PlaceOptions::aligned(align))
}

/// Gives every value of a list with barriers its bytes, sharing them where lives do not meet.
///
/// # Errors
/// [`GraphError::TooLarge`] if the values need more than 64-bit addresses,
/// [`GraphError::ValueAboveSlab`] if one alone is larger than the largest slab.
pub fn plan_with(graph: &ComputeGraph, options: &PlaceOptions) -> Result<MemoryPlan> {
    let align = options.align.clamp(1, 1 << 62).next_power_of_two();
    let options = &PlaceOptions { align, ..options.clone() };
    let joined = classes::classes(graph, options, classes::Joins::InPlace);
    let mut classes = classes::classes(graph, options, classes::Joins::Never);
    let mut slabs = slabs::place(graph, &classes, options)?;
    // A join in place keeps its result's bytes from the first part on, so it may cost more.
    if joined.len() < classes.len() {
        let inside = slabs::place(graph, &joined, options)?;
        if inside.total_bytes() <= slabs.total_bytes() {
            (classes, slabs) = (joined, inside);
        }
    }
    let mut slots = vec![None; graph.values().len()];
    for (class, &(slab, start)) in classes.iter().zip(&slabs.at) {
        for (value, offset) in class.values.iter().zip(&class.offsets) {
            let bytes = graph.values()[value.index()].bytes;
            slots[value.index()] = Some(Slot { slab, offset: start + offset, bytes });
        }
    }
    let bound = slabs::lower_bound(&classes, align);
    Ok(shadow::place(graph, MemoryPlan::new(slots, slabs.bytes).with_lower_bound(bound)))
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
        let fields = moved.fields_mut();
        for view in &mut fields.bindings {
            if let Some(to) = address(view.buf_id, dispatch.id)? {
                view.buf_id = to.buf_id;
                view.offset += to.offset;
                view.buf_len = to.buf_len;
            }
        }
        if let Accesses::Known(list) = &mut fields.accesses {
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
