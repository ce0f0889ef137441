//! What a run of the search tries first, and how long.
//!
//! A strategy never changes which packings can be found, only the order in which they are looked
//! at. Runs are short and many: the time to a solution varies by orders of magnitude with the
//! order, so a fresh order soon beats patience with a bad one.

use std::cmp::Reverse;

use super::part::Part;

/// A way to order choices.
#[derive(Clone, Debug)]
pub(super) struct Strategy {
    /// Rank per block; lower is tried first.
    pub rank: Vec<u32>,
    /// Weight of a section's height, relative to the capacity, against its number of choices.
    pub low: f32,
    /// Weight of a section's spare bytes, relative to the capacity, in the same sum.
    pub tight: f32,
}

/// The static orders: what the ranks sort by (largest first) and the two weights.
const TABLE: [(Key, f32, f32, &str); 9] = [
    (Key::Life, 20.0, 0.0, "life, low"),
    (Key::Area, 0.0, 16.0, "area, tight"),
    (Key::Peak, 20.0, 16.0, "peak, low and tight"),
    (Key::Span, 0.0, 16.0, "span, tight"),
    (Key::Life, 20.0, 16.0, "life, low and tight"),
    (Key::Area, 20.0, 0.0, "area, low"),
    (Key::Peak, 0.0, 16.0, "peak, tight"),
    (Key::Span, 20.0, 0.0, "span, low"),
    (Key::Life, 0.0, 16.0, "life, tight"),
];

/// What a rank sorts by first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    /// Duration, then area.
    Life,
    /// Size times duration, then duration.
    Area,
    /// Largest load that the block is part of, then area.
    Peak,
    /// Sections covered, then area.
    Span,
}

/// The static ranks of a part, one list per entry of the table.
pub(super) struct Ranks {
    ranks: Vec<Vec<u32>>,
}

impl Ranks {
    pub fn new(part: &Part) -> Self {
        Self { ranks: TABLE.iter().map(|entry| rank(part, entry.0)).collect() }
    }

    /// The strategy of the `run`-th restart: once through the table as it is, then with every rank
    /// moved at random by a small, a tiny or a large share of the list.
    pub fn strategy(&self, run: u64) -> Strategy {
        let entries = TABLE.len() as u64;
        let entry = (run % entries) as usize;
        let (_, low, tight, _) = TABLE[entry];
        let mut rank = self.ranks[entry].clone();
        if run >= entries {
            let share = [10, 40, 3][(run / entries % 3) as usize];
            let spread = (rank.len() as u64 * STEPS / share).max(2 * STEPS);
            let mut random = Random(run);
            let mut order: Vec<(u64, u32)> = (0..)
                .zip(&rank)
                .map(|(block, &rank)| (u64::from(rank) * STEPS + random.below(spread), block))
                .collect();
            order.sort_unstable();
            rank = positions(order.into_iter().map(|(_, block)| block));
        }
        Strategy { rank, low, tight }
    }
}

/// Steps of a random move per rank.
const STEPS: u64 = 256;

/// Name of the strategy of the `run`-th restart.
pub(super) fn name(run: u64) -> String {
    format!("search, {} (run {run})", TABLE[(run % TABLE.len() as u64) as usize].3)
}

fn rank(part: &Part, key: Key) -> Vec<u32> {
    let mut order: Vec<u32> = (0..part.len() as u32).collect();
    order.sort_by_cached_key(|&block| {
        let block = block as usize;
        let life = u128::from(part.life[block]);
        let area = life * u128::from(part.size[block]);
        Reverse(match key {
            Key::Life => (life, area),
            Key::Area => (area, life),
            Key::Peak => (u128::from(part.peak(block)), area),
            Key::Span => (part.range(block).len() as u128, area),
        })
    });
    positions(order.into_iter())
}

/// The position of every block in a sequence of all of them.
fn positions(sequence: impl ExactSizeIterator<Item = u32>) -> Vec<u32> {
    let mut positions = vec![0; sequence.len()];
    for (position, block) in (0..).zip(sequence) {
        positions[block as usize] = position;
    }
    positions
}

/// The sequence 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ... of Luby, Sinclair and Zuckerman, from index 1:
/// within a constant and a logarithm of the best restart lengths for an unknown distribution.
pub(super) fn luby(mut index: u64) -> u64 {
    loop {
        let bits = (index + 1).ilog2();
        if index + 1 == 1 << bits {
            return 1 << (bits - 1);
        }
        index -= (1 << bits) - 1;
    }
}

/// SplitMix64: small, seedable and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }
}
