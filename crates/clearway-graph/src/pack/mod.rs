//! Placement of values in one arena: dynamic storage allocation.
//!
//! A value is live on a half-open interval and needs some bytes; values that are live at the same
//! time must not share a byte, and the arena should be as low as possible. It is two-dimensional
//! strip packing with the time axis fixed, and NP-hard. The sum of the sizes that are live at once
//! bounds the height from below; on recorded model graphs that bound is nearly always reached.
//!
//! The path of [`pack`], cheapest first, ended as soon as the goal is met (the lower bound, or the
//! capacity where one is given):
//!
//! 1. round the sizes, compress the time axis, split it where nothing is live across (`part`);
//! 2. greedy orders over an interval index (`greedy`);
//! 3. skyline dives with static tie-breaks (`skyline`);
//! 4. an exact search with restarts (`state`, `search`, `strategy`), several strategies at a time
//!    on several threads (`portfolio`).
//!
//! **Invariant**: the result is a function of the items, the options and the thread count. Work is
//! budgeted in nodes (one node is one placement tried), threads exchange results only between
//! rounds, and a round is won by the fewest nodes, then the lowest strategy index. Only
//! [`PackOptions::deadline`] looks at a clock, and a result cut short by it says so.
//!
//! ```
//! use clearway_graph::pack::{Item, PackOptions, check, pack};
//!
//! let items = [
//!     Item { id: 0, lower: 0, upper: 3, size: 4 },
//!     Item { id: 1, lower: 3, upper: 9, size: 4 },
//!     Item { id: 2, lower: 0, upper: 9, size: 8 },
//! ];
//! let packing = pack(&items, &PackOptions::default())?;
//! assert_eq!(packing.height, 12);
//! assert_eq!(check(&items, &packing.offsets, None)?, 12);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod check;
pub mod csv;
mod greedy;
mod heuristic;
mod part;
mod portfolio;
mod search;
mod skyline;
mod state;
mod strategy;
#[cfg(test)]
mod tests;

use std::time::Instant;

pub use check::{PackFault, check};
pub(crate) use greedy::{Fit, gap};

use part::{Block, Part};
use portfolio::Limits;

/// One value to place: `size` bytes, live on `[lower, upper)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    /// Name of the value in errors; the placer itself goes by position.
    pub id: u32,
    /// First instant at which the value is live.
    pub lower: u64,
    /// First instant at which it no longer is.
    pub upper: u64,
    /// Bytes needed. A value of no bytes is put at offset 0 and conflicts with nothing.
    pub size: u64,
}

/// How much work [`pack`] may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Greedy orders, skyline dives and a few dives of the search: milliseconds.
    Heuristic,
    /// The heuristics, then the search until the goal, a proof or the budget is reached.
    Exact {
        /// Placements tried over all threads; `u64::MAX` leaves the end to the deadline.
        node_budget: u64,
    },
}

/// Options of [`pack`].
#[derive(Clone, Copy, Debug)]
pub struct PackOptions {
    /// How much work to do.
    pub effort: Effort,
    /// Threads of the search, clamped to 1..=64. Part of what determines the result.
    pub threads: usize,
    /// Sizes are rounded up to this power of two, so every offset is a multiple of it.
    pub alignment: u64,
    /// Stop at the first packing of at most this height instead of the lowest one.
    pub capacity: Option<u64>,
    /// Give up the search at this instant; the result is then not reproducible and says so.
    pub deadline: Option<Instant>,
}

impl Default for PackOptions {
    /// One thread, byte alignment, a search of about a second on a few hundred values.
    fn default() -> Self {
        Self {
            effort: Effort::Exact { node_budget: 200_000 },
            threads: 1,
            alignment: 1,
            capacity: None,
            deadline: None,
        }
    }
}

/// A placement of every item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Offset of each item, in the order of the items.
    pub offsets: Vec<u64>,
    /// Largest offset plus rounded size: the bytes the arena needs.
    pub height: u64,
    /// Most rounded bytes live at one instant; no packing is lower.
    pub lower_bound: u64,
    /// The best bound proved: at least `lower_bound`, and the height itself once it is optimal.
    pub proven_bound: u64,
    /// The goal was reached, or no lower packing exists; `false` when a budget or the clock ended
    /// the work first.
    pub complete: bool,
    /// What produced the packing of the part that decides the height.
    pub strategy: String,
    /// Placements tried by the search, over all threads.
    pub nodes: u64,
}

