//! The value-flow proof: every read sees what it saw in the recorded list.
//!
//! Both lists are run with tokens instead of numbers. A dispatch reads before it writes (that its
//! own operands allow this is proven elsewhere), and since no group holds a conflict, list order
//! stands for every order the device may choose.
//!
//! One run also proves every replay. It starts from arbitrary contents of buffers and inputs, which
//! are only named, and from arbitrary garbage elsewhere; a replay starts likewise, provided that
//! the run before left buffers and inputs as the recorded list would have.

use super::fault::{Fault, Problem, Proof};
use super::history::{History, Stop, bytes_of};
use super::memory::{Ground, Memory, Run, Source, difference};
use super::structure::{Carriers, Places, Recorded};
use crate::graph::{ComputeGraph, Value};
use crate::ids::NodeId;
use crate::node::{Access, Dispatch};
use crate::range::{BufferRange, MemRangeRole};

/// The symbolic run of the final list.
pub(super) struct FinalRun<'a, G> {
    values: &'a [Value],
    places: &'a Places<'a>,
    memory: Memory<G>,
    /// Dispatches with unknown access so far.
    unknown: usize,
    /// Room for what one read sees.
    seen: Vec<Run>,
}

impl<'a> FinalRun<'a, ()> {
    /// Before the first dispatch of a list of this many, with the inputs uploaded.
    pub(super) fn new(
        graph: &'a ComputeGraph,
        places: &'a Places<'a>,
        dispatches: usize,
    ) -> FinalRun<'a, impl Fn(usize) -> Ground> {
        let memory = Memory::new(dispatches, |buf_id| {
            let own = NodeId::from_buf_id(buf_id).is_some() || places.is_slab(buf_id);
            if own { Ground::Own } else { Ground::Real }
        });
        let (values, seen) = (graph.values(), Vec::new());
        let mut run = FinalRun { values, places, memory, unknown: 0, seen };
        run.upload_inputs();
        run
    }
}

