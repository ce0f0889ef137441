//! Barriers between groups as counters that workgroups wait for.
//!
//! A workgroup adds one to the counter of its group when it is done. Workgroups of the next group wait until the counter
//! says that all of the group before are done, and only then touch what the list writes. So the order is that of the
//! barrier, for reads after writes, writes after reads and writes after writes alike, and the proof of the list holds as
//! it is. What a barrier would hold back and a counter does not: launching the workgroups, and their loads of weights.
//!
//! [`place`] says which barriers become counters. [`check`] holds the result against the groups, without looking at how
//! it was made. [`Orders`] runs a list in any order that the counters allow.
//!
//! | module | what it does |
//! |---|---|
//! | `orders` | draws orders of workgroups |

mod orders;

pub(crate) use orders::{Orders, Stalled};

/// Words from one counter to the next: each has a line of a cache of its own.
pub(crate) const APART: u32 = 32;
/// The first counters are the fault word and the bound of polls.
const RESERVED: u32 = 2;

/// A step, as far as counters go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) workgroups: u32,
    /// Its kernel can wait and be counted, and nothing in the list writes what it reads before it waits.
    pub(crate) counted: bool,
}

/// What a step does with counters. They are named by their first word; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sync {
    /// The counter to wait for, and what it must reach.
    pub(crate) wait: u32,
    pub(crate) target: u32,
    /// The counter that each workgroup adds one to.
    pub(crate) add: u32,
    /// The counter that the first workgroup sets to zero after its wait.
    pub(crate) reset: u32,
}

/// The counters of a list.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) syncs: Vec<Vec<Sync>>,
    /// For each group, whether its steps wait for the group before it. Elsewhere the barrier stays.
    pub(crate) waits: Vec<bool>,
    /// Words of all counters.
    pub(crate) words: u32,
}

/// Turns barriers into counters where all steps on both sides can do it.
///
/// A counter is set to zero by a group that begins when all who waited for it are done: two groups later, or in the
/// next run, which a barrier keeps apart, before the first workgroup is counted. In the next run a barrier must also stand
/// between that group and those who wait: they may be launched early, and would find the counter full from the run
/// before. Where no group is left for that, the barrier stays.
pub(crate) fn place(groups: &[Vec<Member>]) -> Placed {
    let counted: Vec<bool> =
        groups.iter().map(|group| group.iter().all(|member| member.counted)).collect();
    let mut free = counted.clone();
    let mut syncs: Vec<Vec<Sync>> =
        groups.iter().map(|group| vec![Sync::default(); group.len()]).collect();
    let mut waits = vec![false; groups.len()];
    let mut next = RESERVED * APART;
    for group in 1..groups.len() {
        let before = group - 1;
        if !(counted[before] && counted[group]) {
            continue;
        }
        let last_barrier = (0..group).rfind(|&earlier| !waits[earlier]).unwrap_or(0);
        let mut resets = (group + 1..groups.len()).chain(0..last_barrier);
        let Some(reset) = resets.find(|&other| free[other]) else { continue };
        free[reset] = false;
        syncs[reset][0].reset = next;
        let target = groups[before].iter().map(|member| member.workgroups).sum();
        for sync in &mut syncs[group] {
            (sync.wait, sync.target) = (next, target);
        }
        syncs[before].iter_mut().for_each(|sync| sync.add = next);
        waits[group] = true;
        next += APART;
    }
    Placed { syncs, waits, words: next }
}

/// Why counters do not stand for the barriers of a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WaitFault {
    #[error("step {step} of group {group} does not wait for all of the group before it")]
    Wait { group: usize, step: usize },
    #[error("step {step} of group {group} adds to a counter that is not that of its group")]
    Add { group: usize, step: usize },
    #[error(
        "the counter of group {group} is not set to zero once, between its last reader and its first writer"
    )]
    Reset { group: usize },
}

