//! One matcher for all rules: every precondition of a fusion, in one place.
//!
//! A pair is found by what it computes, not by where it stands: the consumer reads a value whose
//! last writer is an op of the rule's producer kind. The order of the list matters only where
//! something between holds both members: no other dispatch is moved to make room. On values
//! written once that takes a sum that is kept and read between, and a norm weight that is computed
//! between.

use rustc_hash::FxHashSet;
use smallvec::SmallVec;

use super::list::List;
use super::report::{Place, Refusal, RefusedPair};
use super::rules::{ALREADY_KEPT_AT, RULES, Rule, Source, binding_counts};
use crate::graph::Value;
use crate::ids::{DispatchId, NodeId};
use crate::layout::{Layout, TensorView};
use crate::node::{Access, Dispatch, Origin, Params};
use crate::range::MemRangeRole;

/// A producer and a consumer that a rule names, joined by a value.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) rule: &'static Rule,
    /// Index in the list.
    pub(super) producer: u32,
    /// Index in the list.
    pub(super) consumer: u32,
    pub(super) first: &'a Dispatch,
    pub(super) second: &'a Dispatch,
    /// The consumer's binding of the intermediate.
    operand: usize,
    pub(super) value: NodeId,
}

/// A pair that may be fused if the device has the kernel.
pub(super) struct Plan {
    pub(super) bindings: SmallVec<[TensorView; 4]>,
    pub(super) params: Params,
    /// The members' accesses, each at the binding of the fused dispatch that carries it out.
    pub(super) accesses: SmallVec<[Access; 8]>,
    pub(super) kept: bool,
    pub(super) place: Place,
    /// What the producer reads by the consumer's binding.
    pub(super) shared: SmallVec<[NodeId; 2]>,
}

impl<'a> Pair<'a> {
    /// The pair that `rule` names for this consumer and this operand of it.
    pub(super) fn find(
        rule: &'static Rule,
        list: &'a List<'_>,
        consumer: u32,
        operand: usize,
    ) -> Option<Self> {
        list.kind(consumer).filter(|&kind| kind == rule.consumer)?;
        let value = list.operand(consumer, operand)?;
        let producer = list.writer_before(value, consumer)?;
        list.kind(producer).filter(|&kind| kind == rule.producer)?;
        // Of two results a rule follows only the last.
        list.result(producer).filter(|&result| result == value)?;
        let (first, second) = (list.at(producer)?, list.at(consumer)?);
        Some(Self { rule, producer, consumer, first, second, operand, value })
    }

    /// The pairs of all readers of the intermediate, this one among them, with the numbers of their
    /// rules: each takes in a copy of the producer. Beside them the first reader that is no consumer
    /// of a rule that repeats, or that reads it twice.
    pub(super) fn copies(&self, list: &'a List<'_>) -> (Vec<(usize, Self)>, Option<DispatchId>) {
        let mut pairs: Vec<(usize, Self)> = Vec::new();
        let mut hindrance = None;
        let mut seen = FxHashSet::default();
        for reader in list.readers(self.value) {
            let rules = list.kind(reader).map_or(&[][..], |kind| RULES.with_consumer(kind));
            let pair = rules.iter().map(|&number| number as usize).find_map(|number| {
                let rule = &RULES[number];
                let pair = Self::find(rule, list, reader, rule.operands[0])?;
                let same = pair.producer == self.producer && pair.value == self.value;
                (rule.repeats && same).then_some((number, pair))
            });
            match pair {
                Some(pair) if seen.insert(reader) => pairs.push(pair),
                _ => hindrance = hindrance.or(list.at(reader).map(|dispatch| dispatch.id)),
            }
        }
        (pairs, hindrance)
    }

    /// Checks everything but the kernel, and for a rule that repeats its producer everything but the
    /// other readers. A `copy` is one of several, whose place is not checked.
    pub(super) fn plan(&self, list: &List<'_>, copy: bool) -> Result<Plan, Refusal> {
        for dispatch in [self.first, self.second] {
            let (bound, (fewest, most)) = (dispatch.bindings.len(), binding_counts(dispatch.kind));
            if !(fewest..=most).contains(&bound) {
                return Err(Refusal::Bindings { dispatch: dispatch.id, bound });
            }
        }
        self.check_views()?;
        self.check_written_whole(list)?;
        let kept = self.check_readers(list)?;
        self.check_fits()?;
        self.check_same()?;
        let Carried { bindings, mut down, up, dropped } = self.carry(kept)?;
        let accesses: SmallVec<[Access; 8]> = down.iter().chain(&up).copied().collect();
        check_overlaps(&accesses)?;
        // What one read serves must be the same for both.
        if let Some(read) =
            dropped.iter().find(|r| up.iter().all(|carried| carried.range != r.range))
        {
            let Origin { dispatch, access } = read.origin;
            return Err(Refusal::Uncarried { dispatch, access });
        }
        down.extend(dropped);
        let place = match copy {
            true => Place::Consumer,
            false => list.place((self.producer, &down), (self.consumer, &up))?,
        };
        let params = self.first.params.iter().chain(&self.second.params).copied().collect();
        let shared = self.rule.same.iter();
        let shared = shared.filter_map(|same| self.first.bindings[same.producer].value()).collect();
        Ok(Plan { bindings, params, accesses, kept, place, shared })
    }

