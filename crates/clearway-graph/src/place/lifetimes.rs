//! How long values live, counted in groups.
//!
//! A value is live from the group of its first access to the group of its last, both included: two
//! values whose lives meet in no group may share bytes, and a barrier then stands between every
//! access to the one and every access to the other. Sharing therefore adds no barrier.

use crate::graph::ComputeGraph;
use crate::ids::NodeId;
use crate::node::CapturedNode;

/// The groups in which a value is live, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The value.
    pub value: NodeId,
    /// Bytes it needs.
    pub bytes: u64,
    /// First group.
    pub first: u32,
    /// Last group.
    pub last: u32,
}

/// Lives of all values that need memory, by value. Groups are those the barriers of the list make.
pub fn lifetimes(graph: &ComputeGraph) -> Vec<Lifetime> {
    let mut spans: Vec<Option<(u32, u32)>> = vec![None; graph.values().len()];
    let mut group = 0;
    let mut occupied = false;
    for node in graph.nodes() {
        match node {
            CapturedNode::Barrier(_) => {
                group += u32::from(occupied);
                occupied = false;
            }
            CapturedNode::Dispatch(dispatch) => {
                occupied = true;
                for value in dispatch.values() {
                    if let Some(span) = spans.get_mut(value.index()) {
                        let first = span.map_or(group, |(first, _)| first);
                        *span = Some((first, group));
                    }
                }
            }
        }
    }
    let last_group = if occupied { group } else { group.saturating_sub(1) };
    let live = |(index, span): (usize, Option<(u32, u32)>)| {
        let value = &graph.values()[index];
        let host = (value.lasts() || value.output).then_some((last_group, 0));
        let (mut first, mut last) = span.or(host)?;
        if value.lasts() {
            first = 0;
            if graph.is_replayed() {
                last = last_group; // the next run reads it again
            }
        }
        if value.output {
            last = last_group;
        }
        let value = NodeId(index as u32);
        Some(Lifetime { value, bytes: graph.values()[index].bytes, first, last: last.max(first) })
    };
    spans.into_iter().enumerate().filter_map(live).collect()
}
