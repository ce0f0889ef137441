//! Levels by longest path, with movement inside the slack.
//!
//! A chain of C dispatches needs C groups, and levels by longest path use exactly C (Mirsky), so
//! the number of groups is settled here; what is left to choose is the level of a dispatch that is
//! not on a longest chain. It is chosen to make the values around it live shorter, weighed by their
//! bytes.

use std::cmp::Reverse;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{HazardGraph, SectionOrder, peak};
use crate::graph::Value;
use crate::node::Dispatch;

/// Passes over the section; the second lets early dispatches follow what the first moved.
const SLACK_PASSES: usize = 2;

/// A value touched by more dispatches than this lives long wherever one of them stands; weighing
/// it would cost the square of its readers.
const MAX_TOUCHERS: usize = 64;

/// Orders a section by level.
pub(super) fn order(
    dispatches: &[Arc<Dispatch>],
    hazards: &HazardGraph,
    values: &[Value],
    slots: &mut Slots,
) -> SectionOrder {
    let asap = hazards.asap_levels();
    let mut levels = asap.clone();
    let lives = Lives::of(dispatches, values, slots);
    for _ in 0..SLACK_PASSES {
        for index in (0..dispatches.len()).rev() {
            move_in_slack(index, &mut levels, hazards, &lives);
        }
    }
    peak::lower_peak(&mut levels, hazards, &lives);
    // Inside a level the dispatches that wait for the level before come first: barriers are placed
    // greedily, and a dispatch moved late must not slip into the group before.
    let waits = |index: usize| {
        let preds = hazards.preds(index).iter();
        let level = levels[index];
        level == 0 || preds.into_iter().any(|&p| levels[p as usize] + 1 == level)
    };
    let mut order: Vec<u32> = (0..dispatches.len() as u32).collect();
    order.sort_by_cached_key(|&i| (levels[i as usize], !waits(i as usize), i));
    let critical = |index: usize| {
        let preds = hazards.preds(index).iter().copied();
        preds.max_by_key(|&p| (asap[p as usize], Reverse(p)))
    };
    SectionOrder { order, held_by: (0..dispatches.len()).map(critical).collect() }
}

/// Puts one dispatch on the level of its slack where the values around it live shortest.
fn move_in_slack(index: usize, levels: &mut [u32], hazards: &HazardGraph, lives: &Lives) {
    let Some(latest) = hazards.succs(index).iter().map(|&s| levels[s as usize] - 1).min() else {
        return; // nothing waits for it: early is best, since its operands then die early
    };
    let preds = hazards.preds(index).iter();
    let earliest = preds.map(|&p| levels[p as usize] + 1).max().unwrap_or(0);
    if earliest >= latest {
        return;
    }
    // Byte-levels are piecewise linear in the level, so the best one is an end of the slack or the
    // end of what the others make a value live anyway.
    let around = lives.around(index, levels);
    let bends = around.iter().flat_map(|life| [life.first, life.last]);
    let inside = bends.filter(|level| (earliest..latest).contains(level));
    let candidates = [earliest, latest].into_iter().chain(inside);
    let area = |level: &u32| around.iter().map(|life| life.area_with(*level)).sum::<u128>();
    levels[index] = candidates.min_by_key(|level| (area(level), *level)).unwrap_or(earliest);
}

/// Numbers of the values of a section, counted from 0. Kept from section to section, since a list
/// may have as many sections as dispatches.
#[derive(Default)]
pub(super) struct Slots(Vec<Option<u32>>);

/// Which dispatches of a section touch which values.
pub(super) struct Lives {
    bytes: Vec<u64>,
    /// Per value: dispatches that touch it, in recorded order.
    touched_by: Vec<SmallVec<[u32; 4]>>,
    /// Per dispatch: the values it touches.
    touches: Vec<SmallVec<[u32; 4]>>,
}

impl Lives {
    fn of(dispatches: &[Arc<Dispatch>], values: &[Value], Slots(slots): &mut Slots) -> Self {
        slots.resize(values.len(), None);
        // Most dispatches write one value, and most values are written by one.
        let count = dispatches.len();
        let mut lives = Self {
            bytes: Vec::with_capacity(count),
            touched_by: Vec::with_capacity(count),
            touches: Vec::with_capacity(count),
        };
        let mut used = Vec::new();
        for (index, dispatch) in (0..).zip(dispatches) {
            let mut touched = SmallVec::new();
            for id in dispatch.values() {
                let value = values.get(id.index()).filter(|v| !v.lasts() && !v.output);
                let Some(value) = value else {
                    continue; // lives anyway, wherever its readers stand
                };
                let slot = *slots[id.index()].get_or_insert_with(|| {
                    used.push(id);
                    lives.bytes.push(value.bytes);
                    lives.touched_by.push(SmallVec::new());
                    lives.bytes.len() as u32 - 1
                });
                let touched_by = &mut lives.touched_by[slot as usize];
                if touched_by.last() != Some(&index) {
                    touched.push(slot);
                    touched_by.push(index);
                }
            }
            lives.touches.push(touched);
        }
        used.into_iter().for_each(|id| slots[id.index()] = None);
        lives
    }

    /// Bytes of each value.
    pub(super) fn bytes(&self) -> &[u64] {
        &self.bytes
    }

    /// The dispatches that touch each value.
    pub(super) fn touched_by(&self) -> impl Iterator<Item = &SmallVec<[u32; 4]>> {
        self.touched_by.iter()
    }

    /// The values around `index` that other dispatches touch, as these make them live.
    fn around(&self, index: usize, levels: &[u32]) -> SmallVec<[Life; 4]> {
        let life = |&value: &u32| {
            let touched = &self.touched_by[value as usize];
            if touched.len() > MAX_TOUCHERS {
                return None;
            }
            let others = || touched.iter().filter(|&&d| d as usize != index);
            let at = || others().map(|&d| levels[d as usize]);
            let bytes = self.bytes[value as usize];
            Some(Life { bytes, first: at().min()?, last: at().max()? })
        };
        self.touches[index].iter().filter_map(life).collect()
    }
}

/// A value and the levels it lives on.
struct Life {
    bytes: u64,
    first: u32,
    last: u32,
}

impl Life {
    /// Bytes times levels if a dispatch on `level` touched it too.
    fn area_with(&self, level: u32) -> u128 {
        let levels = self.last.max(level) - self.first.min(level) + 1;
        u128::from(self.bytes) * u128::from(levels)
    }
}
