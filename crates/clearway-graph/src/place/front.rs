//! Bytes against barriers: a byte budget is met by splitting groups, one at a time.
//!
//! Where the arena is too large, the group with the most live bytes is cut in two: what frees more
//! than it makes goes first, and the barrier between lets the second half lie over what the first let
//! go. Where no cut helps any more, the list is scheduled anew under a limit of live bytes. The
//! schedules that need fewer bytes than all with as few groups are the front.

use std::sync::Arc;

use serde::Serialize;

use super::classes::alias_classes;
use super::{MemoryPlan, PlaceOptions, plan_with};
use crate::error::{GraphError, Result};
use crate::graph::ComputeGraph;
use crate::node::{BarrierReason, CapturedNode, Dispatch};
use crate::schedule::bounded::{Preference, within};

/// What time a device takes, roughly: enough to compare schedules of one list.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CostModel {
    /// Nanoseconds a barrier costs.
    pub barrier_ns: f64,
    /// Bytes read or written in a nanosecond by a device that is full.
    pub bytes_per_ns: f64,
    /// Least nanoseconds of a dispatch.
    pub dispatch_ns: f64,
}

impl Default for CostModel {
    /// A large GPU: 2.5 us a barrier, 4.6 TB/s, 0.2 us a dispatch.
    fn default() -> Self {
        Self { barrier_ns: 2_500.0, bytes_per_ns: 4_600.0, dispatch_ns: 200.0 }
    }
}

impl CostModel {
    /// Estimated nanoseconds of a list with barriers.
    pub fn estimate_ns(&self, graph: &ComputeGraph) -> f64 {
        groups_of(graph)
            .iter()
            .map(|group| {
                let bytes = |d: &Arc<Dispatch>| d.ranges().map(|r| r.p1 - r.p0).sum::<u64>() as f64;
                let moved: f64 = group.iter().map(|d| bytes(d) / self.bytes_per_ns).sum();
                self.barrier_ns + moved.max(self.dispatch_ns * group.len() as f64)
            })
            .sum()
    }
}

/// A schedule and the memory it needs.
#[derive(Clone, Debug)]
pub struct FrontPoint {
    /// Bytes of the arena.
    pub bytes: u64,
    /// Concurrent groups.
    pub groups: u32,
    /// Estimated time.
    pub time_ns: f64,
    /// The list with its barriers.
    pub graph: ComputeGraph,
    /// Its plan.
    pub plan: MemoryPlan,
}

/// The points from the fewest groups to the fewest bytes that were found; each has fewer bytes and more
/// groups than the one before. Stops at the first that fits `enough` bytes.
///
/// # Errors
/// As [`plan_with`].
pub fn front(
    graph: &ComputeGraph,
    options: &PlaceOptions,
    cost: &CostModel,
    enough: u64,
) -> Result<Vec<FrontPoint>> {
    let mut points = vec![point(graph.clone(), options, cost)?];
    let mut current = points[0].clone();
    while current.bytes > enough {
        let Some(cut) = best_cut(&current.graph) else {
            break;
        };
        current = point(cut, options, cost)?;
        points.push(current.clone());
    }
    for preference in [Preference::Urgent, Preference::Lean] {
        rescheduled(graph, preference, options, cost, enough, &mut points)?;
    }
    points.sort_by_key(|point| (point.groups, point.bytes));
    let mut least = u64::MAX;
    points.retain(|point| {
        let better = point.bytes < least;
        least = least.min(point.bytes);
        better
    });
    let fits = points.iter().position(|point| point.bytes <= enough);
    points.truncate(fits.map_or(points.len(), |at| at + 1));
    Ok(points)
}

/// Schedules whose live bytes stay within ever lower limits, each a little below what the one before
/// needed.
fn rescheduled(
    graph: &ComputeGraph,
    preference: Preference,
    options: &PlaceOptions,
    cost: &CostModel,
    enough: u64,
    points: &mut Vec<FrontPoint>,
) -> Result<()> {
    let mut limit = points[0].bytes;
    while limit > enough {
        limit -= (limit / LIMIT_STEPS).max(1);
        // The budget itself is tried, whatever the steps.
        limit = limit.max(enough);
        let Some(list) = within(graph, limit, preference) else {
            break;
        };
        let made = point(list, options, cost)?;
        limit = limit.min(made.bytes);
        points.push(made);
    }
    Ok(())
}

/// A limit is lowered by this fraction of itself.
const LIMIT_STEPS: u64 = 64;

