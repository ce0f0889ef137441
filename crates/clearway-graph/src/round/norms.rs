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

use super::rules::{BEHIND_NORM, Link, NORM_AHEAD};
use super::survey::{Readers, Survey, id_at};
use super::{RoundReport, RoundedValue, check_readers, check_written, with_layout};
use crate::contract::{FusedRequest, KernelCatalog, KernelContract};
use crate::error::Result;
use crate::fuse::{Refusal, RefusedPair, joined};
use crate::graph::ComputeGraph;
use crate::layout::{Layout, TensorView};
use crate::node::{Accesses, CapturedNode, Dispatch, DispatchFields, Params};
use crate::op::CapturedOpKind as Kind;

/// Four ops one behind the other, each reading what the one before it wrote.
struct Chain<'a> {
    /// Index of the first in the list.
    first: usize,
    /// As it stands by now: it may read what the chain before it gives.
    product: Arc<Dispatch>,
    sum: &'a Dispatch,
    norm: &'a Dispatch,
    scaled: &'a Dispatch,
    /// Binding of the sum that is not the product, and of the scaled norm that is not the norm.
    addend: usize,
    weight: usize,
}

/// What takes the place of a chain, and the readers of its result, by index in the list.
type Combined = (Dispatch, Vec<(usize, Dispatch)>);

/// Puts norms into the products in front of them where they can be; the report says which.
pub(super) fn ahead<C: KernelCatalog>(
    graph: &mut ComputeGraph,
    catalog: &mut C,
    device: &C::Device,
    report: &mut RoundReport,
) -> Result<()> {
    let mut firsts: Vec<usize> = Vec::new();
    let mut kinds = [Kind::Custom; 4];
    let survey = Survey::of(graph, |index, dispatch| {
        kinds.rotate_left(1);
        kinds[3] = dispatch.kind;
        if kinds == NORM_AHEAD.members {
            firsts.push(index.saturating_sub(3));
        }
    });
    // By index: what stands there instead of what was recorded; nothing, where another stands for it.
    let mut changed: FxHashMap<usize, Option<Arc<Dispatch>>> = FxHashMap::default();
    for first in firsts {
        let product = changed.get(&first).cloned().flatten();
        let Some(chain) = chain(graph, first, product) else { continue };
        let result = chain.result();
        let Some(value) = result.value() else { continue };
        let readers = survey.readers(graph, value);
        let product = |&(at, _): &(u32, u16)| {
            let reader = graph.nodes()[at as usize].dispatch();
            reader.filter(|reader| (BEHIND_NORM.readers)(reader.kind))
        };
        let Some(consumer) = readers.iter().find_map(product).map(|reader| reader.id) else {
            continue;
        };
        match chain.combined(graph, &survey, &readers, catalog, device)? {
            Ok((fused, fresh)) => {
                let readers = fresh.iter().map(|(_, dispatch)| dispatch.id).collect();
                let (buf_id, writer) = (result.buf_id, chain.scaled.id);
                report.rounded.push(RoundedValue { buf_id, writer, readers });
                changed.extend((chain.first..chain.first + 3).map(|gone| (gone, None)));
                let fresh = fresh.into_iter().chain([(chain.first + 3, fused)]);
                changed.extend(fresh.map(|(index, fresh)| (index, Some(Arc::new(fresh)))));
            }
            Err(reason) => report.refusals.push(RefusedPair {
                rule: NORM_AHEAD.name,
                producer: chain.sum.id,
                consumer,
                buf_id: result.buf_id,
                reason,
            }),
        }
    }
    if !changed.is_empty() {
        let old = graph.take_nodes();
        let mut nodes = Vec::with_capacity(old.len());
        for (index, node) in old.into_iter().enumerate() {
            match changed.remove(&index) {
                // Barriers were placed for another list.
                None if node.dispatch().is_some() => nodes.push(node),
                Some(Some(fresh)) => nodes.push(CapturedNode::Dispatch(fresh)),
                None | Some(None) => {}
            }
        }
        graph.set_nodes(nodes);
    }
    Ok(())
}

/// The chain that starts at a node, going by what computes what; with a product that has taken the place of
/// the recorded one, if one has.
fn chain(graph: &ComputeGraph, first: usize, product: Option<Arc<Dispatch>>) -> Option<Chain<'_>> {
    let at = |offset: usize, kind: Kind, bound: usize| {
        let dispatch = graph.nodes().get(first + offset)?.dispatch()?;
        (dispatch.kind == kind && dispatch.is_annotated() && dispatch.bindings.len() == bound)
            .then_some(dispatch)
    };
    let product = product.or_else(|| at(0, Kind::MATMUL, 3).cloned())?;
    let sum = at(1, Kind::Add, 3)?;
    let (norm, scaled) = (at(2, Kind::RmsNorm, 2)?, at(3, Kind::Mul, 3)?);
    let other = |dispatch: &Dispatch, view: &TensorView| {
        (0..2).find(|&index| dispatch.bindings[index] == *view).map(|index| 1 - index)
    };
    let addend = other(sum, &product.bindings[2])?;
    let weight = other(scaled, &norm.bindings[1])?;
    let joined = norm.bindings[0] == sum.bindings[2];
    joined.then_some(Chain { first, product, sum, norm, scaled, addend, weight })
}

