//! What other planners would make of the same list, for comparison.
//!
//! Both are models of what is published, not the programs themselves: lives counted in nodes with
//! greedy first fit by size (rlx), and a free list walked in execution order with best fit and reuse
//! of a dying parent (ggml). Addresses then bring back barriers that true dependences do not need.

use clearway_graph::place::{AliasClass, MemoryPlan, Slot, alias_classes, lifetimes};
use clearway_graph::schedule::Strategy;
use clearway_graph::{ComputeGraph, Result};
use serde::Serialize;

/// Memory and groups under another planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PeerPlan {
    /// Concurrent groups once values have addresses.
    pub groups: u32,
    /// Groups more than without sharing memory.
    pub false_barriers: u32,
    /// Bytes of the arena.
    pub arena_bytes: u64,
}

/// Program order, lives counted in nodes, greedy first fit by size, nothing in place.
///
/// # Errors
/// As [`ComputeGraph::assign_addresses`].
pub fn node_order(graph: &ComputeGraph, align: u64) -> Result<PeerPlan> {
    let mut sequential = graph.clone();
    sequential.place_barriers_everywhere();
    let mut lives = lifetimes(&sequential);
    lives.sort_by_key(|life| (std::cmp::Reverse(life.bytes), life.value));
    let mut slots = vec![None; graph.values().len()];
    let mut placed: Vec<(u32, u32, u64, u64)> = Vec::new();
    for life in lives {
        let bytes = life.bytes.next_multiple_of(align.max(1));
        let meets =
            |&&(first, last, ..): &&(u32, u32, u64, u64)| first <= life.last && life.first <= last;
        let mut taken: Vec<_> = placed.iter().filter(meets).map(|p| (p.2, p.3)).collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, end) in taken {
            if offset + bytes <= start {
                break;
            }
            offset = offset.max(end);
        }
        placed.push((life.first, life.last, offset, offset + bytes));
        slots[life.value.index()] = Some(Slot { slab: 0, offset, bytes: life.bytes });
    }
    let height = placed.iter().map(|p| p.3).max().unwrap_or(0);
    finish(graph.clone(), MemoryPlan::new(slots, vec![height]))
}

/// The look-ahead order, a free list in execution order: best fit, the top block last, a dying parent
/// reused where the kernel runs in place.
///
/// # Errors
/// As [`ComputeGraph::assign_addresses`].
pub fn free_list(graph: &ComputeGraph, align: u64) -> Result<PeerPlan> {
    let mut ordered = graph.clone();
    ordered.reorder_with(Strategy::LookAhead { window: 64 });
    let mut sequential = ordered.clone();
    sequential.place_barriers_everywhere();
    let mut classes = alias_classes(&sequential);
    classes.sort_by_key(|class| (class.first, class.values[0]));
    let mut slots = vec![None; graph.values().len()];
    let mut list = FreeList::default();
    let mut live: Vec<(&AliasClass, u64, u64)> = Vec::new();
    for class in &classes {
        live.retain(|&(other, start, end)| {
            let stays = other.last >= class.first;
            if !stays {
                list.release(start, end);
            }
            stays
        });
        let bytes = class.bytes.next_multiple_of(align.max(1));
        let offset = list.take(bytes);
        live.push((class, offset, offset + bytes));
        for value in &class.values {
            let bytes = graph.values()[value.index()].bytes;
            slots[value.index()] = Some(Slot { slab: 0, offset, bytes });
        }
    }
    finish(ordered, MemoryPlan::new(slots, vec![list.height]))
}

/// Groups with and without addresses.
fn finish(mut graph: ComputeGraph, plan: MemoryPlan) -> Result<PeerPlan> {
    graph.set_replayed(false);
    let free = graph.place_barriers();
    graph.assign_addresses(&plan, &[usize::MAX >> 1])?;
    let placed = graph.place_barriers();
    Ok(PeerPlan {
        groups: placed + 1,
        false_barriers: placed.saturating_sub(free),
        arena_bytes: plan.total_bytes(),
    })
}

/// Free blocks below the top, by address.
#[derive(Default)]
struct FreeList {
    blocks: Vec<(u64, u64)>,
    top: u64,
    height: u64,
}

impl FreeList {
    fn take(&mut self, bytes: u64) -> u64 {
        let fits = self.blocks.iter().enumerate().filter(|(_, (start, end))| end - start >= bytes);
        match fits.min_by_key(|(_, (start, end))| end - start).map(|(index, _)| index) {
            Some(index) => {
                let (start, end) = self.blocks[index];
                match start + bytes < end {
                    true => self.blocks[index].0 = start + bytes,
                    false => _ = self.blocks.remove(index),
                }
                start
            }
            None => {
                let start = self.top;
                self.top += bytes;
                self.height = self.height.max(self.top);
                start
            }
        }
    }

    fn release(&mut self, start: u64, end: u64) {
        let at = self.blocks.partition_point(|block| block.0 < start);
        self.blocks.insert(at, (start, end));
        if at + 1 < self.blocks.len() && self.blocks[at].1 == self.blocks[at + 1].0 {
            self.blocks[at].1 = self.blocks[at + 1].1;
            self.blocks.remove(at + 1);
        }
        if at > 0 && self.blocks[at - 1].1 == self.blocks[at].0 {
            self.blocks[at - 1].1 = self.blocks[at].1;
            self.blocks.remove(at);
        }
        // A block that reaches the top is the top.
        if let Some(&(start, end)) = self.blocks.last()
            && end == self.top
        {
            self.top = start;
            self.blocks.pop();
        }
    }
}
