//! The list on its way to the device: dispatches as kernels, exact ranges and words.

use clearway_graph::Dispatch;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::ALIGN;
use crate::wgsl::{Kernel, Scratch, Trust};

/// The memory of one kernel.
pub(crate) struct Bound<R> {
    pub(crate) ranges: SmallVec<[R; 6]>,
    /// Which of them are weights, and which are written.
    pub(crate) weights: SmallVec<[usize; 2]>,
    pub(crate) written: SmallVec<[usize; 2]>,
}

/// Dispatches as kernels, ranges and words: everything but handles of the device.
pub(crate) struct Lowered<R> {
    pub(crate) steps: Vec<Step<R>>,
    /// One past the last step of each group that a barrier closed.
    pub(crate) group_ends: Vec<usize>,
    /// Every distinct text.
    pub(crate) sources: Vec<Text>,
    by_source: FxHashMap<(String, Trust), usize>,
    /// The uniform blocks, one after another.
    pub(crate) words: Vec<u32>,
    /// Bytes of scratch the open group uses, and the most any group does.
    pub(crate) scratch: (u64, u64),
    pub(crate) tickets: u64,
}

impl<R> Default for Bound<R> {
    fn default() -> Self {
        Self { ranges: SmallVec::new(), weights: SmallVec::new(), written: SmallVec::new() }
    }
}

impl<R> Default for Lowered<R> {
    fn default() -> Self {
        Self {
            steps: Vec::new(),
            group_ends: Vec::new(),
            sources: Vec::new(),
            by_source: FxHashMap::default(),
            words: Vec::new(),
            scratch: (0, 0),
            tickets: 0,
        }
    }
}

/// A kernel to be compiled.
pub(crate) struct Text {
    /// Name of the first op that had it.
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) trust: Trust,
}

pub(crate) struct Step<R> {
    pub(crate) source: usize,
    pub(crate) bound: Bound<R>,
    /// The step's uniform block, in words.
    pub(crate) block: (usize, usize),
    /// Where its scratch and its tickets start, and their bytes.
    pub(crate) scratch: Option<[(u64, u64); 2]>,
    pub(crate) groups: [u32; 3],
    /// Its kernel can wait for the group before it and be counted.
    pub(crate) counted: bool,
    /// Ranges that it may read before it waits.
    pub(crate) early: Vec<usize>,
    pub(crate) role: Role,
    /// Name for debuggers.
    pub(crate) label: String,
}

/// How much there was of a list on its way to the device.
pub(crate) struct Mark {
    steps: usize,
    words: usize,
    scratch: (u64, u64),
    tickets: u64,
}

/// What a step is to the list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A dispatch, or the last part of one.
    Last,
    /// A part of a dispatch.
    Part,
    /// Reads ahead.
    Ahead,
}

impl<R> Lowered<R> {
    /// Adds a kernel of a dispatch; `last` says whether it is the last one.
    pub(crate) fn push(
        &mut self,
        dispatch: &Dispatch,
        kernel: Kernel,
        bound: Bound<R>,
        last: bool,
    ) {
        let label = format!("{} {}", dispatch.kernel, dispatch.label);
        let role = if last { Role::Last } else { Role::Part };
        self.push_step(&dispatch.kernel, &label, kernel, bound, role);
    }

    /// Adds a kernel that is a group and a dispatch of its own.
    pub(crate) fn push_alone(&mut self, kernel: Kernel, bound: Bound<R>) {
        self.push_step("tuning", "tuning", kernel, bound, Role::Last);
        self.barrier();
    }

    pub(crate) fn push_step(
        &mut self,
        name: &str,
        label: &str,
        kernel: Kernel,
        bound: Bound<R>,
        role: Role,
    ) {
        let next = self.sources.len();
        let key = (kernel.source.clone(), kernel.trust);
        let source = *self.by_source.entry(key).or_insert(next);
        if source == next {
            let Kernel { source, trust, .. } = kernel;
            self.sources.push(Text { name: name.to_owned(), source, trust });
        }
        let block = (self.words.len(), kernel.words.len());
        self.words.extend(kernel.words);
        self.words.resize(self.words.len().next_multiple_of(ALIGN as usize / 4), 0);
        // Groups are kept apart by barriers, so they may share scratch; tickets stay zero between runs
        // and belong to one step each.
        let scratch = kernel.scratch.map(|Scratch { bytes, tickets }| {
            let (bytes, tickets) = (bytes.next_multiple_of(ALIGN), u64::from(tickets) * 4);
            let at = (self.scratch.0, self.tickets);
            self.scratch.0 += bytes;
            self.scratch.1 = self.scratch.1.max(self.scratch.0);
            self.tickets += tickets.next_multiple_of(ALIGN);
            [(at.0, bytes), (at.1, tickets)]
        });
        let label = label.to_owned();
        let (groups, counted) = (kernel.groups, kernel.counted.is_some());
        let early = kernel.counted.unwrap_or_default();
        let step = Step { source, bound, block, scratch, groups, counted, early, role, label };
        self.steps.push(step);
    }

    /// What there is so far, to come back to.
    pub(crate) fn mark(&self) -> Mark {
        let Self { steps, words, scratch, tickets, .. } = self;
        Mark { steps: steps.len(), words: words.len(), scratch: *scratch, tickets: *tickets }
    }

    /// Forgets the steps since a mark that no barrier follows. Their texts stay, for others.
    pub(crate) fn take_back(&mut self, mark: Mark) {
        self.steps.truncate(mark.steps);
        self.words.truncate(mark.words);
        self.scratch = mark.scratch;
        self.tickets = mark.tickets;
    }

    pub(crate) fn barrier(&mut self) {
        self.scratch.0 = 0;
        self.group_ends.push(self.steps.len());
    }

    /// Ranges of steps between barriers.
    pub(crate) fn groups(&self) -> Vec<std::ops::Range<usize>> {
        let mut start = 0;
        let ends = self.group_ends.iter().copied().chain([self.steps.len()]);
        let mut groups: Vec<_> = ends.map(|end| std::mem::replace(&mut start, end)..end).collect();
        groups.retain(|group| !group.is_empty());
        groups
    }
}
