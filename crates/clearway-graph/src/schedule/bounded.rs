//! Groups under a limit of live bytes: what a byte budget is traded for.
//!
//! A list scheduler: a group takes ready dispatches, in an order of preference, as long as what is
//! live stays within the limit. It may paint itself into a corner where another order would not; then
//! there is no result.

use std::cmp::Reverse;
use std::sync::Arc;

use super::HazardGraph;
use crate::barriers::BarrierWalk;
use crate::graph::{ComputeGraph, Value};
use crate::ids::NodeId;
use crate::node::{BarrierReason, CapturedNode, Dispatch};

/// What a group takes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preference {
    /// What has the longest chain behind it.
    Urgent,
    /// What makes the fewest bytes more than it frees.
    Lean,
}

/// The list in groups of at most `limit` live bytes, with barriers between them. `None` if the
/// preference leads nowhere, or if a dispatch must keep its place.
pub(crate) fn within(
    graph: &ComputeGraph,
    limit: u64,
    preference: Preference,
) -> Option<ComputeGraph> {
    let dispatches: Vec<Arc<Dispatch>> = graph.dispatches().cloned().collect();
    if !dispatches.iter().all(|dispatch| dispatch.is_movable()) {
        return None;
    }
    let hazards = HazardGraph::build(&dispatches);
    let mut memory = Memory::of(graph, &dispatches);
    let tail = tails(&hazards, dispatches.len());
    let mut waiting: Vec<u32> =
        (0..dispatches.len()).map(|index| hazards.preds(index).len() as u32).collect();
    let mut ready: Vec<usize> = (0..dispatches.len()).filter(|&i| waiting[i] == 0).collect();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    while !ready.is_empty() {
        ready.sort_by_key(|&index| {
            let net = memory.made(&dispatches[index]) - memory.freed(&dispatches[index]);
            let late = Reverse(tail[index]);
            match preference {
                Preference::Urgent => (i128::MIN, late, net, index),
                Preference::Lean => (net, late, 0, index),
            }
        });
        let mut group = Vec::new();
        ready.retain(|&index| {
            let fits = memory.live + memory.made(&dispatches[index]) <= i128::from(limit);
            if fits {
                memory.touch(&dispatches[index]);
                group.push(index);
            }
            !fits
        });
        if group.is_empty() {
            return None;
        }
        memory.close();
        for &index in &group {
            for &succ in hazards.succs(index) {
                waiting[succ as usize] -= 1;
                if waiting[succ as usize] == 0 {
                    ready.push(succ as usize);
                }
            }
        }
        groups.push(group);
    }
    Some(with_groups(graph, &dispatches, &hazards, &groups))
}

/// Longest chain from each dispatch to the end.
fn tails(hazards: &HazardGraph, count: usize) -> Vec<u32> {
    let mut tail = vec![0; count];
    for index in (0..count).rev() {
        tail[index] = hazards.succs(index).iter().map(|&s| tail[s as usize] + 1).max().unwrap_or(0);
    }
    tail
}

/// The list in this order, with a barrier between any two groups.
fn with_groups(
    graph: &ComputeGraph,
    dispatches: &[Arc<Dispatch>],
    hazards: &HazardGraph,
    groups: &[Vec<usize>],
) -> ComputeGraph {
    let mut group_of = vec![0; dispatches.len()];
    for (number, group) in groups.iter().enumerate() {
        group.iter().for_each(|&index| group_of[index] = number);
    }
    let mut nodes = Vec::with_capacity(dispatches.len() + groups.len());
    let mut walk = BarrierWalk::default();
    for (number, group) in groups.iter().enumerate() {
        // What waits for the group before comes first, so that the barrier's reason is a hazard
        // wherever there is one.
        let waits = |index: usize| {
            hazards.preds(index).iter().any(|&pred| group_of[pred as usize] + 1 == number)
        };
        let mut group = group.clone();
        group.sort_by_key(|&index| (!waits(index), index));
        for (place, &index) in group.iter().enumerate() {
            let dispatch = &dispatches[index];
            let reason = walk.before(dispatch);
            if place == 0 && number > 0 {
                if reason.is_none() {
                    walk.reset();
                    walk.before(dispatch);
                }
                nodes.push(CapturedNode::Barrier(reason.unwrap_or(BarrierReason::Memory)));
            }
            nodes.push(CapturedNode::Dispatch(dispatch.clone()));
        }
    }
    let mut list = graph.clone();
    list.set_nodes(nodes);
    list
}

