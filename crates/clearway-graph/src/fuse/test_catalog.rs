//! A catalog for tests: every op with the bindings its contract has, and every fused kernel.

use crate::contract::{BindingContract, BindingRole, FusedRequest, KernelCatalog, KernelContract};
use crate::error::{GraphError, Result};
use crate::node::CapturedOpKind as Kind;

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

    /// The contract of an op with `bound` bindings; `None` if it has no contract with so many.
    /// Ops of users ([`Kind::Custom`], [`Kind::Pinned`]) read all bindings but the last, which
    /// they write.
    pub fn contract(kind: Kind, bound: usize) -> Option<KernelContract> {
        let custom = matches!(kind, Kind::Custom | Kind::Pinned);
        let bindings: Vec<_> = match bindings(kind) {
            _ if custom => (0..bound).map(|i| custom_binding(i, i + 1 == bound)).collect(),
            all if all.len() == bound => all.iter().map(declared).collect(),
            all => all.iter().filter(|(_, role)| *role != WriteIfKept).map(declared).collect(),
        };
        (bindings.len() == bound).then(|| KernelContract::new(kind.name(), bindings))
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Read,
    Write,
    Update,
    /// Written, and bound only where somebody needs it.
    WriteIfKept,
}
use Role::{Read, Update, Write, WriteIfKept};

type Binding = (&'static str, Role);

fn declared(&(name, role): &Binding) -> BindingContract {
    let role = match role {
        Read => BindingRole::Read,
        Write | WriteIfKept => BindingRole::Write,
        Update => BindingRole::ReadWrite,
    };
    BindingContract::new(name, role)
}

fn custom_binding(index: usize, last: bool) -> BindingContract {
    let role = if last { BindingRole::Write } else { BindingRole::Read };
    BindingContract::new(index.to_string(), role)
}

const UNARY: &[Binding] = &[("x", Read), ("y", Write)];
const BINARY: &[Binding] = &[("a", Read), ("b", Read), ("y", Write)];

/// Bindings of each op in the order of its contract.
#[rustfmt::skip] // a table reads by columns
fn bindings(kind: Kind) -> &'static [Binding] {
    match kind {
        Kind::Gather => &[("table", Read), ("ids", Read), ("y", Write)],
        Kind::RmsNorm | Kind::Scale | Kind::Silu | Kind::Gelu | Kind::SoftCap | Kind::Copy => UNARY,
        Kind::LayerNorm => &[("x", Read), ("w", Read), ("b", Read), ("y", Write)],
        Kind::Add | Kind::Mul | Kind::Concat => BINARY,
        Kind::SiluMul | Kind::GeluMul => &[("gate", Read), ("up", Read), ("y", Write)],
        Kind::MatMul => &[("x", Read), ("w", Read), ("y", Write)],
        Kind::MatMulExperts => &[("x", Read), ("w", Read), ("ids", Read), ("y", Write)],
        Kind::RouterTopK => &[("logits", Read), ("ids", Write), ("weights", Write)],
        Kind::ExpertSum => &[("x", Read), ("weights", Read), ("y", Write)],
        Kind::Rope => &[("x", Read), ("positions", Read), ("factors", Read), ("y", Write)],
        Kind::Softmax => &[("x", Read), ("mask", Read), ("y", Write)],
        Kind::Attention => &[("q", Read), ("k", Read), ("v", Read), ("positions", Read), ("y", Write)],
        Kind::KvWrite => &[("x", Read), ("positions", Read), ("cache", Update)],
        Kind::ArgMax => &[("x", Read), ("ids", Write)],
        Kind::TopK => &[("x", Read), ("values", Write), ("ids", Write)],
        Kind::Fill => &[("y", Write)],
        Kind::RmsNormMul => &[("x", Read), ("w", Read), ("y", Write)],
        Kind::AddRmsNorm => &[("a", Read), ("b", Read), ("sum", WriteIfKept), ("y", Write)],
        Kind::AddRmsNormMul => &[("a", Read), ("b", Read), ("w", Read), ("sum", WriteIfKept), ("y", Write)],
        Kind::MatMulAdd => &[("x", Read), ("w", Read), ("c", Read), ("y", Write)],
        Kind::RopeKvWrite => &[("x", Read), ("positions", Read), ("factors", Read), ("kv_positions", Read), ("cache", Update)],
        Kind::MatMulSiluMul | Kind::MatMulGeluMul => &[("x", Read), ("w", Read), ("up", Read), ("y", Write)],
        Kind::MatMulSiluGated | Kind::MatMulGeluGated => &[("x", Read), ("w", Read), ("u", Read), ("y", Write)],
        Kind::NormMatMul => &[("x", Read), ("g", Read), ("w", Read), ("y", Write)],
        Kind::NormMatMulAdd => &[("x", Read), ("g", Read), ("w", Read), ("c", Read), ("y", Write)],
        Kind::NormMatMulSiluGated | Kind::NormMatMulGeluGated => &[("x", Read), ("g", Read), ("w", Read), ("u", Read), ("y", Write)],
        Kind::NormMatMulRope => &[("x", Read), ("g", Read), ("w", Read), ("positions", Read), ("factors", Read), ("y", Write)],
        Kind::NormMatMulRopeKv => &[("x", Read), ("g", Read), ("w", Read), ("positions", Read), ("factors", Read), ("kv_positions", Read), ("cache", Update)],
        Kind::NormMatMulKv => &[("x", Read), ("g", Read), ("w", Read), ("positions", Read), ("cache", Update)],
        Kind::MatMulRope => &[("x", Read), ("w", Read), ("positions", Read), ("factors", Read), ("y", Write)],
        Kind::MatMulRopeKv => &[("x", Read), ("w", Read), ("positions", Read), ("factors", Read), ("kv_positions", Read), ("cache", Update)],
        Kind::MatMulKv => &[("x", Read), ("w", Read), ("positions", Read), ("cache", Update)],
        Kind::MatMulAddNorm => &[("x", Read), ("w", Read), ("c", Read), ("next", Read), ("sum", WriteIfKept), ("y", Write)],
        Kind::Custom | Kind::Pinned => &[],
    }
}
