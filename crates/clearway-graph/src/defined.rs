//! What is read must have been written.
//!
//! A value holds nothing until a dispatch writes it, unless it is declared as an input or as kept from
//! the step before. Bytes are told apart: a write through a layout with gaps defines its elements only,
//! and a read through one needs no more than them. Real buffers are the business of whoever owns them. A
//! dispatch of unknown access may write everything it binds, and is believed to.

use std::collections::BTreeMap;

use crate::error::{GraphError, Result};
use crate::graph::ComputeGraph;
use crate::ids::NodeId;
use crate::node::{Access, Dispatch};

/// Runs of one tensor that are looked at one by one: a write of more defines its whole range, and of a
/// read of more only so many are checked.
const MAX_RUNS: usize = 1 << 12;

/// Which bytes of a value hold something.
#[derive(Clone)]
enum Defined {
    Nothing,
    All,
    /// Disjoint runs that do not touch, by their start.
    Some(BTreeMap<u64, u64>),
}

/// Checks that a recorded list reads nothing that was not written before, the host's reads of its
/// outputs included.
///
/// # Errors
/// [`GraphError::UndefinedRead`] or [`GraphError::UndefinedOutput`] with the first such bytes.
pub(crate) fn check(graph: &ComputeGraph) -> Result<()> {
    let start = |lasts| if lasts { Defined::All } else { Defined::Nothing };
    let mut values: Vec<Defined> = graph.values().iter().map(|v| start(v.lasts())).collect();
    for dispatch in graph.dispatches() {
        // Reads before writes: a dispatch defines nothing for itself.
        for access in dispatch.accesses() {
            let value = NodeId::from_buf_id(access.range.buf_id);
            let Some(value) = value.filter(|_| !access.range.is_write() && !access.keeps) else {
                continue;
            };
            if let Some((p0, p1)) =
                values.get(value.index()).and_then(|defined| defined.missing(dispatch, access))
            {
                return Err(GraphError::UndefinedRead { dispatch: dispatch.id, value, p0, p1 });
            }
        }
        for access in dispatch.accesses().iter().filter(|access| access.range.is_write()) {
            let value = NodeId::from_buf_id(access.range.buf_id);
            if let Some(value) = value.map(NodeId::index).filter(|&value| value < values.len()) {
                values[value].write(dispatch, access, graph.values()[value].bytes);
            }
        }
        if !dispatch.is_annotated() {
            for value in dispatch.values().filter(|value| value.index() < graph.values().len()) {
                values[value.index()] = Defined::All;
            }
        }
    }
    for ((id, value), defined) in (0..).map(NodeId).zip(graph.values()).zip(values) {
        if let Some((p0, p1)) = defined.gap(0, value.bytes).filter(|_| value.output) {
            return Err(GraphError::UndefinedOutput { value: id, p0, p1 });
        }
    }
    Ok(())
}

impl Defined {
    /// The first bytes that a read needs and that hold nothing.
    fn missing(&self, dispatch: &Dispatch, access: &Access) -> Option<(u64, u64)> {
        let range = &access.range;
        // Nearly always all of the range is there, and nobody has to ask for its runs.
        let gap = self.gap(range.p0, range.p1)?;
        match dispatch.bindings.get(usize::from(access.binding)) {
            None => Some(gap),
            Some(view) => {
                let mut runs = view.layout.runs().take(MAX_RUNS);
                runs.find_map(|run| {
                    let start = (view.offset + run.start).max(range.p0);
                    self.gap(start, (view.offset + run.end).min(range.p1))
                })
            }
        }
    }

    /// The first bytes of `p0..p1` that hold nothing.
    fn gap(&self, p0: u64, p1: u64) -> Option<(u64, u64)> {
        let runs = match self {
            _ if p0 >= p1 => return None,
            Self::All => return None,
            Self::Nothing => return Some((p0, p1)),
            Self::Some(runs) => runs,
        };
        let before = runs.range(..=p0).next_back().map_or(0, |(_, &end)| end);
        let start = before.max(p0);
        if start >= p1 {
            return None;
        }
        let end = runs.range(start..p1).next().map_or(p1, |(&next, _)| next);
        Some((start, end))
    }

    /// Notes a write of a value of this many bytes.
    fn write(&mut self, dispatch: &Dispatch, access: &Access, bytes: u64) {
        let range = &access.range;
        let view = dispatch.bindings.get(usize::from(access.binding));
        let gapped = view.filter(|view| view.layout.has_gaps());
        match gapped.filter(|view| view.layout.runs().size_hint().0 <= MAX_RUNS) {
            None => self.define(range.p0, range.p1, bytes),
            Some(view) => {
                for run in view.layout.runs() {
                    let start = (view.offset + run.start).max(range.p0);
                    self.define(start, (view.offset + run.end).min(range.p1), bytes);
                }
            }
        }
    }

    fn define(&mut self, mut p0: u64, mut p1: u64, bytes: u64) {
        if matches!(self, Self::All) || p0 >= p1 {
            return;
        }
        if (p0, p1) == (0, bytes) {
            *self = Self::All;
            return;
        }
        if matches!(self, Self::Nothing) {
            *self = Self::Some(BTreeMap::new());
        }
        let Self::Some(runs) = self else { return };
        // What it touches becomes one run with it.
        while let Some((&start, &end)) =
            runs.range(..=p1).next_back().filter(|(_, end)| **end >= p0)
        {
            runs.remove(&start);
            (p0, p1) = (p0.min(start), p1.max(end));
        }
        runs.insert(p0, p1);
        if (p0, p1) == (0, bytes) {
            *self = Self::All;
        }
    }
}

#[cfg(test)]
mod tests;