/// What is live.
struct Memory {
    bytes: Vec<i128>,
    /// Dispatches that still touch each value.
    left: Vec<u32>,
    born: Vec<bool>,
    /// Lives on to the end.
    kept: Vec<bool>,
    live: i128,
    /// Values that die with the open group.
    dying: Vec<NodeId>,
}

impl Memory {
    fn of(graph: &ComputeGraph, dispatches: &[Arc<Dispatch>]) -> Self {
        let values = graph.values();
        let own = |value: &Value| value.shadow_of.is_none();
        let mut memory = Self {
            bytes: values.iter().map(|v| if own(v) { i128::from(v.bytes) } else { 0 }).collect(),
            left: vec![0; values.len()],
            born: values.iter().map(Value::lasts).collect(),
            kept: values
                .iter()
                .map(|value| value.output || (value.lasts() && graph.is_replayed()))
                .collect(),
            live: 0,
            dying: Vec::new(),
        };
        memory.live = (0..values.len()).filter(|&v| memory.born[v]).map(|v| memory.bytes[v]).sum();
        for dispatch in dispatches {
            distinct(dispatch).for_each(|value| memory.left[value.index()] += 1);
        }
        memory
    }

    /// Bytes a dispatch makes. A result that lies over an operand makes none.
    fn made(&self, dispatch: &Dispatch) -> i128 {
        let over = self.over(dispatch).map(|(result, _)| result);
        let fresh = distinct(dispatch).filter(|value| !self.born[value.index()]);
        fresh.filter(|&value| over != Some(value)).map(|value| self.bytes[value.index()]).sum()
    }

    /// Bytes that die with a dispatch.
    fn freed(&self, dispatch: &Dispatch) -> i128 {
        let over = self.over(dispatch).map(|(_, operand)| operand);
        let last = distinct(dispatch).filter(|&value| self.dies(value) && over != Some(value));
        last.map(|value| self.bytes[value.index()]).sum()
    }

    /// A result and the operand whose bytes it takes over.
    fn over(&self, dispatch: &Dispatch) -> Option<(NodeId, NodeId)> {
        let value = |binding: u16| dispatch.bindings.get(usize::from(binding))?.value();
        let pairs = dispatch.in_place.iter();
        let mut pairs = pairs.filter_map(|pair| Some((value(pair.output)?, value(pair.input)?)));
        pairs.find(|&(result, operand)| {
            let bytes = |value: NodeId| self.bytes[value.index()];
            self.dies(operand) && !self.born[result.index()] && bytes(result) == bytes(operand)
        })
    }

    /// Whether one more dispatch touches a value, and then it is gone.
    fn dies(&self, value: NodeId) -> bool {
        self.left[value.index()] == 1 && !self.kept[value.index()]
    }

    fn touch(&mut self, dispatch: &Dispatch) {
        let over = self.over(dispatch);
        self.live += self.made(dispatch);
        for value in distinct(dispatch) {
            if self.dies(value) && over.is_none_or(|(_, operand)| operand != value) {
                self.dying.push(value);
            }
            self.born[value.index()] = true;
            self.left[value.index()] -= 1;
        }
    }

    fn close(&mut self) {
        self.live -= self.dying.drain(..).map(|value| self.bytes[value.index()]).sum::<i128>();
    }
}

/// The values a dispatch touches, each once.
fn distinct(dispatch: &Dispatch) -> impl Iterator<Item = NodeId> {
    let seen = |at: usize, value: NodeId| dispatch.values().take(at).any(|other| other == value);
    dispatch
        .values()
        .enumerate()
        .filter(move |&(at, value)| !seen(at, value))
        .map(|(_, value)| value)
}
