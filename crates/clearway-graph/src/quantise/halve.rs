//! Values that only products read, as f16.
//!
//! Products of many rows multiply on matrices of f16, and every tile of them fetches its activations anew. Where
//! nobody but products reads what a norm, a gate or attention gives, it is written as f16 at once: the value then
//! has the type [`DType::A16`], in the bytes it had.
//!
//! The conditions are those of the quantise stage with two differences, since an element of this type has its place whatever the
//! shape is: a reader may see the value in another shape, and several dispatches may write it, one part each that begins where
//! another ends. Attention of a step with prompts and single tokens does that.

use crate::contract::KernelCatalog;
use crate::dtype::DType;
use crate::error::Result;
use crate::fuse::{Refusal, RefusedPair};
use crate::graph::{ComputeGraph, Value};
use crate::ids::NodeId;
use crate::layout::{Layout, TensorView};
use crate::node::Dispatch;
use crate::op::{CapturedOpKind as Kind, MapInputs, Product};

use super::survey::{Readers, Survey, id_at};
use super::{ACTIVATIONS, QuantiseReport, QuantisedValue, check_written, with_layout};

/// Name of the stage in reports of what was refused.
const STAGE: &str = "halve";

/// Whether an op may give its result as f16.
pub(crate) const fn may_write(kind: Kind) -> bool {
    match kind {
        Kind::RmsNorm
        | Kind::RmsNormMul
        | Kind::AddRmsNorm
        | Kind::AddRmsNormMul
        | Kind::Attention
        | Kind::AttentionSinks => true,
        Kind::Map(map) => matches!(map.inputs(), MapInputs::Gated),
        Kind::Gather
        | Kind::LayerNorm
        | Kind::MatMulExperts
        | Kind::ExpertOrder
        | Kind::RouterTopK
        | Kind::RouterGroups
        | Kind::ExpertSum
        | Kind::ExpertSumAdd
        | Kind::RmsNormMulAdd
        | Kind::Rope
        | Kind::Softmax
        | Kind::KvWrite
        | Kind::Copy
        | Kind::Concat
        | Kind::ArgMax
        | Kind::TopK
        | Kind::Fill
        | Kind::RopeKvWrite
        | Kind::Product(_)
        | Kind::Custom
        | Kind::Pinned => false,
    }
}

/// Whether an op may find its activations as f16.
pub(crate) fn may_read(kind: Kind) -> bool {
    kind == Kind::MatMulExperts || kind.product().is_some_and(Product::may_read_quantised)
}

/// Whether two views show the same elements in the same order, whatever their shapes.
pub(crate) fn same_elements(a: &TensorView, b: &TensorView) -> bool {
    let alike = |view: &TensorView| (view.layout.dtype(), view.layout.elems());
    (a.buf_id, a.offset) == (b.buf_id, b.offset)
        && alike(a) == alike(b)
        && [a, b].into_iter().all(|view| view.layout.is_dense())
}

/// Gives every value that can have it the form of f16. Values for which a kernel is missing are not told: on
/// devices without matrices that is all of them.
pub(crate) fn halve<C: KernelCatalog>(
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
    let mut changed: Vec<(usize, Dispatch)> = Vec::new();
    // Those who write one value stand beside each other, in list order.
    writers.sort_by_key(|&(index, value)| (survey.first_write(value), value.index(), index));
    for writers in writers.chunk_by(|a, b| a.1 == b.1) {
        let (index, value) = writers[0];
        let readers = survey.readers(graph, value);
        let reads = |&(at, binding): &(u32, u16)| {
            let reader = graph.nodes()[at as usize].dispatch()?;
            (may_read(reader.kind) && binding == ACTIVATIONS).then_some(reader.id)
        };
        let Some(writer) = graph.nodes()[index].dispatch() else { continue };
        let Some(consumer) = readers.iter().find_map(reads) else { continue };
        let buf_id = value.buf_id();
        let writers: Vec<usize> = writers.iter().map(|&(index, _)| index).collect();
        match halved(graph, (&writers, value), &survey, &readers, catalog, device)? {
            Ok(fresh) => {
                let readers = readers.iter().map(|&(at, _)| id_at(graph, at)).collect();
                report.quantised.push(QuantisedValue { buf_id, writer: writer.id, readers });
                changed.extend(fresh);
            }
            Err(Refusal::NoKernel { .. }) => {}
            Err(reason) => {
                let producer = writer.id;
                report.refusals.push(RefusedPair {
                    rule: STAGE,
                    producer,
                    consumer,
                    buf_id,
                    reason,
                });
            }
        }
    }
    // Nobody both reads such a value and writes one: those who may do the one may not do the other.
    for (index, dispatch) in changed {
        graph.replace(index, dispatch);
    }
    Ok(report)
}

