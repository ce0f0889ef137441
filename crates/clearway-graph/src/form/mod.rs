//! Two forms of a graph with its reports: text for people and snapshots, JSON for programs.
//!
//! Both are stable: equal graphs give equal bytes, and neither depends on hash order, addresses or
//! time. Both show the list as it stands, so a form taken between two stages shows exactly what the
//! next stage will see. Groups are the runs of dispatches between barrier nodes; a list without
//! barriers is one group.

mod json;
mod text;

pub use json::JSON_VERSION;

use crate::graph::ComputeGraph;
use crate::node::CapturedNode;

/// How many of each thing a list holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    dispatches: u32,
    groups: u32,
    barriers: u32,
    unannotated: u32,
}

impl Counts {
    fn of(graph: &ComputeGraph) -> Self {
        Self {
            dispatches: graph.dispatch_count(),
            groups: numbered(graph.nodes()).last().map_or(0, |(group, node)| match node {
                CapturedNode::Dispatch(_) => group + 1,
                CapturedNode::Barrier(_) => group,
            }),
            barriers: graph.barrier_count(),
            unannotated: graph.unannotated_dispatch_count(),
        }
    }
}

/// Every node with a group: a dispatch with its own, a barrier with the one that follows it.
/// Barriers in a row, or at the ends of the list, make no empty groups.
fn numbered(nodes: &[CapturedNode]) -> impl Iterator<Item = (u32, &CapturedNode)> {
    let mut group = 0;
    let mut occupied = false;
    nodes.iter().map(move |node| {
        match node {
            CapturedNode::Dispatch(_) => occupied = true,
            CapturedNode::Barrier(_) => group += u32::from(std::mem::take(&mut occupied)),
        }
        (group, node)
    })
}
