//! Slow and plain versions of what the fast code does: every pair, every byte.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::verify::Placement;
use crate::{
    Access, BufferRange, CapturedNode, ComputeGraph, Dispatch, DispatchId, Hazard, HazardKind,
    InPlace, MemRangeRole, NodeId, TensorView,
};

/// The tracker as a list of all ranges.
#[derive(Clone, Debug, Default)]
pub struct TrackerOracle {
    held: Vec<(DispatchId, BufferRange)>,
}

impl TrackerOracle {
    /// Adds the ranges of a dispatch.
    pub fn add(&mut self, id: DispatchId, ranges: &[BufferRange]) {
        self.held.extend(ranges.iter().map(|range| (id, *range)));
    }

    /// Every hazard between the ranges held and these.
    pub fn hazards(&self, id: DispatchId, ranges: &[BufferRange]) -> Vec<Hazard> {
        let mut hazards = Vec::new();
        for (earlier, a) in &self.held {
            for b in ranges {
                let (p0, p1) = (a.p0.max(b.p0), a.p1.min(b.p1));
                if a.buf_id == b.buf_id
                    && p0 < p1
                    && let Some(kind) = HazardKind::of(a.role, b.role)
                {
                    let (earlier, buf_id) = (*earlier, a.buf_id);
                    hazards.push(Hazard { kind, earlier, later: id, buf_id, p0, p1 });
                }
            }
        }
        hazards
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.held.clear();
    }
}

/// Whether the order of two dispatches matters by their memory.
pub fn conflicts(a: &Dispatch, b: &Dispatch) -> bool {
    let overlap = |x: &BufferRange, y: &BufferRange| {
        let written = x.role == MemRangeRole::Dst || y.role == MemRangeRole::Dst;
        written && x.buf_id == y.buf_id && x.p0.max(y.p0) < x.p1.min(y.p1)
    };
    !a.is_annotated() || !b.is_annotated() || a.ranges().any(|x| b.ranges().any(|y| overlap(x, y)))
}

/// Pairs of dispatches whose order matters, earlier first: conflicts, and anything with a dispatch
/// that nothing may cross.
pub fn conflicting_pairs(graph: &ComputeGraph) -> Vec<(DispatchId, DispatchId)> {
    let list: Vec<&Dispatch> = graph.dispatches().map(|d| &**d).collect();
    let mut pairs = Vec::new();
    for (at, b) in list.iter().enumerate() {
        let fixed = |d: &Dispatch| !d.is_movable();
        let earlier = list[..at].iter().filter(|a| fixed(a) || fixed(b) || conflicts(a, b));
        pairs.extend(earlier.map(|a| (a.id, b.id)));
    }
    pairs
}

/// Positions before which a barrier must stand if one is placed only where the next dispatch
/// conflicts with the open group, and whether one must stand at the end. `ordered_at` is a position
/// before which something else orders everything.
pub fn walk_barriers(graph: &ComputeGraph, ordered_at: Option<usize>) -> (Vec<usize>, bool) {
    let list: Vec<&Dispatch> = graph.dispatches().map(|d| &**d).collect();
    let mut barriers = Vec::new();
    let (mut start, mut first_end) = (0, None);
    for at in 0..list.len() {
        if ordered_at == Some(at) {
            start = at;
            first_end.get_or_insert(at);
        } else if list[start..at].iter().any(|open| conflicts(open, list[at])) {
            barriers.push(at);
            start = at;
            first_end.get_or_insert(at);
        }
    }
    if ordered_at.is_some_and(|at| at >= list.len()) {
        start = list.len();
    }
    let head = &list[..first_end.unwrap_or(list.len())];
    let at_end = graph.is_replayed()
        && list[start..].iter().any(|tail| head.iter().any(|first| conflicts(tail, first)));
    (barriers, at_end)
}

/// Whether the dispatches of `last` stand for each recorded dispatch exactly once, or several times
/// if it leaves nothing in memory.
pub fn members_once(recorded: &ComputeGraph, last: &ComputeGraph) -> bool {
    let all: BTreeSet<DispatchId> = recorded.dispatches().map(|d| d.id).collect();
    let written: BTreeSet<DispatchId> = last
        .dispatches()
        .flat_map(|d| d.accesses())
        .filter(|access| access.range.role == MemRangeRole::Dst)
        .map(|access| access.origin.dispatch)
        .collect();
    let mut carriers: BTreeMap<DispatchId, Vec<&Dispatch>> = BTreeMap::new();
    for dispatch in last.dispatches() {
        for origin in &dispatch.origins {
            carriers.entry(*origin).or_default().push(dispatch);
        }
    }
    let once = |id: &DispatchId, by: &[&Dispatch]| {
        by.len() == 1 || (!written.contains(id) && by.iter().all(|d| d.origins.len() > 1))
    };
    carriers.keys().eq(&all) && carriers.iter().all(|(id, by)| once(id, by))
}

