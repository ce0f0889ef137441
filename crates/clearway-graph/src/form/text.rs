//! The text form: one line per dispatch and per barrier.

use std::fmt::Write;

use super::{Counts, numbered};
use crate::graph::ComputeGraph;
use crate::ids::{NodeId, buf_name};
use crate::layout::TensorView;
use crate::node::{Access, CapturedNode, Dispatch};
use crate::quantise::QuantiseReport;
use crate::range::View;
use crate::schedule::{MoveRefusal, ScheduleReport, Strategy};

impl ComputeGraph {
    /// The graph and its reports as text, for people and for snapshots.
    ///
    /// A dispatch is written as `#id kind  writes <- reads`. A tensor is a value (`%3`) or a buffer
    /// (`@7`), its byte offset where it is not 0, its layout, and the bytes touched where these are
    /// not all of it. A constant is shown as an integer if as a float it would be 0 or subnormal,
    /// and as a float otherwise.
    ///
    /// ```
    /// # use clearway_graph::*;
    /// # fn main() -> Result<()> {
    /// let fill = KernelContract::new("fill", [BindingContract::new("y", BindingRole::Write)]);
    /// let mut graph = ComputeGraph::new();
    /// let y = graph.declare_value(Layout::new(DType::F32, &[8])?);
    /// graph.dispatch(CapturedOpKind::Fill, &fill, &[y], &[1f32.to_bits()], "start")?;
    /// assert!(graph.to_text().contains("#0 fill  %0 f32[8]  (1.0)  start"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = write_graph(self, &mut out);
        out
    }
}

fn write_graph(graph: &ComputeGraph, out: &mut String) -> std::fmt::Result {
    write_values(graph, out)?;
    let mut open = None;
    for (group, node) in numbered(graph.nodes()) {
        match node {
            CapturedNode::Dispatch(dispatch) => {
                if open != Some(group) {
                    writeln!(out, "group {group}")?;
                    open = Some(group);
                }
                write_dispatch(dispatch, out)?;
            }
            CapturedNode::Barrier(reason) => writeln!(out, "-- barrier: {reason}")?,
        }
    }
    if let Some(report) = graph.fuse_report() {
        writeln!(out, "{report}")?;
    }
    let touched =
        |report: &&QuantiseReport| !report.quantised.is_empty() || !report.refusals.is_empty();
    if let Some(report) = graph.quantise_report().filter(touched) {
        writeln!(out, "{report}")?;
    }
    if let Some(report) = graph.schedule_report() {
        write_schedule(report, out)?;
    }
    let Counts { dispatches, groups, barriers, unannotated } = Counts::of(graph);
    write!(out, "counts: dispatches {dispatches}, groups {groups}, barriers {barriers}, ")?;
    writeln!(
        out,
        "unannotated {unannotated}{}",
        if graph.is_replayed() { "; replayed" } else { "" }
    )
}

fn write_values(graph: &ComputeGraph, out: &mut String) -> std::fmt::Result {
    writeln!(out, "values")?;
    for (index, value) in graph.values().iter().enumerate() {
        write!(out, "  %{index} {} bytes", value.bytes)?;
        let uses = [(value.input, " input"), (value.kept, " kept"), (value.output, " output")];
        for (_, name) in uses.iter().filter(|(used, _)| *used) {
            out.push_str(name);
        }
        out.push('\n');
    }
    Ok(())
}

fn write_dispatch(dispatch: &Dispatch, out: &mut String) -> std::fmt::Result {
    let kind = dispatch.kind.name();
    write!(out, "  {} {kind}", dispatch.id)?;
    if *dispatch.kernel != *kind {
        write!(out, ":{}", dispatch.kernel)?;
    }
    if dispatch.is_annotated() {
        let (writes, reads): (Vec<_>, Vec<_>) =
            dispatch.accesses().iter().partition(|access| access.range.is_write());
        let join = |list: Vec<&Access>| {
            list.into_iter().map(|access| operand(dispatch, access)).collect::<Vec<_>>().join(", ")
        };
        let (writes, reads) = (join(writes), join(reads));
        match (writes.is_empty(), reads.is_empty()) {
            (false, false) => write!(out, "  {writes} <- {reads}")?,
            (false, true) => write!(out, "  {writes}")?,
            (true, false) => write!(out, "  <- {reads}")?,
            (true, true) => {}
        }
    } else {
        let views: Vec<_> = dispatch.bindings.iter().map(tensor).collect();
        write!(out, "  unknown access ({})", views.join(", "))?;
    }
    if !dispatch.params.is_empty() {
        let words: Vec<_> = dispatch.params.iter().map(|&word| param(word)).collect();
        write!(out, "  ({})", words.join(", "))?;
    }
    if *dispatch.origins != [dispatch.id] {
        let ids: Vec<_> = dispatch.origins.iter().map(ToString::to_string).collect();
        write!(out, "  from {}", ids.join("+"))?;
    }
    if !dispatch.label.is_empty() {
        // A label is free text; it must not break the line.
        write!(out, "  {}", dispatch.label.escape_debug())?;
    }
    out.push('\n');
    Ok(())
}

/// The tensor an access goes through, and its bytes where they are not the whole tensor.
fn operand(dispatch: &Dispatch, access: &Access) -> String {
    let range = &access.range;
    let bytes = format!("{}..{}", range.p0, range.p1);
    let bound = dispatch.bindings.get(access.binding as usize);
    match bound.filter(|view| view.buf_id == range.buf_id) {
        None => format!("{} {bytes}", buf_name(range.buf_id)),
        Some(view) if (view.offset, view.offset + view.byte_len()) == (range.p0, range.p1) => {
            tensor(view)
        }
        Some(view) => format!("{} at {bytes}", tensor(view)),
    }
}

fn tensor(view: &TensorView) -> String {
    let buf = buf_name(view.buf_id);
    match (view.offset, NodeId::from_buf_id(view.buf_id)) {
        (0, Some(_)) => format!("{buf} {}", view.layout),
        (offset, _) => format!("{buf}+{offset} {}", view.layout),
    }
}

/// Constants carry no type here: the op table of the layer above has their names. Sizes and modes
/// are small integers, which as floats would be subnormal; real float constants never are.
fn param(word: u32) -> String {
    let float = f32::from_bits(word);
    if word == 0 || float.is_subnormal() {
        word.to_string()
    } else if float.is_finite() {
        format!("{float:?}")
    } else {
        format!("{word:#010x}")
    }
}

fn write_schedule(report: &ScheduleReport, out: &mut String) -> std::fmt::Result {
    let ScheduleReport { moved, longest_chain, refusals, .. } = report;
    match report.strategy {
        Strategy::Levels => write!(out, "schedule: levels")?,
        Strategy::LookAhead { window } => write!(out, "schedule: look-ahead of {window}")?,
    }
    writeln!(out, ", {moved} moved earlier, longest chain {longest_chain}")?;
    for (dispatch, refusal) in refusals {
        match refusal {
            MoveRefusal::Hazard(hazard) => writeln!(out, "  {dispatch} held: {hazard}")?,
            MoveRefusal::CrossesUnannotated(crossed) => {
                writeln!(out, "  {dispatch} held: {crossed} touches unknown memory")?;
            }
            MoveRefusal::CrossesPinned(crossed) => {
                writeln!(out, "  {dispatch} held: {crossed} is pinned")?;
            }
            MoveRefusal::Immovable => writeln!(out, "  {dispatch} held: keeps its own place")?,
        }
    }
    Ok(())
}
