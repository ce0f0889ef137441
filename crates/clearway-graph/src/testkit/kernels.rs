//! What it takes to record a built-in kind.

use crate::fuse::TestCatalog;
use crate::{CapturedOpKind, ComputeGraph, TensorView};

/// Records an op with the bindings and usual constants of its kind.
pub fn record_op(graph: &mut ComputeGraph, kind: CapturedOpKind, views: &[TensorView]) {
    let contract = TestCatalog::contract(kind, views.len()).unwrap();
    graph.dispatch(kind, &contract, views, params_of(kind), "").unwrap();
}

/// Constants a built-in kind takes, with usual contents.
const fn params_of(kind: CapturedOpKind) -> &'static [u32] {
    use CapturedOpKind as Kind;
    const ONE: u32 = 1f32.to_bits();
    const EPS: u32 = 1e-5f32.to_bits();
    const BASE: u32 = 10_000f32.to_bits();
    match kind {
        Kind::RmsNorm | Kind::LayerNorm => &[EPS],
        Kind::Gather | Kind::Scale | Kind::SoftCap | Kind::Softmax | Kind::Fill => &[ONE],
        Kind::RouterTopK => &[0, 1, ONE],
        Kind::Rope => &[16, 0, BASE, ONE],
        Kind::Attention => &[ONE, 0, 0, 0],
        _ => &[],
    }
}
