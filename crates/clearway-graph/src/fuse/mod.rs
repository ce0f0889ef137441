//! The fuse stage: two dispatches become one where a kernel exists that does both.
//!
//! Rules are data ([`RULES`]) and say what computes what; one matcher holds the preconditions, the
//! same for all of them. A pair is fused when the value between the two ops
//!
//! - is an arena value, written whole by the producer alone and not uploaded by the host;
//! - is read as it was written: same offset, element type and shape (leading extents of one do not
//!   count), dense both times. A rule may let rows be read [in parts](Rule::reshaped);
//! - is needed by nobody else: no other reader, not an output, not bound by a dispatch of unknown
//!   access. A rule whose kernel can also give the value out ([`Source::Kept`]) keeps it instead; a
//!   rule that [repeats](Rule::repeats) its producer lets every reader take in a copy, all of them
//!   or none;
//!
//! and when the fused dispatch
//!
//! - has operands of shapes its kernel computes with, carries out every other access of its
//!   members (one read for two, where both must read the [same](Rule::same) view), and writes no
//!   byte that another of its bindings touches;
//! - can stand at the consumer's place, or else at the producer's, without passing a dispatch it
//!   conflicts with, and without passing one that is unannotated or pinned at all. A copy of a
//!   repeated producer stands at its consumer's place;
//! - has a kernel on the device, which is asked last.
//!
//! A rule whose result exists only [quantised](Rule::quantises) asks the same of the value it gives, and that
//! all who read it are products that can find it so (`quantise.rs`).
//!
//! What fired and what was refused, with the reason, is in the [`FuseReport`]. Rules are applied
//! until none fires: a fused dispatch is itself the consumer or producer of other rules. The list
//! keeps every hazard in order; a list of *n* dispatches costs about *n* log *n*.

mod apart;
mod list;
mod matcher;
mod order;
mod owners;
mod quantise;
mod report;
mod rules;

#[cfg(any(test, feature = "testkit"))]
mod test_catalog;

pub(crate) use rules::{ALREADY_KEPT_AT, binding_counts};

pub use report::{FuseReport, Fusion, Place, Refusal, RefusedPair, RuleCount};
pub use rules::{Bind, Binds, Fit, RULES, Rule, RuleTable, Same, Source};
#[cfg(any(test, feature = "testkit"))]
pub use test_catalog::TestCatalog;

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use self::list::{Candidate, List};
use self::matcher::{Pair, Plan};
use self::quantise::{Readers, Reads};
use crate::contract::{FusedRequest, KernelCatalog};
use crate::error::Result;
use crate::graph::ComputeGraph;
use crate::ids::DispatchId;
use crate::node::{Access, Accesses, CapturedNode, Dispatch, DispatchFields};
use crate::op::CapturedOpKind;

/// Applies the rules until none fires, those that quantise only if told to. Barriers are stripped if any did.
/// Gives what was refused by rules that quantise apart from the report.
pub(crate) fn fuse<C: KernelCatalog>(
    graph: &mut ComputeGraph,
    catalog: &mut C,
    device: &C::Device,
    quantise: bool,
) -> Result<(FuseReport, Vec<RefusedPair>)> {
    let mut stage = Stage::new(graph, false);
    stage.quantise = quantise;
    let mut finished = stage.run(catalog, device);
    if stage.list.order.is_tiled() && !matches!(finished, Ok(true)) {
        stage = Stage::new(graph, true);
        stage.quantise = quantise;
        finished = stage.run(catalog, device);
    }
    finished?;
    let (nodes, mut report, unquantised) = stage.finish();
    if report.fired() > 0 {
        report.stripped_barriers = graph.barrier_count();
        graph.set_nodes(nodes);
    }
    Ok((report, unquantised))
}

struct Stage<'a> {
    list: List<'a>,
    queue: BTreeSet<Candidate>,
    refused: FxHashMap<Candidate, SmallVec<[RefusedPair; 1]>>,
    /// By dispatch: refused candidates to try again when it changes.
    waiting: FxHashMap<u32, SmallVec<[Candidate; 2]>>,
    /// Whether something was tried that reaches further than the order allows for.
    far: bool,
    /// Whether rules that quantise take part.
    quantise: bool,
    report: FuseReport,
}

