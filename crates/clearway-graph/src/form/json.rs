//! The JSON form. Its keys are an interface of their own: the structs of the graph may change
//! without it, which is why nothing here is derived from them.

use serde::Serialize;
use serde_json::{Value as Json, json};

use super::{Counts, numbered};
use crate::graph::ComputeGraph;
use crate::ids::buf_name;
use crate::layout::{MAX_DIMS, TensorView};
use crate::node::{
    Access, Accesses, BarrierReason, CapturedNode, Dispatch, DispatchFields, Hazard, InPlace,
};
use crate::schedule::{MoveRefusal, ScheduleReport, Strategy};

/// Version of the JSON form; it changes when a key changes its meaning or goes away.
pub const JSON_VERSION: u32 = 1;

impl ComputeGraph {
    /// The graph and its reports as JSON.
    ///
    /// A buffer (`buf`) is `"%3"` for arena value 3, which has no address yet, and `"@7"` for real
    /// buffer 7. Byte ranges are half-open. Dispatches and values are named by their number.
    ///
    /// | key | what it holds |
    /// |---|---|
    /// | `version` | [`JSON_VERSION`] |
    /// | `replayed` | whether the list will run again and again |
    /// | `counts` | `dispatches`, `groups`, `barriers`, `unannotated` |
    /// | `dispatches` | in execution order, see below |
    /// | `barriers` | in execution order: `position` (dispatches that stand before it), `reason` and its facts |
    /// | `values` | `id`, `bytes`, `input`, `output` |
    /// | `reports` | `fuse` and `schedule`; `null` for a stage that did not run |
    ///
    /// A dispatch holds `id`, `kind`, `kernel`, `label`, `group`, `params` (32-bit words, floats by
    /// their bits), `bindings` (`buf`, `offset`, `dtype`, `shape`, `strides` in elements),
    /// `in_place` (bindings that may share bytes: `output`, `input`), `origins` (recorded
    /// dispatches it stands for), `annotated`, and `reads` and `writes` (`buf`, `p0`, `p1`,
    /// `binding`), both empty if it is not annotated.
    ///
    /// A reason is `hazard` or `replay` (with `hazard`: `kind`, `earlier`, `later`, `buf`, `p0`,
    /// `p1`), `unannotated` (with `dispatch`), `memory` or `requested`.
    ///
    /// The fuse report holds `rules` (`rule`, `fired`), `fusions` (`rule`, `result`, `members`,
    /// `kept`, `place`, and `repeated` where the producer is carried out elsewhere, too), `repeats`,
    /// `stripped_barriers` and `refusals`: `rule`, `producer`, `consumer`, `buf` of what lies
    /// between, `reason` and its `facts`, the fields of that [`Refusal`](crate::fuse::Refusal).
    ///
    /// The schedule report holds `strategy`, `moved`, `longest_chain` and `refusals`: `dispatch`,
    /// `reason` (`hazard`, `crosses_unannotated`, `crosses_pinned`, `immovable`) and its facts
    /// (`hazard`, or `crossed`: the dispatch that is not crossed).
    ///
    /// ```
    /// use clearway_graph::{ComputeGraph, JSON_VERSION};
    /// let json = ComputeGraph::new().to_json();
    /// assert_eq!(json["version"], JSON_VERSION);
    /// assert_eq!(json["counts"]["dispatches"], 0);
    /// ```
    pub fn to_json(&self) -> Json {
        let counts = Counts::of(self);
        let mut dispatches = Vec::new();
        let mut barriers = Vec::new();
        for (group, node) in numbered(self.nodes()) {
            match node {
                CapturedNode::Dispatch(dispatch) => dispatches.push(dispatch_json(dispatch, group)),
                CapturedNode::Barrier(reason) => {
                    barriers.push(barrier_json(dispatches.len(), reason));
                }
            }
        }
        let values = self.values().iter().enumerate().map(|(id, value)| {
            let mut object = json!({
                "id": id,
                "bytes": value.bytes,
                "input": value.input,
                "output": value.output,
            });
            if value.kept {
                object["kept"] = true.into();
            }
            object
        });
        json!({
            "version": JSON_VERSION,
            "replayed": self.is_replayed(),
            "counts": {
                "dispatches": counts.dispatches,
                "groups": counts.groups,
                "barriers": counts.barriers,
                "unannotated": counts.unannotated,
            },
            "dispatches": dispatches,
            "barriers": barriers,
            "values": values.collect::<Vec<_>>(),
            "reports": {
                "fuse": self.fuse_report().map(report_json),
                "quantise": self.quantise_report().map(report_json),
                "schedule": self.schedule_report().map(schedule_json),
            },
        })
    }
}

