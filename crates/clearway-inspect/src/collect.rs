//! A compiled list to the rows of a report.

use std::collections::BTreeMap;

use clearway_graph::fuse::{Refusal, RefusedPair};
use clearway_graph::pipeline::{CompileOptions, Compiled};
use clearway_graph::place::CostModel;
use clearway_graph::schedule::MoveRefusal;
use clearway_graph::{
    BarrierReason, CapturedNode, ComputeGraph, Dispatch, DispatchId, Hazard, NodeId,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::cost::{self, Traffic};
use crate::error::Result;
use crate::lanes;
use crate::logical::Logical;
use crate::memory;
use crate::report::{
    BarrierRow, DispatchRow, FusionRow, GroupRow, MoveRow, RecordedRow, RefusedFusionRow, Report,
    Summary, VERSION,
};

impl Report {
    /// The report of a list that is compiled already: without the other views, which need a catalog of
    /// kernels to compile again.
    ///
    /// # Errors
    /// [`InspectError::ForeignList`](crate::InspectError::ForeignList) if `compiled` was not made from
    /// `recorded`.
    pub fn of(
        recorded: &ComputeGraph,
        compiled: &Compiled,
        options: &CompileOptions,
        cost: &CostModel,
    ) -> Result<Self> {
        let graph = compiled.graph();
        let list = Listing::new(recorded, graph, cost)?;
        let mut summary = Summary::of(compiled.stats());
        summary.phases_per_layer = list.phases_per_layer();
        summary.estimated_ns = list.groups.iter().map(|group| group.estimated_ns).sum();
        let values = memory::values(recorded, graph.is_replayed(), compiled.plan(), &list.logical);
        let mut groups = list.groups;
        let live = memory::live_bytes(&values, groups.len());
        for (group, bytes) in groups.iter_mut().zip(live) {
            group.live_bytes = bytes;
        }
        let fused = graph.fuse_report();
        let moves = graph.schedule_report();
        Ok(Self {
            format: "clearway-inspect",
            version: VERSION,
            name: String::new(),
            shape: None,
            tokens: None,
            device: None,
            seconds: 0.0,
            summary,
            options: *options,
            cost: *cost,
            buffers: BTreeMap::new(),
            barrier_list: barriers(graph, &list.index),
            refused_moves: moves.map_or_else(Vec::new, |report| {
                report.refusals.iter().filter_map(|row| held(row, &list.index)).collect()
            }),
            dispatch_list: list.dispatches,
            group_list: groups,
            value_list: values,
            slab_bytes: compiled.plan().slab_bytes().to_vec(),
            fusion_list: fused.map_or_else(Vec::new, |report| {
                let row = |fusion: &clearway_graph::fuse::Fusion| FusionRow {
                    rule: fusion.rule.to_owned(),
                    result: fusion.result.0,
                    members: fusion.members.iter().map(|id| id.0).collect(),
                    kept: fusion.kept,
                };
                report.fusions.iter().map(row).collect()
            }),
            refused_fusions: {
                let fused = fused.into_iter().flat_map(|report| &report.refusals);
                let quantised =
                    graph.quantise_report().into_iter().flat_map(|report| &report.refusals);
                fused.chain(quantised).map(refused).collect()
            },
            kernel_target: None,
            kernel_list: Vec::new(),
            recorded_list: recorded.dispatches().map(|d| recorded_row(d)).collect(),
            views: Vec::new(),
            tracked: Vec::new(),
            front: Vec::new(),
            node_order: None,
            free_list: None,
            measured: None,
            waits: None,
            no_waits: None,
        })
    }

    /// Names the buffers that the report mentions, such as weights and caches.
    pub fn name_buffers(&mut self, name: impl Fn(usize) -> Option<String>) {
        let barriers = self.views.iter().flat_map(|view| &view.barrier_list);
        let barriers = self.barrier_list.iter().chain(barriers).filter_map(|row| row.buf.as_ref());
        let moves = self.refused_moves.iter().filter_map(|row| row.buf.as_ref());
        let fusions = self.refused_fusions.iter().map(|row| &row.buf);
        let mentioned: FxHashSet<&String> = barriers.chain(moves).chain(fusions).collect();
        let named = mentioned.into_iter().filter_map(|buf| {
            let id = buf.strip_prefix('@')?.parse().ok()?;
            Some((buf.clone(), name(id)?))
        });
        self.buffers = named.collect();
    }
}

/// The rows of a list that stand for its dispatches and groups.
pub(crate) struct Listing {
    pub logical: Logical,
    pub dispatches: Vec<DispatchRow>,
    pub groups: Vec<GroupRow>,
    /// Place of each dispatch in the list.
    pub index: FxHashMap<DispatchId, u32>,
}

impl Listing {
    pub(crate) fn new(
        recorded: &ComputeGraph,
        graph: &ComputeGraph,
        cost: &CostModel,
    ) -> Result<Self> {
        let logical = Logical::new(recorded, graph)?;
        let preds = logical.preds();
        let lanes = lanes::assign(&logical.group, &preds);
        let mut groups = vec![GroupRow::default(); logical.groups as usize];
        let mut dispatches = Vec::with_capacity(preds.len());
        let mut index = FxHashMap::default();
        for (place, after) in preds.into_iter().enumerate() {
            let dispatch = &logical.dispatches[place];
            // The parts already lie where they belong: it is not lowered.
            let moot = dispatch.is_moot();
            let traffic = if moot { Traffic::default() } else { cost::traffic(dispatch) };
            let group = &mut groups[logical.group[place] as usize];
            if group.dispatches == 0 {
                group.first = place as u32;
            }
            group.dispatches += 1;
            group.bytes += traffic.total();
            index.insert(dispatch.id, place as u32);
            let mut row = dispatch_row(dispatch, traffic, cost, after);
            if moot {
                (row.moot, row.estimated_ns) = (true, 0.0);
            }
            dispatches.push(row);
        }
        for (row, (&group, &lane)) in dispatches.iter_mut().zip(logical.group.iter().zip(&lanes)) {
            (row.group, row.lane) = (group, lane);
        }
        for group in &mut groups {
            group.estimated_ns = cost::group_ns(cost, group.bytes, group.dispatches);
        }
        Ok(Self { logical, dispatches, groups, index })
    }

    /// Groups that hold a dispatch of some layer, divided by the layers.
    pub(crate) fn phases_per_layer(&self) -> Option<f64> {
        let mut layers = FxHashSet::default();
        let mut groups = FxHashSet::default();
        for (row, group) in self.dispatches.iter().zip(&self.logical.group) {
            let number = row.label.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
            if let Some(layer) = number.and_then(|number| number.parse::<u32>().ok()) {
                layers.insert(layer);
                groups.insert(*group);
            }
        }
        (!layers.is_empty()).then(|| groups.len() as f64 / layers.len() as f64)
    }
}

fn dispatch_row(
    dispatch: &Dispatch,
    traffic: Traffic,
    cost: &CostModel,
    after: Vec<u32>,
) -> DispatchRow {
    let op = dispatch.kind.name();
    let origins: Vec<u32> = dispatch.origins.iter().map(|id| id.0).collect();
    DispatchRow {
        id: dispatch.id.0,
        op: op.to_owned(),
        kernel: (*dispatch.kernel != *op).then(|| dispatch.kernel.to_string()),
        label: dispatch.label.to_string(),
        shape: written_shape(dispatch),
        read_bytes: traffic.read,
        write_bytes: traffic.write,
        group: 0,
        lane: 0,
        after,
        origins: if origins == [dispatch.id.0] { Vec::new() } else { origins },
        moot: false,
        estimated_ns: cost::dispatch_ns(cost, traffic),
        serialised_ns: None,
        waits: None,
        kernels: Vec::new(),
        no_kernel: None,
    }
}

fn recorded_row(dispatch: &Dispatch) -> RecordedRow {
    let traffic = cost::traffic(dispatch);
    RecordedRow {
        id: dispatch.id.0,
        op: dispatch.kind.name().to_owned(),
        label: dispatch.label.to_string(),
        shape: written_shape(dispatch),
        read_bytes: traffic.read,
        write_bytes: traffic.write,
    }
}

/// Type and shape of the last tensor it writes: outputs stand last, the main one at the end.
fn written_shape(dispatch: &Dispatch) -> String {
    let written = dispatch.accesses().iter().rev().find(|access| access.range.is_write());
    let binding = written.and_then(|access| dispatch.bindings.get(usize::from(access.binding)));
    binding.or(dispatch.bindings.last()).map_or_else(String::new, |view| view.layout.to_string())
}

/// The barriers of a list, dispatches by their place in it.
pub(crate) fn barriers(
    graph: &ComputeGraph,
    index: &FxHashMap<DispatchId, u32>,
) -> Vec<BarrierRow> {
    let (mut groups, mut open) = (0, false);
    let mut rows = Vec::new();
    for node in graph.nodes() {
        match node {
            CapturedNode::Dispatch(_) => {
                groups += u32::from(!open);
                open = true;
            }
            CapturedNode::Barrier(reason) => {
                open = false;
                rows.push(barrier(groups, reason, index));
            }
        }
    }
    rows
}

fn barrier(
    after_group: u32,
    reason: &BarrierReason,
    index: &FxHashMap<DispatchId, u32>,
) -> BarrierRow {
    let place = |id: &DispatchId| index.get(id).copied();
    let plain = |reason| BarrierRow {
        after_group,
        reason,
        hazard: None,
        earlier: None,
        later: None,
        buf: None,
        p0: None,
        p1: None,
    };
    let hazard = |reason, hazard: &Hazard| BarrierRow {
        hazard: Some(hazard.kind.name()),
        earlier: place(&hazard.earlier),
        later: place(&hazard.later),
        buf: Some(buf_name(hazard.buf_id)),
        p0: Some(hazard.p0),
        p1: Some(hazard.p1),
        ..plain(reason)
    };
    match reason {
        BarrierReason::Hazard(found) => hazard("hazard", found),
        BarrierReason::Replay(found) => hazard("replay", found),
        BarrierReason::Unannotated(id) => BarrierRow { earlier: place(id), ..plain("unannotated") },
        BarrierReason::Memory => plain("memory"),
        BarrierReason::Requested => plain("requested"),
    }
}

/// As text forms name buffers: `%3` for a value, `@7` for a buffer.
fn buf_name(buf_id: usize) -> String {
    match NodeId::from_buf_id(buf_id) {
        Some(value) => value.to_string(),
        None => format!("@{buf_id}"),
    }
}

fn refused(pair: &RefusedPair) -> RefusedFusionRow {
    RefusedFusionRow {
        rule: pair.rule.to_owned(),
        producer: pair.producer.0,
        consumer: pair.consumer.0,
        buf: buf_name(pair.buf_id),
        reason: refusal_name(&pair.reason),
        text: pair.reason.to_string(),
    }
}

/// The variant, as the JSON of graphs names it.
fn refusal_name(reason: &Refusal) -> String {
    match serde_json::to_value(reason) {
        Ok(serde_json::Value::String(name)) => name,
        Ok(serde_json::Value::Object(facts)) => facts.keys().next().cloned().unwrap_or_default(),
        _ => String::new(),
    }
}

fn held(
    (dispatch, refusal): &(DispatchId, MoveRefusal),
    index: &FxHashMap<DispatchId, u32>,
) -> Option<MoveRow> {
    let place = |id: &DispatchId| index.get(id).copied();
    let plain = |reason, earlier| MoveRow {
        dispatch: place(dispatch).unwrap_or_default(),
        reason,
        hazard: None,
        earlier,
        buf: None,
        p0: None,
        p1: None,
    };
    place(dispatch)?;
    Some(match refusal {
        MoveRefusal::Hazard(hazard) => MoveRow {
            hazard: Some(hazard.kind.name()),
            buf: Some(buf_name(hazard.buf_id)),
            p0: Some(hazard.p0),
            p1: Some(hazard.p1),
            ..plain("hazard", place(&hazard.earlier))
        },
        MoveRefusal::CrossesUnannotated(id) => plain("crosses_unannotated", place(id)),
        MoveRefusal::CrossesPinned(id) => plain("crosses_pinned", place(id)),
        MoveRefusal::Immovable => plain("immovable", None),
    })
}
