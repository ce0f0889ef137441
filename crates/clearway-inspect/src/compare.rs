//! All of it: the list as asked, the same with one switch turned, and the front of bytes against barriers.

use std::collections::BTreeMap;
use std::time::Instant;

use clearway_graph::pipeline::{CompileError, CompileOptions, Compiled, compile, schedule};
use clearway_graph::place::{self, CostModel, SlabRule};
use clearway_graph::schedule::Strategy;
use clearway_graph::{ComputeGraph, KernelCatalog, MemoryPlan};
use rustc_hash::FxHashMap;

use crate::collect::{self, Listing};
use crate::error::{InspectError, Result};
use crate::report::{DispatchRow, Front, Report, Summary, ViewRow};
use crate::tracked::{TrackedRow, WAYS};
use crate::{memory, peers};

/// Longest list whose front is computed: each point plans the whole list again.
const FRONT_DISPATCHES: u32 = 4_000;

/// Identities for slabs that are never allocated: no other buffer has them.
pub const FIRST_SLAB: usize = 1 << 40;

/// What to report, and how.
#[derive(Clone, Debug)]
pub struct InspectOptions {
    /// Which stages run for the list itself.
    pub compile: CompileOptions,
    /// The device of the estimate.
    pub cost: CostModel,
    /// Compile the list again with each switch turned, for comparison.
    pub compare: bool,
    /// Compute the front of bytes against barriers. Lists of more than 4,000 dispatches have none.
    pub front: bool,
    /// Names of buffers outside the arena, by identity.
    pub buffers: BTreeMap<usize, String>,
}

impl Default for InspectOptions {
    fn default() -> Self {
        Self {
            compile: CompileOptions::default(),
            cost: CostModel::default(),
            compare: true,
            front: true,
            buffers: BTreeMap::new(),
        }
    }
}

/// Takes a recorded list through all stages and reports what they did. Nothing is allocated on a device.
///
/// # Errors
/// [`InspectError::Compile`] if the list is malformed or not proven.
pub fn inspect<C: KernelCatalog>(
    recorded: &ComputeGraph,
    catalog: &mut C,
    device: &C::Device,
    options: &InspectOptions,
) -> Result<Report> {
    let mut compiled = |options: &CompileOptions| {
        let slabs = |plan: &MemoryPlan| {
            Ok::<_, CompileError>((FIRST_SLAB..).take(plan.slab_bytes().len()).collect())
        };
        compile(recorded, catalog, device, options, slabs).map_err(InspectError::Compile)
    };
    let started = Instant::now();
    let base = compiled(&options.compile)?;
    let seconds = started.elapsed().as_secs_f64();
    let mut report = Report::of(recorded, &base, &options.compile, &options.cost)?;
    report.seconds = seconds;
    if options.compare {
        for (key, other) in switched(&options.compile) {
            report.views.push(view(key, recorded, &compiled(&other)?, &report, &other)?);
        }
        for (key, slab_rule) in WAYS {
            let other = CompileOptions { slab_rule, budget: None, ..options.compile };
            let compiled = compiled(&other)?;
            if slab_rule == SlabRule::Any {
                report.tracked.push(TrackedRow::own(&compiled));
            }
            report.tracked.push(TrackedRow::of(key, &compiled));
        }
    }
    if options.front && options.compile.reuse && report.summary.dispatches <= FRONT_DISPATCHES {
        let scheduled = schedule(recorded, catalog, device, &options.compile)?;
        report.front = front(recorded, &scheduled.graph, options)?;
        let mut fused = recorded.clone();
        if options.compile.fuse {
            fused.fuse(catalog, device)?;
        }
        report.node_order = Some(peers::node_order(&fused, options.compile.align)?);
        report.free_list = Some(peers::free_list(&fused, options.compile.align)?);
    }
    report.name_buffers(|id| options.buffers.get(&id).cloned());
    Ok(report)
}

/// The options with one switch turned; what is as it was is left out. The byte budget is for the list that
/// was asked for: the others may not reach it.
fn switched(base: &CompileOptions) -> Vec<(&'static str, CompileOptions)> {
    let free = CompileOptions { budget: None, ..*base };
    let all = [
        ("reordered", CompileOptions { reorder: Some(Strategy::Levels), ..free }),
        ("in_order", CompileOptions { reorder: None, ..free }),
        ("without_reuse", CompileOptions { reuse: false, ..free }),
        ("without_fusion", CompileOptions { fuse: false, ..free }),
    ];
    all.into_iter().filter(|(_, options)| *options != free).collect()
}

fn view(
    key: &'static str,
    recorded: &ComputeGraph,
    compiled: &Compiled,
    report: &Report,
    options: &CompileOptions,
) -> Result<ViewRow> {
    let graph = compiled.graph();
    let list = Listing::new(recorded, graph, &report.cost)?;
    // Dispatches keep their ids, but a fused one has the id of a recorded one: both lists are complete, and
    // only one has the right rows.
    let fused = options.fuse == report.options.fuse;
    let place: FxHashMap<u32, u32> = match fused {
        true => numbered(report.dispatch_list.iter().map(|row| row.id)),
        false => numbered(report.recorded_list.iter().map(|row| row.id)),
    };
    let index = list.index.keys().filter_map(|id| Some((*id, *place.get(&id.0)?))).collect();
    let values = memory::values(recorded, graph.is_replayed(), compiled.plan(), &list.logical);
    let mut summary = Summary::of(compiled.stats());
    summary.phases_per_layer = list.phases_per_layer();
    summary.estimated_ns = list.groups.iter().map(|group| group.estimated_ns).sum();
    let rows = &list.dispatches;
    let known = |row: &DispatchRow| place.get(&row.id).copied().unwrap_or_default();
    let order: Vec<u32> = rows.iter().map(known).collect();
    Ok(ViewRow {
        key,
        summary,
        placed: memory::placed(&values, &order),
        list: if fused { "dispatch_list" } else { "recorded_list" },
        order,
        group: rows.iter().map(|row| row.group).collect(),
        lane: rows.iter().map(|row| row.lane).collect(),
        barrier_list: collect::barriers(graph, &index),
        slab_bytes: compiled.plan().slab_bytes().to_vec(),
        group_ns: list.groups.iter().map(|group| group.estimated_ns).collect(),
    })
}

fn numbered(ids: impl Iterator<Item = u32>) -> FxHashMap<u32, u32> {
    ids.zip(0..).collect()
}

fn front(
    recorded: &ComputeGraph,
    scheduled: &ComputeGraph,
    options: &InspectOptions,
) -> Result<Vec<Front>> {
    let place_options = options.compile.place_options();
    let points = place::front(scheduled, &place_options, &options.cost, 0)?;
    points
        .iter()
        .map(|point| {
            let list = Listing::new(recorded, &point.graph, &options.cost)?;
            Ok(Front {
                arena_bytes: point.bytes,
                groups: point.groups,
                barriers: point.graph.barrier_count(),
                estimated_ns: list.groups.iter().map(|group| group.estimated_ns).sum(),
            })
        })
        .collect()
}
