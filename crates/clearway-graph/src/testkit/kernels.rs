//! Contracts of the built-in kinds, and a catalog that offers every fused kernel.

use crate::{
    BindingContract, BindingRole, CapturedOpKind, FusedRequest, KernelCatalog, KernelContract,
    Result,
};

/// The contract of a built-in kind with this many bindings; unknown access for users' kernels.
pub fn contract_of(kind: CapturedOpKind, bindings: usize) -> KernelContract {
    use CapturedOpKind as Kind;
    let outputs = match kind {
        Kind::Custom | Kind::Pinned => return KernelContract::unknown("custom"),
        Kind::RouterTopK | Kind::TopK => 2,
        // The sum is bound only where somebody still reads it.
        Kind::AddRmsNorm => bindings - 2,
        Kind::AddRmsNormMul => bindings - 3,
        _ => 1,
    };
    let role = |index| match kind {
        _ if index + outputs < bindings => BindingRole::Read,
        Kind::KvWrite | Kind::RopeKvWrite => BindingRole::ReadWrite,
        _ => BindingRole::Write,
    };
    let list: Vec<_> =
        (0..bindings).map(|i| BindingContract::new(format!("b{i}"), role(i))).collect();
    KernelContract::new(format!("{kind:?}").to_lowercase(), list)
}

/// Constants a built-in kind takes, with usual contents.
pub const fn params_of(kind: CapturedOpKind) -> &'static [u32] {
    use CapturedOpKind as Kind;
    const ONE: u32 = 1f32.to_bits();
    const EPS: u32 = 1e-5f32.to_bits();
    const BASE: u32 = 10_000f32.to_bits();
    match kind {
        Kind::RmsNorm | Kind::LayerNorm => &[EPS],
        Kind::Gather | Kind::Scale | Kind::SoftCap | Kind::Softmax | Kind::Fill => &[ONE],
        Kind::RouterTopK => &[0, 1, ONE],
        Kind::Rope => &[16, 0, BASE, ONE],
        Kind::Attention => &[ONE, 0, 0],
        _ => &[],
    }
}

/// A catalog that has every fused kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct EveryKernel;

impl KernelCatalog for EveryKernel {
    type Device = ();

    fn fused_kernel(
        &mut self,
        (): &(),
        request: &FusedRequest<'_>,
    ) -> Result<Option<KernelContract>> {
        Ok(Some(contract_of(request.kind, request.bindings.len())))
    }
}
