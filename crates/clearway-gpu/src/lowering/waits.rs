//! Counters in the uniform blocks of lowered steps.

use super::lowered::{Lowered, Step};
use crate::counters::{Member, Placed, Sync};
use crate::wgsl::SYNC_WORDS;

impl<R> Lowered<R> {
    /// The groups as far as counters go. `fixed` says whether nothing in the list writes what a step reads before it waits.
    pub(crate) fn members(&self, fixed: impl Fn(&Step<R>) -> bool) -> Vec<Vec<Member>> {
        let member = |step: &Step<R>| Member {
            workgroups: step.groups.iter().product(),
            counted: step.counted && fixed(step),
        };
        let groups = self.groups().into_iter();
        groups.map(|group| self.steps[group].iter().map(member).collect()).collect()
    }

    /// Writes what steps do with counters into their uniform blocks.
    pub(crate) fn write_syncs(&mut self, placed: &Placed) {
        let syncs = placed.syncs.iter().flatten();
        for (step, sync) in self.steps.iter().zip(syncs) {
            if step.counted {
                let Sync { wait, target, add, reset } = *sync;
                let (at, len) = step.block;
                self.words[at + len - SYNC_WORDS..at + len]
                    .copy_from_slice(&[wait, target, add, reset]);
            }
        }
    }
}
