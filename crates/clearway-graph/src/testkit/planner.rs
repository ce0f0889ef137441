//! A small planner that shares memory by the groups a value lives in.

use super::Rng;
use crate::place::Slot;
use crate::{CapturedNode, ComputeGraph, MemoryPlan, NodeId};

/// In which groups each value lives.
#[derive(Clone, Debug)]
pub struct Lives {
    /// First and last group; `None` for a value nobody touches.
    pub of: Vec<Option<(usize, usize)>>,
    /// Whether the last group runs beside the first of the next replay.
    pub seam_open: bool,
    /// Groups of the list.
    pub groups: usize,
}

impl Lives {
    /// The lives of the values of a list that holds its barriers and has no addresses yet.
    pub fn of(graph: &ComputeGraph) -> Self {
        let mut of: Vec<Option<(usize, usize)>> = vec![None; graph.values().len()];
        let mut group = 0;
        let mut dispatches = 0;
        let mut ends_open = true;
        for node in graph.nodes() {
            let CapturedNode::Dispatch(dispatch) = node else {
                // Barriers in a row make no group.
                group += usize::from(dispatches > 0);
                dispatches = 0;
                ends_open = false;
                continue;
            };
            dispatches += 1;
            ends_open = true;
            for value in dispatch.values() {
                let life = &mut of[value.index()];
                *life = Some((life.map_or(group, |(first, _)| first), group));
            }
        }
        let last = group - usize::from(dispatches == 0 && group > 0);
        for (life, value) in of.iter_mut().zip(graph.values()) {
            if value.lasts() {
                let end = life.map_or(0, |(_, end)| end);
                *life = Some((0, if graph.is_replayed() { last } else { end }));
            }
            if value.output {
                *life = Some((life.map_or(0, |(first, _)| first), last));
            }
        }
        let starts_open = matches!(graph.nodes().first(), Some(CapturedNode::Dispatch(_)));
        Self { of, seam_open: graph.is_replayed() && starts_open && ends_open, groups: last + 1 }
    }

    /// Whether two values are alive at the same time.
    pub fn meet(&self, a: NodeId, b: NodeId) -> bool {
        let (Some(a), Some(b)) = (self.of[a.index()], self.of[b.index()]) else {
            return false;
        };
        let last = self.groups - 1;
        let wraps = |a: (usize, usize), b: (usize, usize)| a.1 == last && b.0 == 0;
        (a.0 <= b.1 && b.0 <= a.1) || (self.seam_open && (wraps(a, b) || wraps(b, a)))
    }
}

/// A plan in which values that never live at the same time share bytes: first fit in a random
/// order, in one slab.
pub fn plan_by_groups(graph: &ComputeGraph, align: u64, rng: &mut Rng) -> MemoryPlan {
    let lives = Lives::of(graph);
    let mut order: Vec<usize> =
        (0..graph.values().len()).filter(|&v| lives.of[v].is_some()).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    let mut slots: Vec<Option<Slot>> = vec![None; graph.values().len()];
    let mut placed: Vec<usize> = Vec::new();
    for value in order {
        let bytes = graph.values()[value].bytes;
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|&&other| lives.meet(NodeId(other as u32), NodeId(value as u32)))
            .filter_map(|&other| slots[other].map(|slot| (slot.offset, slot.offset + slot.bytes)))
            .collect();
        taken.sort_unstable();
        let mut offset: u64 = 0;
        for (start, end) in taken {
            if offset + bytes <= start {
                break;
            }
            offset = offset.max(end.next_multiple_of(align));
        }
        slots[value] = Some(Slot { slab: 0, offset, bytes });
        placed.push(value);
    }
    let top = slots.iter().flatten().map(|slot| slot.offset + slot.bytes).max().unwrap_or(0);
    MemoryPlan::new(slots, vec![top])
}
