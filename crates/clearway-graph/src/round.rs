//! The round stage: a value between two products lies in memory as the second one uses it.
//!
//! A product with block weights rounds its activations to 8 bits before it does anything else, in every
//! workgroup anew. Where nobody but products reads what another product gives, that one can round its
//! result itself, once: the value then has the type [`DType::A8`](crate::DType::A8). Rounded rows take no more
//! bytes than the floats they stand for, so ranges, order and memory of the list stay as they are.
//!
//! A norm of such a value goes with it where that is possible (`round/norms.rs` says when).
//!
//! A value is rounded when
//!
//! - it is an arena value, f32 in whole chunks, written whole and densely by one gated product and by
//!   nobody else, not uploaded by the host and not read by it;
//! - everybody who reads it is a product, reads it as its activations and as it was written;
//! - the device has a kernel for each of them, which is asked last.

mod norms;

use std::fmt;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::contract::{FusedRequest, KernelCatalog};
use crate::error::Result;
use crate::fuse::{Refusal, RefusedPair};
use crate::graph::{ComputeGraph, Value};
use crate::ids::{DispatchId, NodeId, buf_name, serialize_buf};
use crate::layout::Layout;
use crate::node::{Accesses, CapturedOpKind as Kind, Dispatch};

/// Name of the stage in reports of what was refused.
const STAGE: &str = "round";

/// Products whose epilogue may round.
const WRITERS: [Kind; 4] = [
    Kind::MatMulSiluGated,
    Kind::MatMulGeluGated,
    Kind::NormMatMulSiluGated,
    Kind::NormMatMulGeluGated,
];

/// Products that may find their activations rounded, and where they bind them.
const READERS: [Kind; 3] = [Kind::MatMul, Kind::MatMulAdd, Kind::MatMulAddNorm];
const ACTIVATIONS: u16 = 0;

/// What the round stage did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RoundReport {
    /// Values that are rounded, in the order in which they are written.
    pub rounded: Vec<RoundedValue>,
    /// Values between two products that could have been, with the reason why not.
    pub refusals: Vec<RefusedPair>,
}

/// A value that is written and read rounded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RoundedValue {
    /// The value.
    #[serde(rename = "buf", serialize_with = "serialize_buf")]
    pub buf_id: usize,
    /// The dispatch that writes it.
    pub writer: DispatchId,
    /// Those that read it, in list order.
    pub readers: Vec<DispatchId>,
}

impl fmt::Display for RoundReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rounded {}", self.rounded.len())?;
        for RoundedValue { buf_id, writer, readers } in &self.rounded {
            let readers: Vec<_> = readers.iter().map(ToString::to_string).collect();
            write!(f, "\n  {}: {writer} -> {}", buf_name(*buf_id), readers.join(", "))?;
        }
        self.refusals.iter().try_for_each(|refused| write!(f, "\n  {refused}"))
    }
}

/// Who touches a value that a product might round.
struct Candidate {
    value: NodeId,
    /// Index of the product that writes it.
    writer: usize,
    /// Somebody else who writes it.
    other_writer: Option<DispatchId>,
    /// Somebody of unknown access who binds it.
    unknown: Option<DispatchId>,
    /// Indices of those that read it, with the binding.
    readers: Vec<(usize, u16)>,
}

/// Puts norms of a list as it was recorded into the products in front of them, and rounds what these give.
pub(crate) fn norms_ahead<C: KernelCatalog>(
    graph: &mut ComputeGraph,
    catalog: &mut C,
    device: &C::Device,
) -> Result<RoundReport> {
    let mut report = RoundReport::default();
    norms::ahead(graph, catalog, device, &mut report)?;
    Ok(report)
}

/// Rounds every other value that can be.
pub(crate) fn round<C: KernelCatalog>(
    graph: &mut ComputeGraph,
    catalog: &mut C,
    device: &C::Device,
) -> Result<RoundReport> {
    let mut report = RoundReport::default();
    let candidates = candidates(graph);
    if candidates.is_empty() {
        return Ok(report);
    }
    let mut changed: Vec<(usize, Dispatch)> = Vec::new();
    for candidate in candidates {
        let touching = |&(index, binding): &(usize, u16)| {
            Some((index, graph.nodes()[index].dispatch()?, binding))
        };
        let readers: Vec<_> = candidate.readers.iter().filter_map(touching).collect();
        let reads = |&&(_, reader, binding): &&(usize, &Arc<Dispatch>, u16)| {
            READERS.contains(&reader.kind) && binding == ACTIVATIONS
        };
        let Some(writer) = graph.nodes()[candidate.writer].dispatch() else { continue };
        let Some((_, reader, _)) = readers.iter().find(reads) else { continue };
        let buf_id = candidate.value.buf_id();
        match rounded(&candidate, writer, &readers, graph.values(), catalog, device)? {
            Ok(fresh) => {
                let readers = readers.iter().map(|(_, reader, _)| reader.id).collect();
                report.rounded.push(RoundedValue { buf_id, writer: writer.id, readers });
                changed.extend(fresh);
            }
            Err(reason) => {
                let (producer, consumer) = (writer.id, reader.id);
                let pair = RefusedPair { rule: STAGE, producer, consumer, buf_id, reason };
                report.refusals.push(pair);
            }
        }
    }
    for (index, dispatch) in changed {
        graph.replace(index, dispatch);
    }
    Ok(report)
}

