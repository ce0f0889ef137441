//! The value-flow proof: every read sees what it saw in the recorded list.
//!
//! Both lists are run with tokens instead of numbers. A dispatch reads before it writes (that its
//! own operands allow this is proven elsewhere), and since no group holds a conflict, list order
//! stands for every order the device may choose.
//!
//! One run also proves every replay. It starts from arbitrary contents of buffers and inputs, which
//! are only named, and from arbitrary garbage elsewhere; a replay starts likewise, provided that
//! the run before left buffers and inputs as the recorded list would have.

use smallvec::SmallVec;

use super::fault::{Fault, Problem, Proof};
use super::memory::{Ground, Memory, Run, Source, Touched, difference};
use super::structure::{Carriers, Places, Recorded};
use crate::graph::{ComputeGraph, Value};
use crate::ids::NodeId;
use crate::node::{Access, Dispatch};
use crate::range::MemRangeRole;

/// What the recorded list reads and leaves.
pub(super) struct History {
    runs: Vec<Run>,
    /// Per recorded access: its first run, and at last the number of runs. Writes have none.
    first_run: Vec<u32>,
    /// Per dispatch with unknown access, and at last for the end of the list.
    stops: Vec<Stop>,
    /// Per value that is an input or output: what it holds at the end.
    left: Vec<(NodeId, Vec<Run>)>,
}

/// What is known where the recorded list meets a dispatch with unknown access, or ends.
struct Stop {
    touched: Vec<Touched>,
    /// The values the dispatch binds, with what they hold.
    values: Vec<(NodeId, Vec<Run>)>,
}

/// The symbolic run of the recorded list.
pub(super) struct RecordedRun<'a, G> {
    values: &'a [Value],
    memory: Memory<G>,
    history: History,
}

impl<'a> RecordedRun<'a, ()> {
    /// Before the first dispatch of a list of this many.
    pub(super) fn new(
        graph: &'a ComputeGraph,
        dispatches: usize,
    ) -> RecordedRun<'a, impl Fn(usize) -> Ground> {
        let values = graph.values();
        let is_input = |value: NodeId| values.get(value.index()).is_some_and(|v| v.input);
        let memory = Memory::new(dispatches, move |buf_id| match NodeId::from_buf_id(buf_id) {
            None => Ground::Real,
            Some(value) if is_input(value) => Ground::Own,
            Some(_) => Ground::Undefined,
        });
        let history = History {
            // Most dispatches have two or three operands and a result.
            runs: Vec::with_capacity(3 * dispatches),
            first_run: Vec::with_capacity(4 * dispatches + 1),
            stops: Vec::new(),
            left: Vec::new(),
        };
        RecordedRun { values, memory, history }
    }
}

impl<G: Fn(usize) -> Ground> RecordedRun<'_, G> {
    /// Runs the next dispatch.
    pub(super) fn add(&mut self, position: u32, dispatch: &Dispatch) {
        let Self { values, memory, history } = self;
        for range in dispatch.ranges() {
            history.first_run.push(history.runs.len() as u32);
            if range.role == MemRangeRole::Src {
                memory.read(range.buf_id, range.p0, range.p1, &mut history.runs);
            }
        }
        for (access, range) in (0..).zip(dispatch.ranges()) {
            if range.role == MemRangeRole::Dst {
                let source = Source::Written { position, access };
                memory.write(range.buf_id, range.p0, range.p1, source, 0);
            }
        }
        if !dispatch.is_annotated() {
            let read = |value: NodeId| {
                let mut runs = Vec::new();
                memory.read(value.buf_id(), 0, bytes_of(values, value), &mut runs);
                (value, runs)
            };
            let bound = bound_values(dispatch).into_iter().map(read).collect();
            history.stops.push(Stop { touched: memory.take_touched(), values: bound });
            memory.change_all(position);
            for value in bound_values(dispatch) {
                let buf_id = value.buf_id();
                let source = Source::Unknown { position, buf_id };
                memory.write(buf_id, 0, bytes_of(values, value), source, 0);
            }
        }
    }

    /// What was read, and what is left behind the last dispatch.
    pub(super) fn finish(self) -> History {
        let Self { values, mut memory, mut history } = self;
        history.first_run.push(history.runs.len() as u32);
        history.stops.push(Stop { touched: memory.take_touched(), values: Vec::new() });
        for (id, value) in (0..).map(NodeId).zip(values) {
            if value.input || value.output {
                let mut runs = Vec::new();
                memory.read(id.buf_id(), 0, value.bytes, &mut runs);
                history.left.push((id, runs));
            }
        }
        history
    }
}

