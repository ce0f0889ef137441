//! Memory beside the operands: scratch and tickets of kernels, and what weights that are read ahead are read into.

use std::sync::Arc;

use ash::vk::{self, Handle};

use super::context::Context;
use super::memory::VulkanMemory;
use crate::error::Result;
use crate::lowering::ALIGN;
use crate::lowering::lowered::{Bound, Lowered, Role, Step};
use crate::lowering::prefetch::{self, Range};
use crate::wgsl::Packing;

type Info = vk::DescriptorBufferInfo;

impl Lowered<Info> {
    /// Lets groups that leave memory idle read up to `window` bytes of weights ahead.
    pub(in crate::vulkan) fn read_ahead(
        &mut self,
        context: &Arc<Context>,
        window: u64,
    ) -> Result<Option<VulkanMemory>> {
        let infos = |steps: &[Step<Info>], which: fn(&Bound<Info>) -> &[usize]| -> Vec<_> {
            let bound = steps.iter().map(|step| &step.bound);
            bound.flat_map(|b| which(b).iter().map(|&index| b.ranges[index])).collect()
        };
        let groups = self.groups();
        let weights: Vec<Vec<Info>> =
            groups.iter().map(|group| infos(&self.steps[group.clone()], |b| &b.weights)).collect();
        let ranges: Vec<Vec<Range>> =
            weights.iter().map(|group| group.iter().map(range_of).collect()).collect();
        let written = infos(&self.steps, |b| &b.written);
        let written: Vec<Range> = written.iter().map(range_of).collect();
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
                let to = Info { buffer: sink.piece.buffer, offset: at, range: ALIGN };
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
    pub(in crate::vulkan) fn bind_scratch(
        &mut self,
        context: &Arc<Context>,
    ) -> Result<Option<Scratch>> {
        if self.tickets == 0 {
            return Ok(None);
        }
        let scratch = VulkanMemory::new(context, self.scratch.1, Packing::Plain)?;
        let tickets = VulkanMemory::zeroed(context, self.tickets)?;
        for step in &mut self.steps {
            for (memory, (at, range)) in
                [&scratch, &tickets].into_iter().zip(step.scratch.into_iter().flatten())
            {
                let offset = memory.piece.offset + at;
                let buffer = memory.piece.buffer;
                step.bound.ranges.push(Info { buffer, offset, range });
            }
        }
        Ok(Some(Scratch { scratch: Arc::new(scratch), tickets: Arc::new(tickets) }))
    }
}

/// Memory in which workgroups of a dispatch leave something for one another. Dispatches of a list have it one after another.
pub(super) struct Scratch {
    scratch: Arc<VulkanMemory>,
    /// Zero before each dispatch and behind it.
    pub(super) tickets: Arc<VulkanMemory>,
}

impl Scratch {
    /// What the program must keep.
    pub(super) fn memory(self) -> [Arc<VulkanMemory>; 2] {
        [self.scratch, self.tickets]
    }
}

pub(super) fn range_of(info: &Info) -> Range {
    Range { buffer: info.buffer.as_raw(), start: info.offset, bytes: info.range }
}
