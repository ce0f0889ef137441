//! What the op list needs on a device: checks, contracts and a reference.
//!
//! The list itself is [`CapturedOpKind`] with its [specs](CapturedOpKind::spec): names, operands and constants.
//! Here each op gets a check of shapes and types (`check.rs`) and a definition in f64 ([`reference`](mod@reference)). Both match
//! on the kind without a catch-all arm. Backends add an implementation.

mod check;
pub(crate) mod map;

pub mod reference;
#[cfg(any(test, feature = "testkit"))]
pub mod suite;

/// What `arg_max` gives for a row without a largest finite element: one with a NaN or an infinity in it, or with nothing
/// above negative infinity. [`Gather`](clearway_graph::CapturedOpKind::Gather) gives zeros for it.
pub const NO_INDEX: u32 = u32::MAX;

pub use clearway_graph::{OpSpec, Operand, ParamKind, ParamSpec};

use std::sync::LazyLock;

use clearway_graph::{BindingRole, CapturedOpKind, KernelContract, TensorView};
use rustc_hash::FxHashMap;

use crate::error::{GpuError, Result};

/// Every op of the list: plain ones, then products.
pub static OPS: LazyLock<Vec<&'static OpSpec>> =
    LazyLock::new(|| CapturedOpKind::all().filter_map(CapturedOpKind::spec).collect());

/// The row of an op; `None` for user kernels.
pub fn spec(kind: CapturedOpKind) -> Option<&'static OpSpec> {
    kind.spec()
}

/// The contract of an op when it is given `operands` tensors; `None` if it takes no such number.
pub fn contract(kind: CapturedOpKind, operands: usize) -> Option<&'static KernelContract> {
    static CONTRACTS: LazyLock<FxHashMap<(CapturedOpKind, usize), KernelContract>> =
        LazyLock::new(|| {
            let calls = OPS.iter().flat_map(|spec| {
                let (fewest, most) = spec.arity();
                [fewest, most].map(|bound| (spec, bound))
            });
            let contracts =
                calls.filter_map(|(spec, bound)| Some(((spec.kind, bound), spec.contract(bound)?)));
            contracts.collect()
        });
    CONTRACTS.get(&(kind, operands))
}

/// Name of operand `index` of an op that is given `operands` tensors: where the optional one was
/// left out, those behind it move up.
pub fn operand_name(kind: CapturedOpKind, operands: usize, index: usize) -> Option<&'static str> {
    spec(kind)?.operand(operands, index).map(|operand| operand.name)
}

/// Checks an op call: number of operands and constants, shapes, types, ranges of constants.
///
/// # Errors
/// What is wrong, with the operand's name and what was expected.
pub fn check(kind: CapturedOpKind, views: &[TensorView], params: &[u32]) -> Result<()> {
    let Some(spec) = spec(kind) else {
        return Err(GpuError::UnknownKernel { kernel: format!("{kind:?}") });
    };
    if contract(kind, views.len()).is_none() {
        return Err(GpuError::Arity {
            op: spec.name,
            what: "operands",
            found: views.len(),
            expected: spec.operands.len(),
        });
    }
    if params.len() != spec.params.len() {
        return Err(GpuError::Arity {
            op: spec.name,
            what: "constants",
            found: params.len(),
            expected: spec.params.len(),
        });
    }
    let call = check::Call { spec, views, params };
    check::check(&call)?;
    let written = (0..views.len()).filter(|&i| call.role(i) != BindingRole::Read);
    written.into_iter().try_for_each(|i| call.apart(i))
}