impl History {
    fn reads_of(&self, access_number: usize) -> &[Run] {
        let (start, end) = (self.first_run[access_number], self.first_run[access_number + 1]);
        &self.runs[start as usize..end as usize]
    }
}

/// The symbolic run of the final list.
pub(super) struct FinalRun<'a, G> {
    values: &'a [Value],
    recorded: &'a Recorded<'a>,
    places: &'a Places<'a>,
    memory: Memory<G>,
    history: History,
    /// Dispatches with unknown access so far.
    unknown: usize,
    /// Room for what one read sees.
    seen: Vec<Run>,
}

impl<'a> FinalRun<'a, ()> {
    /// Before the first dispatch of a list of this many, with the inputs uploaded.
    pub(super) fn new(
        graph: &'a ComputeGraph,
        recorded: &'a Recorded<'a>,
        places: &'a Places<'a>,
        history: History,
        dispatches: usize,
    ) -> FinalRun<'a, impl Fn(usize) -> Ground> {
        let memory = Memory::new(dispatches, |buf_id| {
            let own = NodeId::from_buf_id(buf_id).is_some() || places.is_slab(buf_id);
            if own { Ground::Own } else { Ground::Real }
        });
        let (values, seen) = (graph.values(), Vec::new());
        let mut run = FinalRun { values, recorded, places, memory, history, unknown: 0, seen };
        run.upload_inputs();
        run
    }
}

