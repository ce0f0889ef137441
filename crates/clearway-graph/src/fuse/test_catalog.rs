//! A catalog for tests: every op with the bindings its contract has, and every fused kernel.

use crate::contract::{BindingContract, BindingRole, FusedRequest, KernelCatalog, KernelContract};
use crate::error::{GraphError, Result};
use crate::op::CapturedOpKind as Kind;

/// A catalog of a device without memory or time: it offers every fused kernel but those it was
/// told not to.
#[derive(Clone, Debug, Default)]
pub struct TestCatalog {
    missing: Vec<Kind>,
    failing: Vec<Kind>,
    /// Fused kernels asked for, in order.
    pub requests: Vec<Kind>,
}

impl TestCatalog {
    /// A catalog with every fused kernel.
    pub fn new() -> Self {
        Self::default()
    }

    /// Without the kernel of this kind.
    pub fn without(mut self, kind: Kind) -> Self {
        self.missing.push(kind);
        self
    }

    /// With a kernel of this kind that does not compile.
    pub fn failing(mut self, kind: Kind) -> Self {
        self.failing.push(kind);
        self
    }

    /// The contract of an op with `bound` bindings, where nothing may lie over anything; `None` if it has no
    /// contract with so many.
    /// Ops of users ([`Kind::Custom`], [`Kind::Pinned`]) read all bindings but the last, which
    /// they write.
    pub fn contract(kind: Kind, bound: usize) -> Option<KernelContract> {
        let bindings: Vec<_> = match kind.spec() {
            Some(spec) => {
                spec.bound(bound)?.map(|o| BindingContract::new(o.name, o.role)).collect()
            }
            None => (0..bound).map(|i| custom_binding(i, i + 1 == bound)).collect(),
        };
        Some(KernelContract::new(kind.name(), bindings))
    }
}

impl KernelCatalog for TestCatalog {
    type Device = ();

    fn fused_kernel(
        &mut self,
        _device: &(),
        request: &FusedRequest<'_>,
    ) -> Result<Option<KernelContract>> {
        self.requests.push(request.kind);
        if self.failing.contains(&request.kind) {
            let reason = "told to fail".into();
            return Err(GraphError::Kernel { kernel: request.kind.name().into(), reason });
        }
        if self.missing.contains(&request.kind) {
            return Ok(None);
        }
        Ok(Self::contract(request.kind, request.bindings.len()))
    }
}

fn custom_binding(index: usize, last: bool) -> BindingContract {
    let role = if last { BindingRole::Write } else { BindingRole::Read };
    BindingContract::new(index.to_string(), role)
}