/// Whether the counters give the order of the groups: for each group that waits, all of its steps wait for all workgroups of
/// all steps of the group before it, and for nothing else.
pub(crate) fn check(groups: &[Vec<Member>], placed: &Placed) -> Result<(), WaitFault> {
    let all = || {
        placed.syncs.iter().enumerate().flat_map(|(group, syncs)| {
            syncs.iter().enumerate().map(move |(step, sync)| (group, step, sync))
        })
    };
    let barrier_between = |from: usize, to: usize| {
        placed.waits.get(from + 1..to).is_some_and(|waits| waits.contains(&false))
    };
    for (group, step, sync) in all() {
        let wait = || WaitFault::Wait { group, step };
        if !placed.waits[group] {
            if sync.wait != 0 || sync.target != 0 {
                return Err(wait());
            }
            continue;
        }
        let before = group.checked_sub(1).ok_or_else(wait)?;
        let workgroups: u32 = groups[before].iter().map(|member| member.workgroups).sum();
        let members = groups[before].iter().chain(&groups[group]);
        if sync.wait < RESERVED * APART
            || sync.target != workgroups
            || !members.into_iter().all(|member| member.counted)
        {
            return Err(wait());
        }
        // Those who add to it are the steps of the group before, all of them.
        for (other, step, sync_of) in all() {
            if (sync_of.add == sync.wait) != (other == before) {
                return Err(WaitFault::Add { group: other, step });
            }
        }
        let mut resets = all().filter(|(_, _, other)| other.reset == sync.wait);
        match (resets.next(), resets.next()) {
            (Some((reset, _, _)), None) if reset > group => {}
            // In the next run: those who wait are launched behind a barrier, and find zero.
            (Some((reset, _, _)), None) if barrier_between(reset, group) => {}
            _ => return Err(WaitFault::Reset { group }),
        }
    }
    // Nothing adds to a counter, or sets one to zero, that nobody waits for.
    for (group, step, sync) in all() {
        let waited = |counter| counter == 0 || all().any(|(_, _, other)| other.wait == counter);
        if !waited(sync.add) {
            return Err(WaitFault::Add { group, step });
        }
        if !waited(sync.reset) {
            return Err(WaitFault::Reset { group });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(members: &[(u32, bool)]) -> Vec<Member> {
        members.iter().map(|&(workgroups, counted)| Member { workgroups, counted }).collect()
    }

    fn list() -> Vec<Vec<Member>> {
        vec![
            group(&[(1, false)]),
            group(&[(8, true), (4, true), (4, true)]),
            group(&[(9, true)]),
            group(&[(3, true)]),
            group(&[(3, true), (7, false)]),
            group(&[(5, true)]),
            group(&[(2, true)]),
            group(&[(6, true)]),
            group(&[(1, true)]),
        ]
    }

    #[test]
    fn barriers_become_counters_where_both_sides_can_do_it() {
        let placed = place(&list());
        assert_eq!(placed.waits, [false, false, true, true, false, false, true, true, true]);
        assert_eq!(check(&list(), &placed), Ok(()));
        assert_eq!(placed.syncs[2][0].target, 16);
        let adds: Vec<u32> = placed.syncs[1].iter().map(|sync| sync.add).collect();
        assert_eq!(adds, [placed.syncs[2][0].wait; 3]);
    }

    #[test]
    fn a_list_without_a_group_that_could_reset_keeps_its_barrier() {
        let two = vec![group(&[(4, true)]), group(&[(4, true)])];
        let placed = place(&two);
        assert_eq!(placed.waits, [false, false]);
        assert_eq!(check(&two, &placed), Ok(()));
    }

    /// A counter that is full from the run before lets nobody pass: whoever sets it to zero is kept apart by a barrier.
    #[test]
    fn a_counter_is_not_left_full_for_who_is_launched_early() {
        let mut groups = vec![group(&[(4, true)]); 6];
        let placed = place(&groups);
        assert_eq!(placed.waits, [false, true, true, true, true, false]);
        let mut early = placed.clone();
        early.waits[5] = true;
        early.syncs[5][0] = Sync { wait: placed.words, target: 4, ..early.syncs[5][0] };
        early.syncs[4][0].add = placed.words;
        early.syncs[0][0].reset = placed.words;
        assert_eq!(check(&groups, &early), Err(WaitFault::Reset { group: 5 }));
        groups[2][0].counted = false;
        let placed = place(&groups);
        assert_eq!(placed.waits, [false, true, false, false, true, true]);
        assert_eq!(check(&groups, &placed), Ok(()));
    }

    /// Every single change to what any step does is reported.
    #[test]
    fn a_wait_removed_or_aimed_elsewhere_is_reported() {
        let placed = place(&list());
        let mut mutations = 0;
        for (group, syncs) in placed.syncs.iter().enumerate() {
            for (step, sync) in syncs.iter().enumerate() {
                let others = [0, 64, 96, 128, 160, 192];
                let changed = others.into_iter().flat_map(|other| {
                    [
                        Sync { wait: other, ..*sync },
                        Sync { target: other, ..*sync },
                        Sync { add: other, ..*sync },
                        Sync { reset: other, ..*sync },
                    ]
                });
                for changed in changed.filter(|changed| changed != sync) {
                    let mut placed = placed.clone();
                    placed.syncs[group][step] = changed;
                    assert!(
                        check(&list(), &placed).is_err(),
                        "{group}.{step}: {sync:?} as {changed:?}"
                    );
                    mutations += 1;
                }
            }
            let mut placed = placed.clone();
            placed.waits[group] = !placed.waits[group];
            assert!(check(&list(), &placed).is_err(), "{group}");
        }
        assert!(mutations > 200);
    }

    #[test]
    fn counters_of_random_lists_pass_the_check() {
        let mut state = 17_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut waits = 0;
        for _ in 0..2_000 {
            let groups: Vec<Vec<Member>> = (0..next(12))
                .map(|_| {
                    (0..=next(3))
                        .map(|_| Member { workgroups: 1 + next(9) as u32, counted: next(4) > 0 })
                        .collect()
                })
                .collect();
            let placed = place(&groups);
            assert_eq!(check(&groups, &placed), Ok(()), "{groups:?}");
            waits += placed.waits.iter().filter(|&&wait| wait).count();
        }
        assert!(waits > 1_000, "{waits}");
    }
}