impl<G: Fn(usize) -> Ground> FinalRun<'_, G> {
    /// Proves and runs the next dispatch, the one at `index`. Its structure is proven, `carriers` know
    /// of nobody behind it, and `history` tells what the recorded dispatches it stands for saw.
    pub(super) fn prove(
        &mut self,
        index: u32,
        dispatch: &Dispatch,
        carriers: &Carriers,
        recorded: &Recorded<'_>,
        history: &History,
    ) -> Result<(), Fault> {
        let past = Past { recorded, history };
        if !dispatch.is_annotated() {
            // Each stands for one that was recorded, so that history knows of as many.
            self.unknown += 1;
            return self.prove_unknown(dispatch, &history.stops[self.unknown - 1], past);
        }
        if dispatch.origins.len() > 1 {
            past.prove_kept(index, dispatch, carriers)?;
        }
        self.prove_reads(dispatch, past)?;
        self.write(dispatch, recorded);
        Ok(())
    }

    /// Proves what the list leaves behind its last dispatch.
    pub(super) fn prove_end(
        &mut self,
        replayed: bool,
        recorded: &Recorded<'_>,
        history: &History,
    ) -> Result<(), Fault> {
        let past = Past { recorded, history };
        self.prove_results(past)?;
        if replayed { self.prove_inputs(past) } else { Ok(()) }
    }

    fn upload_inputs(&mut self) {
        for (id, value) in (0..).map(NodeId).zip(self.values) {
            if let (true, Some((buf_id, base))) = (value.lasts(), self.places.of(id.buf_id())) {
                let source = Source::Initial { buf_id: id.buf_id() };
                self.memory.write(buf_id, base, base.saturating_add(value.bytes), source, 0);
            }
        }
    }

    /// Every read of a dispatch sees what it saw.
    fn prove_reads(&mut self, dispatch: &Dispatch, past: Past<'_>) -> Result<(), Fault> {
        for access in dispatch.accesses() {
            let range = &access.range;
            if range.role != MemRangeRole::Src {
                continue;
            }
            self.seen.clear();
            self.memory.read(range.buf_id, range.p0, range.p1, &mut self.seen);
            let Some(position) = past.recorded.position(access.origin.dispatch) else { continue };
            let number = past.recorded.access_number(position, access.origin.access);
            let expected = past.history.reads_of(number, bytes_in(range));
            if let Some(difference) = difference(expected.as_slice(), &self.seen) {
                let (offset, expected, found) = difference;
                let fault =
                    past.fault(Story::Read, (range.buf_id, range.p0 + offset), expected, found);
                return Err(fault.at(dispatch.id));
            }
        }
        Ok(())
    }

    fn write(&mut self, dispatch: &Dispatch, recorded: &Recorded<'_>) {
        for access in dispatch.accesses() {
            let range = &access.range;
            if range.role != MemRangeRole::Dst {
                continue;
            }
            let Some(position) = recorded.position(access.origin.dispatch) else { continue };
            let source = Source::Written { position, access: access.origin.access };
            self.memory.write(range.buf_id, range.p0, range.p1, source, 0);
        }
    }

    /// A dispatch with unknown access may read every real buffer and the values it binds.
    fn prove_unknown(
        &mut self,
        dispatch: &Dispatch,
        stop: &Stop,
        past: Past<'_>,
    ) -> Result<(), Fault> {
        self.prove_touched(stop, Story::Read, past).map_err(|fault| fault.at(dispatch.id))?;
        for (value, expected) in &stop.values {
            self.prove_value(*value, expected, Story::Read, past)
                .map_err(|fault| fault.at(dispatch.id))?;
        }
        let Some(position) = dispatch.origins.first().and_then(|&id| past.recorded.position(id))
        else {
            return Ok(());
        };
        self.memory.change_all(position);
        for (value, _) in &stop.values {
            let buf_id = value.buf_id();
            if let Some((at_buf, base)) = self.places.of(buf_id) {
                let end = base.saturating_add(bytes_of(self.values, *value));
                self.memory.write(at_buf, base, end, Source::Unknown { position, buf_id }, 0);
            }
        }
        Ok(())
    }

    fn prove_results(&mut self, past: Past<'_>) -> Result<(), Fault> {
        if let Some(end) = past.history.stops.last() {
            self.prove_touched(end, Story::Result, past)?;
        }
        let is_output = |id: NodeId| self.values[id.index()].output;
        let mut outputs = past.history.left.iter().filter(|(id, _)| is_output(*id));
        outputs.try_for_each(|(id, runs)| self.prove_value(*id, runs, Story::Result, past))
    }

    fn prove_inputs(&self, past: Past<'_>) -> Result<(), Fault> {
        let is_input = |id: NodeId| self.values[id.index()].lasts();
        let mut inputs = past.history.left.iter().filter(|(id, _)| is_input(*id));
        inputs.try_for_each(|(id, runs)| self.prove_value(*id, runs, Story::Input, past))
    }

    /// Every real buffer holds what it held at this point of the recorded list.
    fn prove_touched(&mut self, stop: &Stop, story: Story, past: Past<'_>) -> Result<(), Fault> {
        let found = self.memory.take_touched();
        let (mut e, mut f) = (stop.touched.iter().peekable(), found.iter().peekable());
        loop {
            let next = [e.peek().map(|t| t.buf_id), f.peek().map(|t| t.buf_id)];
            let Some(buf_id) = next.into_iter().flatten().min() else {
                return Ok(());
            };
            let expected = e.next_if(|t| t.buf_id == buf_id).map_or(&[][..], |t| &t.runs);
            let found = f.next_if(|t| t.buf_id == buf_id).map_or(&[][..], |t| &t.runs);
            let end = total(expected).max(total(found));
            let whole = |runs: &[Run]| -> Vec<Run> {
                let rest = self.memory.untouched(buf_id, total(runs), end);
                runs.iter().copied().chain([rest]).collect()
            };
            if let Some((offset, expected, found)) = difference(&whole(expected), &whole(found)) {
                return Err(past.fault(story, (buf_id, offset), expected, found));
            }
        }
    }

    /// A value holds what it held in the recorded list.
    fn prove_value(
        &self,
        value: NodeId,
        expected: &[Run],
        story: Story,
        past: Past<'_>,
    ) -> Result<(), Fault> {
        let Some((buf_id, base)) = self.places.of(value.buf_id()) else {
            // Without a place it can hold nothing; that is enough for what nobody ever wrote or
            // reads.
            let untouched = |run: &Run| match run.source {
                Source::Undefined => true,
                Source::Initial { .. } => story == Story::Input,
                _ => false,
            };
            return match expected.iter().find(|run| !untouched(run)) {
                None => Ok(()),
                Some(_) => Err(Fault::new(Proof::ValueFlow, Problem::Unplaced).on(
                    value.buf_id(),
                    0,
                    total(expected),
                )),
            };
        };
        let mut found = Vec::new();
        let end = base.saturating_add(total(expected));
        self.memory.read(buf_id, base, end, &mut found);
        match difference(expected, &found) {
            None => Ok(()),
            Some((offset, expected, found)) => {
                Err(past.fault(story, (buf_id, base + offset), expected, found))
            }
        }
    }
}

