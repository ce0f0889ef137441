//! The quantise stage: a value between two products lies in memory as the second one uses it.
//!
//! A product with block weights quantises its activations to 8 bits before it does anything else, in every
//! workgroup anew. Where nobody but products reads what another product gives, that one can quantise its
//! result itself, once: the value then has the type [`DType::A8`]. Quantised rows take no more
//! bytes than the floats they stand for, so ranges, order and memory of the list stay as they are.
//!
//! A norm of such a value goes with it where that is possible: a fusion rule
//! ([`Rule::quantises`](crate::fuse::Rule::quantises)) sees to that. Both have one switch.
//!
//! A value is quantised when
//!
//! - it is an arena value, f32 in whole chunks, written whole and densely by one gated product and by
//!   nobody else, not uploaded by the host and not read by it;
//! - everybody who reads it is a product, reads it as its activations and as it was written;
//! - the device has a kernel for each of them, which is asked last.
//!
//! Values that products of many rows read become f16 in the same way (`quantise/halve.rs`).

pub(crate) mod halve;
mod survey;

use std::fmt;

use serde::Serialize;

use crate::contract::{FusedRequest, KernelCatalog};
use crate::dtype::DType;
use crate::error::Result;
use crate::fuse::{Refusal, RefusedPair};
use crate::graph::{ComputeGraph, Value};
use crate::ids::{DispatchId, NodeId, buf_name, serialize_buf};
use crate::layout::Layout;
use crate::node::{Accesses, Dispatch, DispatchFields};
use crate::op::{CapturedOpKind as Kind, Product};
use survey::{Readers, Survey, id_at};

/// Name of the stage in reports of what was refused.
const STAGE: &str = "quantise";

/// Where products bind their activations.
pub(crate) const ACTIVATIONS: u16 = 0;

/// Whether an op may quantise what it gives.
pub(crate) fn may_write(kind: Kind) -> bool {
    kind.product().is_some_and(Product::may_quantise)
}

/// Whether an op may find its activations quantised.
pub(crate) fn may_read(kind: Kind) -> bool {
    kind.product().is_some_and(Product::may_read_quantised)
}

/// What the quantise stage did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QuantiseReport {
    /// Values that are quantised, in the order in which they are written.
    pub quantised: Vec<QuantisedValue>,
    /// Values that are f16 for the products that read them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub halved: Vec<QuantisedValue>,
    /// Values between two products that could have been, with the reason why not.
    pub refusals: Vec<RefusedPair>,
}

/// A value that is written and read quantised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QuantisedValue {
    /// The value.
    #[serde(rename = "buf", serialize_with = "serialize_buf")]
    pub buf_id: usize,
    /// The dispatch that writes it, or the first of those that write parts of it.
    pub writer: DispatchId,
    /// Those that read it, in list order.
    pub readers: Vec<DispatchId>,
}

impl fmt::Display for QuantiseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, values: &[QuantisedValue]| {
            values.iter().try_for_each(|QuantisedValue { buf_id, writer, readers }| {
                let readers: Vec<_> = readers.iter().map(ToString::to_string).collect();
                write!(f, "\n  {}: {writer} -> {}", buf_name(*buf_id), readers.join(", "))
            })
        };
        write!(f, "quantised {}", self.quantised.len())?;
        list(f, &self.quantised)?;
        if !self.halved.is_empty() {
            write!(f, "\nhalved {}", self.halved.len())?;
            list(f, &self.halved)?;
        }
        self.refusals.iter().try_for_each(|refused| write!(f, "\n  {refused}"))
    }
}

/// Rounds every value that can be. The report also has those that the fusion rules gave quantised.
pub(crate) fn quantise<C: KernelCatalog>(
    graph: &mut ComputeGraph,
    catalog: &mut C,
    device: &C::Device,
) -> Result<QuantiseReport> {
    let mut report = QuantiseReport::default();
    let mut writers: Vec<(usize, NodeId)> = Vec::new();
    let survey = Survey::of(graph, |index, dispatch| {
        let result = dispatch.bindings.last().filter(|_| may_write(dispatch.kind));
        writers.extend(result.and_then(|view| view.value()).map(|value| (index, value)));
    });
    for (index, value) in writers {
        // Of two writers the second is told as the other one.
        if survey.of_value(value).is_some_and(|uses| uses.first_write as usize != index) {
            continue;
        }
        let readers = survey.readers(graph, value);
        let reads = |&(at, binding): &(u32, u16)| {
            let reader = graph.nodes()[at as usize].dispatch()?;
            (may_read(reader.kind) && binding == ACTIVATIONS).then_some(reader.id)
        };
        let Some(writer) = graph.nodes()[index].dispatch() else { continue };
        let Some(consumer) = readers.iter().find_map(reads) else { continue };
        let buf_id = value.buf_id();
        let quantised = writer.bindings.last().is_some_and(|v| v.layout.dtype() == DType::A8);
        if quantised || writer.kind.product().is_some_and(|product| product.epilogue().norm) {
            if quantised {
                let readers = readers.iter().map(|&(at, _)| id_at(graph, at)).collect();
                report.quantised.push(QuantisedValue { buf_id, writer: writer.id, readers });
            }
            continue;
        }
        match rounded(graph, (index, value), &survey, &readers, catalog, device)? {
            Ok(fresh) => {
                let readers = readers.iter().map(|&(at, _)| id_at(graph, at)).collect();
                report.quantised.push(QuantisedValue { buf_id, writer: writer.id, readers });
                // At once: a product between two such values is changed for both.
                for (index, dispatch) in fresh {
                    graph.replace(index, dispatch);
                }
            }
            Err(reason) => {
                let producer = writer.id;
                let pair = RefusedPair { rule: STAGE, producer, consumer, buf_id, reason };
                report.refusals.push(pair);
            }
        }
    }
    Ok(report)
}