impl Chain<'_> {
    fn members(&self) -> [&Dispatch; 4] {
        [&*self.product, self.sum, self.norm, self.scaled]
    }

    /// The member's binding behind a link, if the op that takes the chain's place binds it.
    fn source(&self, link: Link, kept: bool) -> Option<(&Dispatch, usize)> {
        let result = |member: usize| {
            let dispatch = self.members()[member];
            (dispatch, dispatch.bindings.len() - 1)
        };
        match link {
            Link::Of(member, binding) => Some((self.members()[member], binding)),
            Link::Addend(member) => Some((self.members()[member], self.addend)),
            Link::Weight(member) => Some((self.members()[member], self.weight)),
            Link::Kept(member) => kept.then(|| result(member)),
            Link::Result => Some(result(NORM_AHEAD.members.len() - 1)),
        }
    }

    /// What the whole gives.
    fn result(&self) -> &TensorView {
        &self.scaled.bindings[2]
    }

    /// The op that takes the place of all four, and who reads its result, with the result rounded; or
    /// why not.
    fn combined<C: KernelCatalog>(
        &self,
        graph: &ComputeGraph,
        survey: &Survey,
        readers: &Readers,
        catalog: &mut C,
        device: &C::Device,
    ) -> Result<std::result::Result<Combined, Refusal>> {
        let (kept, layout) = match self.check(graph, survey, readers) {
            Ok(found) => found,
            Err(reason) => return Ok(Err(reason)),
        };
        let rounded = TensorView { layout, ..*self.result() };
        // Each binding with the member's it comes from.
        let from = NORM_AHEAD.bindings.iter().filter_map(|&link| self.source(link, kept));
        let from: SmallVec<[(&Dispatch, usize); 6]> = from.collect();
        let mut bindings: SmallVec<[TensorView; 4]> =
            from.iter().map(|&(member, binding)| member.bindings[binding]).collect();
        bindings[from.len() - 1] = rounded;
        let params: Params = self.members().iter().flat_map(|m| m.params.iter().copied()).collect();
        let kind = NORM_AHEAD.fused;
        let request = FusedRequest { kind, bindings: &bindings, params: &params };
        let Some(contract) = catalog.fused_kernel(device, &request)? else {
            return Ok(Err(Refusal::NoKernel { kind }));
        };
        let accesses = contract.annotate(self.scaled.id, &bindings, &params)?;
        let Some(accesses) = with_origins(accesses, &from) else {
            return Ok(Err(Refusal::Contract { kernel: contract.kernel.into_owned() }));
        };
        let mut fresh = Vec::new();
        for &(at, binding) in readers {
            let Some(reader) = graph.nodes()[at as usize].dispatch() else { continue };
            match with_layout(reader, binding, layout, catalog, device)? {
                Ok(dispatch) => fresh.push((at as usize, dispatch)),
                Err(reason) => return Ok(Err(reason)),
            }
        }
        let in_place = contract.in_place();
        let KernelContract { kernel, .. } = contract;
        let origins =
            self.members().iter().flat_map(|member| member.origins.iter().copied()).collect();
        let label = joined(&self.sum.label, &self.scaled.label);
        let id = self.scaled.id;
        let fused = Dispatch::from_fields(DispatchFields {
            id,
            kind,
            in_place,
            kernel,
            params,
            bindings,
            accesses,
            origins,
            label,
        });
        Ok(Ok((fused, fresh)))
    }

    /// Whether the sum is kept, and the layout of the rounded result; or what stands against it, whatever
    /// the device has.
    fn check(
        &self,
        graph: &ComputeGraph,
        survey: &Survey,
        readers: &Readers,
    ) -> std::result::Result<(bool, Layout), Refusal> {
        let members = self.members();
        let mut kept = false;
        for (offset, member) in members.into_iter().enumerate() {
            let index = self.first + offset;
            let value = member.bindings[member.bindings.len() - 1].value();
            let value = value.ok_or(Refusal::NotAValue)?;
            let entry = check_written(graph, survey, index, value)?;
            if offset == 3 {
                break; // who may read it is another question
            }
            let reads = survey.of_value(value).map_or(0, |uses| uses.reads);
            match (offset, reads > 1) {
                // The sum may be anybody's business, as long as it comes first.
                (1, more) => {
                    kept = entry.output || more;
                    let early = survey.first_reader(value).filter(|&at| (at as usize) < index);
                    if let Some(early) = early {
                        return Err(Refusal::SecondReader { reader: id_at(graph, early) });
                    }
                }
                (_, true) => {
                    let readers = survey.readers(graph, value);
                    let other = readers.iter().find(|&&(at, _)| at as usize != index + 1);
                    let reader = other.map_or(index as u32 + 1, |&(at, _)| at);
                    return Err(Refusal::SecondReader { reader: id_at(graph, reader) });
                }
                (_, false) if entry.output => return Err(Refusal::IsOutput),
                _ => {}
            }
        }
        let value = self.result().value().and_then(|value| graph.values().get(value.index()));
        if value.is_some_and(|value| value.output) {
            return Err(Refusal::IsOutput);
        }
        let [product, sum, norm, result] =
            members.map(|member| member.bindings[member.bindings.len() - 1].layout);
        let (addend, weight) =
            (self.sum.bindings[self.addend].layout, self.scaled.bindings[self.weight].layout);
        let layout = result.rounded().ok_or(Refusal::NoKernel { kind: NORM_AHEAD.fused })?;
        for operand in [product, sum, norm, addend] {
            if operand.shape4() != result.shape4() || operand.dtype() != result.dtype() {
                return Err(Refusal::Operand { operand, result });
            }
        }
        // What goes away, and the sum, lie without gaps: bytes between rows would belong to somebody else.
        if let Some(written) = [product, sum, norm].into_iter().find(|layout| !layout.is_dense()) {
            return Err(Refusal::Stride { written, read: written });
        }
        if weight.rows() != 1 || weight.cols() != result.cols() {
            return Err(Refusal::Operand { operand: weight, result });
        }
        let value = self.result().value().ok_or(Refusal::NotAValue)?;
        check_readers(graph, survey, self.first + 3, value, readers, BEHIND_NORM.readers)?;
        Ok((kept, layout))
    }
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
