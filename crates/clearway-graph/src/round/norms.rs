//! Norms ahead: the product in front of a norm carries it out for the products behind it.
//!
//! A product that adds to the residual stream, the norm of what it gives, and products of that: the first
//! can multiply its result by the weight of the norm, round it, and leave with every chunk the sum of
//! its squares. What the row is to be divided by is then known to whoever reads all of its chunks, and
//! every product does. This is the only way to have that norm in the product before it, which has no
//! more than some elements of a row at a time; without it each product behind the norm carries out a copy
//! of it (the fusion rules see to that).
//!
//! It runs on the list as it was recorded. The four ops must stand one behind the other, as recorders write
//! them, so that nothing stands between what becomes one; the values between them must be nobody else's
//! business, but for the sum, which is kept where somebody needs it; and everybody who reads the result
//! must be a product that finds it rounded.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{ACTIVATIONS, RoundReport, RoundedValue, with_layout};
use crate::contract::{FusedRequest, KernelCatalog, KernelContract};
use crate::error::Result;
use crate::fuse::{Refusal, RefusedPair, joined};
use crate::graph::{ComputeGraph, Value};
use crate::ids::NodeId;
use crate::layout::{Layout, TensorView};
use crate::node::{Accesses, CapturedNode, CapturedOpKind as Kind, Dispatch};

/// Name of this part of the stage in reports of what was refused.
const NORM_AHEAD: &str = "norm_ahead";

/// Four ops one behind the other, each reading what the one before it wrote.
struct Chain<'a> {
    /// Index of the first in the list.
    first: usize,
    product: &'a Dispatch,
    sum: &'a Dispatch,
    norm: &'a Dispatch,
    scaled: &'a Dispatch,
    /// Binding of the sum that is not the product, and of the scaled norm that is not the norm.
    addend: usize,
    weight: usize,
}

/// What takes the place of a chain, and the readers of its result, by index in the list.
type Combined = (Dispatch, Vec<(usize, Dispatch)>);

/// Who touches a value, by index in the list.
#[derive(Default)]
struct Uses {
    writers: SmallVec<[usize; 1]>,
    /// With the binding.
    readers: SmallVec<[(usize, u16); 4]>,
    unknown: bool,
}

/// Puts norms into the products in front of them where they can be; the report says which.
pub(super) fn ahead<C: KernelCatalog>(
    graph: &mut ComputeGraph,
    catalog: &mut C,
    device: &C::Device,
    report: &mut RoundReport,
) -> Result<()> {
    let chains: Vec<Chain<'_>> = (0..graph.nodes().len()).filter_map(|i| chain(graph, i)).collect();
    if chains.is_empty() {
        return Ok(());
    }
    let uses = uses_of(graph, &chains);
    // What stands at an index instead of what was recorded; nothing, where another stands for it.
    let mut changed: FxHashMap<usize, Option<Dispatch>> = FxHashMap::default();
    for chain in &chains {
        let value = chain.result().buf_id;
        let readers = uses.get(&value).map_or(&[][..], |uses| &uses.readers);
        let Some(consumer) = readers.iter().find_map(|&(reader, _)| {
            graph.nodes()[reader].dispatch().filter(|d| d.kind == Kind::MatMul)
        }) else {
            continue;
        };
        let consumer = consumer.id;
        match chain.combined(graph, &uses, catalog, device)? {
            Ok((fused, fresh)) => {
                let readers = fresh.iter().map(|(_, dispatch)| dispatch.id).collect();
                let writer = chain.scaled.id;
                report.rounded.push(RoundedValue { buf_id: value, writer, readers });
                changed.extend((chain.first..chain.first + 3).map(|gone| (gone, None)));
                changed.insert(chain.first + 3, Some(fused));
                changed.extend(fresh.into_iter().map(|(index, fresh)| (index, Some(fresh))));
            }
            Err(reason) => report.refusals.push(RefusedPair {
                rule: NORM_AHEAD,
                producer: chain.sum.id,
                consumer,
                buf_id: value,
                reason,
            }),
        }
    }
    if !changed.is_empty() {
        // Barriers were placed for another list.
        let nodes = graph.nodes().iter().enumerate().filter_map(|(index, node)| {
            match (node, changed.remove(&index)) {
                (CapturedNode::Barrier(_), _) | (_, Some(None)) => None,
                (_, Some(Some(fresh))) => Some(CapturedNode::Dispatch(Arc::new(fresh))),
                (node, None) => Some(node.clone()),
            }
        });
        let nodes = nodes.collect();
        graph.set_nodes(nodes);
    }
    Ok(())
}