fn dispatch_json(dispatch: &Dispatch, group: u32) -> Json {
    // Taken apart by name, so that a new field cannot be forgotten here.
    let DispatchFields { id, kind, kernel, params, bindings, accesses, in_place, origins, label } =
        &**dispatch;
    let ranges = |write: bool| {
        let accesses = dispatch.accesses().iter().filter(|a| a.range.is_write() == write);
        accesses.map(access_json).collect::<Vec<_>>()
    };
    let pair = |pair: &InPlace| json!({ "output": pair.output, "input": pair.input });
    json!({
        "id": id,
        "kind": kind.name(),
        "kernel": &**kernel,
        "label": &**label,
        "group": group,
        "params": params.as_slice(),
        "bindings": bindings.iter().map(view_json).collect::<Vec<_>>(),
        "in_place": in_place.iter().map(pair).collect::<Vec<_>>(),
        "origins": origins.as_slice(),
        "annotated": matches!(accesses, Accesses::Known(_)),
        "reads": ranges(false),
        "writes": ranges(true),
    })
}

fn view_json(view: &TensorView) -> Json {
    let layout = &view.layout;
    json!({
        "buf": buf_name(view.buf_id),
        "offset": view.offset,
        "dtype": layout.dtype().name(),
        "shape": layout.dims(),
        "strides": &layout.strides4()[MAX_DIMS - layout.rank()..],
    })
}

fn access_json(access: &Access) -> Json {
    let range = &access.range;
    json!({
        "buf": buf_name(range.buf_id),
        "p0": range.p0,
        "p1": range.p1,
        "binding": access.binding,
    })
}

fn barrier_json(position: usize, reason: &BarrierReason) -> Json {
    match reason {
        BarrierReason::Hazard(hazard) => {
            json!({ "position": position, "reason": "hazard", "hazard": hazard_json(hazard) })
        }
        BarrierReason::Replay(hazard) => {
            json!({ "position": position, "reason": "replay", "hazard": hazard_json(hazard) })
        }
        BarrierReason::Unannotated(dispatch) => {
            json!({ "position": position, "reason": "unannotated", "dispatch": dispatch })
        }
        BarrierReason::Memory => json!({ "position": position, "reason": "memory" }),
        BarrierReason::Requested => json!({ "position": position, "reason": "requested" }),
    }
}

fn hazard_json(hazard: &Hazard) -> Json {
    json!({
        "kind": hazard.kind,
        "earlier": hazard.earlier,
        "later": hazard.later,
        "buf": buf_name(hazard.buf_id),
        "p0": hazard.p0,
        "p1": hazard.p1,
    })
}

/// A report of pairs that were refused.
fn report_json(report: &impl Serialize) -> Json {
    // Only maps with keys that are no strings fail to convert, and the report has none.
    let mut json = serde_json::to_value(report).unwrap_or_default();
    let refusals = json.get_mut("refusals").and_then(Json::as_array_mut);
    for refusal in refusals.into_iter().flatten().filter_map(Json::as_object_mut) {
        // A variant without facts is a string, one with facts an object; here both look the same.
        let (reason, facts) = match refusal.remove("reason") {
            Some(Json::Object(variant)) => variant.into_iter().next().unwrap_or_default(),
            Some(Json::String(name)) => (name, json!({})),
            _ => Default::default(),
        };
        refusal.insert("reason".to_owned(), Json::String(reason));
        refusal.insert("facts".to_owned(), facts);
    }
    json
}

fn schedule_json(report: &ScheduleReport) -> Json {
    let refusals = report.refusals.iter().map(|(dispatch, refusal)| match refusal {
        MoveRefusal::Hazard(hazard) => {
            json!({ "dispatch": dispatch, "reason": "hazard", "hazard": hazard_json(hazard) })
        }
        MoveRefusal::CrossesUnannotated(crossed) => {
            json!({ "dispatch": dispatch, "reason": "crosses_unannotated", "crossed": crossed })
        }
        MoveRefusal::CrossesPinned(crossed) => {
            json!({ "dispatch": dispatch, "reason": "crosses_pinned", "crossed": crossed })
        }
        MoveRefusal::Immovable => json!({ "dispatch": dispatch, "reason": "immovable" }),
    });
    let strategy = match report.strategy {
        Strategy::Levels => json!({ "name": "levels" }),
        Strategy::LookAhead { window } => json!({ "name": "look_ahead", "window": window }),
    };
    json!({
        "strategy": strategy,
        "moved": report.moved,
        "longest_chain": report.longest_chain,
        "refusals": refusals.collect::<Vec<_>>(),
    })
}
