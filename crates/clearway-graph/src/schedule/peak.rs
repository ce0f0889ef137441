//! Moves inside the slack that lower the peak of live bytes.
//!
//! The number of levels stays: a dispatch moves only as far as its longest chain to the end (or from
//! the start) allows, and takes along what must stay behind (or before) it. Each step looks at the
//! level with the most live bytes and at the values that live there, tries to let their producers
//! come after it or their last readers before it, and keeps the best change. The work is counted in
//! dispatches visited, never in time, so the result is the same everywhere.

use super::HazardGraph;
use super::levels::Lives;

/// Dispatches visited at most: a few milliseconds.
const BUDGET: usize = 150_000;

/// Lowers the peak as far as single moves do.
pub(super) fn lower_peak(levels: &mut Vec<u32>, hazards: &HazardGraph, lives: &Lives) {
    let count = levels.len();
    let depth = levels.iter().max().map_or(0, |deepest| deepest + 1);
    let bounds = Bounds::of(hazards, depth, count);
    let mut load = Load::of(levels, lives, depth);
    let mut budget = BUDGET;
    loop {
        let mut best: Option<(Load, Vec<u32>)> = None;
        for (dispatch, level) in candidates(levels, &bounds, lives, load.peak_level) {
            if budget < 2 * count {
                break;
            }
            budget -= count;
            let mut moved = levels.clone();
            shift(&mut moved, dispatch, level, hazards);
            let new = Load::of(&moved, lives, depth);
            let bar = best.as_ref().map_or(&load, |(load, _)| load);
            if new.score() < bar.score() {
                best = Some((new, moved));
            }
        }
        match best {
            Some((better, moved)) => (load, *levels) = (better, moved),
            None => return,
        }
    }
}

/// Moves worth trying: `(dispatch, level)`.
fn candidates(levels: &[u32], bounds: &Bounds, lives: &Lives, peak: u32) -> Vec<(usize, u32)> {
    let mut moves = Vec::new();
    for touched in lives.touched_by() {
        let at = |&d: &u32| levels[d as usize];
        let (Some(first), Some(last)) =
            (touched.iter().map(at).min(), touched.iter().map(at).max())
        else {
            continue;
        };
        if first > peak || last < peak {
            continue;
        }
        for &dispatch in touched {
            let (index, level) = (dispatch as usize, levels[dispatch as usize]);
            if level == first && bounds.latest[index] > peak {
                moves.extend([(index, peak + 1), (index, bounds.latest[index])]);
            }
            if level == last && bounds.earliest[index] < peak {
                moves.extend([(index, peak - 1), (index, bounds.earliest[index])]);
            }
        }
    }
    moves.sort_unstable();
    moves.dedup();
    moves.retain(|&(index, level)| levels[index] != level);
    moves
}

/// Puts a dispatch on a level inside its bounds, and whatever stands in the way of the order with it.
fn shift(levels: &mut [u32], dispatch: usize, level: u32, hazards: &HazardGraph) {
    levels[dispatch] = level;
    let mut work = vec![dispatch];
    while let Some(index) = work.pop() {
        let level = levels[index];
        for &succ in hazards.succs(index) {
            if levels[succ as usize] <= level {
                levels[succ as usize] = level + 1;
                work.push(succ as usize);
            }
        }
        for &pred in hazards.preds(index) {
            if levels[pred as usize] >= level {
                levels[pred as usize] = level - 1;
                work.push(pred as usize);
            }
        }
    }
}

/// The levels each dispatch can stand on in any order of this depth.
struct Bounds {
    earliest: Vec<u32>,
    latest: Vec<u32>,
}

impl Bounds {
    fn of(hazards: &HazardGraph, depth: u32, count: usize) -> Self {
        let earliest = hazards.asap_levels();
        let mut latest = vec![depth.saturating_sub(1); count];
        for index in (0..count).rev() {
            let bound = hazards.succs(index).iter().map(|&s| latest[s as usize] - 1).min();
            latest[index] = bound.unwrap_or(latest[index]);
        }
        Self { earliest, latest }
    }
}

/// Live bytes of a choice of levels.
struct Load {
    peak: u64,
    peak_level: u32,
    /// Levels at the peak.
    at_peak: u32,
    /// Sum of squares: among equal peaks, the flatter one leaves more room.
    roughness: u128,
}

impl Load {
    fn of(levels: &[u32], lives: &Lives, depth: u32) -> Self {
        let mut change = vec![0i128; depth as usize + 1];
        for (touched, &bytes) in lives.touched_by().zip(lives.bytes()) {
            let at = |&d: &u32| levels[d as usize];
            let first = touched.iter().map(at).min();
            let last = touched.iter().map(at).max();
            if let (Some(first), Some(last)) = (first, last) {
                change[first as usize] += i128::from(bytes);
                change[last as usize + 1] -= i128::from(bytes);
            }
        }
        let mut load = Self { peak: 0, peak_level: 0, at_peak: 0, roughness: 0 };
        let mut live = 0;
        for (level, change) in (0..depth).zip(change) {
            live += change;
            let bytes = live as u64;
            if bytes > load.peak {
                (load.peak, load.peak_level, load.at_peak) = (bytes, level, 0);
            }
            load.at_peak += u32::from(bytes == load.peak);
            let bytes = u128::from(bytes >> 8);
            load.roughness = load.roughness.saturating_add(bytes * bytes);
        }
        load
    }

    fn score(&self) -> (u64, u32, u128) {
        (self.peak, self.at_peak, self.roughness)
    }
}