    /// The pair as a report shows it.
    pub(super) fn refused(&self, reason: Refusal) -> RefusedPair {
        RefusedPair {
            rule: self.rule.name,
            producer: self.first.id,
            consumer: self.second.id,
            buf_id: self.value.buf_id(),
            reason,
        }
    }

    /// The intermediate is read exactly as it was written, or row by row in parts where the rule
    /// says so, and densely.
    fn check_views(&self) -> Result<(), Refusal> {
        let (written, read) = (self.written(), &self.second.bindings[self.operand]);
        let layouts = (written.layout, read.layout);
        if layouts.0.dtype() != layouts.1.dtype() {
            return Err(Refusal::DType { written: layouts.0, read: layouts.1 });
        }
        if written.offset != read.offset {
            return Err(Refusal::Offset { written: written.offset, read: read.offset });
        }
        let same_shape = match self.rule.reshaped {
            true => splits_rows(&layouts.0, &layouts.1),
            false => layouts.0.shape4() == layouts.1.shape4(),
        };
        if !same_shape {
            return Err(Refusal::Shape { written: layouts.0, read: layouts.1 });
        }
        if !layouts.0.is_dense() || !layouts.1.is_dense() {
            return Err(Refusal::Stride { written: layouts.0, read: layouts.1 });
        }
        Ok(())
    }

    /// Nothing of the intermediate comes from elsewhere.
    fn check_written_whole(&self, list: &List<'_>) -> Result<(), Refusal> {
        if let Some(writer) = list.other_writer(self.value, self.producer) {
            return Err(Refusal::OtherWriter { writer });
        }
        let value = list.value(self.value);
        if value.is_some_and(Value::lasts) {
            return Err(Refusal::IsInput);
        }
        let bytes = value.map_or(0, |value| value.bytes);
        let write = self.first.writes().find(|range| range.buf_id == self.value.buf_id());
        match write.map(|range| (range.p0, range.p1)) {
            Some(written) if written == (0, bytes) => Ok(()),
            written => {
                let (p0, p1) = written.unwrap_or((0, 0));
                Err(Refusal::PartialWrite { p0, p1, bytes })
            }
        }
    }

    /// Nobody else needs the intermediate, or the rule can keep it; says whether it must.
    fn check_readers(&self, list: &List<'_>) -> Result<bool, Refusal> {
        if let Some(dispatch) = list.unknown_user(self.value) {
            return Err(Refusal::BoundUnannotated { dispatch });
        }
        let other = || list.other_reader(self.value, self.consumer);
        let reader = if self.rule.repeats { None } else { other() };
        let output = list.value(self.value).is_some_and(|value| value.output);
        match reader {
            _ if self.rule.keeps() => Ok(output || reader.is_some()),
            Some(reader) => Err(Refusal::SecondReader { reader }),
            None if output => Err(Refusal::IsOutput),
            None => Ok(false),
        }
    }

    /// Shapes are those the fused kernel computes with.
    fn check_fits(&self) -> Result<(), Refusal> {
        let Some(result) = self.second.bindings.last().map(|view| view.layout) else {
            return Ok(());
        };
        let value = self.second.bindings[self.operand].layout;
        if !self.rule.fit.holds(&value, &result) {
            return Err(Refusal::Operand { operand: value, result });
        }
        for bind in &self.rule.bindings {
            let Some((member, index)) = self.source(bind.source, true) else { continue };
            let operand = self.member(member).bindings[index].layout;
            let other = bind.fit.against(result, value);
            if !bind.fit.holds(&operand, &other) {
                return Err(Refusal::Operand { operand, result: other });
            }
        }
        Ok(())
    }