/// The first of these pairs that does not run in this order in `last`. Members of one dispatch keep
/// their order inside it.
pub fn out_of_order(
    pairs: &[(DispatchId, DispatchId)],
    last: &ComputeGraph,
) -> Option<(DispatchId, DispatchId)> {
    let mut places: BTreeMap<DispatchId, BTreeSet<usize>> = BTreeMap::new();
    for (place, dispatch) in last.dispatches().enumerate() {
        for origin in &dispatch.origins {
            places.entry(*origin).or_default().insert(place);
        }
    }
    let in_order = |(earlier, later): &(DispatchId, DispatchId)| {
        let (earlier, later) = (&places[earlier], &places[later]);
        later.difference(earlier).all(|b| earlier.iter().all(|a| a < b))
    };
    pairs.iter().find(|pair| !in_order(pair)).copied()
}

/// Producer and consumer pairs: the second reads a byte that the first wrote last.
pub fn flows(graph: &ComputeGraph) -> BTreeSet<(DispatchId, DispatchId)> {
    let mut writers: FxHashMap<(usize, u64), DispatchId> = FxHashMap::default();
    let mut pairs = BTreeSet::new();
    for dispatch in graph.dispatches() {
        for range in dispatch.reads() {
            let bytes = (range.p0..range.p1).filter_map(|byte| writers.get(&(range.buf_id, byte)));
            pairs.extend(bytes.map(|&writer| (writer, dispatch.id)));
        }
        for range in dispatch.writes() {
            writers.extend((range.p0..range.p1).map(|byte| ((range.buf_id, byte), dispatch.id)));
        }
    }
    pairs
}

/// What a recorded list does, byte by byte, to hold other lists against.
#[derive(Debug)]
pub struct Oracle<'a> {
    recorded: &'a ComputeGraph,
    once: Trace,
    replayed: Trace,
    bytes: Touched,
}

/// Which bytes of a range an access touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Touched {
    /// All of them, as the stages and the verifier take it.
    Declared,
    /// Those of elements, as a kernel does.
    Elements,
}

impl<'a> Oracle<'a> {
    /// Runs the recorded list, once and several times in a row.
    pub fn new(recorded: &'a ComputeGraph) -> Self {
        Self::of(recorded, Touched::Declared)
    }

    /// As [`new`](Self::new), but every access touches the elements of its tensor only: what lies
    /// between them stays as it is. It accepts more lists, and all that compute the right thing.
    pub fn of_elements(recorded: &'a ComputeGraph) -> Self {
        Self::of(recorded, Touched::Elements)
    }

    fn of(recorded: &'a ComputeGraph, bytes: Touched) -> Self {
        let trace = |runs| Trace::of(recorded, recorded, None, runs, bytes);
        Self { recorded, once: trace(1), replayed: trace(REPLAYS), bytes }
    }

    /// Whether `last`, whose dispatches are otherwise as recorded, runs right: every pair of every
    /// group, every byte of every run.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn accepts(
        &self,
        last: &ComputeGraph,
        placement: Option<Placement<'_>>,
    ) -> Result<(), String> {
        groups_are_sound(last)?;
        fixed_are_not_crossed(self.recorded, last)?;
        operands_are_sound(self.recorded, last)?;
        let (runs, expected) =
            if last.is_replayed() { (REPLAYS, &self.replayed) } else { (1, &self.once) };
        Trace::of(self.recorded, last, placement, runs, self.bytes).agrees_with(expected)
    }
}

/// Runs in a row that stand for any number of them.
const REPLAYS: u32 = 2;

fn groups_are_sound(last: &ComputeGraph) -> Result<(), String> {
    let once = last.nodes().iter();
    let copies = if last.is_replayed() { 2 } else { 1 };
    let nodes: Vec<&CapturedNode> = (0..copies).flat_map(|_| once.clone()).collect();
    for group in nodes.split(|node| matches!(node, CapturedNode::Barrier(_))) {
        let group: Vec<_> = group.iter().filter_map(|node| node.dispatch()).collect();
        for (at, b) in group.iter().enumerate() {
            if let Some(a) = group[..at].iter().find(|a| conflicts(a, b)) {
                return Err(format!("{} and {} are not ordered", a.id, b.id));
            }
        }
    }
    Ok(())
}

