//! The hazard graph of a list: who must come before whom, by bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::ids::NodeId;
use crate::node::{Dispatch, Hazard, HazardKind};
use crate::range::{BufferRange, MemRangeRole};

/// Edges from each dispatch to those that must come after it. Only edges that a chain of others
/// does not already imply are kept where that costs nothing to see; every conflicting pair is
/// connected by a path.
#[derive(Debug)]
pub struct HazardGraph {
    preds: Adjacency,
    succs: Adjacency,
}

impl HazardGraph {
    /// The hazard graph of annotated dispatches in execution order.
    pub fn build<D: AsRef<Dispatch>>(dispatches: &[D]) -> Self {
        let mut memory = Memory::of(dispatches);
        let mut preds = Adjacency::with_capacity(dispatches.len());
        let mut found = Vec::new();
        for (index, dispatch) in dispatches.iter().map(AsRef::as_ref).enumerate() {
            found.clear();
            // Reads before writes, so that a dispatch never sees itself.
            for range in dispatch.reads() {
                memory.read(index as u32, range, &mut found);
            }
            for range in dispatch.writes() {
                memory.write(index as u32, range, &mut found);
            }
            found.sort_unstable();
            found.dedup();
            preds.push(found.iter().copied().filter(|&pred| pred != index as u32));
        }
        let succs = preds.reversed();
        Self { preds, succs }
    }

    /// Dispatches that must come before `index`.
    pub fn preds(&self, index: usize) -> &[u32] {
        self.preds.of(index)
    }

    /// Dispatches that must come after `index`.
    pub fn succs(&self, index: usize) -> &[u32] {
        self.succs.of(index)
    }

    /// The most dispatches that one edge leads on.
    pub(crate) fn longest_edge(&self) -> u32 {
        let length = |index: usize| Some(index as u32 - self.preds(index).first()?);
        (0..self.preds.len()).filter_map(length).max().unwrap_or(0)
    }

    /// Length of the longest path that ends at each dispatch, counted from 0.
    pub fn asap_levels(&self) -> Vec<u32> {
        let mut levels = vec![0; self.preds.len()];
        for index in 0..levels.len() {
            let deepest = self.preds(index).iter().map(|&p| levels[p as usize] + 1).max();
            levels[index] = deepest.unwrap_or(0);
        }
        levels
    }

    /// Dispatches on the longest path.
    pub(super) fn depth(&self) -> u32 {
        self.asap_levels().into_iter().max().map_or(0, |deepest| deepest + 1)
    }
}

/// The first hazard between two dispatches in execution order.
pub(super) fn between(earlier: &Dispatch, later: &Dispatch) -> Option<Hazard> {
    earlier.ranges().find_map(|a| {
        later.ranges().find_map(|b| {
            let kind = HazardKind::of(a.role, b.role)?;
            let (p0, p1) = a.overlap(b)?;
            let (earlier, later) = (earlier.id, later.id);
            Some(Hazard { kind, earlier, later, buf_id: a.buf_id, p0, p1 })
        })
    })
}

/// Dispatches on the longest chain of a whole list. An unannotated dispatch follows everything
/// before it and precedes everything after it.
pub(super) fn longest_chain(dispatches: &[Arc<Dispatch>]) -> u32 {
    let mut chain = 0;
    for section in dispatches.split_inclusive(|d| !d.is_annotated()) {
        let annotated = match section.last() {
            Some(last) if !last.is_annotated() => &section[..section.len() - 1],
            _ => section,
        };
        chain += HazardGraph::build(annotated).depth();
        chain += u32::from(annotated.len() < section.len());
    }
    chain
}

/// Compressed adjacency lists.
#[derive(Debug)]
struct Adjacency {
    starts: Vec<u32>,
    targets: Vec<u32>,
}

impl Adjacency {
    fn with_capacity(nodes: usize) -> Self {
        let mut starts = Vec::with_capacity(nodes + 1);
        starts.push(0);
        Self { starts, targets: Vec::with_capacity(nodes * 3) }
    }

    fn push(&mut self, targets: impl Iterator<Item = u32>) {
        self.targets.extend(targets);
        self.starts.push(self.targets.len() as u32);
    }

    fn len(&self) -> usize {
        self.starts.len() - 1
    }

    fn of(&self, index: usize) -> &[u32] {
        &self.targets[self.starts[index] as usize..self.starts[index + 1] as usize]
    }

    fn reversed(&self) -> Self {
        let mut starts = vec![0u32; self.len() + 1];
        for &target in &self.targets {
            starts[target as usize + 1] += 1;
        }
        for i in 0..self.len() {
            starts[i + 1] += starts[i];
        }
        let mut next = starts.clone();
        let mut targets = vec![0; self.targets.len()];
        for index in 0..self.len() {
            for &target in self.of(index) {
                targets[next[target as usize] as usize] = index as u32;
                next[target as usize] += 1;
            }
        }
        Self { starts, targets }
    }
}

/// Who last touched which byte.
#[derive(Default)]
struct Memory {
    /// By number of the value, from the lowest on: neighbours in the list are neighbours here.
    values: Vec<History>,
    lowest: usize,
    /// Real buffers that somebody writes, and values far from the others. What nobody writes, such
    /// as weights, orders nobody.
    buffers: FxHashMap<usize, History>,
}

