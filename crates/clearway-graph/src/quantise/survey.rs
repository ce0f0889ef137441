//! Who touches the values of a list, from one walk over it.
//!
//! Long lists do not fit the caches, so each walk fetches them again: this one counts, and whoever wants to
//! know all readers of a value looks for that many from the first on, which mostly stand close together.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::graph::ComputeGraph;
use crate::ids::{DispatchId, NodeId};
use crate::node::Dispatch;

/// Nodes among which the readers of a value are looked for.
const NEAR: usize = 1 << 12;

/// Readers of a value: index in the list, and the binding.
pub(super) type Readers = SmallVec<[(u32, u16); 4]>;

/// How a value is used. Indices are those of nodes.
#[derive(Clone, Copy)]
pub(super) struct Uses {
    /// First and last write; the first is beyond all if there is none.
    pub(super) first_write: u32,
    pub(super) last_write: u32,
    /// Writes, one for each access.
    pub(super) writes: u32,
    first_read: u32,
    /// Reads, one for each access.
    pub(super) reads: u32,
    /// Somebody of unknown access who binds it, or beyond all.
    unknown: u32,
}

const NOBODY: u32 = u32::MAX;

/// The uses of all values.
pub(super) struct Survey(Vec<Uses>);

impl Survey {
    /// Walks the list and shows each dispatch to `visit`, with its index.
    pub(super) fn of<'a>(
        graph: &'a ComputeGraph,
        mut visit: impl FnMut(usize, &'a Arc<Dispatch>),
    ) -> Self {
        let none = Uses {
            first_write: NOBODY,
            last_write: 0,
            writes: 0,
            first_read: NOBODY,
            reads: 0,
            unknown: NOBODY,
        };
        let mut all = vec![none; graph.values().len()];
        for (index, node) in graph.nodes().iter().enumerate() {
            let Some(dispatch) = node.dispatch() else { continue };
            visit(index, dispatch);
            let at = index as u32;
            let mut of = |buf_id: usize, note: fn(&mut Uses, u32)| {
                let value = NodeId::from_buf_id(buf_id);
                if let Some(uses) = value.and_then(|value| all.get_mut(value.index())) {
                    note(uses, at);
                }
            };
            if !dispatch.is_annotated() {
                for view in &dispatch.bindings {
                    of(view.buf_id, |uses, at| uses.unknown = uses.unknown.min(at));
                }
            }
            for access in dispatch.accesses() {
                match access.range.is_write() {
                    true => of(access.range.buf_id, |uses, at| {
                        uses.first_write = uses.first_write.min(at);
                        uses.last_write = at;
                        uses.writes += 1;
                    }),
                    false => of(access.range.buf_id, |uses, at| {
                        uses.first_read = uses.first_read.min(at);
                        uses.reads += 1;
                    }),
                }
            }
        }
        Self(all)
    }

    pub(super) fn of_value(&self, value: NodeId) -> Option<&Uses> {
        self.0.get(value.index())
    }

    /// Index of the first write of a value; beyond all if there is none.
    pub(super) fn first_write(&self, value: NodeId) -> u32 {
        self.of_value(value).map_or(NOBODY, |uses| uses.first_write)
    }

    /// All readers of a value in list order; only some, if they stand too far apart.
    pub(super) fn readers(&self, graph: &ComputeGraph, value: NodeId) -> Readers {
        let mut found = Readers::new();
        let Some(uses) = self.of_value(value).filter(|uses| uses.reads > 0) else { return found };
        let nodes = graph.nodes().iter().enumerate().skip(uses.first_read as usize).take(NEAR);
        for (index, node) in nodes {
            let accesses = node.dispatch().map_or(&[][..], |dispatch| dispatch.accesses());
            let reads = accesses
                .iter()
                .filter(|access| !access.range.is_write() && access.range.buf_id == value.buf_id());
            found.extend(reads.map(|access| (index as u32, access.binding)));
            if found.len() >= uses.reads as usize {
                break;
            }
        }
        found
    }
}

impl Uses {
    /// Index of somebody of unknown access who binds the value.
    pub(super) fn unknown(&self) -> Option<u32> {
        (self.unknown != NOBODY).then_some(self.unknown)
    }
}

/// Id of the dispatch at an index.
pub(super) fn id_at(graph: &ComputeGraph, index: u32) -> DispatchId {
    let dispatch = graph.nodes()[index as usize].dispatch();
    dispatch.map_or(DispatchId(u32::MAX), |dispatch| dispatch.id)
}