fn fixed_are_not_crossed(recorded: &ComputeGraph, last: &ComputeGraph) -> Result<(), String> {
    let sides = |graph: &ComputeGraph| -> BTreeMap<DispatchId, BTreeSet<Vec<DispatchId>>> {
        let mut walls = Vec::new();
        let mut sides = BTreeMap::new();
        for dispatch in graph.dispatches() {
            for origin in &dispatch.origins {
                let sides: &mut BTreeSet<_> = sides.entry(*origin).or_default();
                sides.insert(walls.clone());
            }
            if !dispatch.is_movable() {
                walls.push(dispatch.id);
            }
        }
        sides
    };
    if sides(recorded) == sides(last) { Ok(()) } else { Err("a fixed dispatch is crossed".into()) }
}

/// Within a dispatch, operands overlap only as they did.
fn operands_are_sound(recorded: &ComputeGraph, last: &ComputeGraph) -> Result<(), String> {
    let was: FxHashMap<DispatchId, &Dispatch> =
        recorded.dispatches().map(|d| (d.id, &**d)).collect();
    let bytes = |a: &Access, b: &Access| -> Vec<(u64, u64)> {
        let same = a.range.buf_id == b.range.buf_id;
        let written = a.range.role == MemRangeRole::Dst || b.range.role == MemRangeRole::Dst;
        (a.range.p0..a.range.p1)
            .filter(|byte| same && written && (b.range.p0..b.range.p1).contains(byte))
            .map(|byte| (byte - a.range.p0, byte - b.range.p0))
            .collect()
    };
    for dispatch in last.dispatches() {
        for a in dispatch.accesses() {
            for b in dispatch.accesses() {
                let shared = bytes(a, b);
                if a.origin == b.origin || shared.is_empty() {
                    continue;
                }
                let recorded =
                    |x: &Access| was[&x.origin.dispatch].accesses()[usize::from(x.origin.access)];
                let same_member = a.origin.dispatch == b.origin.dispatch;
                let as_recorded = same_member && bytes(&recorded(a), &recorded(b)) == shared;
                if !as_recorded && !in_place(dispatch, a, b) {
                    return Err(format!("operands of {} share bytes", dispatch.id));
                }
            }
        }
    }
    Ok(())
}

/// Whether the kernel reads each element of the one operand only to write it in the other.
fn in_place(dispatch: &Dispatch, a: &Access, b: &Access) -> bool {
    let view = |access: &Access| dispatch.bindings[usize::from(access.binding)];
    let (read, write) = if a.range.role == MemRangeRole::Src { (a, b) } else { (b, a) };
    let may = |pair: &InPlace| (pair.output, pair.input) == (write.binding, read.binding);
    a.range.role != b.range.role
        && dispatch.in_place.iter().any(may)
        && view(a).offset == view(b).offset
        && view(a).layout.dtype() == view(b).layout.dtype()
        && view(a).layout.elems() == view(b).layout.elems()
        && (a.range.p0, a.range.p1) == (b.range.p0, b.range.p1)
}

/// What a byte holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    /// What recorded buffer held at byte, before the first run.
    Initial(usize, u64),
    /// Written in run, by dispatch through access, as byte of it.
    Written(u32, DispatchId, u16, u64),
    /// Left in run by an unknown dispatch, in buffer at byte.
    Left(u32, DispatchId, usize, u64),
    /// Not defined by the list.
    Nothing,
}

impl Touched {
    /// The bytes of an access, as runs.
    fn runs(self, dispatch: &Dispatch, access: &Access) -> Vec<(u64, u64)> {
        let BufferRange { p0, p1, .. } = access.range;
        match (self, dispatch.bindings.get(usize::from(access.binding))) {
            (Self::Elements, Some(view)) => elements(view, p0, p1),
            _ => vec![(p0, p1)],
        }
    }
}

