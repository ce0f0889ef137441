//! The schedule stage: an order with the fewest concurrent groups.
//!
//! Both strategies move dispatches only where no byte-range hazard forbids it, and neither moves
//! anything across a dispatch that is unannotated or pinned: such a dispatch cuts the list into
//! sections that are ordered by themselves.

pub(crate) mod bounded;
mod hazards;
mod levels;
mod lookahead;
mod moved;
mod peak;

pub use hazards::HazardGraph;

use std::sync::Arc;

use serde::Serialize;

use crate::graph::ComputeGraph;
use crate::ids::DispatchId;
use crate::node::{CapturedNode, Dispatch, Hazard};

/// How to order a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Levels by longest path: exactly as many groups as the longest chain, with movement inside
    /// the slack that shortens the life of large values.
    Levels,
    /// The field's greedy look-ahead: at each would-be barrier, pull in whatever of the next
    /// `window` nodes fits the open group. Kept for comparison.
    LookAhead {
        /// Nodes looked at, the blocked one included.
        window: usize,
    },
}

/// Why a dispatch stands no earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MoveRefusal {
    /// It would pass a dispatch it conflicts with.
    Hazard(Hazard),
    /// It would cross a dispatch whose memory is unknown.
    CrossesUnannotated(DispatchId),
    /// It would cross a dispatch that keeps its place.
    CrossesPinned(DispatchId),
    /// It keeps its own place.
    Immovable,
}

/// What the schedule stage did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScheduleReport {
    /// The strategy used.
    pub strategy: Strategy,
    /// Dispatches that moved earlier.
    pub moved: u32,
    /// Dispatches of the longest chain: no order has fewer groups.
    pub longest_chain: u32,
    /// For each dispatch that could not stand earlier, what holds it.
    pub refusals: Vec<(DispatchId, MoveRefusal)>,
}

/// Strips barriers and orders the list.
pub(crate) fn schedule(graph: &mut ComputeGraph, strategy: Strategy) -> ScheduleReport {
    let recorded = graph.take_dispatches();
    let mut order = Vec::with_capacity(recorded.len());
    let mut refusals = Vec::with_capacity(recorded.len());
    let mut cut: Option<&Dispatch> = None;
    let (mut chain, mut pinned) = (0, false);
    let mut slots = levels::Slots::default();
    for section in sections(&recorded) {
        let dispatches = &recorded[section.clone()];
        let base = section.start;
        if !dispatches[0].is_movable() {
            // A fixed dispatch is a section of its own. Unannotated ones have a group to
            // themselves; a pinned one may share a group, so it is counted with its neighbours.
            refusals.push((dispatches[0].id, MoveRefusal::Immovable));
            pinned |= dispatches[0].is_annotated();
            cut = Some(&dispatches[0]);
            order.push(base);
            chain += 1;
            continue;
        }
        let hazards = HazardGraph::build(dispatches);
        chain += hazards.depth();
        let plan = match strategy {
            Strategy::Levels => levels::order(dispatches, &hazards, graph.values(), &mut slots),
            Strategy::LookAhead { window } => lookahead::order(dispatches, window),
        };
        for (index, &holder) in plan.held_by.iter().enumerate() {
            let dispatch = &dispatches[index];
            let refusal = match holder {
                Some(pred) => {
                    hazards::between(&dispatches[pred as usize], dispatch).map(MoveRefusal::Hazard)
                }
                None => cut.map(crossing),
            };
            refusals.extend(refusal.map(|refusal| (dispatch.id, refusal)));
        }
        order.extend(plan.order.iter().map(|&i| base + i as usize));
    }
    // A chain runs through all sections, unless a pinned dispatch shares a group with others.
    let longest_chain = if pinned { hazards::longest_chain(&recorded) } else { chain };
    let moved = moved::count_moved_earlier(&order);
    let mut recorded: Vec<_> = recorded.into_iter().map(Some).collect();
    let nodes = order.iter().filter_map(|&i| recorded[i].take().map(CapturedNode::Dispatch));
    let mut ordered = Vec::with_capacity(order.len());
    ordered.extend(nodes);
    graph.set_nodes(ordered);
    ScheduleReport { strategy, moved, longest_chain, refusals }
}

/// Dispatches on the longest chain of a list, by true hazards: no order of it has fewer groups.
pub fn longest_chain(graph: &ComputeGraph) -> u32 {
    let dispatches: Vec<Arc<Dispatch>> = graph.dispatches().cloned().collect();
    hazards::longest_chain(&dispatches)
}

/// An order of one section.
struct SectionOrder {
    /// Indices into the section, in execution order.
    order: Vec<u32>,
    /// For each dispatch of the section, the one that keeps it from standing earlier.
    held_by: Vec<Option<u32>>,
}

fn crossing(cut: &Dispatch) -> MoveRefusal {
    if cut.is_annotated() {
        MoveRefusal::CrossesPinned(cut.id)
    } else {
        MoveRefusal::CrossesUnannotated(cut.id)
    }
}

/// Maximal runs of movable dispatches, and every fixed dispatch by itself.
fn sections(dispatches: &[Arc<Dispatch>]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut start = 0;
    std::iter::from_fn(move || {
        if start == dispatches.len() {
            return None;
        }
        let rest = &dispatches[start..];
        let len = match rest.iter().position(|d| !d.is_movable()) {
            Some(0) => 1,
            Some(fixed) => fixed,
            None => rest.len(),
        };
        let section = start..start + len;
        start += len;
        Some(section)
    })
}

#[cfg(test)]
mod tests;
