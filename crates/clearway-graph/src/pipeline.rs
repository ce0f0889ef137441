//! The stages in order, from a recorded list to a proven one.

use serde::Serialize;

use crate::barriers::{BarrierWalk, replay_barrier};
use crate::contract::KernelCatalog;
use crate::error::GraphError;
use crate::graph::ComputeGraph;
use crate::node::CapturedNode;
use crate::place::{CostModel, MemoryPlan, PlaceOptions, SlabRule};
use crate::schedule::Strategy;
use crate::verify::{Fault, Placement, VerifyStats, verify};

/// Which stages run. Each is a switch of its own, so that a wrong result is bisected in minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CompileOptions {
    /// Apply the fusion rules.
    pub fuse: bool,
    /// Quantise values between the products that come of them, with their norms, and make those f16 that only
    /// products of many rows read. Nothing without `fuse`.
    pub quantise: bool,
    /// How to order the list; `None` keeps the recorded order.
    pub reorder: Option<Strategy>,
    /// Barriers only where the ranges need them; otherwise one after every dispatch.
    pub elide: bool,
    /// Values share memory; otherwise each has bytes of its own.
    pub reuse: bool,
    /// The list will run again and again.
    pub replay: bool,
    /// Barriers may become counters that workgroups wait for, where the device can do that. A run may then fail because
    /// they waited in vain, and must be done again: the caller keeps what it needs for that.
    pub counters: bool,
    /// Alignment of values, in bytes.
    pub align: u64,
    /// Bytes of the largest slab: the device's largest buffer.
    pub max_slab_bytes: u64,
    /// Which values may lie in one slab.
    pub slab_rule: SlabRule,
    /// Bytes the arena may have at most: groups are split until it fits.
    pub budget: Option<u64>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            fuse: true,
            quantise: true,
            reorder: Some(Strategy::Levels),
            elide: true,
            reuse: true,
            replay: true,
            counters: false,
            align: 256,
            max_slab_bytes: u64::MAX,
            slab_rule: SlabRule::Any,
            budget: None,
        }
    }
}

impl CompileOptions {
    /// Nothing but what is needed to be right: recorded order, a barrier after every dispatch, no
    /// sharing of memory.
    pub fn naive() -> Self {
        Self { fuse: false, reorder: None, elide: false, reuse: false, ..Self::default() }
    }

    /// What the place stage has to respect.
    pub fn place_options(&self) -> PlaceOptions {
        PlaceOptions {
            align: self.align,
            max_slab_bytes: self.max_slab_bytes,
            rule: self.slab_rule,
            apart: Vec::new(),
        }
    }
}

/// A list that is fused, scheduled and has its barriers, but no addresses.
#[derive(Clone, Debug)]
pub struct Scheduled {
    /// The list.
    pub graph: ComputeGraph,
    /// Fusions that fired.
    pub fusions: u32,
    /// Values that go quantised from one product to the next.
    pub quantised: u32,
    /// Values that are f16 for the products that read them.
    pub halved: u32,
    /// Dispatches that moved earlier.
    pub moved: u32,
    /// Dispatches on the longest chain of true dependences.
    pub longest_chain: u32,
}

/// A list that is proven to compute what was recorded, with its addresses.
#[derive(Clone, Debug)]
pub struct Compiled {
    graph: ComputeGraph,
    plan: MemoryPlan,
    stats: CompileStats,
}

/// What the stages did, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompileStats {
    /// Dispatches recorded.
    pub recorded: u32,
    /// Dispatches in the final list.
    pub dispatches: u32,
    /// Concurrent groups.
    pub groups: u32,
    /// Barriers, the one that only replay needs included.
    pub barriers: u32,
    /// Dispatches on the longest chain of true dependences: no order has fewer groups.
    pub longest_chain: u32,
    /// Barriers that sharing memory added.
    pub false_barriers: u32,
    /// Fusions that fired.
    pub fusions: u32,
    /// Values that go quantised from one product to the next.
    pub quantised: u32,
    /// Values that are f16 for the products that read them.
    pub halved: u32,
    /// Dispatches that moved earlier.
    pub moved: u32,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Most bytes live in any group: no arena for these groups is smaller.
    pub arena_lower_bound: u64,
}

/// Why a list was not compiled.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The recorded list, or a kernel it needs, is wrong.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The final list does not compute what was recorded: a bug of a stage, found before it ran.
    #[error("{0}")]
    Unverified(Box<Fault>),
}

impl Compiled {
    /// The final list. Exactly this is lowered.
    pub fn graph(&self) -> &ComputeGraph {
        &self.graph
    }

    /// Where values lie.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// What the stages did.
    pub fn stats(&self) -> &CompileStats {
        &self.stats
    }
}