/// The bytes of `p0..p1` that belong to elements of a view, element by element.
pub(crate) fn elements(view: &TensorView, p0: u64, p1: u64) -> Vec<(u64, u64)> {
    let (layout, block) = (&view.layout, view.layout.dtype().block_elems() as u64);
    let (shape, strides) = (layout.shape4().map(u64::from), layout.strides4().map(u64::from));
    let bytes = layout.dtype().block_bytes() as u64;
    let mut runs = Vec::new();
    for index in 0..layout.elems() as u64 {
        let (mut rest, mut at) = (index, 0);
        for dim in (0..4).rev() {
            at += rest % shape[dim] * strides[dim];
            rest /= shape[dim];
        }
        if at % block == 0 {
            let start = view.offset + at / block * bytes;
            runs.push((start.max(p0), (start + bytes).min(p1)));
        }
    }
    runs.retain(|(start, end)| start < end);
    runs
}

/// The first dispatch that reads an element nobody has written, byte by byte; `None` in it stands for
/// the host, which reads all of an output.
pub fn undefined_read(graph: &ComputeGraph) -> Option<Option<DispatchId>> {
    let mut held: BTreeSet<(usize, u64)> = BTreeSet::new();
    let fill = |held: &mut BTreeSet<_>, value: NodeId| {
        let bytes = graph.values()[value.index()].bytes;
        held.extend((0..bytes).map(|byte| (value.buf_id(), byte)));
    };
    let values = || (0..graph.values().len() as u32).map(NodeId);
    for value in values().filter(|v| graph.values()[v.index()].lasts()) {
        fill(&mut held, value);
    }
    for dispatch in graph.dispatches() {
        let bytes = |write: bool| {
            let accesses = dispatch.accesses().iter().filter(move |a| a.range.is_write() == write);
            accesses.filter(|a| !a.keeps && NodeId::from_buf_id(a.range.buf_id).is_some()).flat_map(
                |a| {
                    let runs = Touched::Elements.runs(dispatch, a);
                    runs.into_iter().flat_map(|(p0, p1)| p0..p1).map(|b| (a.range.buf_id, b))
                },
            )
        };
        if bytes(false).any(|byte| !held.contains(&byte)) {
            return Some(Some(dispatch.id));
        }
        held.extend(bytes(true));
        for value in dispatch.values().filter(|_| !dispatch.is_annotated()) {
            fill(&mut held, value);
        }
    }
    let whole = |value: NodeId| {
        let bytes = graph.values()[value.index()].bytes;
        (0..bytes).all(|byte| held.contains(&(value.buf_id(), byte)))
    };
    let mut outputs = values().filter(|v| graph.values()[v.index()].output);
    outputs.any(|value| !whole(value)).then_some(None)
}

/// Everything that can be seen of some runs in a row.
#[derive(Debug, Default)]
struct Trace {
    /// Once, or once per copy of a dispatch that was repeated.
    seen: BTreeMap<(u32, What), Vec<Vec<Token>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Read(DispatchId, u16),
    /// A buffer or value before an unknown dispatch, or at the end.
    Held(Option<DispatchId>, usize),
}

