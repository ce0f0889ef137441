//! The list on its way to the device: dispatches as kernels, exact ranges and words.

use std::ffi::CString;
use std::sync::Arc;

use ash::vk;
use clearway_graph::Dispatch;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::context::Context;
use super::heap::ALIGN;
use super::memory::VulkanMemory;
use super::prefetch::{self, Range};
use crate::error::Result;
use crate::wgsl::{Kernel, Packing, Scratch, Trust};

type Ranges = SmallVec<[vk::DescriptorBufferInfo; 6]>;

/// The memory of one kernel.
#[derive(Default)]
pub(super) struct Bound {
    pub(super) ranges: Ranges,
    /// Which of them are weights, and which are written.
    pub(super) weights: SmallVec<[usize; 2]>,
    pub(super) written: SmallVec<[usize; 2]>,
}

/// Dispatches as kernels, ranges and words: everything but handles of the device.
#[derive(Default)]
pub(super) struct Lowered {
    pub(super) steps: Vec<Step>,
    /// One past the last step of each group that a barrier closed.
    group_ends: Vec<usize>,
    /// Every distinct text, the name of the first kernel that had it, and whose it is.
    pub(super) sources: Vec<(String, String, Trust)>,
    by_source: FxHashMap<(String, Trust), usize>,
    /// The uniform blocks, one after another.
    pub(super) words: Vec<u32>,
    /// Bytes of scratch the open group uses, and the most any group does.
    scratch: (u64, u64),
    tickets: u64,
}

pub(super) struct Step {
    pub(super) source: usize,
    pub(super) bound: Bound,
    /// The step's uniform block, in words.
    pub(super) block: (usize, usize),
    /// Where its scratch and its tickets start, and their bytes.
    scratch: Option<[(u64, u64); 2]>,
    pub(super) groups: [u32; 3],
    pub(super) role: Role,
    /// Name for debuggers.
    pub(super) label: CString,
}

/// How much there was of a list on its way to the device.
pub(super) struct Mark {
    steps: usize,
    words: usize,
    scratch: (u64, u64),
    tickets: u64,
}

/// What a step is to the list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A dispatch, or the last part of one.
    Last,
    /// A part of a dispatch.
    Part,
    /// Reads ahead.
    Ahead,
}

impl Lowered {
    /// Adds a kernel of a dispatch; `last` says whether it is the last one.
    pub(super) fn push(&mut self, dispatch: &Dispatch, kernel: Kernel, bound: Bound, last: bool) {
        let label = format!("{} {}", dispatch.kernel, dispatch.label).replace('\0', " ");
        let role = if last { Role::Last } else { Role::Part };
        self.push_step(&dispatch.kernel, &label, kernel, bound, role);
    }

    /// Adds a kernel that is a group and a dispatch of its own.
    pub(super) fn push_alone(&mut self, kernel: Kernel, bound: Bound) {
        self.push_step("tuning", "tuning", kernel, bound, Role::Last);
        self.barrier();
    }

    fn push_step(&mut self, name: &str, label: &str, kernel: Kernel, bound: Bound, role: Role) {
        let next = self.sources.len();
        let key = (kernel.source.clone(), kernel.trust);
        let source = *self.by_source.entry(key).or_insert(next);
        if source == next {
            self.sources.push((name.to_owned(), kernel.source, kernel.trust));
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
        let label = CString::new(label).unwrap_or_default();
        self.steps.push(Step { source, bound, block, scratch, groups: kernel.groups, role, label });
    }

    /// What there is so far, to come back to.
    pub(super) fn mark(&self) -> Mark {
        let Self { steps, words, scratch, tickets, .. } = self;
        Mark { steps: steps.len(), words: words.len(), scratch: *scratch, tickets: *tickets }
    }

    /// Forgets the steps since a mark that no barrier follows. Their texts stay, for others.
    pub(super) fn take_back(&mut self, mark: Mark) {
        self.steps.truncate(mark.steps);
        self.words.truncate(mark.words);
        self.scratch = mark.scratch;
        self.tickets = mark.tickets;
    }

    pub(super) fn barrier(&mut self) {
        self.scratch.0 = 0;
        self.group_ends.push(self.steps.len());
    }

    /// Lets groups that leave memory idle read up to `window` bytes of weights ahead.
    pub(super) fn read_ahead(
        &mut self,
        context: &Arc<Context>,
        window: u64,
    ) -> Result<Option<VulkanMemory>> {
        let infos = |steps: &[Step], which: fn(&Bound) -> &[usize]| -> Vec<_> {
            let bound = steps.iter().map(|step| &step.bound);
            bound.flat_map(|b| which(b).iter().map(|&index| b.ranges[index])).collect()
        };
        let groups = self.groups();
        let weights: Vec<Vec<vk::DescriptorBufferInfo>> =
            groups.iter().map(|group| infos(&self.steps[group.clone()], |b| &b.weights)).collect();
        let ranges: Vec<Vec<Range>> =
            weights.iter().map(|group| group.iter().map(Range::of).collect()).collect();
        let written = infos(&self.steps, |b| &b.written);
        let written: Vec<Range> = written.iter().map(Range::of).collect();
        let plan = prefetch::plan(&ranges, &written, window);
        let count: usize = plan.iter().map(Vec::len).sum();
        if count == 0 {
            return Ok(None);
        }
        let sink = VulkanMemory::new(context, count as u64 * ALIGN, Packing::Plain)?;
        let mut steps = std::mem::take(&mut self.steps).into_iter();
        self.group_ends.clear();
        let mut at = sink.piece.offset;
        for (group, pulls) in groups.iter().zip(&plan) {
            self.steps.extend(steps.by_ref().take(group.len()));
            for pull in pulls {
                let weights = weights[pull.group][pull.range];
                let to = vk::DescriptorBufferInfo {
                    buffer: sink.piece.buffer,
                    offset: at,
                    range: ALIGN,
                };
                at += ALIGN;
                let bound =
                    Bound { ranges: [weights, to].into_iter().collect(), ..Bound::default() };
                self.push_step(
                    "read_ahead",
                    "read ahead",
                    prefetch::kernel(pull),
                    bound,
                    Role::Ahead,
                );
            }
            self.group_ends.push(self.steps.len());
        }
        Ok(Some(sink))
    }

    /// Gives scratch and tickets memory and binds them behind the operands.
    pub(super) fn bind_scratch(
        &mut self,
        context: &Arc<Context>,
    ) -> Result<Vec<Arc<VulkanMemory>>> {
        if self.tickets == 0 {
            return Ok(Vec::new());
        }
        let scratch = VulkanMemory::new(context, self.scratch.1, Packing::Plain)?;
        let tickets = VulkanMemory::zeroed(context, self.tickets)?;
        for step in &mut self.steps {
            for (memory, (at, range)) in
                [&scratch, &tickets].into_iter().zip(step.scratch.into_iter().flatten())
            {
                let offset = memory.piece.offset + at;
                let buffer = memory.piece.buffer;
                step.bound.ranges.push(vk::DescriptorBufferInfo { buffer, offset, range });
            }
        }
        Ok(vec![Arc::new(scratch), Arc::new(tickets)])
    }

    /// Ranges of steps between barriers.
    pub(super) fn groups(&self) -> Vec<std::ops::Range<usize>> {
        let mut start = 0;
        let ends = self.group_ends.iter().copied().chain([self.steps.len()]);
        let mut groups: Vec<_> = ends.map(|end| std::mem::replace(&mut start, end)..end).collect();
        groups.retain(|group| !group.is_empty());
        groups
    }
}
