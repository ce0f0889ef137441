//! The recorded list of the value-flow proof: what each of its reads saw, and what it left. Every read
//! must see something: what nothing has written is a fault of the record.

use smallvec::SmallVec;

use super::fault::{Fault, Problem, Proof};
use super::holes::Holes;
use super::memory::{Ground, Memory, Run, Source, Touched};
use crate::graph::{ComputeGraph, Value};
use crate::ids::NodeId;
use crate::node::Dispatch;
use crate::range::MemRangeRole;

/// What the recorded list reads and leaves.
pub(super) struct History {
    /// Per recorded access: what it saw.
    reads: Vec<Seen>,
    /// What those saw that saw several runs, one after another.
    runs: Vec<Run>,
    /// Where in `runs` each of them starts and ends.
    several: Vec<(u32, u32)>,
    /// Per dispatch with unknown access, and at last for the end of the list.
    pub(super) stops: Vec<Stop>,
    /// Per value that is an input or output: what it holds at the end.
    pub(super) left: Vec<(NodeId, Vec<Run>)>,
}

/// What a recorded access saw, in few bytes: a list has several for each dispatch. Nearly all see the
/// one run of what another access wrote or of what a buffer held, from its first byte on.
#[derive(Clone, Copy)]
enum Seen {
    /// It writes, or has no bytes.
    Nothing,
    Written {
        position: u32,
        access: u16,
    },
    Buffer(u32),
    Value(NodeId),
    /// Something else, as an entry of [`History::several`] tells.
    Several(u32),
}

/// What is known where the recorded list meets a dispatch with unknown access, or ends.
pub(super) struct Stop {
    pub(super) touched: Vec<Touched>,
    /// The values the dispatch binds, with what they hold.
    pub(super) values: Vec<(NodeId, Vec<Run>)>,
}

/// The symbolic run of the recorded list.
pub(super) struct RecordedRun<'a, G> {
    values: &'a [Value],
    memory: Memory<G>,
    holes: Holes,
    history: History,
}

impl<'a> RecordedRun<'a, ()> {
    /// Before the first dispatch of a list of this many.
    pub(super) fn new(
        graph: &'a ComputeGraph,
        dispatches: usize,
    ) -> RecordedRun<'a, impl Fn(usize) -> Ground> {
        let values = graph.values();
        let is_input = |value: NodeId| values.get(value.index()).is_some_and(Value::lasts);
        let memory = Memory::new(dispatches, move |buf_id| match NodeId::from_buf_id(buf_id) {
            None => Ground::Real,
            Some(value) if is_input(value) => Ground::Own,
            Some(_) => Ground::Undefined,
        });
        let history = History {
            // Most dispatches have two or three operands and a result.
            reads: Vec::with_capacity(4 * dispatches),
            runs: Vec::new(),
            several: Vec::new(),
            stops: Vec::new(),
            left: Vec::new(),
        };
        RecordedRun { values, memory, holes: Holes::default(), history }
    }
}

impl<G: Fn(usize) -> Ground> RecordedRun<'_, G> {
    /// Runs the next dispatch, whose reads must all see something.
    pub(super) fn add(&mut self, position: u32, dispatch: &Dispatch) -> Result<(), Fault> {
        let Self { values, memory, holes, history } = self;
        for access in dispatch.accesses() {
            let (range, first) = (&access.range, history.runs.len());
            if range.role == MemRangeRole::Src {
                memory.read(range.buf_id, range.p0, range.p1, &mut history.runs);
                if !access.keeps {
                    holes.prove_read(dispatch, access, &history.runs[first..])?;
                }
            }
            history.note_runs(first);
        }
        for (number, access) in (0..).zip(dispatch.accesses()) {
            let range = &access.range;
            if range.role == MemRangeRole::Dst {
                holes.note_write(dispatch, access, memory);
                let source = Source::Written { position, access: number };
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
                holes.forget(buf_id);
            }
        }
        Ok(())
    }

    /// What was read so far.
    pub(super) const fn history(&self) -> &History {
        &self.history
    }

    /// What was read, and what is left behind the last dispatch. The host reads every byte of an
    /// output, so all of it must be something.
    pub(super) fn finish(self) -> Result<History, Fault> {
        let Self { values, mut memory, holes, mut history } = self;
        history.stops.push(Stop { touched: memory.take_touched(), values: Vec::new() });
        for (id, value) in (0..).map(NodeId).zip(values) {
            if value.lasts() || value.output {
                let mut runs = Vec::new();
                memory.read(id.buf_id(), 0, value.bytes, &mut runs);
                if let Some((p0, p1)) = holes.first_of(id.buf_id(), 0, value.bytes, &runs)
                    && value.output
                {
                    let fault = Fault::new(Proof::ValueFlow, Problem::UndefinedRead);
                    return Err(fault.on(id.buf_id(), p0, p1));
                }
                history.left.push((id, runs));
            }
        }
        Ok(history)
    }
}

impl History {
    /// Notes that the next access saw the runs from `first` on.
    fn note_runs(&mut self, first: usize) {
        let seen = match self.runs[first..] {
            [] => Some(Seen::Nothing),
            [Run { source, at: 0, .. }] => Seen::of(source),
            _ => None,
        };
        self.reads.push(seen.unwrap_or_else(|| {
            self.several.push((first as u32, self.runs.len() as u32));
            Seen::Several(self.several.len() as u32 - 1)
        }));
        if seen.is_some() {
            self.runs.truncate(first);
        }
    }

    /// What a recorded access of `len` bytes saw.
    pub(super) fn reads_of(&self, access_number: usize, len: u64) -> Reads<'_> {
        let source = match self.reads[access_number] {
            Seen::Nothing => return Reads::Several(&[]),
            Seen::Several(index) => {
                let (start, end) = self.several[index as usize];
                return Reads::Several(&self.runs[start as usize..end as usize]);
            }
            Seen::Written { position, access } => Source::Written { position, access },
            Seen::Buffer(number) => Source::Initial { buf_id: number as usize },
            Seen::Value(value) => Source::Initial { buf_id: value.buf_id() },
        };
        Reads::One(Run { len, source, at: 0 })
    }
}

impl Seen {
    /// The first bytes of a source, if it is one that fits.
    fn of(source: Source) -> Option<Self> {
        match source {
            Source::Written { position, access } => Some(Self::Written { position, access }),
            Source::Initial { buf_id } => match NodeId::from_buf_id(buf_id) {
                Some(value) => (value.buf_id() == buf_id).then_some(Self::Value(value)),
                None => u32::try_from(buf_id).ok().map(Self::Buffer),
            },
            Source::Undefined | Source::Unknown { .. } => None,
        }
    }
}

/// The runs that a recorded access saw.
pub(super) enum Reads<'a> {
    One(Run),
    Several(&'a [Run]),
}

impl Reads<'_> {
    pub(super) fn as_slice(&self) -> &[Run] {
        match self {
            Self::One(run) => std::slice::from_ref(run),
            Self::Several(runs) => runs,
        }
    }
}

/// The values a dispatch binds, each once.
fn bound_values(dispatch: &Dispatch) -> SmallVec<[NodeId; 4]> {
    let mut values: SmallVec<[NodeId; 4]> = dispatch.values().collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// Bytes of a value.
pub(super) fn bytes_of(values: &[Value], value: NodeId) -> u64 {
    values.get(value.index()).map_or(0, |v| v.bytes)
}