impl Trace {
    fn of(
        recorded: &ComputeGraph,
        list: &ComputeGraph,
        placement: Option<Placement<'_>>,
        runs: u32,
        bytes: Touched,
    ) -> Self {
        let logical = std::ptr::eq(recorded, list);
        let mut memory = Bytes { held: FxHashMap::default(), placement };
        let mut real: BTreeMap<usize, u64> = BTreeMap::new();
        for view in recorded.dispatches().flat_map(|d| &d.bindings).filter(|v| v.value().is_none())
        {
            let len = real.entry(view.buf_id).or_default();
            *len = view.buf_len.max(*len);
        }
        let whole_value = |value: NodeId| (value.buf_id(), recorded.values()[value.index()].bytes);
        let inputs: Vec<(usize, u64)> = (0..recorded.values().len() as u32)
            .map(NodeId)
            .filter(|v| recorded.values()[v.index()].lasts())
            .map(whole_value)
            .collect();
        for (buf_id, len) in real.iter().map(|(b, l)| (*b, *l)).chain(inputs.iter().copied()) {
            memory.write(buf_id, 0, (0..len).map(|byte| Token::Initial(buf_id, byte)));
        }
        let mut trace = Self::default();
        for run in 0..runs {
            if logical {
                let kept = |buf_id: usize| {
                    NodeId::from_buf_id(buf_id).is_none() || inputs.iter().any(|i| i.0 == buf_id)
                };
                memory.held.retain(|(buf_id, _), _| kept(*buf_id));
            }
            for dispatch in list.dispatches() {
                let mut bound: BTreeMap<usize, u64> = real.clone();
                if dispatch.is_annotated() {
                    bound.clear();
                } else {
                    let was = recorded.dispatches().find(|d| d.id == dispatch.id);
                    let values = was.into_iter().flat_map(|d| d.bindings.iter());
                    bound.extend(values.filter_map(TensorView::value).map(whole_value));
                }
                for (buf_id, len) in &bound {
                    let what = What::Held(Some(dispatch.id), *buf_id);
                    trace.note((run, what), memory.read(*buf_id, 0, *len));
                }
                for (buf_id, len) in bound {
                    let left = |byte| Token::Left(run, dispatch.id, buf_id, byte);
                    memory.write(buf_id, 0, (0..len).map(left));
                }
                let (reads, writes): (Vec<&Access>, Vec<&Access>) =
                    dispatch.accesses().iter().partition(|a| a.range.role == MemRangeRole::Src);
                for access in reads {
                    let what = What::Read(access.origin.dispatch, access.origin.access);
                    let buf_id = access.range.buf_id;
                    if bytes == Touched::Declared || !access.keeps {
                        let runs = bytes.runs(dispatch, access);
                        let tokens =
                            runs.into_iter().flat_map(|(p0, p1)| memory.physical(buf_id, p0, p1));
                        trace.note((run, what), tokens.collect());
                    }
                }
                for access in writes {
                    let BufferRange { buf_id, p0: first, .. } = access.range;
                    let (id, number) = (access.origin.dispatch, access.origin.access);
                    let written = |byte| Token::Written(run, id, number, byte - first);
                    for (p0, p1) in bytes.runs(dispatch, access) {
                        memory.held.extend((p0..p1).map(|byte| ((buf_id, byte), written(byte))));
                    }
                }
            }
            let outputs = (0..recorded.values().len() as u32)
                .map(NodeId)
                .filter(|v| recorded.values()[v.index()].output)
                .map(whole_value);
            let kept = inputs.iter().copied().filter(|_| runs > 1);
            for (buf_id, len) in real.iter().map(|(b, l)| (*b, *l)).chain(outputs).chain(kept) {
                let what = What::Held(None, buf_id);
                trace.note((run, what), memory.read(buf_id, 0, len));
            }
        }
        trace
    }

    fn note(&mut self, what: (u32, What), tokens: Vec<Token>) {
        self.seen.entry(what).or_default().push(tokens);
    }

    /// Everything this trace shows is as expected, where something was expected.
    fn agrees_with(&self, expected: &Self) -> Result<(), String> {
        let all = self.seen.iter().flat_map(|(key, all)| all.iter().map(move |one| (key, one)));
        for (key, found) in all {
            let Some(expected) = expected.seen.get(key).and_then(|all| all.first()) else {
                return Err(format!("{key:?} was not seen"));
            };
            let mut pairs = expected.iter().zip(found).enumerate();
            if expected.len() != found.len() {
                return Err(format!("{key:?} has another length"));
            }
            if let Some((byte, (e, f))) = pairs.find(|(_, (e, f))| **e != Token::Nothing && e != f)
            {
                return Err(format!("{key:?} byte {byte}: {f:?} instead of {e:?}"));
            }
        }
        Ok(())
    }
}

/// Memory byte by byte, at the addresses of a placement.
struct Bytes<'a> {
    held: FxHashMap<(usize, u64), Token>,
    placement: Option<Placement<'a>>,
}

impl Bytes<'_> {
    fn place(&self, buf_id: usize) -> Option<(usize, u64)> {
        let (Some(placement), Some(value)) = (self.placement, NodeId::from_buf_id(buf_id)) else {
            return Some((buf_id, 0));
        };
        let slot = placement.plan.slot(value)?;
        Some((placement.slab_buf_ids[slot.slab], slot.offset))
    }

    fn write(&mut self, buf_id: usize, start: u64, tokens: impl Iterator<Item = Token>) {
        if let Some((buf_id, base)) = self.place(buf_id) {
            self.held.extend((base + start..).map(|byte| (buf_id, byte)).zip(tokens));
        }
    }

    fn read(&self, buf_id: usize, p0: u64, p1: u64) -> Vec<Token> {
        match self.place(buf_id) {
            Some((buf_id, base)) => self.physical(buf_id, base + p0, base + p1),
            None => vec![Token::Nothing; (p1 - p0) as usize],
        }
    }

    fn physical(&self, buf_id: usize, p0: u64, p1: u64) -> Vec<Token> {
        let token = |byte| self.held.get(&(buf_id, byte)).copied().unwrap_or(Token::Nothing);
        (p0..p1).map(token).collect()
    }
}