/// Results of gated products and who touches them, in list order.
fn candidates(graph: &ComputeGraph) -> Vec<Candidate> {
    let dispatches = || {
        let nodes = graph.nodes().iter().enumerate();
        nodes.filter_map(|(index, node)| Some((index, node.dispatch()?)))
    };
    let mut found: Vec<Candidate> = Vec::new();
    let mut numbers: FxHashMap<usize, usize> = FxHashMap::default();
    for (writer, dispatch) in dispatches() {
        let result = dispatch.bindings.last().filter(|_| WRITERS.contains(&dispatch.kind));
        let Some(value) = result.and_then(|view| view.value()) else { continue };
        // Of two writers the second is told as the other one below.
        numbers.entry(value.buf_id()).or_insert_with(|| {
            let (other_writer, unknown, readers) = Default::default();
            found.push(Candidate { value, writer, other_writer, unknown, readers });
            found.len() - 1
        });
    }
    if found.is_empty() {
        return found;
    }
    for (index, dispatch) in dispatches() {
        if !dispatch.is_annotated() {
            for view in &dispatch.bindings {
                if let Some(&number) = numbers.get(&view.buf_id) {
                    found[number].unknown.get_or_insert(dispatch.id);
                }
            }
        }
        for access in dispatch.accesses() {
            let Some(&number) = numbers.get(&access.range.buf_id) else { continue };
            let candidate = &mut found[number];
            if !access.range.is_write() {
                candidate.readers.push((index, access.binding));
            } else if index != candidate.writer {
                candidate.other_writer.get_or_insert(dispatch.id);
            }
        }
    }
    found
}

/// The dispatches that touch a value, with the value rounded; or why it cannot be.
fn rounded<C: KernelCatalog>(
    candidate: &Candidate,
    writer: &Dispatch,
    readers: &[(usize, &Arc<Dispatch>, u16)],
    values: &[Value],
    catalog: &mut C,
    device: &C::Device,
) -> Result<std::result::Result<Vec<(usize, Dispatch)>, Refusal>> {
    if let Some(reason) = refusal(candidate, writer, readers, values) {
        return Ok(Err(reason));
    }
    let result = writer.bindings.len() - 1;
    let Some(layout) = writer.bindings[result].layout.rounded() else {
        return Ok(Err(Refusal::NoKernel { kind: writer.kind }));
    };
    let readers = readers.iter().map(|&(index, reader, binding)| (index, &**reader, binding));
    let mut fresh = Vec::with_capacity(1 + readers.len());
    for (index, dispatch, binding) in
        [(candidate.writer, writer, result as u16)].into_iter().chain(readers)
    {
        match with_layout(dispatch, binding, layout, catalog, device)? {
            Ok(dispatch) => fresh.push((index, dispatch)),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(Ok(fresh))
}

/// Why a value cannot be rounded, whatever the device has.
fn refusal(
    candidate: &Candidate,
    writer: &Dispatch,
    readers: &[(usize, &Arc<Dispatch>, u16)],
    values: &[Value],
) -> Option<Refusal> {
    if let Some(writer) = candidate.other_writer {
        return Some(Refusal::OtherWriter { writer });
    }
    if let Some(dispatch) = candidate.unknown {
        return Some(Refusal::BoundUnannotated { dispatch });
    }
    let value = values.get(candidate.value.index())?;
    if value.input {
        return Some(Refusal::IsInput);
    }
    if value.output {
        return Some(Refusal::IsOutput);
    }
    let range = writer.writes().find(|range| range.buf_id == candidate.value.buf_id());
    let (p0, p1) = range.map_or((0, 0), |range| (range.p0, range.p1));
    if (p0, p1) != (0, value.bytes) {
        return Some(Refusal::PartialWrite { p0, p1, bytes: value.bytes });
    }
    let written = writer.bindings.last()?;
    for (place, &(index, reader, binding)) in readers.iter().enumerate() {
        let twice = readers[..place].iter().any(|&(other, ..)| other == index);
        if !READERS.contains(&reader.kind) || binding != ACTIVATIONS || twice {
            return Some(Refusal::SecondReader { reader: reader.id });
        }
        let read = &reader.bindings[usize::from(binding)];
        if read != written {
            return Some(Refusal::Shape { written: written.layout, read: read.layout });
        }
        // The first run would read what nobody wrote.
        if index < candidate.writer {
            return Some(Refusal::SecondReader { reader: reader.id });
        }
    }
    None
}

/// The dispatch with another layout at one of its bindings, if the device has a kernel for that which
/// touches the same bytes.
fn with_layout<C: KernelCatalog>(
    dispatch: &Dispatch,
    binding: u16,
    layout: Layout,
    catalog: &mut C,
    device: &C::Device,
) -> Result<std::result::Result<Dispatch, Refusal>> {
    let mut fresh = dispatch.clone();
    fresh.bindings[usize::from(binding)].layout = layout;
    let Dispatch { kind, bindings, params, .. } = &fresh;
    let request = FusedRequest { kind: *kind, bindings, params };
    let Some(contract) = catalog.fused_kernel(device, &request)? else {
        return Ok(Err(Refusal::NoKernel { kind: *kind }));
    };
    let annotated = contract.annotate(dispatch.id, bindings, params)?;
    let same = match (&annotated, &dispatch.accesses) {
        (Accesses::Known(new), Accesses::Known(old)) => {
            new.len() == old.len()
                && new.iter().zip(old).all(|(a, b)| (a.binding, a.range) == (b.binding, b.range))
        }
        _ => false,
    };
    Ok(match same && contract.kernel == dispatch.kernel {
        true => Ok(fresh),
        false => Err(Refusal::Contract { kernel: contract.kernel.into_owned() }),
    })
}

#[cfg(test)]
mod tests;
