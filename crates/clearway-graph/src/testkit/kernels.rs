//! What it takes to record a built-in kind.

use crate::fuse::TestCatalog;
use crate::{CapturedOpKind, ComputeGraph, ParamKind, ParamSpec, TensorView};

/// Records an op with the bindings and usual constants of its kind.
pub fn record_op(graph: &mut ComputeGraph, kind: CapturedOpKind, views: &[TensorView]) {
    let contract = TestCatalog::contract(kind, views.len()).unwrap();
    graph.dispatch(kind, &contract, views, &params_of(kind), "").unwrap();
}

/// Constants a built-in kind takes, with usual contents.
fn params_of(kind: CapturedOpKind) -> Vec<u32> {
    let params = kind.spec().map_or(&[][..], |spec| spec.params);
    params.iter().map(usual).collect()
}

fn usual(param: &ParamSpec) -> u32 {
    match (param.kind, param.name) {
        (ParamKind::F32, "eps") => 1e-5f32.to_bits(),
        (ParamKind::F32, "base") => 10_000f32.to_bits(),
        (ParamKind::F32, "softcap") => 0,
        (ParamKind::F32, _) => 1f32.to_bits(),
        (ParamKind::U32, "n_dims") => 16,
        (ParamKind::U32, "renorm") => 1,
        (ParamKind::U32, _) => 0,
    }
}