/// Takes a recorded list through all stages. `slab_buf_ids` is told the plan and answers with the
/// buffers that hold its slabs, so that a device can allocate exactly what the plan asks for.
///
/// # Errors
/// A malformed list, whatever `slab_buf_ids` reports, or a final list that fails its proof.
pub fn compile<C, E>(
    recorded: &ComputeGraph,
    catalog: &mut C,
    device: &C::Device,
    options: &CompileOptions,
    slab_buf_ids: impl FnOnce(&MemoryPlan) -> Result<Vec<usize>, E>,
) -> Result<Compiled, E>
where
    C: KernelCatalog,
    E: From<CompileError>,
{
    let graph_error = |error| E::from(CompileError::Graph(error));
    let mut recorded = recorded.clone();
    recorded.set_replayed(options.replay);
    let scheduled = schedule(&recorded, catalog, device, options).map_err(graph_error)?;
    let Scheduled { graph, fusions, quantised, halved, moved, longest_chain } = scheduled;

    // Place with lifetimes counted in groups, so that sharing adds no barrier.
    let (mut graph, plan) = place(graph, options).map_err(graph_error)?;
    let slab_buf_ids = slab_buf_ids(&plan)?;
    graph.assign_addresses(&plan, &slab_buf_ids).map_err(graph_error)?;
    let false_barriers = settle_barriers(&mut graph);

    // Verify the list that will be lowered, exactly that list.
    let placement = Placement { plan: &plan, slab_buf_ids: &slab_buf_ids };
    let proof: VerifyStats = verify(&recorded, &graph, Some(placement))
        .map_err(|fault| E::from(CompileError::Unverified(Box::new(fault))))?;

    let stats = CompileStats {
        recorded: recorded.dispatch_count(),
        dispatches: proof.dispatches,
        groups: proof.groups,
        barriers: proof.barriers,
        longest_chain,
        false_barriers,
        fusions,
        quantised,
        halved,
        moved,
        arena_bytes: plan.total_bytes(),
        arena_lower_bound: plan.lower_bound(),
    };
    Ok(Compiled { graph, plan, stats })
}

/// The stages before a value has an address: fuse, round, schedule, barriers.
///
/// # Errors
/// A malformed list, or a fused kernel that fails to compile.
pub fn schedule<C: KernelCatalog>(
    recorded: &ComputeGraph,
    catalog: &mut C,
    device: &C::Device,
    options: &CompileOptions,
) -> Result<Scheduled, GraphError> {
    if let Some((dispatch, value)) = crate::place::stale_shadow(recorded) {
        return Err(GraphError::StaleShadow { dispatch, value });
    }
    crate::defined::check(recorded)?;
    let mut graph = recorded.clone();
    graph.set_replayed(options.replay);

    // Fuse: fewer dispatches, fewer bytes. What goes from one product to the next is quantised, with its norm
    // where the product before can see to that.
    let (mut fusions, mut quantised, mut halved) = (0, 0, 0);
    if options.fuse {
        fusions += graph.fuse_with(catalog, device, options.quantise)?;
    }
    if options.fuse && options.quantise {
        quantised += graph.quantise(catalog, device)?;
        halved += graph.halve(catalog, device)?;
    }

    // Schedule on values without addresses, so that only true dependences count.
    let longest_chain = crate::schedule::longest_chain(&graph);
    let moved = options.reorder.map_or(0, |strategy| graph.reorder_with(strategy));
    match options.elide {
        true => graph.place_barriers(),
        false => graph.place_barriers_everywhere(),
    };
    Ok(Scheduled { graph, fusions, quantised, halved, moved, longest_chain })
}

/// The list, split where the budget asks for it, and its plan.
fn place(
    graph: ComputeGraph,
    options: &CompileOptions,
) -> Result<(ComputeGraph, MemoryPlan), GraphError> {
    let place_options = options.place_options();
    let plan = match (options.reuse, options.budget) {
        (true, None) => crate::place::plan_with(&graph, &place_options)?,
        (true, Some(budget)) => {
            let cost = CostModel::default();
            let point = crate::place::fit_budget(&graph, &place_options, &cost, budget)?;
            return Ok((point.graph, point.plan));
        }
        (false, _) => MemoryPlan::without_reuse_with(&graph, &place_options),
    };
    let smallest = plan.total_bytes();
    match options.budget {
        Some(budget) if smallest > budget => Err(GraphError::BudgetTooSmall { budget, smallest }),
        _ => Ok((graph, plan)),
    }
}

/// Adds the barriers that addresses ask for and true dependences do not; returns how many. Barriers
/// that stand keep their reasons, which speak of values. The seam between two replays, where the first
/// values lie over the last, may need one too; it is not counted.
fn settle_barriers(graph: &mut ComputeGraph) -> u32 {
    let mut walk = BarrierWalk::default();
    let mut nodes = Vec::with_capacity(graph.nodes().len() + 1);
    let mut added = 0;
    for node in graph.nodes() {
        match node {
            CapturedNode::Barrier(_) => walk.reset(),
            CapturedNode::Dispatch(dispatch) => {
                if let Some(reason) = walk.before(dispatch) {
                    nodes.push(CapturedNode::Barrier(reason));
                    added += 1;
                }
            }
        }
        nodes.push(node.clone());
    }
    let ends_open = matches!(nodes.last(), Some(CapturedNode::Dispatch(_)));
    if graph.is_replayed() && ends_open {
        let first_group = nodes.iter().map_while(|node| node.dispatch().map(|d| &**d));
        let seam = replay_barrier(&walk, first_group);
        nodes.extend(seam.map(CapturedNode::Barrier));
    }
    graph.set_nodes(nodes);
    added
}
