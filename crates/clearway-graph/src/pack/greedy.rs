//! Greedy placement: one block at a time, in a fixed order, into a gap among the blocks placed.
//!
//! The blocks in the way of a new one come from an index over the blocks sorted by first section:
//! a tree of the furthest section that any placed block below a node reaches. A query looks into
//! the leaves that hold an answer and skips everything else that is placed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::part::Part;

/// The order in which blocks are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Largest first.
    Size,
    /// Longest lived first.
    Duration,
    /// Largest size times duration first.
    Area,
    /// By the largest load a block is part of, then by size.
    Breadth,
}

/// Which of the gaps that are large enough is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The smallest gap, as a best-fit allocator would.
    Best,
    /// The lowest gap.
    First,
}

/// The blocks of a part in a greedy order; ties go to the longer life, then to the earlier block.
pub(super) fn sequence(part: &Part, order: Order) -> Vec<u32> {
    let mut sequence: Vec<u32> = (0..part.len() as u32).collect();
    let life = |block: usize| part.life[block];
    let size = |block: usize| part.size[block];
    match order {
        Order::Size => {
            sequence.sort_by_cached_key(|&b| Reverse((size(b as usize), life(b as usize))));
        }
        Order::Duration => {
            sequence.sort_by_cached_key(|&b| Reverse((life(b as usize), size(b as usize))));
        }
        Order::Area => sequence.sort_by_cached_key(|&b| {
            Reverse(u128::from(size(b as usize)) * u128::from(life(b as usize)))
        }),
        Order::Breadth => {
            let peaks = Peaks::new(&part.load);
            sequence.sort_by_cached_key(|&b| {
                let peak = peaks.largest(part.first[b as usize], part.last[b as usize]);
                Reverse((peak, size(b as usize)))
            });
        }
    }
    sequence
}

/// Places the blocks in the order given. `None` as soon as the height would reach `limit`.
pub(super) fn place(part: &Part, sequence: &[u32], fit: Fit, limit: u64) -> Option<Vec<u64>> {
    let mut index = LiveIndex::new(part.len());
    // First and one past the last byte of each placed block, side by side for one cache line.
    let mut bytes = vec![(0u64, 0u64); part.len()];
    let mut taken: Vec<(u64, u64)> = Vec::new();
    for &block in sequence {
        let block = block as usize;
        taken.clear();
        let before = part.starts[part.last[block] as usize] as usize;
        index.visit(before, part.first[block], |other| taken.push(bytes[other]));
        taken.sort_unstable();
        let offset = gap(&taken, part.size[block], fit);
        let end = offset + part.size[block];
        if end >= limit {
            return None;
        }
        bytes[block] = (offset, end);
        index.insert(block, part.last[block]);
    }
    Some(bytes.into_iter().map(|(offset, _)| offset).collect())
}

/// The offset of the gap chosen among the taken byte ranges, which are sorted and may touch.
pub(crate) fn gap(taken: &[(u64, u64)], size: u64, fit: Fit) -> u64 {
    let mut end = 0;
    let mut best: Option<(u64, u64)> = None;
    for &(from, to) in taken {
        if from >= end + size {
            if fit == Fit::First {
                return end;
            }
            let room = (from - end, end);
            best = Some(best.map_or(room, |best| best.min(room)));
        }
        end = end.max(to);
    }
    best.map_or(end, |(_, offset)| offset)
}

/// Places the blocks in the order in which they come alive, with a free list of bytes: the
/// cheapest order, whatever the number of conflicts. `None` when the height would reach `limit`.
pub(super) fn place_by_time(part: &Part, limit: u64) -> Option<Vec<u64>> {
    let mut expiry: Vec<u32> = (0..part.len() as u32).collect();
    expiry.sort_by_key(|&block| part.last[block as usize]);
    let mut expiry = expiry.into_iter().peekable();
    let mut offsets = vec![0u64; part.len()];
    let mut free = FreeList::default();
    for block in 0..part.len() {
        // A block that has expired by now started in an earlier section, so it has its offset.
        while let Some(dead) = expiry.next_if(|&d| part.last[d as usize] <= part.first[block]) {
            free.release(offsets[dead as usize], part.size[dead as usize]);
        }
        offsets[block] = free.take(part.size[block]);
        if free.top >= limit {
            return None;
        }
    }
    Some(offsets)
}

