//! The f16 shadow of the arena.
//!
//! A second buffer of half the size: the f16 of the f32 at byte `o` lies at `o / 2`. Only values
//! that some kernel reads as f16 have one. A shadow is a value like any other to every stage but
//! this one: dispatches write and read it through ordinary annotated ranges, so it is ordered,
//! proven and never read before it is written. Its place follows from that of its value, which
//! therefore lives as long as its shadow does.

use super::{MemoryPlan, Slot};
use crate::graph::ComputeGraph;
use crate::ids::{DispatchId, NodeId};
use crate::node::Access;

/// Puts every shadow at half the offset of its value, in a slab of half the size.
pub(super) fn place(graph: &ComputeGraph, plan: MemoryPlan) -> MemoryPlan {
    let shadows: Vec<(NodeId, NodeId)> = (0..)
        .map(NodeId)
        .zip(graph.values())
        .filter_map(|(shadow, value)| Some((value.shadow_of?, shadow)))
        .filter(|&(of, _)| plan.slot(of).is_some())
        .collect();
    if shadows.is_empty() {
        return plan;
    }
    let (mut slots, mut slab_bytes) = (plan.slots().to_vec(), plan.slab_bytes().to_vec());
    let mut slab_of: Vec<Option<usize>> = vec![None; slab_bytes.len()];
    for &(of, shadow) in &shadows {
        let Some(Slot { slab, offset, bytes }) = slots[of.index()] else { continue };
        let own = *slab_of[slab].get_or_insert_with(|| {
            slab_bytes.push(slab_bytes[slab].div_ceil(2));
            slab_bytes.len() - 1
        });
        slots[shadow.index()] = Some(Slot { slab: own, offset: offset / 2, bytes: bytes / 2 });
    }
    let halves: u64 = slab_bytes[plan.slab_bytes().len()..].iter().sum();
    MemoryPlan::new(slots, slab_bytes)
        .with_lower_bound(plan.lower_bound() + halves)
        .with_shadows(shadows)
}

/// The first dispatch that reads a shadow which does not hold what its value holds, and that value.
/// A shadow is fresh from a dispatch that writes it and reads its value, until the value is
/// written again. Host uploads come before the list, so every run starts with stale shadows.
pub fn stale_shadow(graph: &ComputeGraph) -> Option<(DispatchId, NodeId)> {
    let mut shadow_of: Vec<Option<NodeId>> = vec![None; graph.values().len()];
    for (shadow, value) in (0..).map(NodeId).zip(graph.values()) {
        if let Some(of) = value.shadow_of {
            shadow_of[of.index()] = Some(shadow);
        }
    }
    if shadow_of.iter().all(Option::is_none) {
        return None;
    }
    let mut fresh = vec![false; graph.values().len()];
    for dispatch in graph.dispatches() {
        let value = |range: &crate::BufferRange| NodeId::from_buf_id(range.buf_id);
        let (real, kept): (Vec<&Access>, Vec<&Access>) =
            dispatch.accesses().iter().filter(|a| !a.range.is_write()).partition(|a| !a.keeps);
        for read in real.iter().filter_map(|access| value(&access.range)) {
            let of = graph.values().get(read.index()).and_then(|value| value.shadow_of);
            if let Some(of) = of.filter(|_| !fresh[read.index()]) {
                return Some((dispatch.id, of));
            }
        }
        for written in dispatch.writes() {
            let Some(id) = value(written) else { continue };
            let Some(known) = graph.values().get(id.index()) else { continue };
            if let Some(shadow) = shadow_of[id.index()] {
                fresh[shadow.index()] = false;
            }
            if let Some(of) = known.shadow_of {
                let gaps = kept.iter().any(|access| access.range.buf_id == written.buf_id);
                let whole = (written.p0, written.p1) == (0, known.bytes) && !gaps;
                let copied = real.iter().filter_map(|access| value(&access.range)).any(|r| r == of);
                fresh[id.index()] = whole && copied;
            }
        }
    }
    None
}