/// What happened to the bytes of one buffer.
#[derive(Default)]
struct History {
    /// The one segment as long as every access has the same range, as nearly all of a value have.
    whole: Option<(u64, Segment)>,
    /// Disjoint segments by their start, otherwise.
    #[expect(clippy::box_collection, reason = "few have parts, and the table should be small")]
    parts: Option<Box<BTreeMap<u64, Segment>>>,
}

/// A run of bytes with one history.
#[derive(Clone)]
struct Segment {
    end: u64,
    writer: Option<u32>,
    /// Readers since the last write.
    readers: SmallVec<[u32; 4]>,
}

impl Memory {
    fn of<D: AsRef<Dispatch>>(dispatches: &[D]) -> Self {
        let mut memory = Self { lowest: usize::MAX, ..Self::default() };
        let mut accesses = 0;
        let mut end = 0;
        for range in dispatches.iter().flat_map(|dispatch| dispatch.as_ref().ranges()) {
            accesses += 1;
            if let Some(value) = NodeId::from_buf_id(range.buf_id) {
                memory.lowest = memory.lowest.min(value.index());
                end = end.max(value.index() + 1);
            } else if range.is_write() {
                memory.buffers.insert(range.buf_id, History::default());
            }
        }
        // Numbers may have gaps, but must not make us allocate them.
        let span = end.saturating_sub(memory.lowest).min(2 * accesses);
        memory.values.resize_with(span, History::default);
        memory
    }

    fn history(&mut self, buf_id: usize) -> Option<&mut History> {
        let Some(value) = NodeId::from_buf_id(buf_id) else {
            return self.buffers.get_mut(&buf_id);
        };
        let index = value.index().wrapping_sub(self.lowest);
        match self.values.get_mut(index) {
            None => Some(self.buffers.entry(buf_id).or_default()),
            near => near,
        }
    }

    fn read(&mut self, reader: u32, range: &BufferRange, found: &mut Vec<u32>) {
        debug_assert_eq!(range.role, MemRangeRole::Src);
        let Some(history) = self.history(range.buf_id).filter(|_| !range.is_empty()) else {
            return;
        };
        if let Some(segment) = history.exactly(range) {
            segment.add_reader(reader, found);
            return;
        }
        let segments = history.parts();
        split_at(segments, range.p0);
        split_at(segments, range.p1);
        fill_gaps(segments, range.p0, range.p1);
        for segment in segments.range_mut(range.p0..range.p1).map(|(_, s)| s) {
            segment.add_reader(reader, found);
        }
    }

    fn write(&mut self, writer: u32, range: &BufferRange, found: &mut Vec<u32>) {
        let Some(history) = self.history(range.buf_id).filter(|_| !range.is_empty()) else {
            return;
        };
        let written = Segment { writer: Some(writer), ..Segment::untouched(range.p1) };
        if let Some(segment) = history.exactly(range) {
            segment.find_before(writer, found);
            *segment = written;
            return;
        }
        let segments = history.parts();
        split_at(segments, range.p0);
        split_at(segments, range.p1);
        while let Some((&start, segment)) = segments.range(range.p0..range.p1).next() {
            segment.find_before(writer, found);
            segments.remove(&start);
        }
        segments.insert(range.p0, written);
    }
}

impl History {
    /// The segment of this range, if no other range was touched so far.
    fn exactly(&mut self, range: &BufferRange) -> Option<&mut Segment> {
        if self.parts.is_some() {
            return None;
        }
        let untouched = || (range.p0, Segment::untouched(range.p1));
        let (start, segment) = self.whole.get_or_insert_with(untouched);
        ((*start, segment.end) == (range.p0, range.p1)).then_some(segment)
    }

    /// All segments, from now on kept apart.
    fn parts(&mut self) -> &mut BTreeMap<u64, Segment> {
        let whole = self.whole.take();
        self.parts.get_or_insert_with(|| Box::new(whole.into_iter().collect()))
    }
}

impl Segment {
    fn untouched(end: u64) -> Self {
        Self { end, writer: None, readers: SmallVec::new() }
    }

    fn add_reader(&mut self, reader: u32, found: &mut Vec<u32>) {
        found.extend(self.writer);
        if self.readers.last() != Some(&reader) {
            self.readers.push(reader);
        }
    }

    /// Whom a new writer of these bytes must follow.
    fn find_before(&self, writer: u32, found: &mut Vec<u32>) {
        // Readers already follow the last writer.
        if self.readers.iter().all(|&reader| reader == writer) {
            found.extend(self.writer);
        }
        found.extend(self.readers.iter().copied());
    }
}

/// Makes `at` a boundary between segments.
fn split_at(segments: &mut BTreeMap<u64, Segment>, at: u64) {
    if let Some((_, segment)) = segments.range_mut(..at).next_back()
        && segment.end > at
    {
        let tail = segment.clone();
        segment.end = at;
        segments.insert(at, tail);
    }
}

/// Gives the untouched bytes of `p0..p1` segments of their own.
fn fill_gaps(segments: &mut BTreeMap<u64, Segment>, p0: u64, p1: u64) {
    let mut gaps: SmallVec<[(u64, u64); 4]> = SmallVec::new();
    let mut at = p0;
    for (&start, segment) in segments.range(p0..p1) {
        if at < start {
            gaps.push((at, start));
        }
        at = segment.end;
    }
    if at < p1 {
        gaps.push((at, p1));
    }
    for (start, end) in gaps {
        segments.insert(start, Segment::untouched(end));
    }
}
