//! The memory plan: slab and offset per value.

use serde::Serialize;

use crate::graph::ComputeGraph;
use crate::ids::NodeId;

/// Where a value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Slot {
    /// Index of the slab.
    pub slab: usize,
    /// First byte in the slab.
    pub offset: u64,
    /// Bytes reserved.
    pub bytes: u64,
}

/// Where every value lies, and how large the slabs are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryPlan {
    slots: Vec<Option<Slot>>,
    slab_bytes: Vec<u64>,
    lower_bound: u64,
}

impl MemoryPlan {
    /// A plan made elsewhere, indexed by value.
    pub fn new(slots: Vec<Option<Slot>>, slab_bytes: Vec<u64>) -> Self {
        Self { slots, slab_bytes, lower_bound: 0 }
    }

    /// Says how many bytes are live at most: no plan of these lives needs fewer.
    #[must_use]
    pub fn with_lower_bound(mut self, bytes: u64) -> Self {
        self.lower_bound = bytes;
        self
    }

    /// Every used value in bytes of its own: the memory other plans are compared with.
    pub fn without_reuse(graph: &ComputeGraph, align: u64) -> Self {
        let mut used = vec![false; graph.values().len()];
        for value in graph.dispatches().flat_map(|d| d.values()) {
            if let Some(flag) = used.get_mut(value.index()) {
                *flag = true;
            }
        }
        let mut top = 0;
        let slots = graph
            .values()
            .iter()
            .zip(used)
            .map(|(value, used)| {
                (used || value.input || value.output).then(|| {
                    let slot = Slot { slab: 0, offset: top, bytes: value.bytes };
                    top += value.bytes.next_multiple_of(align.max(1));
                    slot
                })
            })
            .collect();
        Self::new(slots, vec![top]).with_lower_bound(top)
    }

    /// Where a value lies; `None` if it needs no memory.
    pub fn slot(&self, value: NodeId) -> Option<Slot> {
        self.slots.get(value.index()).copied().flatten()
    }

    /// Slots of all values, indexed by [`NodeId`].
    pub fn slots(&self) -> &[Option<Slot>] {
        &self.slots
    }

    /// Bytes of each slab.
    pub fn slab_bytes(&self) -> &[u64] {
        &self.slab_bytes
    }

    /// Most bytes live in any group, as far as it is known: no plan of these lives needs fewer.
    pub fn lower_bound(&self) -> u64 {
        self.lower_bound
    }

    /// Bytes of all slabs together.
    pub fn total_bytes(&self) -> u64 {
        self.slab_bytes.iter().sum()
    }
}