/// The chain that starts at a node, going by what computes what.
fn chain(graph: &ComputeGraph, first: usize) -> Option<Chain<'_>> {
    let at = |offset: usize, kind: Kind, bound: usize| {
        let dispatch = graph.nodes().get(first + offset)?.dispatch()?;
        (dispatch.kind == kind && dispatch.is_annotated() && dispatch.bindings.len() == bound)
            .then_some(&**dispatch)
    };
    let (product, sum) = (at(0, Kind::MatMul, 3)?, at(1, Kind::Add, 3)?);
    let (norm, scaled) = (at(2, Kind::RmsNorm, 2)?, at(3, Kind::Mul, 3)?);
    let other = |dispatch: &Dispatch, view: &TensorView| {
        (0..2).find(|&index| dispatch.bindings[index] == *view).map(|index| 1 - index)
    };
    let addend = other(sum, &product.bindings[2])?;
    let weight = other(scaled, &norm.bindings[1])?;
    let joined = norm.bindings[0] == sum.bindings[2];
    joined.then_some(Chain { first, product, sum, norm, scaled, addend, weight })
}

/// Who touches the values that chains write.
fn uses_of(graph: &ComputeGraph, chains: &[Chain<'_>]) -> FxHashMap<usize, Uses> {
    let results = chains.iter().flat_map(|chain| {
        [chain.product, chain.sum, chain.norm, chain.scaled]
            .map(|d| d.bindings[d.bindings.len() - 1])
    });
    let mut uses: FxHashMap<usize, Uses> = results
        .filter(|view| view.value().is_some())
        .map(|v| (v.buf_id, Uses::default()))
        .collect();
    for (index, node) in graph.nodes().iter().enumerate() {
        let Some(dispatch) = node.dispatch() else { continue };
        if !dispatch.is_annotated() {
            for view in &dispatch.bindings {
                uses.entry(view.buf_id).and_modify(|uses| uses.unknown = true);
            }
        }
        for access in dispatch.accesses() {
            uses.entry(access.range.buf_id).and_modify(|uses| match access.range.is_write() {
                true => uses.writers.push(index),
                false => uses.readers.push((index, access.binding)),
            });
        }
    }
    uses
}

impl Chain<'_> {
    /// What the whole gives.
    fn result(&self) -> &TensorView {
        &self.scaled.bindings[2]
    }

    /// The op that takes the place of all four, and who reads its result, with the result rounded; or
    /// why not.
    fn combined<C: KernelCatalog>(
        &self,
        graph: &ComputeGraph,
        uses: &FxHashMap<usize, Uses>,
        catalog: &mut C,
        device: &C::Device,
    ) -> Result<std::result::Result<Combined, Refusal>> {
        let (kept, layout) = match self.check(graph, uses) {
            Ok(found) => found,
            Err(reason) => return Ok(Err(reason)),
        };
        let rounded = TensorView { layout, ..*self.result() };
        // Each binding with the member's it comes from.
        let from = [
            (self.product, 0),
            (self.product, 1),
            (self.sum, self.addend),
            (self.scaled, self.weight),
        ];
        let from = from.into_iter().chain(kept.then_some((self.sum, 2))).chain([(self.scaled, 2)]);
        let from: SmallVec<[(&Dispatch, usize); 6]> = from.collect();
        let mut bindings: SmallVec<[TensorView; 4]> =
            from.iter().map(|&(member, binding)| member.bindings[binding]).collect();
        bindings[from.len() - 1] = rounded;
        let (kind, params) = (Kind::MatMulAddNorm, self.norm.params.clone());
        let request = FusedRequest { kind, bindings: &bindings, params: &params };
        let Some(contract) = catalog.fused_kernel(device, &request)? else {
            return Ok(Err(Refusal::NoKernel { kind }));
        };
        let accesses = contract.annotate(self.scaled.id, &bindings, &params)?;
        let Some(accesses) = with_origins(accesses, &from) else {
            return Ok(Err(Refusal::Contract { kernel: contract.kernel.into_owned() }));
        };
        let mut fresh = Vec::new();
        for &(index, binding) in &uses[&rounded.buf_id].readers {
            let Some(reader) = graph.nodes()[index].dispatch() else { continue };
            match with_layout(reader, binding, layout, catalog, device)? {
                Ok(dispatch) => fresh.push((index, dispatch)),
                Err(reason) => return Ok(Err(reason)),
            }
        }
        let in_place = contract.in_place();
        let KernelContract { kernel, .. } = contract;
        let members = [self.product, self.sum, self.norm, self.scaled];
        let origins = members.iter().flat_map(|member| member.origins.iter().copied()).collect();
        let label = joined(&self.sum.label, &self.scaled.label);
        let id = self.scaled.id;
        let fused =
            Dispatch { id, kind, in_place, kernel, params, bindings, accesses, origins, label };
        Ok(Ok((fused, fresh)))
    }

    /// Whether the sum is kept, and the layout of the rounded result; or what stands against it, whatever
    /// the device has.
    fn check(
        &self,
        graph: &ComputeGraph,
        uses: &FxHashMap<usize, Uses>,
    ) -> std::result::Result<(bool, Layout), Refusal> {
        let members = [self.product, self.sum, self.norm, self.scaled];
        for (offset, member) in members.into_iter().enumerate() {
            let view = member.bindings[member.bindings.len() - 1];
            let value = view.value().ok_or(Refusal::NotAValue)?;
            let entry = graph.values().get(value.index()).ok_or(Refusal::NotAValue)?;
            check_written(graph, member, self.first + offset, value, entry, uses)?;
            // The sum may be anybody's business, as long as it comes first.
            let uses = &uses[&view.buf_id];
            if let Some(&(reader, _)) =
                uses.readers.iter().find(|&&(reader, _)| reader <= self.first + offset)
            {
                return Err(Refusal::SecondReader { reader: id_of(graph, reader) });
            }
            if offset != 1 && entry.output {
                return Err(Refusal::IsOutput);
            }
            let next = self.first + offset + 1;
            let others = || uses.readers.iter().find(|&&(reader, _)| reader != next);
            match (offset, others()) {
                (0 | 2, Some(&(reader, _))) => {
                    return Err(Refusal::SecondReader { reader: id_of(graph, reader) });
                }
                (0 | 2, None) if uses.readers.len() > 1 => {
                    return Err(Refusal::SecondReader { reader: id_of(graph, next) });
                }
                _ => {}
            }
        }
        let [product, sum, norm, result] =
            members.map(|member| member.bindings[member.bindings.len() - 1].layout);
        let (addend, weight) =
            (self.sum.bindings[self.addend].layout, self.scaled.bindings[self.weight].layout);
        let layout = result.rounded().ok_or(Refusal::NoKernel { kind: Kind::MatMulAddNorm })?;
        for operand in [product, sum, norm, addend] {
            if operand.shape4() != result.shape4() || operand.dtype() != result.dtype() {
                return Err(Refusal::Operand { operand, result });
            }
        }
        if weight.rows() != 1 || weight.cols() != result.cols() {
            return Err(Refusal::Operand { operand: weight, result });
        }
        for (place, &(index, binding)) in uses[&self.result().buf_id].readers.iter().enumerate() {
            let reader = graph.nodes()[index].dispatch().ok_or(Refusal::NotAValue)?;
            let earlier = &uses[&self.result().buf_id].readers[..place];
            let twice = earlier.iter().any(|&(other, _)| other == index);
            if reader.kind != Kind::MatMul || binding != ACTIVATIONS || twice {
                return Err(Refusal::SecondReader { reader: reader.id });
            }
            let read = reader.bindings[usize::from(binding)];
            if read != *self.result() {
                return Err(Refusal::Shape { written: result, read: read.layout });
            }
        }
        let sum = &self.sum.bindings[2];
        let output = sum.value().is_some_and(|value| graph.values()[value.index()].output);
        Ok((output || uses[&sum.buf_id].readers.len() > 1, layout))
    }
}

