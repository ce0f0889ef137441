//! The fastest kernel for a job.

use clearway_graph::{CapturedOpKind as Kind, DType, FusedRequest, TensorView};

use super::{
    Job, Kernel, Target, coop, decode_attention, lower as general, matvec, planar, prompt_attention,
};
use crate::error::{GpuError, Result};
use crate::ops;

/// The kernel for an op call: one made for its case, or the general one.
///
/// # Errors
/// As the general kernel: an op that is not in the table, or weights in planes that no kernel reads.
pub fn lower(job: &Job<'_>) -> Result<Kernel> {
    if job.operands.iter().any(|operand| operand.layout.dtype() == DType::A8) {
        return matvec::lower(job).ok_or_else(|| GpuError::KernelFailed {
            kernel: ops::spec(job.kind).map_or("custom", |spec| spec.name).into(),
            message: "no kernel reads or writes rounded activations like these".into(),
        });
    }
    let special = match job.kind {
        kind if few_rows_only(kind) => matvec::lower(job),
        Kind::MatMul | Kind::MatMulAdd => {
            matvec::lower(job).or_else(|| coop::lower(job)).or_else(|| planar::matmul(job))
        }
        Kind::MatMulExperts => matvec::lower(job),
        Kind::Gather => planar::gather(job),
        Kind::Attention => decode_attention::lower(job).or_else(|| prompt_attention::lower(job)),
        _ => None,
    };
    special.map_or_else(|| general::lower(job), Ok)
}

/// In how many ways a job can be done: which one is the fastest depends on the device.
pub fn choices(job: &Job<'_>) -> u8 {
    let product = few_rows_only(job.kind) || matches!(job.kind, Kind::MatMul | Kind::MatMulAdd);
    if product { matvec::choices(job) } else { 1 }
}

/// Whether there is a kernel for a fused op with these operands; `suits` says whether weights lie as
/// kernels of few rows read them.
pub fn has_fused(
    request: &FusedRequest<'_>,
    target: &Target,
    suits: &dyn Fn(&TensorView) -> bool,
) -> bool {
    let count = request.bindings.len();
    let find = |name: &str| {
        (0..count)
            .find(|&index| ops::operand_name(request.kind, count, index) == Some(name))
            .map(|index| &request.bindings[index])
    };
    let layout = |name: &str| find(name).map(|view| &view.layout);
    let suit = || ["w", "u"].into_iter().filter_map(find).all(suits);
    if request.bindings.iter().any(|view| view.layout.dtype() == DType::A8) {
        return matvec::has_rounded(target, layout) && suit();
    }
    !few_rows_only(request.kind) || (matvec::has_fused(target, layout) && suit())
}

/// Fused ops that exist only as products of few rows.
fn few_rows_only(kind: Kind) -> bool {
    ops::spec(kind).is_some_and(|spec| {
        let has = |name: &str| spec.operands.iter().any(|operand| operand.name == name);
        let fused = ["g", "u", "up", "factors", "cache", "next"].into_iter().any(has);
        has("w") && has("x") && fused
    })
}