/// The recorded list, as far as it was walked, and what it read.
#[derive(Clone, Copy)]
struct Past<'a> {
    recorded: &'a Recorded<'a>,
    history: &'a History,
}

impl Past<'_> {
    /// The reads a fused dispatch keeps to itself see only what its members wrote, or what another
    /// read of the same tensor, which it carries out, sees as well.
    fn prove_kept(self, index: u32, dispatch: &Dispatch, carriers: &Carriers) -> Result<(), Fault> {
        for &id in &dispatch.origins {
            let Some(position) = self.recorded.position(id) else { continue };
            let member = self.recorded.dispatches[position as usize];
            for (access, recorded) in (0..).zip(member.accesses()) {
                let number = self.recorded.access_number(position, access);
                if recorded.range.role != MemRangeRole::Src
                    || carriers.carries_access(index, number)
                {
                    continue;
                }
                let from_member = |run: &Run| match run.source {
                    Source::Written { position, .. } => carriers.carries(index, position),
                    source => source == Source::Undefined,
                };
                let runs = self.history.reads_of(number, bytes_in(&recorded.range));
                let runs = runs.as_slice();
                if !runs.iter().all(from_member)
                    && !self.is_served(dispatch, member, recorded, runs)
                {
                    let range = &recorded.range;
                    return Err(Fault::new(Proof::Structure, Problem::AccessLost { access })
                        .at(dispatch.id)
                        .with(id)
                        .on(range.buf_id, range.p0, range.p1));
                }
            }
        }
        Ok(())
    }

    /// Whether a fused dispatch carries out another recorded read of the same view that saw the same
    /// contents as this one, which `member` recorded.
    fn is_served(
        &self,
        dispatch: &Dispatch,
        member: &Dispatch,
        read: &Access,
        runs: &[Run],
    ) -> bool {
        let view = |dispatch: &Dispatch, access: &Access| {
            dispatch.bindings.get(usize::from(access.binding)).copied()
        };
        dispatch.accesses().iter().any(|&Access { origin, .. }| {
            let Some(position) = self.recorded.position(origin.dispatch) else { return false };
            let other = self.recorded.dispatches[position as usize];
            let Some(carried) = other.accesses().get(usize::from(origin.access)) else {
                return false;
            };
            let number = self.recorded.access_number(position, origin.access);
            let sees = view(member, read);
            let seen = || self.history.reads_of(number, bytes_in(&carried.range));
            carried.range == read.range
                && sees.is_some()
                && view(other, carried) == sees
                && difference(runs, seen().as_slice()).is_none()
        })
    }

    fn fault(&self, story: Story, (buf_id, p0): (usize, u64), e: Run, f: Run) -> Fault {
        let (expected, found) = (e.content(self.recorded), f.content(self.recorded));
        let (proof, problem) = match story {
            Story::Read => (Proof::ValueFlow, Problem::WrongRead { expected, found }),
            Story::Result => (Proof::ValueFlow, Problem::WrongResult { expected, found }),
            Story::Input => (Proof::WrapAround, Problem::InputLost { expected, found }),
        };
        let fault = Fault::new(proof, problem).on(buf_id, p0, p0 + e.len);
        match found.dispatch().or(expected.dispatch()) {
            Some(other) => fault.with(other),
            None => fault,
        }
    }
}

/// What a difference means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Story {
    Read,
    Result,
    Input,
}

const fn bytes_in(range: &BufferRange) -> u64 {
    range.p1.saturating_sub(range.p0)
}

fn total(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.len).sum()
}
