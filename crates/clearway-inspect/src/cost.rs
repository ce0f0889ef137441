//! Bytes a dispatch moves, and the time that takes by the cost model.
//!
//! Declared ranges are the largest a dispatch may touch, which is right for hazards and wrong for time:
//! a table of which a few rows are picked, experts of which a few are used, a cache into which one row is
//! written. Where shapes tell how much it is at most in one step, that counts.

use clearway_graph::place::CostModel;
use clearway_graph::{CapturedOpKind, Dispatch, Slot};

/// Bytes read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub read: u64,
    pub write: u64,
}

impl Traffic {
    pub(crate) const fn total(self) -> u64 {
        self.read + self.write
    }
}

/// What a dispatch moves in one run, at most.
pub(crate) fn traffic(dispatch: &Dispatch) -> Traffic {
    let mut sum = Traffic::default();
    // What a write keeps between its elements is not moved.
    for access in dispatch.accesses().iter().filter(|access| !access.keeps) {
        let declared = access.range.p1 - access.range.p0;
        let bytes =
            touched(dispatch, usize::from(access.binding), access.range.is_write(), declared);
        match access.range.is_write() {
            true => sum.write += bytes,
            false => sum.read += bytes,
        }
    }
    sum
}

fn touched(dispatch: &Dispatch, binding: usize, write: bool, declared: u64) -> u64 {
    use CapturedOpKind as Kind;
    // A list built by hand may bind anything.
    let layout = |index: usize| dispatch.bindings.get(index).map(|view| view.layout);
    let elems = |index: usize| layout(index).map_or(0, |layout| layout.elems() as u64);
    // Rows picked of those there are, the rest untouched.
    let share = |picked: u64, of: u64| match of {
        0 => declared,
        _ => (u128::from(declared) * u128::from(picked.min(of)) / u128::from(of)) as u64,
    };
    match (dispatch.kind, binding) {
        (Kind::Gather, 0) => share(elems(1), layout(0).map_or(0, |table| table.rows() as u64)),
        (Kind::MatMulExperts, 1) => {
            share(elems(2), layout(1).map_or(0, |experts| u64::from(experts.shape4()[1])))
        }
        (kind, _)
            if cache_rows(kind, dispatch.bindings.len()).is_some_and(|(c, _)| c == binding) =>
        {
            // Rows outside the written ones keep their bytes: nothing is read. As many are written as
            // there are positions.
            let rows = layout(binding).map_or(0, |cache| u64::from(cache.shape4()[1]));
            let positions =
                cache_rows(kind, dispatch.bindings.len()).map_or(0, |(_, rows)| elems(rows));
            if write { share(positions, rows) } else { 0 }
        }
        _ => declared,
    }
}

/// The cache that an op writes rows of, and the operand with the positions of those.
fn cache_rows(kind: CapturedOpKind, bound: usize) -> Option<(usize, usize)> {
    match kind {
        CapturedOpKind::KvWrite => Some((2, 1)),
        CapturedOpKind::RopeKvWrite => Some((4, 3)),
        CapturedOpKind::Product(product) => {
            Some((product.operand(Slot::Cache, bound)?, product.operand(Slot::CacheRows, bound)?))
        }
        _ => None,
    }
}

/// Estimated time of a dispatch alone, without the barrier.
pub(crate) fn dispatch_ns(cost: &CostModel, traffic: Traffic) -> f64 {
    (traffic.total() as f64 / cost.bytes_per_ns).max(cost.dispatch_ns)
}

/// Estimated time of a group: its bytes at full bandwidth or its launches, whichever is longer, and the
/// barrier.
pub(crate) fn group_ns(cost: &CostModel, bytes: u64, dispatches: u32) -> f64 {
    let moved = bytes as f64 / cost.bytes_per_ns;
    cost.barrier_ns + moved.max(cost.dispatch_ns * f64::from(dispatches))
}

#[cfg(test)]
mod tests {
    use clearway_graph::fuse::TestCatalog;
    use clearway_graph::testkit::kind;
    use clearway_graph::{ComputeGraph, DType, Layout, TensorView};

    use super::*;

    #[test]
    fn a_product_into_a_cache_moves_the_rows_it_writes() {
        let buffer = |(buf_id, (dtype, shape)): (usize, (DType, &[usize]))| {
            let layout = Layout::new(dtype, shape).unwrap();
            TensorView { buf_id, buf_len: layout.span_bytes(), offset: 0, layout }
        };
        let views = |tensors: &[(DType, &[usize])]| -> Vec<TensorView> {
            tensors.iter().copied().enumerate().map(buffer).collect()
        };
        let product: [(DType, &[usize]); 3] =
            [(DType::F32, &[2, 8]), (DType::F32, &[8]), (DType::F32, &[16, 8])];
        let positions: (DType, &[usize]) = (DType::U32, &[2]);
        let factors: (DType, &[usize]) = (DType::F32, &[4]);
        let cache: (DType, &[usize]) = (DType::F16, &[100, 2, 8]);
        let plain = [&product[..], &[positions, cache]].concat();
        let turned = [&product[..], &[positions, factors, positions, cache]].concat();
        // Two rows of 16 elements in half precision, whatever the cache has.
        for (kind, tensors, read) in [
            (kind("norm_matmul_kv"), plain, 64 + 32 + 512 + 8),
            (kind("norm_matmul_rope_kv"), turned, 64 + 32 + 512 + 8 + 16 + 8),
        ] {
            let mut graph = ComputeGraph::new();
            let contract = TestCatalog::contract(kind, tensors.len()).unwrap();
            graph.dispatch(kind, &contract, &views(&tensors), &[], "").unwrap();
            let dispatch = graph.dispatches().next().unwrap();
            assert_eq!(traffic(dispatch), Traffic { read, write: 2 * 16 * 2 }, "{kind}");
        }
    }
}
