//! Skyline dives: the block that can sit lowest is placed next, on top of everything below it.
//!
//! The skyline is the height already used in each section. A block's lowest offset only grows as
//! others are placed, so a heap with stale offsets is enough: a popped block is placed if its
//! offset is still true and goes back with the true one otherwise.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::part::Part;

/// Places the blocks; among those that can sit equally low, the first of `sequence` wins.
///
/// `None` when the height would reach `limit`, or once the work exceeds `allowance`. Also returns
/// the work done: four for each look at a block, one for every two chunks of its sections.
pub(super) fn dive(
    part: &Part,
    sequence: &[u32],
    limit: u64,
    allowance: u64,
) -> (Option<Vec<u64>>, u64) {
    let ranked = sequence.iter().zip(0..).map(|(&block, rank)| Reverse((0u64, rank, block)));
    let mut heap: BinaryHeap<Reverse<(u64, u32, u32)>> = ranked.collect();
    let mut skyline = Skyline::new(part.sections());
    let mut offsets = vec![0u64; part.len()];
    let mut work = 0;
    while let Some(mut next) = heap.peek_mut() {
        let Reverse((stale, rank, block)) = *next;
        let range = part.range(block as usize);
        work += 4 + (range.len() / (2 * CHUNK)) as u64;
        if work > allowance {
            return (None, allowance);
        }
        let offset = skyline.highest(range.clone());
        if offset > stale {
            *next = Reverse((offset, rank, block));
            continue;
        }
        PeekMut::pop(next);
        let top = offset + part.size[block as usize];
        if top >= limit {
            return (None, work);
        }
        offsets[block as usize] = offset;
        skyline.raise(range, top);
    }
    (Some(offsets), work)
}

/// Sections per chunk.
const CHUNK: usize = 64;

/// Heights over sections, in chunks so that long ranges cost one step per chunk.
struct Skyline {
    height: Vec<u64>,
    /// Per chunk, the highest section.
    peak: Vec<u64>,
    /// Per chunk, whether all its sections are at the peak, whatever `height` says.
    level: Vec<bool>,
}

impl Skyline {
    fn new(sections: usize) -> Self {
        let chunks = sections.div_ceil(CHUNK);
        Self { height: vec![0; sections], peak: vec![0; chunks], level: vec![false; chunks] }
    }

    fn highest(&self, range: std::ops::Range<usize>) -> u64 {
        let mut highest = 0;
        for (chunk, inner) in chunks(range) {
            let part = match inner {
                Some(inner) if !self.level[chunk] => self.height[inner].iter().copied().max(),
                _ => Some(self.peak[chunk]),
            };
            highest = highest.max(part.unwrap_or(0));
        }
        highest
    }

    /// Sets the range to `top`, which is above everything in it.
    fn raise(&mut self, range: std::ops::Range<usize>, top: u64) {
        for (chunk, inner) in chunks(range) {
            match inner {
                None => {
                    self.level[chunk] = true;
                    self.peak[chunk] = top;
                }
                Some(inner) => {
                    if std::mem::take(&mut self.level[chunk]) {
                        let end = self.height.len().min((chunk + 1) * CHUNK);
                        self.height[chunk * CHUNK..end].fill(self.peak[chunk]);
                    }
                    self.height[inner].fill(top);
                    self.peak[chunk] = self.peak[chunk].max(top);
                }
            }
        }
    }
}

/// The chunks of a range, each with the part inside it unless it is covered whole.
fn chunks(
    range: std::ops::Range<usize>,
) -> impl Iterator<Item = (usize, Option<std::ops::Range<usize>>)> {
    let chunk_range = range.start / CHUNK..range.end.div_ceil(CHUNK);
    chunk_range.map(move |chunk| {
        let from = range.start.max(chunk * CHUNK);
        let to = range.end.min((chunk + 1) * CHUNK);
        (chunk, (to - from < CHUNK).then_some(from..to))
    })
}
