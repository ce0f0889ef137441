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
    // Rows of a cache of which only some are touched.
    let of_rows = |picked: u64| share(picked, layout(binding).map_or(0, |c| c.shape4()[1].into()));
    // Rows outside the written ones keep their bytes: nothing is read. As many are written as there are
    // positions.
    let cache = |cache: Option<usize>, rows: Option<usize>| match (cache, rows) {
        (Some(at), Some(rows)) if at == binding && write => of_rows(elems(rows)),
        (Some(at), Some(_)) if at == binding => 0,
        _ => declared,
    };
    match dispatch.kind {
        Kind::Gather if binding == 0 => {
            share(elems(1), layout(0).map_or(0, |table| table.rows() as u64))
        }
        Kind::MatMulExperts if binding == 1 => {
            share(elems(2), layout(1).map_or(0, |experts| experts.shape4()[1].into()))
        }
        // A window bounds what is visible: that many rows for each token, which overlap but for one.
        Kind::Attention | Kind::AttentionSinks if binding == 1 || binding == 2 => {
            match dispatch.params.get(WINDOW) {
                None | Some(0) => declared,
                Some(&window) => {
                    let tokens = layout(0).map_or(1, |q| u64::from(q.shape4()[1]));
                    of_rows(u64::from(window) + tokens.saturating_sub(1))
                }
            }
        }
        Kind::KvWrite => cache(Some(2), Some(1)),
        Kind::RopeKvWrite => cache(Some(4), Some(3)),
        Kind::Product(product) => {
            let at = |slot| product.operand(slot, dispatch.bindings.len());
            let weights = [Slot::Weight, Slot::UpWeight].map(at).contains(&Some(binding));
            match at(Slot::Ids) {
                Some(ids) if weights => {
                    share(elems(ids), layout(binding).map_or(0, |w| w.shape4()[1].into()))
                }
                _ => cache(at(Slot::Cache), at(Slot::CacheRows)),
            }
        }
        Kind::Gather
        | Kind::RmsNorm
        | Kind::LayerNorm
        | Kind::Map(_)
        | Kind::MatMulExperts
        | Kind::ExpertOrder
        | Kind::RouterTopK
        | Kind::RouterGroups
        | Kind::ExpertSum
        | Kind::ExpertSumAdd
        | Kind::Rope
        | Kind::Softmax
        | Kind::Attention
        | Kind::AttentionSinks
        | Kind::Copy
        | Kind::Concat
        | Kind::ArgMax
        | Kind::TopK
        | Kind::Fill
        | Kind::RmsNormMul
        | Kind::RmsNormMulAdd
        | Kind::AddRmsNorm
        | Kind::AddRmsNormMul
        | Kind::Custom
        | Kind::Pinned => declared,
    }
}

/// Where attention has its window; 0 for none.
const WINDOW: usize = 1;

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

    #[test]
    fn attention_with_a_window_reads_the_rows_it_sees() {
        let shapes: [(DType, &[usize]); 5] = [
            (DType::F32, &[2, 4, 8]),
            (DType::F16, &[100, 2, 8]),
            (DType::F16, &[100, 2, 8]),
            (DType::U32, &[2]),
            (DType::F32, &[2, 4, 8]),
        ];
        let view = |(buf_id, (dtype, shape)): (usize, (DType, &[usize]))| {
            let layout = Layout::new(dtype, shape).unwrap();
            TensorView { buf_id, buf_len: layout.span_bytes(), offset: 0, layout }
        };
        let views: Vec<_> = shapes.into_iter().enumerate().map(view).collect();
        let kind = CapturedOpKind::Attention;
        let contract = TestCatalog::contract(kind, views.len()).unwrap();
        // Two tokens that see nine rows each see ten together; a cache has a hundred.
        for (window, rows) in [(0, 100), (9, 10), (500, 100)] {
            let mut graph = ComputeGraph::new();
            graph.dispatch(kind, &contract, &views, &[0, window, 0], "").unwrap();
            let read = 256 + 2 * rows * 32 + 8;
            let dispatch = graph.dispatches().next().unwrap();
            assert_eq!(traffic(dispatch), Traffic { read, write: 256 }, "window {window}");
        }
    }
}