    /// Where the fused kernel reads one tensor for both, both read it.
    fn check_same(&self) -> Result<(), Refusal> {
        for same in &self.rule.same {
            let reads = [self.first.bindings[same.producer], self.second.bindings[same.consumer]];
            if reads[0] != reads[1] {
                return Err(Refusal::NotSame { reads: reads.into() });
            }
        }
        Ok(())
    }

    /// The fused dispatch's bindings, and the accesses of the producer and of the consumer that go
    /// through them. Only those to the intermediate may have no place there, and those that another
    /// serves.
    fn carry(&self, kept: bool) -> Result<Carried, Refusal> {
        let mut bindings = SmallVec::with_capacity(self.rule.bindings.len());
        let mut taken = SmallVec::<[(Member, usize); 6]>::new();
        for source in self.rule.bindings.iter().map(|bind| bind.source) {
            if let Some((member, index)) = self.source(source, kept) {
                taken.push((member, index));
                bindings.push(self.member(member).bindings[index]);
            }
        }
        let served = |(member, binding): (Member, usize)| {
            let same = &self.rule.same;
            member == Member::Producer && same.iter().any(|same| same.producer == binding)
        };
        let mut dropped = SmallVec::new();
        let mut carry = |member, gone: Option<(usize, MemRangeRole)>| {
            let mut carried = SmallVec::new();
            for access in self.member(member).accesses() {
                let through = (member, usize::from(access.binding));
                let Access { range, origin, .. } = *access;
                if let Some(binding) = taken.iter().position(|&t| t == through) {
                    carried.push(Access { binding: binding as u16, ..*access });
                } else if served(through) && range.role == MemRangeRole::Src {
                    dropped.push(*access);
                } else if gone != Some((through.1, range.role)) {
                    let Origin { dispatch, access } = origin;
                    return Err(Refusal::Uncarried { dispatch, access });
                }
            }
            Ok(carried)
        };
        let written = (!kept).then_some((self.first.bindings.len() - 1, MemRangeRole::Dst));
        let down = carry(Member::Producer, written)?;
        let up = carry(Member::Consumer, Some((self.operand, MemRangeRole::Src)))?;
        Ok(Carried { bindings, down, up, dropped })
    }

    fn written(&self) -> &TensorView {
        &self.first.bindings[self.first.bindings.len() - 1]
    }

    fn member(&self, member: Member) -> &'a Dispatch {
        match member {
            Member::Producer => self.first,
            Member::Consumer => self.second,
        }
    }

    /// The member's binding behind a source, if the fused dispatch binds it.
    fn source(&self, source: Source, kept: bool) -> Option<(Member, usize)> {
        let first = self.first.bindings.len();
        match source {
            Source::Producer(index) => Some((Member::Producer, index)),
            Source::Consumer(index) => Some((Member::Consumer, index)),
            Source::Other => Some((Member::Consumer, 1 - self.operand)),
            Source::Kept => kept.then_some((Member::Producer, first - 1)),
            Source::AlreadyKept => {
                (first > ALREADY_KEPT_AT + 1).then_some((Member::Producer, ALREADY_KEPT_AT))
            }
            Source::Result => Some((Member::Consumer, self.second.bindings.len() - 1)),
        }
    }
}

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Member {
    Producer,
    Consumer,
}

/// What a fused dispatch binds and does.
struct Carried {
    bindings: SmallVec<[TensorView; 4]>,
    /// The producer's accesses.
    down: SmallVec<[Access; 4]>,
    /// The consumer's.
    up: SmallVec<[Access; 4]>,
    /// The producer's reads that one of the consumer's serves.
    dropped: SmallVec<[Access; 1]>,
}

/// Whether each row of what is written is one matrix of what is read. A row that is read as a row is none.
fn splits_rows(written: &Layout, read: &Layout) -> bool {
    if read.rank() <= written.rank() {
        return false;
    }
    let [outer, matrices, rows, cols] = read.shape4().map(u64::from);
    (outer * matrices, rows * cols) == (written.rows() as u64, written.cols() as u64)
}

/// Refuses if the fused dispatch writes bytes that another of its bindings touches: its members
/// ran one after the other, it reads and writes in any order. A binding that is declared as read
/// and written is the kernel's own affair.
fn check_overlaps(accesses: &[Access]) -> Result<(), Refusal> {
    for write in accesses.iter().filter(|access| access.range.is_write()) {
        for other in accesses.iter().filter(|access| access.binding != write.binding) {
            if let Some((p0, p1)) = write.range.overlap(&other.range) {
                return Err(Refusal::OutputOverlapsInput {
                    output: write.binding,
                    input: other.binding,
                    buf_id: write.range.buf_id,
                    p0,
                    p1,
                });
            }
        }
    }
    Ok(())
}