/// The dispatches that touch a value, with the value quantised; or why it cannot be.
fn rounded<C: KernelCatalog>(
    graph: &ComputeGraph,
    (index, value): (usize, NodeId),
    survey: &Survey,
    readers: &Readers,
    catalog: &mut C,
    device: &C::Device,
) -> Result<std::result::Result<Vec<(usize, Dispatch)>, Refusal>> {
    let Some(writer) = graph.nodes()[index].dispatch() else {
        return Ok(Err(Refusal::NotAValue));
    };
    if let Err(reason) = check_written(graph, survey, index, value)
        .and_then(|entry| if entry.output { Err(Refusal::IsOutput) } else { Ok(()) })
        .and_then(|()| check_readers(graph, survey, index, value, readers))
    {
        return Ok(Err(reason));
    }
    let result = writer.bindings.len() - 1;
    let Some(layout) = writer.bindings[result].layout.quantised() else {
        return Ok(Err(Refusal::NoKernel { kind: writer.kind }));
    };
    let touching = [(index as u32, result as u16)].into_iter().chain(readers.iter().copied());
    let mut fresh = Vec::with_capacity(1 + readers.len());
    for (at, binding) in touching {
        let Some(dispatch) = graph.nodes()[at as usize].dispatch() else { continue };
        match with_layout(dispatch, binding, layout, catalog, device)? {
            Ok(dispatch) => fresh.push((at as usize, dispatch)),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(Ok(fresh))
}

/// The value that the dispatch at `index` writes is written by it alone and whole, and is not uploaded.
fn check_written<'a>(
    graph: &'a ComputeGraph,
    survey: &Survey,
    index: usize,
    value: NodeId,
) -> std::result::Result<&'a Value, Refusal> {
    let (Some(uses), Some(entry), Some(writer)) = (
        survey.of_value(value),
        graph.values().get(value.index()),
        graph.nodes()[index].dispatch(),
    ) else {
        return Err(Refusal::NotAValue);
    };
    let own = index as u32;
    if let Some(other) = [uses.first_write, uses.last_write].into_iter().find(|&at| at != own) {
        return Err(Refusal::OtherWriter { writer: id_at(graph, other) });
    }
    if let Some(unknown) = uses.unknown() {
        return Err(Refusal::BoundUnannotated { dispatch: id_at(graph, unknown) });
    }
    if entry.lasts() {
        return Err(Refusal::IsInput);
    }
    let range = writer.writes().find(|range| range.buf_id == value.buf_id());
    let (p0, p1) = range.map_or((0, 0), |range| (range.p0, range.p1));
    match (p0, p1) == (0, entry.bytes) {
        true => Ok(entry),
        false => Err(Refusal::PartialWrite { p0, p1, bytes: entry.bytes }),
    }
}

/// Everybody who reads what the dispatch at `index` writes is a product that may find it quantised, stands
/// behind it, and reads it once, as its activations and as it was written.
fn check_readers(
    graph: &ComputeGraph,
    survey: &Survey,
    index: usize,
    value: NodeId,
    readers: &Readers,
) -> std::result::Result<(), Refusal> {
    let written = graph.nodes()[index].dispatch().and_then(|writer| writer.bindings.last());
    let written = written.ok_or(Refusal::NotAValue)?;
    for (place, &(at, binding)) in readers.iter().enumerate() {
        let reader = graph.nodes()[at as usize].dispatch().ok_or(Refusal::NotAValue)?;
        let twice = readers[..place].iter().any(|&(other, _)| other == at);
        let behind = at as usize > index;
        if !may_read(reader.kind) || binding != ACTIVATIONS || twice || !behind {
            return Err(Refusal::SecondReader { reader: reader.id });
        }
        let read = &reader.bindings[usize::from(binding)];
        if read != written {
            return Err(Refusal::Shape { written: written.layout, read: read.layout });
        }
    }
    // Those that stand too far away are nobody's to judge.
    let all = survey.of_value(value).map_or(0, |uses| uses.reads as usize);
    match readers.last() {
        Some(&(last, _)) if readers.len() < all => {
            Err(Refusal::SecondReader { reader: id_at(graph, last) })
        }
        _ => Ok(()),
    }
}

/// The dispatch with another layout at one of its bindings, if the device has a kernel for that which
/// touches the same bytes.
pub(crate) fn with_layout<C: KernelCatalog>(
    dispatch: &Dispatch,
    binding: u16,
    layout: Layout,
    catalog: &mut C,
    device: &C::Device,
) -> Result<std::result::Result<Dispatch, Refusal>> {
    let mut fresh = dispatch.clone();
    fresh.fields_mut().bindings[usize::from(binding)].layout = layout;
    let DispatchFields { kind, bindings, params, .. } = &*fresh;
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
