//! The final list in terms of values.
//!
//! Placing rewrites ranges into addresses. Every access still names the recorded access it carries out,
//! and that one speaks of values: so the true dependences and the lives of values can be read from the
//! final list and the recorded one together, without running a stage again.

use std::sync::Arc;

use clearway_graph::schedule::HazardGraph;
use clearway_graph::{CapturedNode, ComputeGraph, Dispatch, DispatchId};
use rustc_hash::FxHashMap;

use crate::error::{InspectError, Result};

/// A list with its groups, ranges in terms of values.
pub(crate) struct Logical {
    /// The dispatches in execution order.
    pub dispatches: Vec<Arc<Dispatch>>,
    /// The group of each.
    pub group: Vec<u32>,
    /// How many groups there are.
    pub groups: u32,
}

impl Logical {
    /// The final list, in the recorded list's values.
    pub(crate) fn new(recorded: &ComputeGraph, graph: &ComputeGraph) -> Result<Self> {
        let by_id: FxHashMap<DispatchId, &Arc<Dispatch>> =
            recorded.dispatches().map(|dispatch| (dispatch.id, dispatch)).collect();
        let mut list = Self { dispatches: Vec::new(), group: Vec::new(), groups: 0 };
        let mut open = false;
        for node in graph.nodes() {
            match node {
                CapturedNode::Barrier(_) => open = false,
                CapturedNode::Dispatch(dispatch) => {
                    list.groups += u32::from(!open);
                    open = true;
                    list.dispatches.push(Arc::new(in_values(dispatch, &by_id)?));
                    list.group.push(list.groups - 1);
                }
            }
        }
        Ok(list)
    }

    /// For each dispatch those it waits for. One of unknown access waits for all of the group before, and
    /// all of the group after wait for it.
    pub(crate) fn preds(&self) -> Vec<Vec<u32>> {
        let hazards = HazardGraph::build(&self.dispatches);
        let mut preds: Vec<Vec<u32>> =
            (0..self.dispatches.len()).map(|index| hazards.preds(index).to_vec()).collect();
        for (index, dispatch) in self.dispatches.iter().enumerate() {
            if dispatch.is_annotated() {
                continue;
            }
            let group = self.group[index];
            let start = self.group.partition_point(|&g| g + 1 < group);
            let end = self.group.partition_point(|&g| g <= group + 1);
            for other in start..end {
                match other.cmp(&index) {
                    std::cmp::Ordering::Less => preds[index].push(other as u32),
                    std::cmp::Ordering::Greater => preds[other].push(index as u32),
                    std::cmp::Ordering::Equal => {}
                }
            }
        }
        for list in &mut preds {
            list.sort_unstable();
            list.dedup();
        }
        preds
    }
}

fn in_values(
    dispatch: &Dispatch,
    recorded: &FxHashMap<DispatchId, &Arc<Dispatch>>,
) -> Result<Dispatch> {
    let origin = |id: DispatchId| recorded.get(&id).map(|dispatch| &***dispatch);
    dispatch
        .in_recorded_terms(origin)
        .map_err(|origin| InspectError::ForeignList { dispatch: dispatch.id, origin })
}
