//! The counters of a list on the device, and the way back to barriers.

use std::sync::Arc;

use ash::vk;

use super::Counting;
use super::context::Context;
use super::measured::NOTE_WORDS;
use super::memory::VulkanMemory;
use super::scratch::range_of;
use crate::counters::{check, place};
use crate::device::DeviceMemory;
use crate::error::{GpuError, Result};
use crate::lowering::lowered::{Lowered, Step};
use crate::lowering::prefetch::Range;

type Info = vk::DescriptorBufferInfo;

/// How often a workgroup looks at a counter at most: about a fifth of a second.
const PATIENCE: u32 = 1 << 19;

/// The counters of a list.
pub(super) struct Waits {
    /// For each group, whether its workgroups wait for the group before it.
    pub(super) groups: Vec<bool>,
    pub(super) counters: Arc<VulkanMemory>,
    /// Where workgroups leave notes if they are measured, in words from the start of the counters.
    pub(super) notes_at: u32,
    /// Where a workgroup that has waited in vain says so: in memory of the host.
    fault: Arc<VulkanMemory>,
    /// The uniform blocks without waits.
    plain: Vec<u32>,
    /// Tickets of the list, which dispatches without an order may have left at any number.
    tickets: Option<Arc<VulkanMemory>>,
}

impl Waits {
    /// What the program must keep.
    pub(super) fn memory(&self) -> [Arc<VulkanMemory>; 2] {
        [self.counters.clone(), self.fault.clone()]
    }

    /// Whether a workgroup has waited in vain.
    pub(super) fn stalled(&self) -> Result<bool> {
        let mut word = [0; 4];
        self.fault.peek(0, &mut word)?;
        Ok(word != [0; 4])
    }

    /// Whether any group waits.
    pub(super) fn are_used(&self) -> bool {
        self.groups.contains(&true)
    }

    /// Lets nobody wait any more; barriers must stand between all groups from now on. The program must be idle.
    pub(super) fn stop(self, blocks: &VulkanMemory) -> Result<()> {
        if let Some(tickets) = &self.tickets {
            tickets.write(0, &vec![0; tickets.piece.len as usize])?;
        }
        blocks.write(0, bytemuck::cast_slice(&self.plain))
    }
}

impl Lowered<Info> {
    /// Makes barriers counters where the kernels on both sides can do it, and binds them. Comes last: no step is added after
    /// it. `None` where no kernel of the list is counted.
    pub(in crate::vulkan) fn bind_counters(
        &mut self,
        context: &Arc<Context>,
        tickets: Option<Arc<VulkanMemory>>,
    ) -> Result<Option<Waits>> {
        if !self.steps.iter().any(|step| step.counted) {
            return Ok(None);
        }
        let written: Vec<Range> = self
            .steps
            .iter()
            .flat_map(|step| step.bound.written.iter().map(|&i| range_of(&step.bound.ranges[i])))
            .collect();
        let fault = VulkanMemory::host_visible(context, FAULT_BYTES)?;
        // The host looks at the fault word after every wait of its own, so that must be cheap.
        let seen = fault.piece.mapped.is_some_and(|mapped| mapped.cached);
        let idle = context.instance.options.counting == Counting::Idle || !seen;
        let members = self.members(|step| !idle && is_fixed(step, &written));
        let mut placed = place(&members);
        check(&members, &placed).map_err(|fault| GpuError::Unverified(fault.to_string()))?;
        let plain = self.words.clone();
        if context.instance.options.counting == Counting::Stalling {
            // For tests: somebody waits for one more workgroup than there is.
            let first = placed.syncs.iter_mut().flatten().find(|sync| sync.wait != 0);
            first.into_iter().for_each(|sync| sync.target += 1);
        }
        self.write_syncs(&placed);
        let notes = u64::from(NOTE_WORDS) * self.steps.len() as u64;
        let counters = VulkanMemory::zeroed(context, (u64::from(placed.words) + notes) * 4)?;
        let impatient = context.instance.options.counting == Counting::Impatient;
        let patience: u32 = if impatient { 1 } else { PATIENCE };
        counters.write(BOUND_AT, &patience.to_le_bytes())?;
        if impatient {
            // For tests: it is asked for after every look.
            for text in &mut self.sources {
                text.source = text.source.replace(LOOKS, "polls % 1u == 0u");
            }
        }
        for step in self.steps.iter_mut().filter(|step| step.counted) {
            for memory in [&counters, &fault] {
                let (buffer, offset) = (memory.piece.buffer, memory.piece.offset);
                step.bound.ranges.push(Info { buffer, offset, range: memory.piece.len });
            }
        }
        let (counters, fault) = (Arc::new(counters), Arc::new(fault));
        let notes_at = placed.words;
        Ok(Some(Waits { groups: placed.waits, counters, notes_at, fault, plain, tickets }))
    }
}

/// How often the text of a kernel asks for the bound of polls.
const LOOKS: &str = "polls % 64u == 0u";
/// Where the bound of polls lies.
const BOUND_AT: u64 = 4;
const FAULT_BYTES: u64 = 4;

/// Whether nothing in the list writes the weights of a step, which it loads before it waits.
fn is_fixed(step: &Step<Info>, written: &[Range]) -> bool {
    let mut weights = step.early.iter().map(|&i| range_of(&step.bound.ranges[i]));
    weights.all(|range| !written.iter().any(|other| other.overlaps(&range)))
}