impl<'a> Stage<'a> {
    fn new(graph: &'a ComputeGraph, whole: bool) -> Self {
        let rules = RULES.iter().map(|rule| RuleCount { rule: rule.name, fired: 0 });
        let (list, candidates) = List::new(graph, whole);
        let fusions = Vec::with_capacity(candidates.len());
        let report = FuseReport { rules: rules.collect(), fusions, ..FuseReport::default() };
        let (refused, waiting) = Default::default();
        let queue = candidates.into_iter().collect();
        Self { queue, list, refused, waiting, far: false, quantise: false, report }
    }

    /// Tries every candidate until none is left, or until that may give something else than rule by
    /// rule over the whole list would; says whether it came to the end.
    fn run<C: KernelCatalog>(&mut self, catalog: &mut C, device: &C::Device) -> Result<bool> {
        while let Some(candidate) = self.queue.pop_first() {
            if !self.list.order.holds_at(candidate) {
                return Ok(false);
            }
            self.attempt(candidate, catalog, device)?;
            if self.far || self.list.is_order_lost() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Fuses the candidate or notes why not.
    fn attempt<C: KernelCatalog>(
        &mut self,
        candidate: Candidate,
        catalog: &mut C,
        device: &C::Device,
    ) -> Result<()> {
        let before = self.refused.remove(&candidate);
        let rule = &RULES[candidate.rule as usize];
        match rule.repeats {
            _ if rule.quantises => self.attempt_quantised(candidate, before, catalog, device),
            true => self.attempt_copies(candidate, catalog, device),
            false => self.attempt_pair(candidate, catalog, device),
        }
    }

    /// As [`attempt_pair`](Self::attempt_pair) where values are quantised. Why a pair was refused `before` is
    /// told even if another rule has taken the consumer since.
    fn attempt_quantised<C: KernelCatalog>(
        &mut self,
        candidate: Candidate,
        before: Option<SmallVec<[RefusedPair; 1]>>,
        catalog: &mut C,
        device: &C::Device,
    ) -> Result<()> {
        if !self.quantise {
            return Ok(());
        }
        let fired = self.report.fired();
        self.attempt_pair(candidate, catalog, device)?;
        if let (Some(before), true) = (before, self.report.fired() == fired) {
            self.refused.entry(candidate).or_insert(before);
        }
        Ok(())
    }

    fn attempt_pair<C: KernelCatalog>(
        &mut self,
        candidate: Candidate,
        catalog: &mut C,
        device: &C::Device,
    ) -> Result<()> {
        let (rule, consumer) = (candidate.rule as usize, candidate.consumer);
        let mut refusals = SmallVec::<[RefusedPair; 1]>::new();
        for &operand in &RULES[rule].operands {
            let Some(pair) = Pair::find(&RULES[rule], &self.list, consumer, operand) else {
                continue;
            };
            self.far |= self.list.is_far(consumer, &pair);
            if refusals.iter().any(|refused| refused.producer == pair.first.id) {
                continue; // both operands are the same value, which has two reads then
            }
            if pair.rule.quantises && !quantise::is_worthwhile(&self.list, &pair) {
                continue;
            }
            let outcome = match pair.plan(&self.list, false) {
                Ok(plan) => self.combine(&pair, plan, catalog, device)?,
                Err(reason) => Err(reason),
            };
            match outcome {
                Ok((plan, fused, readers)) => {
                    let producer = pair.producer;
                    for &(reader, _) in &readers {
                        self.far |= self.list.is_far_from(consumer, reader);
                        self.queue.extend(self.waiting.remove(&reader).unwrap_or_default());
                    }
                    self.note_fusion(rule, &fused, &plan, false);
                    for &value in &plan.shared {
                        self.list.forget_read(value, producer);
                    }
                    self.list.merge(producer, &[consumer], [(fused, plan.place)]);
                    self.list.replace(readers);
                    self.wake(producer, consumer, RULES[rule].fused);
                    return Ok(());
                }
                Err(reason) => refusals.push(pair.refused(reason)),
            }
        }
        self.refuse(candidate, refusals);
        Ok(())
    }

    /// Makes the fused dispatch; with those who read its result, where that is quantised.
    fn combine<C: KernelCatalog>(
        &self,
        pair: &Pair<'_>,
        mut plan: Plan,
        catalog: &mut C,
        device: &C::Device,
    ) -> Result<Result<(Plan, Dispatch, Readers), Refusal>> {
        let reads = match pair.rule.quantises {
            true => quantise::check(&self.list, pair, &mut plan),
            false => Ok(Reads::new()),
        };
        let reads = match reads {
            Ok(reads) => reads,
            Err(reason) => return Ok(Err(reason)),
        };
        let fused = match combine(pair, &mut plan, catalog, device)? {
            Ok(fused) => fused,
            Err(reason) => return Ok(Err(reason)),
        };
        let readers = quantise::readers(&self.list, &fused, &reads, catalog, device)?;
        Ok(readers.map(|readers| (plan, fused, readers)))
    }

    /// Lets every reader of the candidate's intermediate take in a copy of its producer, or notes
    /// for all of them why not. What is true of one is then known of all, so that many readers are
    /// looked at once and not once each.
    fn attempt_copies<C: KernelCatalog>(
        &mut self,
        candidate: Candidate,
        catalog: &mut C,
        device: &C::Device,
    ) -> Result<()> {
        let (rule, consumer) = (candidate.rule as usize, candidate.consumer);
        let operand = RULES[rule].operands[0];
        let Some(pair) = Pair::find(&RULES[rule], &self.list, consumer, operand) else {
            return Ok(());
        };
        let producer = pair.producer;
        let (pairs, mut hindrance) = pair.copies(&self.list);
        self.far |= pairs.iter().any(|(_, pair)| self.list.is_far(consumer, pair));
        let repeated = pairs.len() > 1;
        let reads: SmallVec<[Access; 4]> =
            pair.first.accesses().iter().filter(|a| !a.range.is_write()).copied().collect();
        let late = if repeated { self.list.too_late(producer, &reads) } else { None };
        let mut plans = Vec::with_capacity(pairs.len());
        for (_, pair) in &pairs {
            let mut plan = pair.plan(&self.list, repeated);
            if repeated && plan.is_ok() {
                let place = self.list.check_copy(producer, pair.consumer, late);
                plan = place.and(plan);
            }
            hindrance = hindrance.or(plan.is_err().then_some(pair.second.id));
            plans.push(plan);
        }
        let consumers: Vec<u32> = pairs.iter().map(|(_, pair)| pair.consumer).collect();
        let mut fused = Vec::with_capacity(pairs.len());
        if hindrance.is_none() {
            for ((_, pair), outcome) in pairs.iter().zip(&mut plans) {
                let Ok(plan) = outcome else { continue };
                match combine(pair, plan, catalog, device)? {
                    Ok(dispatch) => fused.push((dispatch, plan.place)),
                    Err(reason) => {
                        hindrance = hindrance.or(Some(pair.second.id));
                        *outcome = Err(reason);
                    }
                }
            }
        }
        if let Some(reader) = hindrance {
            let refused: Vec<_> = pairs
                .iter()
                .zip(plans)
                .map(|((rule, pair), plan)| {
                    let reason = plan.err().unwrap_or(Refusal::SecondReader { reader });
                    (self.list.candidate(*rule, pair.consumer), pair.refused(reason))
                })
                .collect();
            for (candidate, pair) in refused {
                self.queue.remove(&candidate);
                self.refuse(candidate, SmallVec::from_buf([pair]));
            }
            return Ok(());
        }
        let rules: Vec<usize> = pairs.iter().map(|(rule, _)| *rule).collect();
        self.report.repeats += rules.len() as u32 - 1;
        for (&rule, ((dispatch, _), plan)) in rules.iter().zip(fused.iter().zip(&plans)) {
            if let Ok(plan) = plan {
                self.note_fusion(rule, dispatch, plan, repeated);
            }
        }
        self.list.merge(producer, &consumers, fused);
        for (rule, consumer) in rules.into_iter().zip(consumers) {
            self.wake(producer, consumer, RULES[rule].fused);
        }
        Ok(())
    }

    /// Notes why a candidate was refused, and to try it again when what the reasons rest on changes.
    fn refuse(&mut self, candidate: Candidate, refusals: SmallVec<[RefusedPair; 1]>) {
        for refused in &refusals {
            let named = [refused.producer, refused.consumer];
            for id in refused.reason.rests_on().into_iter().chain(named) {
                if let Some(index) = self.list.index_of(id) {
                    self.waiting.entry(index).or_default().push(candidate);
                }
            }
        }
        if !refusals.is_empty() {
            self.refused.insert(candidate, refusals);
        }
    }

    fn note_fusion(&mut self, rule: usize, fused: &Dispatch, plan: &Plan, repeated: bool) {
        self.report.rules[rule].fired += 1;
        self.report.fusions.push(Fusion {
            rule: RULES[rule].name,
            result: fused.id,
            members: fused.origins.clone(),
            kept: plan.kept,
            place: plan.place,
            repeated,
        });
    }

    /// Queues whatever a fusion may have changed.
    fn wake(&mut self, producer: u32, consumer: u32, kind: CapturedOpKind) {
        for changed in [producer, consumer] {
            self.queue.extend(self.waiting.remove(&changed).unwrap_or_default());
        }
        for &rule in RULES.with_consumer(kind) {
            self.queue.insert(self.list.candidate(rule as usize, consumer));
        }
        for &number in RULES.with_producer(kind) {
            let rule = &RULES[number as usize];
            let result = self.list.result(consumer);
            let readers = result.into_iter().flat_map(|value| self.list.readers(value));
            let readers = readers.filter(|&r| self.list.kind(r) == Some(rule.consumer));
            self.queue.extend(readers.map(|r| self.list.candidate(number as usize, r)));
        }
    }

    /// The list, the report, and apart from it what was refused by rules that quantise.
    fn finish(self) -> (Vec<CapturedNode>, FuseReport, Vec<RefusedPair>) {
        let mut report = self.report;
        let real_results = self.list.has_real_results();
        let dispatches = self.list.into_dispatches();
        let mut unquantised = Vec::new();
        for (candidate, refused) in self.refused {
            match RULES[candidate.rule as usize].quantises {
                true => unquantised.extend(refused),
                false => report.refusals.extend(refused),
            }
        }
        if real_results {
            report.refusals.extend(apart::in_real_buffers(&dispatches));
        }
        if !report.refusals.is_empty() || !unquantised.is_empty() {
            let places: FxHashMap<_, _> = dispatches.iter().map(|d| d.id).zip(0u32..).collect();
            let place = |id: &DispatchId| places.get(id).copied();
            // A pair has one rule.
            let key = |pair: &RefusedPair| (place(&pair.consumer), place(&pair.producer));
            report.refusals.sort_by_cached_key(key);
            unquantised.sort_by_cached_key(key);
        }
        (dispatches.into_iter().map(CapturedNode::Dispatch).collect(), report, unquantised)
    }
}

/// Asks for the kernel and makes the fused dispatch, which takes the bindings and constants with it.
fn combine<C: KernelCatalog>(
    pair: &Pair<'_>,
    plan: &mut Plan,
    catalog: &mut C,
    device: &C::Device,
) -> Result<Result<Dispatch, Refusal>> {
    let (first, second, kind) = (pair.first, pair.second, pair.rule.fused);
    let request = FusedRequest { kind, bindings: &plan.bindings, params: &plan.params };
    let Some(contract) = catalog.fused_kernel(device, &request)? else {
        return Ok(Err(Refusal::NoKernel { kind }));
    };
    let mut accesses = contract.annotate(second.id, &plan.bindings, &plan.params)?;
    if !adopt_origins(&mut accesses, plan) {
        return Ok(Err(Refusal::Contract { kernel: contract.kernel.into_owned() }));
    }
    Ok(Ok(Dispatch::from_fields(DispatchFields {
        id: second.id,
        kind,
        in_place: contract.in_place(),
        kernel: contract.kernel,
        params: std::mem::take(&mut plan.params),
        bindings: std::mem::take(&mut plan.bindings),
        accesses,
        // The consumer reads what the producer computes.
        origins: first.origins.iter().chain(&second.origins).copied().collect(),
        label: joined(&first.label, &second.label),
    })))
}

/// Gives every access of the fused dispatch the origin of the member's it carries out; false if
/// the two sets differ.
fn adopt_origins(accesses: &mut Accesses, plan: &Plan) -> bool {
    let Accesses::Known(list) = accesses else {
        return false;
    };
    list.len() == plan.accesses.len()
        && list.iter_mut().all(|access| {
            let same = |c: &&Access| c.binding == access.binding && c.range == access.range;
            let carried = plan.accesses.iter().find(same);
            carried.map(|carried| access.origin = carried.origin).is_some()
        })
}

/// A label for both; members of one step mostly share it.
pub(crate) fn joined(first: &Arc<str>, second: &Arc<str>) -> Arc<str> {
    match (first.is_empty(), second.is_empty()) {
        _ if first == second => first.clone(),
        (true, _) => second.clone(),
        (_, true) => first.clone(),
        _ => Arc::from(format!("{first}+{second}")),
    }
}

#[cfg(test)]
mod tests;