/// A value is written by one alone and whole, and is not uploaded.
fn check_written(
    graph: &ComputeGraph,
    member: &Dispatch,
    index: usize,
    value: NodeId,
    entry: &Value,
    uses: &FxHashMap<usize, Uses>,
) -> std::result::Result<(), Refusal> {
    let uses = &uses[&value.buf_id()];
    if uses.unknown {
        let binds = |d: &&Arc<Dispatch>| {
            !d.is_annotated() && d.bindings.iter().any(|view| view.buf_id == value.buf_id())
        };
        let unknown = graph.dispatches().find(binds).map_or(member.id, |d| d.id);
        return Err(Refusal::BoundUnannotated { dispatch: unknown });
    }
    if let Some(&writer) = uses.writers.iter().find(|&&writer| writer != index) {
        return Err(Refusal::OtherWriter { writer: id_of(graph, writer) });
    }
    if entry.input {
        return Err(Refusal::IsInput);
    }
    let range = member.writes().find(|range| range.buf_id == value.buf_id());
    let (p0, p1) = range.map_or((0, 0), |range| (range.p0, range.p1));
    match (p0, p1) == (0, entry.bytes) {
        true => Ok(()),
        false => Err(Refusal::PartialWrite { p0, p1, bytes: entry.bytes }),
    }
}

fn id_of(graph: &ComputeGraph, index: usize) -> crate::DispatchId {
    graph.nodes()[index].dispatch().map_or(crate::DispatchId(u32::MAX), |dispatch| dispatch.id)
}

/// The accesses with the origins of the members' they carry out; `None` if a member has no such access.
fn with_origins(mut accesses: Accesses, from: &[(&Dispatch, usize)]) -> Option<Accesses> {
    let Accesses::Known(list) = &mut accesses else { return None };
    for access in list {
        let &(member, binding) = from.get(usize::from(access.binding))?;
        let same = member
            .accesses()
            .iter()
            .find(|other| usize::from(other.binding) == binding && other.range == access.range)?;
        access.origin = same.origin;
    }
    Some(accesses)
}