/// Why [`pack`] refuses a set of items.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The lifetime is empty or runs backwards.
    #[error("value {id} is live on [{lower}, {upper}), which is empty")]
    EmptyLifetime {
        /// The item's name.
        id: u32,
        /// Start of the interval.
        lower: u64,
        /// End of the interval.
        upper: u64,
    },
    /// The sizes, rounded to the alignment, do not add up within 64 bits.
    #[error("the sizes add up to more than 64 bits at value {id} of {size} bytes")]
    SumOverflow {
        /// The item at which the sum overflowed.
        id: u32,
        /// Its size.
        size: u64,
    },
    /// The alignment is not a power of two.
    #[error("alignment {alignment} is not a power of two")]
    BadAlignment {
        /// The alignment given.
        alignment: u64,
    },
    /// One item alone exceeds the capacity.
    #[error("capacity {capacity} is below value {id} of {size} bytes")]
    CapacityBelowItem {
        /// The capacity given.
        capacity: u64,
        /// The largest item.
        id: u32,
        /// Its size, rounded.
        size: u64,
    },
    /// More items than 32-bit positions can name.
    #[error("{count} values are more than this placer can index")]
    TooMany {
        /// Items given.
        count: usize,
    },
}

/// Places the items; see the module documentation for the stages.
///
/// # Errors
///
/// Refuses empty lifetimes, sums beyond 64 bits, an alignment that is no power of two and a
/// capacity below the largest item. A capacity that merely cannot be met is no error: the result
/// is then higher than the capacity.
pub fn pack(items: &[Item], options: &PackOptions) -> Result<Packing, PackError> {
    let blocks = round(items, options)?;
    let mut parts = part::split(&blocks);
    let lower_bound = parts.iter().map(|part| part.bound).max().unwrap_or(0);
    let goal = lower_bound.max(options.capacity.unwrap_or(0));
    for part in &mut parts {
        let searchable = portfolio::is_searchable(part);
        heuristic::run(part, goal, searchable);
    }
    let nodes = portfolio::run(&mut parts, &Limits::new(goal, options));
    Ok(assemble(items.len(), &parts, lower_bound, goal, nodes))
}

/// The blocks of the items that need bytes, with their sizes rounded.
fn round(items: &[Item], options: &PackOptions) -> Result<Vec<Block>, PackError> {
    let alignment = options.alignment;
    if !alignment.is_power_of_two() {
        return Err(PackError::BadAlignment { alignment });
    }
    if items.len() >= u32::MAX as usize {
        return Err(PackError::TooMany { count: items.len() });
    }
    let mut blocks = Vec::with_capacity(items.len());
    let mut sum = 0u64;
    for (index, item) in items.iter().enumerate() {
        let &Item { id, lower, upper, size } = item;
        if lower >= upper {
            return Err(PackError::EmptyLifetime { id, lower, upper });
        }
        let rounded = size.checked_next_multiple_of(alignment);
        let total = rounded.and_then(|rounded| sum.checked_add(rounded));
        let (Some(rounded), Some(total)) = (rounded, total) else {
            return Err(PackError::SumOverflow { id, size });
        };
        sum = total;
        if rounded > 0 {
            blocks.push(Block { index: index as u32, lower, upper, size: rounded });
        }
    }
    if let (Some(capacity), Some(largest)) =
        (options.capacity, blocks.iter().max_by_key(|block| block.size))
        && largest.size > capacity
    {
        let id = items[largest.index as usize].id;
        return Err(PackError::CapacityBelowItem { capacity, id, size: largest.size });
    }
    Ok(blocks)
}

/// Puts the parts, which share no instant, back together.
fn assemble(count: usize, parts: &[Part], lower_bound: u64, goal: u64, nodes: u64) -> Packing {
    let mut offsets = vec![0; count];
    for part in parts {
        for (&index, &offset) in part.index.iter().zip(&part.best.offsets) {
            offsets[index as usize] = offset;
        }
    }
    // The first of the highest parts decides; `max_by_key` alone would return the last.
    let decisive = parts.iter().rev().max_by_key(|part| part.best.height);
    let height = decisive.map_or(0, |part| part.best.height);
    let proven_bound = parts.iter().map(|part| part.proven).max().unwrap_or(0);
    Packing {
        offsets,
        height,
        lower_bound,
        proven_bound,
        complete: height <= goal || height <= proven_bound,
        strategy: decisive
            .map_or_else(|| "nothing to place".into(), |part| part.best.strategy.clone()),
        nodes,
    }
}
