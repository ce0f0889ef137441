//! The memory plan: slab and offset per value.

use serde::Serialize;

use super::{PlaceOptions, SlabRule};
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shadows: Vec<(NodeId, NodeId)>,
}

impl MemoryPlan {
    /// A plan made elsewhere, indexed by value.
    pub fn new(slots: Vec<Option<Slot>>, slab_bytes: Vec<u64>) -> Self {
        Self { slots, slab_bytes, lower_bound: 0, shadows: Vec::new() }
    }

    /// Says how many bytes are live at most: no plan of these lives needs fewer.
    #[must_use]
    pub fn with_lower_bound(mut self, bytes: u64) -> Self {
        self.lower_bound = bytes;
        self
    }

    /// Says which values have an f16 shadow: the value and its shadow.
    #[must_use]
    pub fn with_shadows(mut self, shadows: Vec<(NodeId, NodeId)>) -> Self {
        self.shadows = shadows;
        self
    }

    /// Every used value in bytes of its own: the memory other plans are compared with.
    pub fn without_reuse(graph: &ComputeGraph, align: u64) -> Self {
        Self::without_reuse_with(graph, &PlaceOptions::aligned(align))
    }

    /// Every used value in bytes of its own, in slabs as the options ask for. Where values must not
    /// share slabs, each has one of its own.
    pub fn without_reuse_with(graph: &ComputeGraph, options: &PlaceOptions) -> Self {
        let mut used = vec![false; graph.values().len()];
        for value in graph.dispatches().flat_map(|d| d.values()) {
            if let Some(flag) = used.get_mut(value.index()) {
                *flag = true;
            }
        }
        let alone = options.rule != SlabRule::Any || !options.apart.is_empty();
        let mut slab_bytes = vec![0u64];
        let mut slots = vec![None; graph.values().len()];
        for (index, value) in graph.values().iter().enumerate() {
            let used = used[index] || value.lasts() || value.output;
            if !used || value.shadow_of.is_some() {
                continue;
            }
            let bytes = value.bytes.next_multiple_of(options.align.max(1));
            let top = slab_bytes[slab_bytes.len() - 1];
            if top > 0 && (alone || top.saturating_add(bytes) > options.max_slab_bytes) {
                slab_bytes.push(0);
            }
            let slab = slab_bytes.len() - 1;
            slots[index] = Some(Slot { slab, offset: slab_bytes[slab], bytes: value.bytes });
            slab_bytes[slab] += bytes;
        }
        let total = slab_bytes.iter().sum();
        super::shadow::place(graph, Self::new(slots, slab_bytes).with_lower_bound(total))
    }

    /// Where a value lies; `None` if it needs no memory.
    pub fn slot(&self, value: NodeId) -> Option<Slot> {
        self.slots.get(value.index()).copied().flatten()
    }

    /// Slots of all values, indexed by [`NodeId`].
    pub fn slots(&self) -> &[Option<Slot>] {
        &self.slots
    }

    /// Values with an f16 shadow, and the shadow of each.
    pub fn shadows(&self) -> &[(NodeId, NodeId)] {
        &self.shadows
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