/// The dispatches that touch a value, with the value as f16; or why it cannot be.
fn halved<C: KernelCatalog>(
    graph: &ComputeGraph,
    (writers, value): (&[usize], NodeId),
    survey: &Survey,
    readers: &Readers,
    catalog: &mut C,
    device: &C::Device,
) -> Result<std::result::Result<Vec<(usize, Dispatch)>, Refusal>> {
    // The device first: most have no such kernels, and then nothing else needs to be said.
    let mut fresh = Vec::with_capacity(writers.len() + readers.len());
    for &index in writers {
        let Some(writer) = graph.nodes()[index].dispatch() else {
            return Ok(Err(Refusal::NotAValue));
        };
        let result = writer.bindings.len() - 1;
        let Some(layout) = writer.bindings[result].layout.halved() else {
            return Ok(Err(Refusal::NoKernel { kind: writer.kind }));
        };
        match with_layout(writer, result as u16, layout, catalog, device)? {
            Ok(dispatch) => fresh.push((index, dispatch)),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    let written = match writers {
        &[index] => check_written(graph, survey, index, value),
        _ => check_parts(graph, survey, writers, value),
    };
    if let Err(reason) = written
        .and_then(|entry| if entry.output { Err(Refusal::IsOutput) } else { Ok(()) })
        .and_then(|()| check_readers(graph, survey, writers, value, readers))
    {
        return Ok(Err(reason));
    }
    for &(at, binding) in readers {
        let Some(dispatch) = graph.nodes()[at as usize].dispatch() else { continue };
        let Some(layout) = dispatch.bindings[usize::from(binding)].layout.halved() else {
            return Ok(Err(Refusal::NoKernel { kind: dispatch.kind }));
        };
        match with_layout(dispatch, binding, layout, catalog, device)? {
            Ok(dispatch) => fresh.push((at as usize, dispatch)),
            Err(reason) => return Ok(Err(reason)),
        }
    }
    Ok(Ok(fresh))
}

/// The value that several dispatches write is written by them alone, is not uploaded, and each part of it begins where another
/// ends, from the first byte to the last.
fn check_parts<'a>(
    graph: &'a ComputeGraph,
    survey: &Survey,
    writers: &[usize],
    value: NodeId,
) -> std::result::Result<&'a Value, Refusal> {
    let (Some(uses), Some(entry)) = (survey.of_value(value), graph.values().get(value.index()))
    else {
        return Err(Refusal::NotAValue);
    };
    if uses.writes as usize != writers.len() {
        let ends = [uses.first_write, uses.last_write];
        let other = ends.into_iter().find(|&at| !writers.contains(&(at as usize)));
        let writer = id_at(graph, other.unwrap_or(uses.last_write));
        return Err(Refusal::OtherWriter { writer });
    }
    if let Some(unknown) = uses.unknown() {
        return Err(Refusal::BoundUnannotated { dispatch: id_at(graph, unknown) });
    }
    if entry.lasts() {
        return Err(Refusal::IsInput);
    }
    let dispatches = writers.iter().filter_map(|&index| graph.nodes()[index].dispatch());
    let writes = dispatches.flat_map(|writer| writer.writes());
    let mut parts: Vec<(u64, u64)> = writes
        .filter(|range| range.buf_id == value.buf_id())
        .map(|range| (range.p0, range.p1))
        .collect();
    parts.sort_unstable();
    let mut end = 0;
    for (p0, p1) in parts {
        if p0 != end {
            return Err(Refusal::PartialWrite { p0, p1, bytes: entry.bytes });
        }
        end = p1;
    }
    match end == entry.bytes {
        true => Ok(entry),
        false => Err(Refusal::PartialWrite { p0: 0, p1: end, bytes: entry.bytes }),
    }
}

/// What the dispatches at `writers` write, as one view.
fn written_by(graph: &ComputeGraph, writers: &[usize]) -> Option<TensorView> {
    let mut views = writers.iter().map(|&index| graph.nodes()[index].dispatch()?.bindings.last());
    let first = *views.next()??;
    if writers.len() == 1 {
        return Some(first);
    }
    let (mut from, mut elems) = (first.offset, first.layout.elems());
    for view in views {
        let view = view?;
        (from, elems) = (from.min(view.offset), elems + view.layout.elems());
    }
    let layout = Layout::new(DType::F32, &[elems]).ok()?;
    Some(TensorView { offset: from, layout, ..first })
}

/// Everybody who reads what the dispatches at `writers` write multiplies it, stands behind them, and reads all of it
/// once, as its activations.
fn check_readers(
    graph: &ComputeGraph,
    survey: &Survey,
    writers: &[usize],
    value: NodeId,
    readers: &Readers,
) -> std::result::Result<(), Refusal> {
    let written = &written_by(graph, writers).ok_or(Refusal::NotAValue)?;
    let last = writers.iter().copied().max().unwrap_or_default();
    for (place, &(at, binding)) in readers.iter().enumerate() {
        let reader = graph.nodes()[at as usize].dispatch().ok_or(Refusal::NotAValue)?;
        let twice = readers[..place].iter().any(|&(other, _)| other == at);
        let behind = at as usize > last;
        if !may_read(reader.kind) || binding != ACTIVATIONS || twice || !behind {
            return Err(Refusal::SecondReader { reader: reader.id });
        }
        let read = &reader.bindings[usize::from(binding)];
        if !same_elements(read, written) {
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
