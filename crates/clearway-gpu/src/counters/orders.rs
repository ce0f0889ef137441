//! Any order of workgroups that the counters of a list allow.
//!
//! A model of a device that promises nothing about when workgroups start: between two barriers all of them are launched,
//! and the next one to run is drawn from those whose counter is full. They run one after another, so an order that the
//! list does not allow gives wrong results and nothing worse.

use super::{Member, Placed, check, place};
use crate::random::Rng;

/// The counters of a list, as they are between its runs, and what orders are drawn from.
pub(crate) struct Orders {
    groups: Vec<Vec<Member>>,
    placed: Placed,
    counters: Vec<u32>,
    rng: Rng,
}

/// Workgroups are left whose counter never fills.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stalled;

/// A workgroup: its group, its step in the group, its number in the step.
pub(crate) type Workgroup = (usize, usize, usize);

impl Orders {
    /// The counter form of groups of steps with so many workgroups each. One step of eight keeps its barriers.
    pub(crate) fn new(workgroups: &[Vec<usize>], seed: u64) -> Self {
        let mut rng = Rng(seed);
        let mut member =
            |&count: &usize| Member { workgroups: count as u32, counted: rng.below(8) > 0 };
        let groups: Vec<Vec<Member>> =
            workgroups.iter().map(|group| group.iter().map(&mut member).collect()).collect();
        let placed = place(&groups);
        debug_assert_eq!(check(&groups, &placed), Ok(()));
        let counters = vec![0; placed.words as usize];
        Self { groups, placed, counters, rng }
    }

    /// Draws an order and runs every workgroup once.
    pub(crate) fn run(&mut self, mut workgroup: impl FnMut(Workgroup)) -> Result<(), Stalled> {
        let mut first = 0;
        while first < self.groups.len() {
            let waits = self.placed.waits[first + 1..].iter();
            let end = first + 1 + waits.take_while(|&&wait| wait).count();
            self.run_launched(first..end, &mut workgroup)?;
            first = end;
        }
        Ok(())
    }

    /// Runs the workgroups between two barriers.
    fn run_launched(
        &mut self,
        groups: std::ops::Range<usize>,
        run: &mut impl FnMut(Workgroup),
    ) -> Result<(), Stalled> {
        let mut launched: Vec<(usize, usize, Vec<usize>)> = Vec::new();
        for group in groups {
            for (step, member) in self.groups[group].iter().enumerate() {
                launched.push((group, step, (0..member.workgroups as usize).collect()));
            }
        }
        loop {
            launched.retain(|(_, _, left)| !left.is_empty());
            if launched.is_empty() {
                return Ok(());
            }
            let ready = |&index: &usize| {
                let (group, step, _) = launched[index];
                let sync = self.placed.syncs[group][step];
                sync.wait == 0 || self.counters[sync.wait as usize] >= sync.target
            };
            let ready: Vec<usize> = (0..launched.len()).filter(ready).collect();
            if ready.is_empty() {
                return Err(Stalled);
            }
            let (group, step, left) = &mut launched[ready[self.rng.below(ready.len())]];
            let number = left.swap_remove(self.rng.below(left.len()));
            let sync = self.placed.syncs[*group][*step];
            if number == 0 && sync.reset != 0 {
                self.counters[sync.reset as usize] = 0;
            }
            run((*group, *step, number));
            if sync.add != 0 {
                self.counters[sync.add as usize] += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &[&[usize]] = &[&[3, 2], &[4], &[1, 1], &[5], &[2], &[3, 3], &[1], &[4]];

    fn orders(seed: u64) -> Orders {
        let groups: Vec<Vec<usize>> = LIST.iter().map(|group| group.to_vec()).collect();
        Orders::new(&groups, seed)
    }

    /// Whether some workgroup ran before all of the group before it were done.
    fn out_of_order(orders: &mut Orders) -> Result<bool, Stalled> {
        let mut order = Vec::new();
        orders.run(|(group, ..)| order.push(group))?;
        assert_eq!(order.len(), LIST.iter().flat_map(|group| group.iter()).sum::<usize>());
        Ok(!order.is_sorted())
    }

    #[test]
    fn groups_keep_their_order_in_every_run_of_a_list() {
        let mut waits = 0;
        for seed in 0..300 {
            let mut orders = orders(seed);
            waits += orders.placed.waits.iter().filter(|&&wait| wait).count();
            for _ in 0..3 {
                assert_eq!(out_of_order(&mut orders), Ok(false), "seed {seed}");
            }
        }
        assert!(waits > 600, "{waits}");
    }

    /// What [`check`] would report shows in the order, or nothing comes to an end.
    #[test]
    fn a_wait_that_is_lost_shows() {
        let (mut lost, mut seen) = (0, 0);
        for seed in 0..100 {
            for group in 0..LIST.len() {
                let mut orders = orders(seed);
                if orders.placed.waits[group] {
                    orders.placed.syncs[group].iter_mut().for_each(|sync| sync.wait = 0);
                    lost += 1;
                    seen += usize::from((0..20).any(|_| out_of_order(&mut orders) != Ok(false)));
                }
            }
        }
        assert!(lost > 200 && seen == lost, "{seen} of {lost}");
    }

    #[test]
    fn a_counter_that_is_not_set_to_zero_shows_in_a_later_run() {
        let (mut lost, mut seen) = (0, 0);
        for seed in 0..100 {
            let mut orders = orders(seed);
            if orders.placed.waits.iter().any(|&wait| wait) {
                orders.placed.syncs.iter_mut().flatten().for_each(|sync| sync.reset = 0);
                lost += 1;
                seen += usize::from((0..20).any(|_| out_of_order(&mut orders) != Ok(false)));
            }
        }
        assert!(lost > 50 && seen == lost, "{seen} of {lost}");
    }

    #[test]
    fn a_target_out_of_reach_stalls() {
        let mut orders = (0..).map(orders).find(|orders| orders.placed.waits[1]).unwrap();
        orders.placed.syncs[1][0].target += 1;
        assert_eq!(out_of_order(&mut orders), Err(Stalled));
    }
}
