//! The op list: one table for all backends.
//!
//! An op is a row of [`OPS`]: its name, its operands with their roles, its constants, and a check of
//! shapes and types. The contract every schedule is made from follows from the row; a backend adds an
//! implementation under the same name.

mod check;
mod table;

pub mod reference;
#[cfg(any(test, feature = "testkit"))]
pub mod suite;

/// What `arg_max` gives for a row without a largest finite element: one with a NaN or an infinity in it, or with nothing
/// above negative infinity. [`Gather`](clearway_graph::CapturedOpKind::Gather) gives zeros for it.
pub const NO_INDEX: u32 = u32::MAX;

pub use table::{OPS, OpSpec, Operand, ParamKind, ParamSpec};

use std::sync::LazyLock;

use clearway_graph::{BindingContract, BindingRole, CapturedOpKind, KernelContract, TensorView};
use rustc_hash::FxHashMap;

use crate::error::{GpuError, Result};

/// The row of an op; `None` for user kernels.
pub fn spec(kind: CapturedOpKind) -> Option<&'static OpSpec> {
    static BY_KIND: LazyLock<FxHashMap<CapturedOpKind, &'static OpSpec>> =
        LazyLock::new(|| OPS.iter().map(|spec| (spec.kind, spec)).collect());
    BY_KIND.get(&kind).copied()
}

/// The contract of an op when it is given `operands` tensors; `None` if it takes no such number.
pub fn contract(kind: CapturedOpKind, operands: usize) -> Option<&'static KernelContract> {
    static CONTRACTS: LazyLock<FxHashMap<(CapturedOpKind, usize), KernelContract>> =
        LazyLock::new(|| {
            let mut contracts = FxHashMap::default();
            for spec in OPS {
                for with_optional in [true, false] {
                    let operands = spec.operands.iter();
                    let bound: Vec<_> = operands
                        .filter(|operand| with_optional || !operand.optional)
                        .map(|operand| {
                            BindingContract::new(operand.name, operand.role).over(operand.over)
                        })
                        .collect();
                    let key = (spec.kind, bound.len());
                    contracts.entry(key).or_insert_with(|| KernelContract::new(spec.name, bound));
                }
            }
            contracts
        });
    CONTRACTS.get(&(kind, operands))
}

/// Name of operand `index` of an op that is given `operands` tensors: where the optional one was
/// left out, those behind it move up.
pub fn operand_name(kind: CapturedOpKind, operands: usize, index: usize) -> Option<&'static str> {
    let all = spec(kind)?.operands;
    let skipped = all.len().checked_sub(operands)?;
    let optional = all.iter().position(|operand| operand.optional).unwrap_or(all.len());
    all.get(if index >= optional { index + skipped } else { index }).map(|operand| operand.name)
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
    (spec.check)(&call)?;
    let written = (0..views.len()).filter(|&i| call.role(i) != BindingRole::Read);
    written.into_iter().try_for_each(|i| call.apart(i))
}