/// The schedule with the fewest added groups that fits a budget.
///
/// # Errors
/// [`GraphError::BudgetTooSmall`] with the smallest size that cuts reach; as [`plan_with`].
pub fn fit_budget(
    graph: &ComputeGraph,
    options: &PlaceOptions,
    cost: &CostModel,
    budget: u64,
) -> Result<FrontPoint> {
    let points = front(graph, options, cost, budget)?;
    let smallest = points.iter().map(|point| point.bytes).min().unwrap_or(0);
    match points.into_iter().find(|point| point.bytes <= budget) {
        Some(point) => Ok(point),
        None => Err(GraphError::BudgetTooSmall { budget, smallest }),
    }
}

fn point(graph: ComputeGraph, options: &PlaceOptions, cost: &CostModel) -> Result<FrontPoint> {
    let plan = plan_with(&graph, options)?;
    Ok(FrontPoint {
        bytes: plan.total_bytes(),
        groups: groups_of(&graph).len() as u32,
        time_ns: cost.estimate_ns(&graph),
        graph,
        plan,
    })
}

/// The list with its fullest group cut where that lowers the live bytes most; `None` if no cut of it
/// lowers them.
fn best_cut(graph: &ComputeGraph) -> Option<ComputeGraph> {
    let (peak, bytes) = peak_group(graph);
    let groups = groups_of(graph);
    let group = groups.get(peak)?;
    let mut order: Vec<&Arc<Dispatch>> = group.iter().collect();
    order.sort_by_key(|dispatch| net_bytes(graph, dispatch));
    let cuts = (1..order.len()).map(|at| cut(graph, peak, &order, at));
    let mut best = None;
    for candidate in cuts {
        let (_, live) = peak_group(&candidate);
        // Equal peaks elsewhere: this group still has to come down before they matter.
        let own = group_bytes(&candidate, peak).max(group_bytes(&candidate, peak + 1));
        if best.as_ref().is_none_or(|&(least, _)| (live, own) < least) {
            best = Some(((live, own), candidate));
        }
    }
    best.filter(|&((_, own), _)| own < bytes).map(|(_, graph)| graph)
}

/// Bytes a dispatch makes minus bytes that die with it: those that shrink memory go first.
fn net_bytes(graph: &ComputeGraph, dispatch: &Dispatch) -> i128 {
    let bytes = |r: &crate::BufferRange| match crate::NodeId::from_buf_id(r.buf_id) {
        Some(value) => graph.values().get(value.index()).map_or(0, |v| i128::from(v.bytes)),
        None => 0,
    };
    dispatch.writes().map(bytes).sum::<i128>() - dispatch.reads().map(bytes).sum::<i128>()
}

/// The list with group `peak` in this order and a barrier after its first `at` dispatches.
fn cut(graph: &ComputeGraph, peak: usize, order: &[&Arc<Dispatch>], at: usize) -> ComputeGraph {
    let mut nodes = Vec::with_capacity(graph.nodes().len() + 1);
    let (mut group, mut occupied, mut written) = (0, false, false);
    for node in graph.nodes() {
        match node {
            CapturedNode::Barrier(_) => {
                group += usize::from(occupied);
                occupied = false;
                nodes.push(node.clone());
            }
            CapturedNode::Dispatch(_) => {
                occupied = true;
                if group != peak {
                    nodes.push(node.clone());
                } else if !written {
                    written = true;
                    let dispatch = |d: &&Arc<Dispatch>| CapturedNode::Dispatch(Arc::clone(d));
                    nodes.extend(order[..at].iter().map(dispatch));
                    nodes.push(CapturedNode::Barrier(BarrierReason::Memory));
                    nodes.extend(order[at..].iter().map(dispatch));
                }
            }
        }
    }
    let mut cut = graph.clone();
    cut.set_nodes(nodes);
    cut
}

/// The first group with the most live bytes, and how many.
fn peak_group(graph: &ComputeGraph) -> (usize, u64) {
    let live = live_bytes(graph);
    let most = live.iter().copied().max().unwrap_or(0);
    (live.iter().position(|&bytes| bytes == most).unwrap_or(0), most)
}

fn group_bytes(graph: &ComputeGraph, group: usize) -> u64 {
    live_bytes(graph).get(group).copied().unwrap_or(0)
}

/// Live bytes of each group.
pub fn live_bytes(graph: &ComputeGraph) -> Vec<u64> {
    let mut live = vec![0; groups_of(graph).len()];
    for class in alias_classes(graph) {
        for bytes in &mut live[class.first as usize..=class.last as usize] {
            *bytes += class.bytes;
        }
    }
    live
}

/// The dispatches of each group.
fn groups_of(graph: &ComputeGraph) -> Vec<Vec<Arc<Dispatch>>> {
    let mut groups = vec![Vec::new()];
    for node in graph.nodes() {
        match node {
            CapturedNode::Barrier(_) => groups.push(Vec::new()),
            CapturedNode::Dispatch(dispatch) => {
                if let Some(group) = groups.last_mut() {
                    group.push(dispatch.clone());
                }
            }
        }
    }
    groups.retain(|group| !group.is_empty());
    groups
}
