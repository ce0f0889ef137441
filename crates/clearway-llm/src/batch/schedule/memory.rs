//! Blocks for sequences, and whose are taken when there are none.

use std::time::Duration;

use super::sequence::{Chain, State};
use super::{Decided, Leaving, Scheduler, Seat, SequenceId, Waiting};

impl Scheduler {
    /// Gives a sequence blocks until it has `wanted`, or as many as there are; how many it has then. Sequences of a lower
    /// rank that are not in `planned` lose theirs where that helps.
    pub(super) fn grow(
        &mut self,
        id: SequenceId,
        wanted: usize,
        planned: &[SequenceId],
        now: Duration,
    ) -> usize {
        loop {
            let Some(sequence) = self.sequences.get_mut(&id) else { return 0 };
            if sequence.blocks.len() >= wanted {
                return sequence.blocks.len();
            }
            match self.pool.take() {
                Some(block) => sequence.blocks.push(block),
                None if self.make_room(id, planned, now) => {}
                None => return self.sequences.get(&id).map_or(0, |s| s.blocks.len()),
            }
        }
    }

    /// Takes the blocks of the sequence with the lowest rank; whether there may be a block now. Blocks that come back when
    /// a work is finished are waited for first.
    fn make_room(&mut self, id: SequenceId, planned: &[SequenceId], now: Duration) -> bool {
        if self.leaving.iter().any(|leaving| !leaving.blocks.is_empty()) {
            return false;
        }
        let Some(rank) = self.sequences.get(&id).map(|sequence| sequence.rank) else {
            return false;
        };
        let worst = self.running.iter().rev().find(|(_, other)| !planned.contains(other));
        match worst {
            Some(&(other_rank, other)) if other_rank > rank => {
                self.preempt(other, Some(id), now);
                self.leaving.is_empty()
            }
            _ => false,
        }
    }

    /// Takes slot and blocks of a sequence and lets it wait.
    pub(super) fn preempt(&mut self, id: SequenceId, by: Option<SequenceId>, now: Duration) {
        let blocks = self.sequences.get(&id).map_or(0, |sequence| sequence.blocks.len());
        self.decide(now, Decided::Preempted { sequence: id, by, blocks });
        self.counts.preempted += 1;
        self.leave(id);
        if let Some(sequence) = self.sequences.get_mut(&id) {
            let after = sequence.last_work;
            let (rank, since) = (sequence.rank, sequence.submitted);
            self.waiting.push(Waiting { id, rank, since, after, hash: None });
        }
    }

    /// Takes slot, blocks and claims of a sequence. They are free when no work under way touches them.
    pub(super) fn leave(&mut self, id: SequenceId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let slot = sequence.slot();
        let mut blocks = std::mem::take(&mut sequence.blocks);
        blocks.extend(sequence.copy_of.take());
        if sequence.tabled > 0 {
            // The device knows the slot.
            self.closes.extend(slot);
        }
        sequence.tabled = 0;
        sequence.chain = Chain::default();
        sequence.state = State::Waiting;
        let work = sequence.last_work;
        self.running.retain(|&(_, other)| other != id);
        self.waiting.retain(|waiting| waiting.id != id);
        self.claims.retain(|_, owner| *owner != id);
        if let Some(slot) = slot {
            self.seats[slot] = Seat::Leaving;
        }
        self.leaving.push(Leaving { work, blocks, slot });
        self.settle();
    }

    /// Frees what no work under way touches any more.
    pub(super) fn settle(&mut self) {
        let Self { leaving, pool, seats, finished, .. } = self;
        leaving.retain(|leaving| {
            if leaving.work > *finished {
                return true;
            }
            pool.release(&leaving.blocks);
            if let Some(slot) = leaving.slot {
                seats[slot] = Seat::Free;
            }
            false
        });
    }
}
