//! The fastest kernel for a job.

use clearway_graph::{
    CapturedOpKind as Kind, DType, FusedRequest, Layout, OpSpec, Slot, TensorView,
};

use super::{
    Job, Kernel, Target, coop, decode_attention, lower as general, matvec, planar,
    prompt_attention, thin,
};
use crate::error::{GpuError, Result};

/// The kernel for an op call: one made for its case, or the general one.
///
/// # Errors
/// As the general kernel: an op that is not in the table, or weights in planes that no kernel reads.
pub fn lower(job: &Job<'_>) -> Result<Kernel> {
    if job.operands.iter().any(|operand| operand.layout.dtype() == DType::A8) {
        return matvec::lower(job).ok_or_else(|| GpuError::KernelFailed {
            kernel: job.kind.name().into(),
            message: "no kernel reads or writes rounded activations like these".into(),
        });
    }
    let special = match job.kind {
        Kind::Product(product) if product.is_basic() => {
            let few = thin::lower(job).or_else(|| matvec::lower(job));
            few.or_else(|| coop::lower(job)).or_else(|| planar::matmul(job))
        }
        // All others exist only as products of few rows.
        Kind::Product(_) => matvec::lower(job),
        Kind::MatMulExperts => coop::experts(job).or_else(|| matvec::lower(job)),
        Kind::Gather => planar::gather(job),
        Kind::Attention | Kind::AttentionSinks => {
            decode_attention::lower(job).or_else(|| prompt_attention::lower(job))
        }
        Kind::RmsNorm
        | Kind::LayerNorm
        | Kind::Map(_)
        | Kind::ExpertOrder
        | Kind::RouterTopK
        | Kind::RouterGroups
        | Kind::ExpertSum
        | Kind::ExpertSumAdd
        | Kind::Rope
        | Kind::Softmax
        | Kind::KvWrite
        | Kind::Copy
        | Kind::Concat
        | Kind::ArgMax
        | Kind::TopK
        | Kind::Fill
        | Kind::RmsNormMul
        | Kind::RmsNormMulAdd
        | Kind::AddRmsNorm
        | Kind::AddRmsNormMul
        | Kind::RopeKvWrite
        | Kind::Custom
        | Kind::Pinned => None,
    };
    special.map_or_else(|| general::lower(job), Ok)
}

/// How many variants a job has: which one is the fastest depends on the device.
pub fn choices(job: &Job<'_>) -> u8 {
    if job.kind.product().is_some() { matvec::choices(job) } else { 1 }
}

/// Whether there is a kernel for a fused op with these operands; `suits` says whether weights lie as
/// kernels of few rows read them.
pub fn has_fused(
    request: &FusedRequest<'_>,
    target: &Target,
    suits: &dyn Fn(&TensorView) -> bool,
) -> bool {
    let Some(product) = request.kind.product() else {
        return halves_in(request, target).unwrap_or(true);
    };
    let bound = request.bindings.len();
    let layout = |slot| product.operand(slot, bound).map(|index| &request.bindings[index].layout);
    if let (Some(w), Some(cache)) = (layout(Slot::Weight), layout(Slot::Cache)) {
        let rotation = product.epilogue().rope.then(|| &request.params[product.rope_params()..]);
        let normed = layout(Slot::HeadNormWeight).is_some();
        if !matvec::has_cache(target, w, cache, rotation, normed) {
            return false;
        }
    }
    let matrices = request.kind.spec().into_iter().flat_map(OpSpec::matrices);
    let suit = || matrices.filter_map(|index| request.bindings.get(index)).all(suits);
    if request.bindings.iter().any(|view| view.layout.dtype() == DType::A8) {
        return matvec::has_rounded(target, layout) && suit();
    }
    if let Some(halves) = halves_in(request, target) {
        return halves && suit();
    }
    let one = !product.is_of_experts();
    let thin = |x: &Layout, w: &Layout| one && thin::takes(target, x.rows(), w);
    let thin = layout(Slot::Input).zip(layout(Slot::Weight)).is_some_and(|(x, w)| thin(x, w));
    product.is_basic() || (!thin && matvec::has_fused(target, layout) && suit())
}

/// Whether there are fast kernels for a call that reads or writes activations as f16; `None` if it does neither.
/// Whoever writes them always has one, so it is asked whether they will pay: on devices with matrices, for more
/// than one row.
fn halves_in(request: &FusedRequest<'_>, target: &Target) -> Option<bool> {
    let halved = |view: &&TensorView| view.layout.dtype() == DType::A16;
    let (x, found) = (request.bindings.first()?, request.bindings.iter().find(halved)?);
    let unordered = request.kind == Kind::MatMulExperts && request.bindings.len() < 5;
    if unordered || request.kind.product().is_some_and(|product| !product.is_basic()) {
        return Some(false);
    }
    let w = request.kind.spec().and_then(|spec| spec.matrices().next());
    let w = w.and_then(|w| request.bindings.get(w)).map(|view| &view.layout);
    let tokens = x.layout.shape4()[..3].iter().map(|&extent| extent as usize).product::<usize>();
    let heads = matches!(request.kind, Kind::Attention | Kind::AttentionSinks);
    let rows = if heads { x.layout.shape4()[1] as usize } else { tokens };
    let few = |w: &Layout| request.kind.product().is_some() && thin::takes(target, rows, w);
    let many = |w: &Layout| rows > matvec::MAX_COLS && coop::takes(target, rows, w);
    let reads = w.is_none_or(|w| few(w) || many(w));
    // Experts are looked for by subgroups of this size.
    let reads = reads && (request.kind != Kind::MatMulExperts || target.subgroup == 32);
    Some(target.cooperative && rows > 1 && found.layout.is_dense() && reads)
}
