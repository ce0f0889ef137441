//! The barriers of a backend that follows whole buffers.
//!
//! wgpu looks at each dispatch alone: a buffer is bound for reading or may be written. It puts a barrier in front of a
//! dispatch that binds a buffer in another way than the dispatch before it that bound it, or that binds it for
//! writing once more. Ranges do not count, nor do barriers of the list. A buffer that was not bound before in the
//! same command buffer asks for none: what came before ends with the command buffer before.

use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::graph::ComputeGraph;
use crate::node::{CapturedNode, Dispatch};
use crate::range::MemRangeRole;

/// What a backend that follows whole buffers does with a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TrackedBarriers {
    /// Barriers in front of dispatches.
    pub barriers: u32,
    /// Of those, the ones between dispatches that the list lets run at the same time.
    pub inside_groups: u32,
    /// Dispatches that bind a buffer for reading and for writing: all of its bindings must then be for writing.
    pub both_ways: u32,
    /// Buffers that the list binds.
    pub buffers: u32,
}

/// How a dispatch binds a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Write,
}

/// Counts the barriers for one run of a list with addresses.
pub fn tracked_barriers(graph: &ComputeGraph) -> TrackedBarriers {
    let mut counts = TrackedBarriers::default();
    let mut last: FxHashMap<usize, Use> = FxHashMap::default();
    let mut group_is_open = false;
    for node in graph.nodes() {
        let dispatch = match node {
            CapturedNode::Barrier(_) => {
                group_is_open = false;
                continue;
            }
            CapturedNode::Dispatch(dispatch) => dispatch,
        };
        if dispatch.is_moot() {
            continue;
        }
        let (uses, both_ways) = uses(dispatch);
        counts.both_ways += u32::from(both_ways);
        let mut waits = false;
        for (buf_id, now) in uses {
            let before = last.insert(buf_id, now);
            waits |= before.is_some_and(|before| before != now || now == Use::Write);
        }
        counts.barriers += u32::from(waits);
        counts.inside_groups += u32::from(waits && group_is_open);
        group_is_open = true;
    }
    counts.buffers = last.len() as u32;
    counts
}

/// How a dispatch binds each of its buffers, and whether it binds one both ways.
fn uses(dispatch: &Dispatch) -> (FxHashMap<usize, Use>, bool) {
    let mut uses = FxHashMap::default();
    if !dispatch.is_annotated() {
        uses.extend(dispatch.bindings.iter().map(|view| (view.buf_id, Use::Write)));
        return (uses, false);
    }
    let mut both_ways = false;
    let reads_alone = |buf_id: usize, binding: u16| {
        let mut own = dispatch.accesses().iter().filter(|access| access.binding == binding);
        own.all(|access| access.range.buf_id == buf_id && access.range.role == MemRangeRole::Src)
    };
    for access in dispatch.accesses() {
        let buf_id = access.range.buf_id;
        let now = match access.range.role {
            MemRangeRole::Src => Use::Read,
            MemRangeRole::Dst => Use::Write,
        };
        let before = *uses.entry(buf_id).or_insert(now);
        if before == now {
            continue;
        }
        uses.insert(buf_id, Use::Write);
        // An operand that is read and written is one binding, and so are two that lie exactly over one another.
        let view = |binding: u16| &dispatch.bindings[usize::from(binding)];
        let apart = dispatch.accesses().iter().any(|other| {
            other.range.buf_id == buf_id
                && other.range.role == MemRangeRole::Src
                && reads_alone(buf_id, other.binding)
                && dispatch.accesses().iter().any(|write| {
                    write.range.buf_id == buf_id
                        && write.range.role == MemRangeRole::Dst
                        && view(write.binding) != view(other.binding)
                })
        });
        both_ways |= apart;
    }
    (uses, both_ways)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::barriers::BarrierWalk;
    use crate::contract::{BindingContract, BindingRole, KernelContract};
    use crate::dtype::DType;
    use crate::layout::{Layout, TensorView};
    use crate::op::CapturedOpKind;

    /// A buffer and an offset in it.
    type Place = (usize, u64);

    /// Dispatches that each read some places and write one.
    fn counts(dispatches: &[(&[Place], Place)]) -> TrackedBarriers {
        let layout = Layout::new(DType::F32, &[4]).unwrap();
        let view =
            |&(buf_id, offset): &(usize, u64)| TensorView { buf_id, buf_len: 1024, offset, layout };
        let mut graph = ComputeGraph::new();
        let (mut walk, mut nodes) = (BarrierWalk::default(), Vec::new());
        for (reads, write) in dispatches {
            let mut bindings: Vec<BindingContract> =
                reads.iter().map(|_| BindingContract::new("x", BindingRole::Read)).collect();
            bindings.push(BindingContract::new("y", BindingRole::Write));
            let views: Vec<TensorView> = reads.iter().chain([write]).map(view).collect();
            let contract = KernelContract::new("test", bindings);
            let dispatch =
                graph.annotated(CapturedOpKind::Custom, &contract, &views, &[], "").unwrap();
            nodes.extend(walk.before(&dispatch).map(CapturedNode::Barrier));
            nodes.push(CapturedNode::Dispatch(dispatch.clone()));
            graph.record(CapturedNode::Dispatch(dispatch)).unwrap();
        }
        tracked_barriers(&ComputeGraph::from_nodes(nodes).unwrap())
    }

    #[test]
    fn readers_of_one_buffer_that_write_others_wait_once() {
        let found = counts(&[(&[(1, 0)], (2, 0)), (&[(2, 0)], (3, 0)), (&[(2, 0)], (4, 0))]);
        assert_eq!((found.barriers, found.inside_groups, found.both_ways), (1, 0, 0));
        assert_eq!(found.buffers, 4);
    }

    #[test]
    fn ranges_of_one_buffer_wait_for_each_other() {
        let found = counts(&[(&[(1, 0)], (2, 0)), (&[(2, 0)], (3, 0)), (&[(2, 0)], (3, 256))]);
        assert_eq!(
            (found.barriers, found.inside_groups),
            (2, 1),
            "the same list in one buffer less"
        );
        let one = counts(&[(&[(1, 0)], (1, 64)), (&[(1, 0)], (1, 128))]);
        assert_eq!((one.barriers, one.inside_groups, one.both_ways), (1, 1, 2));
    }

    #[test]
    fn a_buffer_that_is_written_again_waits_for_its_readers() {
        let found = counts(&[(&[(2, 0)], (3, 0)), (&[(1, 0)], (2, 0)), (&[(1, 0)], (2, 0))]);
        assert_eq!((found.barriers, found.inside_groups), (2, 0));
    }
}