impl<G: Fn(usize) -> Ground> FinalRun<'_, G> {
    /// Proves and runs the next dispatch, the one at `index`. Its structure is proven, and
    /// `carriers` know of nobody behind it.
    pub(super) fn prove(
        &mut self,
        index: u32,
        dispatch: &Dispatch,
        carriers: &Carriers,
    ) -> Result<(), Fault> {
        if !dispatch.is_annotated() {
            self.unknown += 1;
            return self.prove_unknown(dispatch, self.unknown - 1);
        }
        if dispatch.origins.len() > 1 {
            self.prove_kept(index, dispatch, carriers)?;
        }
        self.prove_reads(dispatch)?;
        self.write(dispatch);
        Ok(())
    }

    /// Proves what the list leaves behind its last dispatch.
    pub(super) fn prove_end(&mut self, replayed: bool) -> Result<(), Fault> {
        self.prove_results()?;
        if replayed { self.prove_inputs() } else { Ok(()) }
    }

    fn upload_inputs(&mut self) {
        for (id, value) in (0..).map(NodeId).zip(self.values) {
            if let (true, Some((buf_id, base))) = (value.input, self.places.of(id.buf_id())) {
                let source = Source::Initial { buf_id: id.buf_id() };
                self.memory.write(buf_id, base, base.saturating_add(value.bytes), source, 0);
            }
        }
    }

    /// The reads a fused dispatch keeps to itself see only what its members wrote, or what another
    /// read of the same tensor, which it carries out, sees as well.
    fn prove_kept(
        &self,
        index: u32,
        dispatch: &Dispatch,
        carriers: &Carriers,
    ) -> Result<(), Fault> {
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
                let runs = self.history.reads_of(number);
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
            carried.range == read.range
                && sees.is_some()
                && view(other, carried) == sees
                && difference(runs, self.history.reads_of(number)).is_none()
        })
    }

    /// Every read of a dispatch sees what it saw.
    fn prove_reads(&mut self, dispatch: &Dispatch) -> Result<(), Fault> {
        for access in dispatch.accesses() {
            let range = &access.range;
            if range.role != MemRangeRole::Src {
                continue;
            }
            self.seen.clear();
            self.memory.read(range.buf_id, range.p0, range.p1, &mut self.seen);
            let Some(position) = self.recorded.position(access.origin.dispatch) else { continue };
            let number = self.recorded.access_number(position, access.origin.access);
            if let Some(difference) = difference(self.history.reads_of(number), &self.seen) {
                let (offset, expected, found) = difference;
                let fault =
                    self.fault(Story::Read, (range.buf_id, range.p0 + offset), expected, found);
                return Err(fault.at(dispatch.id));
            }
        }
        Ok(())
    }

    fn write(&mut self, dispatch: &Dispatch) {
        for access in dispatch.accesses() {
            let range = &access.range;
            if range.role != MemRangeRole::Dst {
                continue;
            }
            let Some(position) = self.recorded.position(access.origin.dispatch) else { continue };
            let source = Source::Written { position, access: access.origin.access };
            self.memory.write(range.buf_id, range.p0, range.p1, source, 0);
        }
    }

    /// A dispatch with unknown access may read every real buffer and the values it binds.
    fn prove_unknown(&mut self, dispatch: &Dispatch, stop: usize) -> Result<(), Fault> {
        self.prove_touched(stop, Story::Read).map_err(|fault| fault.at(dispatch.id))?;
        for index in 0..self.history.stops[stop].values.len() {
            let (value, expected) = &self.history.stops[stop].values[index];
            self.prove_value(*value, expected, Story::Read)
                .map_err(|fault| fault.at(dispatch.id))?;
        }
        let Some(position) = dispatch.origins.first().and_then(|&id| self.recorded.position(id))
        else {
            return Ok(());
        };
        self.memory.change_all(position);
        for index in 0..self.history.stops[stop].values.len() {
            let buf_id = self.history.stops[stop].values[index].0.buf_id();
            let bytes = bytes_of(self.values, self.history.stops[stop].values[index].0);
            if let Some((at_buf, base)) = self.places.of(buf_id) {
                let source = Source::Unknown { position, buf_id };
                self.memory.write(at_buf, base, base.saturating_add(bytes), source, 0);
            }
        }
        Ok(())
    }

    fn prove_results(&mut self) -> Result<(), Fault> {
        self.prove_touched(self.history.stops.len() - 1, Story::Result)?;
        let is_output = |id: NodeId| self.values[id.index()].output;
        let mut outputs = self.history.left.iter().filter(|(id, _)| is_output(*id));
        outputs.try_for_each(|(id, runs)| self.prove_value(*id, runs, Story::Result))
    }

    fn prove_inputs(&self) -> Result<(), Fault> {
        let is_input = |id: NodeId| self.values[id.index()].input;
        let mut inputs = self.history.left.iter().filter(|(id, _)| is_input(*id));
        inputs.try_for_each(|(id, runs)| self.prove_value(*id, runs, Story::Input))
    }

    /// Every real buffer holds what it held at this point of the recorded list.
    fn prove_touched(&mut self, stop: usize, story: Story) -> Result<(), Fault> {
        let found = self.memory.take_touched();
        let expected = &self.history.stops[stop].touched;
        let (mut e, mut f) = (expected.iter().peekable(), found.iter().peekable());
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
                return Err(self.fault(story, (buf_id, offset), expected, found));
            }
        }
    }

    /// A value holds what it held in the recorded list.
    fn prove_value(&self, value: NodeId, expected: &[Run], story: Story) -> Result<(), Fault> {
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
                Err(self.fault(story, (buf_id, base + offset), expected, found))
            }
        }
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

fn total(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.len).sum()
}

/// The values a dispatch binds, each once.
fn bound_values(dispatch: &Dispatch) -> SmallVec<[NodeId; 4]> {
    let mut values: SmallVec<[NodeId; 4]> = dispatch.values().collect();
    values.sort_unstable();
    values.dedup();
    values
}

fn bytes_of(values: &[Value], value: NodeId) -> u64 {
    values.get(value.index()).map_or(0, |v| v.bytes)
}