/// Free byte ranges below the top of the arena, by offset and by length.
#[derive(Default)]
struct FreeList {
    by_offset: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
    top: u64,
}

impl FreeList {
    /// The smallest free range that fits, else the top, which grows.
    fn take(&mut self, size: u64) -> u64 {
        if let Some(&(length, offset)) = self.by_length.range((size, 0)..).next() {
            self.remove(offset, length);
            if length > size {
                self.insert(offset + size, length - size);
            }
            return offset;
        }
        let last = self.by_offset.last_key_value().map(|(&offset, &length)| (offset, length));
        let offset = match last {
            Some((offset, length)) if offset + length == self.top => {
                self.remove(offset, length);
                offset
            }
            _ => self.top,
        };
        self.top = offset + size;
        offset
    }

    /// Returns a range and joins it with free neighbours.
    fn release(&mut self, mut offset: u64, mut length: u64) {
        let below = self.by_offset.range(..offset).next_back().map(|(&o, &l)| (o, l));
        if let Some((low, low_length)) = below.filter(|(o, l)| o + l == offset) {
            self.remove(low, low_length);
            offset = low;
            length += low_length;
        }
        if let Some(&high_length) = self.by_offset.get(&(offset + length)) {
            self.remove(offset + length, high_length);
            length += high_length;
        }
        self.insert(offset, length);
    }

    fn insert(&mut self, offset: u64, length: u64) {
        self.by_offset.insert(offset, length);
        self.by_length.insert((length, offset));
    }

    fn remove(&mut self, offset: u64, length: u64) {
        self.by_offset.remove(&offset);
        self.by_length.remove(&(length, offset));
    }
}

/// Blocks per leaf of the index, looked through one by one.
const LEAF: usize = 16;

/// The placed blocks, found by the sections they are live in.
struct LiveIndex {
    /// Per block, one past its last section once it is placed; 0 before.
    reach: Vec<u32>,
    /// Leaves of the tree, a power of two.
    leaves: usize,
    /// Per node of the tree, the largest reach below it.
    furthest: Vec<u32>,
    stack: Vec<(usize, usize, usize)>,
}

impl LiveIndex {
    fn new(blocks: usize) -> Self {
        let leaves = blocks.div_ceil(LEAF).next_power_of_two();
        Self { reach: vec![0; blocks], leaves, furthest: vec![0; 2 * leaves], stack: Vec::new() }
    }

    fn insert(&mut self, block: usize, last: u32) {
        self.reach[block] = last;
        let mut node = self.leaves + block / LEAF;
        while node > 0 && self.furthest[node] < last {
            self.furthest[node] = last;
            node /= 2;
        }
    }

    /// Calls `found` for every placed block below `before` that reaches beyond section `first`.
    fn visit(&mut self, before: usize, first: u32, mut found: impl FnMut(usize)) {
        self.stack.clear();
        self.stack.push((1, 0, self.leaves));
        while let Some((node, from, width)) = self.stack.pop() {
            if self.furthest[node] <= first || from * LEAF >= before {
                continue;
            }
            if width > 1 {
                let half = width / 2;
                self.stack.push((2 * node + 1, from + half, half));
                self.stack.push((2 * node, from, half));
                continue;
            }
            let blocks = from * LEAF..before.min((from + 1) * LEAF);
            for (block, &reach) in blocks.clone().zip(&self.reach[blocks]) {
                if reach > first {
                    found(block);
                }
            }
        }
    }
}

/// Largest value of any range: a table of the maxima of every power-of-two window.
struct Peaks {
    levels: Vec<Vec<u64>>,
}

impl Peaks {
    fn new(load: &[u64]) -> Self {
        let mut levels = vec![load.to_vec()];
        let mut width = 1;
        while 2 * width <= load.len() {
            let below = &levels[levels.len() - 1];
            let level = (0..=load.len() - 2 * width).map(|at| below[at].max(below[at + width]));
            let level = level.collect();
            levels.push(level);
            width *= 2;
        }
        Self { levels }
    }

    fn largest(&self, first: u32, last: u32) -> u64 {
        let level = (last - first).ilog2();
        let level_from = &self.levels[level as usize];
        level_from[first as usize].max(level_from[last as usize - (1 << level)])
    }
}
