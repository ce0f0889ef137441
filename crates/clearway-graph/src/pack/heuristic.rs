//! The cheap strategies, tried in turn until the goal is met or their allowance is spent.
//!
//! The allowance counts conflicts looked at, never time. On graphs of a few thousand values every
//! strategy runs; on very dense large ones only the free list does, whose cost does not depend on
//! the number of conflicts.

use super::greedy::{self, Fit, Order};
use super::part::Part;
use super::skyline;

/// Conflicts that all strategies together may look at: a fraction of a second.
const ALLOWANCE: u64 = 16_000_000;

/// A cheap strategy.
#[derive(Clone, Copy, Debug)]
enum Strategy {
    Greedy(Order, Fit),
    Skyline(Order),
    Time,
}

/// All of them, the most promising first: on model graphs the first few nearly always reach the
/// bound, and where none does the search goes on.
const STRATEGIES: [(Strategy, &str); 11] = [
    (Strategy::Greedy(Order::Size, Fit::Best), "size, best fit"),
    (Strategy::Skyline(Order::Area), "skyline, area"),
    (Strategy::Greedy(Order::Size, Fit::First), "size, first fit"),
    (Strategy::Time, "time, free list"),
    (Strategy::Greedy(Order::Duration, Fit::First), "duration, first fit"),
    (Strategy::Greedy(Order::Area, Fit::First), "area, first fit"),
    (Strategy::Greedy(Order::Breadth, Fit::Best), "breadth, best fit"),
    (Strategy::Greedy(Order::Duration, Fit::Best), "duration, best fit"),
    (Strategy::Skyline(Order::Duration), "skyline, duration"),
    (Strategy::Skyline(Order::Breadth), "skyline, breadth"),
    (Strategy::Skyline(Order::Size), "skyline, size"),
];

/// Strategies that run even where the search is the better use of time.
const ALWAYS: usize = 3;

/// Leaves the lowest packing found in `part.best`; ends at the first of at most `goal`.
///
/// If the part can be searched, and the first strategies end far above the goal, the others are
/// left out: they differ by a few per cent, and one dive of the search does better than all.
pub(super) fn run(part: &mut Part, goal: u64, searchable: bool) {
    let mut left = ALLOWANCE;
    for (at, (strategy, name)) in STRATEGIES.into_iter().enumerate() {
        if searchable && at >= ALWAYS && part.best.height - goal > goal / 16 {
            return;
        }
        if let Some(offsets) = attempt(part, strategy, &mut left) {
            part.offer(offsets, || name.to_owned());
        }
        if part.best.height <= goal {
            return;
        }
    }
}

/// Runs one strategy, unless the allowance, which it draws on, is too small for it.
fn attempt(part: &Part, strategy: Strategy, left: &mut u64) -> Option<Vec<u64>> {
    let limit = part.best.height;
    // Sorting the blocks and looking each one up.
    let fixed = 16 * part.len() as u64;
    match strategy {
        Strategy::Greedy(order, fit) => {
            // A conflict is visited from one side, sorted and passed by.
            *left = left.checked_sub(fixed + 2 * part.pairs)?;
            greedy::place(part, &greedy::sequence(part, order), fit, limit)
        }
        Strategy::Skyline(order) => {
            *left = left.checked_sub(fixed)?;
            let sequence = greedy::sequence(part, order);
            let (offsets, work) = skyline::dive(part, &sequence, limit, *left);
            *left -= work;
            offsets
        }
        Strategy::Time => greedy::place_by_time(part, limit),
    }
}
