//! Where barriers go: one walk over the list, used both to write barriers into it and to encode
//! without writing them.

use crate::graph::ComputeGraph;
use crate::node::{BarrierReason, CapturedNode, Dispatch};
use crate::tracker::ConflictTracker;

/// Walks a list in execution order and says before each dispatch whether a barrier must stand
/// there. The open group lives in it, so a list may be walked in several parts.
#[derive(Debug, Default)]
pub struct BarrierWalk {
    open: ConflictTracker,
    /// Whether any dispatch stands in the open group, even one that touches no memory.
    occupied: bool,
    /// The dispatch before touched unknown memory: nothing may join it.
    sealed: Option<BarrierReason>,
}

impl BarrierWalk {
    /// The barrier needed before `dispatch`, which then is part of the open group.
    pub fn before(&mut self, dispatch: &Dispatch) -> Option<BarrierReason> {
        let reason = self.needed(dispatch);
        if reason.is_some() {
            self.reset();
        }
        self.join(dispatch);
        reason
    }

    /// Adds a dispatch to the open group.
    pub fn join(&mut self, dispatch: &Dispatch) {
        self.occupied = true;
        if dispatch.is_annotated() {
            self.open.add(dispatch.id, dispatch.ranges());
        } else {
            self.sealed = Some(BarrierReason::Unannotated(dispatch.id));
        }
    }

    /// Whether `first` may follow the open group when the list starts again. It does not join.
    fn at_wrap(&self, first: &Dispatch) -> Option<BarrierReason> {
        self.needed(first)
    }

    /// Something outside has ordered everything so far.
    pub fn reset(&mut self) {
        self.open.reset();
        self.occupied = false;
        self.sealed = None;
    }

    /// The barrier needed before `dispatch`, which stays outside the open group.
    pub fn needed(&self, dispatch: &Dispatch) -> Option<BarrierReason> {
        if self.sealed.is_some() {
            return self.sealed;
        }
        if !dispatch.is_annotated() {
            return self.occupied.then_some(BarrierReason::Unannotated(dispatch.id));
        }
        let hazard = self.open.check(dispatch.id, dispatch.ranges()).err()?;
        Some(BarrierReason::Hazard(hazard))
    }
}

/// The barrier that orders the end of the list before its own beginning, if replay needs one.
///
/// `walk` has seen the whole list. The dispatches up to the first barrier would join its open
/// group, so none of them may conflict with it.
pub(crate) fn replay_barrier<'a>(
    walk: &BarrierWalk,
    first_group: impl Iterator<Item = &'a Dispatch>,
) -> Option<BarrierReason> {
    let reason = first_group.into_iter().find_map(|dispatch| walk.at_wrap(dispatch))?;
    Some(match reason {
        BarrierReason::Hazard(hazard) => BarrierReason::Replay(hazard),
        other => other,
    })
}

/// Strips barriers and writes those the ranges need; returns how many.
pub(crate) fn place(graph: &mut ComputeGraph) -> u32 {
    let mut walk = BarrierWalk::default();
    let mut nodes = Vec::with_capacity(graph.nodes().len() * 2);
    let mut first_group_len = None;
    for (count, dispatch) in graph.take_dispatches().into_iter().enumerate() {
        if let Some(reason) = walk.before(&dispatch) {
            first_group_len.get_or_insert(count);
            nodes.push(CapturedNode::Barrier(reason));
        }
        nodes.push(CapturedNode::Dispatch(dispatch));
    }
    if graph.is_replayed() {
        let len = first_group_len.unwrap_or(usize::MAX);
        let dispatches = nodes.iter().filter_map(CapturedNode::dispatch);
        let reason = replay_barrier(&walk, dispatches.take(len).map(|d| &**d));
        nodes.extend(reason.map(CapturedNode::Barrier));
    }
    graph.set_nodes(nodes);
    graph.barrier_count()
}

/// Strips barriers and writes one after every dispatch; returns how many.
pub(crate) fn place_everywhere(graph: &mut ComputeGraph) -> u32 {
    let fenced = |dispatch| {
        [CapturedNode::Dispatch(dispatch), CapturedNode::Barrier(BarrierReason::Requested)]
    };
    let nodes = graph.take_dispatches().into_iter().flat_map(fenced).collect();
    graph.set_nodes(nodes);
    graph.barrier_count()
}
