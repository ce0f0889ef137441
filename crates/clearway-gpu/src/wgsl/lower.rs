//! From an op call to its general kernel: right for every call that the op's check lets through.
//!
//! Kernels for special cases, such as packed weights, are asked first by the backends.

use clearway_graph::{CapturedOpKind as Kind, DType, Layout, Slot};

use super::{Job, Kernel, Target, attention, elementwise, product, rows, select};
use crate::error::{GpuError, Result};

/// The general kernel of an op call.
///
/// # Errors
/// [`GpuError::UnknownKernel`] for an op that is not in the table, [`GpuError::KernelFailed`] for
/// weights in planes, which only kernels of their own can read.
pub fn lower(job: &Job<'_>) -> Result<Kernel> {
    let name = crate::ops::spec(job.kind).map(|spec| spec.name);
    if let Some(packed) = job.operands.iter().find(|operand| operand.in_planes()) {
        return Err(GpuError::KernelFailed {
            kernel: name.unwrap_or("custom").into(),
            message: format!(
                "`{}` lies in planes, which the general kernel cannot read",
                packed.name
            ),
        });
    }
    match job.kind {
        Kind::Map(map) => elementwise::map(job, map),
        Kind::Copy => Ok(elementwise::copy(job)),
        Kind::Concat => Ok(elementwise::concat(job)),
        Kind::Fill => Ok(elementwise::fill(job)),
        Kind::ExpertSum => Ok(elementwise::expert_sum(job, "")),
        Kind::ExpertSumAdd => Ok(elementwise::expert_sum(&job.spread(2)?, " + get_c(at_c(c))")),
        Kind::RmsNorm => rows::norm(job, rows::Around::default()),
        Kind::RmsNormMul => rows::norm(job, rows::Around { weight: Some(1), ..Default::default() }),
        Kind::RmsNormMulAdd => {
            let around = rows::Around { weight: Some(1), residual: Some(2), addend: None };
            rows::norm(job, around)
        }
        Kind::AddRmsNorm => rows::norm(job, rows::Around { addend: Some(1), ..Default::default() }),
        Kind::AddRmsNormMul => {
            let around = rows::Around { addend: Some(1), weight: Some(2), residual: None };
            rows::norm(job, around)
        }
        Kind::LayerNorm => Ok(rows::layer_norm(job)),
        Kind::Softmax => Ok(rows::softmax(job)),
        Kind::Rope => Ok(rows::rope(job)),
        Kind::KvWrite => Ok(rows::kv_write(job)),
        Kind::RopeKvWrite => Ok(rows::rope_kv_write(job)),
        Kind::Gather => Ok(select::gather(job)),
        Kind::ArgMax => Ok(select::arg_max(job)),
        Kind::TopK => Ok(select::top_k(job)),
        Kind::ExpertOrder => Ok(select::expert_order(job)),
        Kind::RouterTopK => Ok(select::router(job)),
        Kind::RouterGroups => Ok(select::router_groups(job)),
        Kind::Product(product) if product.is_basic() => product::matmul(job),
        Kind::MatMulExperts => Ok(product::matmul_experts(job)),
        Kind::Attention | Kind::AttentionSinks => Ok(attention::lower(job)),
        Kind::Product(_) | Kind::Custom | Kind::Pinned => {
            Err(GpuError::UnknownKernel { kernel: job.kind.name().into() })
        }
    }
}

impl Target {
    /// Folds workgroups into three dimensions that the device takes; there may be some more in the
    /// last ones.
    pub(super) fn fold(&self, groups: u64) -> [u32; 3] {
        let most = u64::from(self.max_groups.max(1));
        let x = groups.clamp(1, most);
        let y = groups.div_ceil(x).clamp(1, most);
        let z = groups.div_ceil(x * y).clamp(1, most);
        [x as u32, y as u32, z as u32]
    }

    /// Invocations of a workgroup: a power of two, at most `wanted`.
    pub(super) fn width(&self, wanted: u32) -> u32 {
        1 << wanted.min(self.max_invocations).max(1).ilog2()
    }

    /// Invocations of a workgroup that has a row of this length to itself. It depends on the length
    /// alone, so that fused and plain kernels sum in the same order.
    pub(super) fn row_width(&self, cols: usize) -> u32 {
        self.width(match cols {
            0..=256 => 64,
            257..4096 => 256,
            _ => 1024,
        })
    }
}

impl Job<'_> {
    /// Layout of an operand.
    pub(super) fn layout(&self, operand: usize) -> &Layout {
        &self.operands[operand].layout
    }

    /// Element type of an operand.
    pub(super) fn dtype(&self, operand: usize) -> DType {
        self.layout(operand).dtype()
    }

    /// The operand that is written last.
    pub(super) fn result(&self) -> usize {
        self.operands.len() - 1
    }

    /// Index of the operand in this slot of a product.
    pub(crate) fn slot(&self, slot: Slot) -> Option<usize> {
        self.kind.product()?.operand(slot, self.operands.len())
    }

    /// The same job with an operand that is one row repeated over the shape of the result.
    pub(super) fn spread(&self, operand: usize) -> Result<Self> {
        let mut job = self.clone();
        let layout = *self.layout(operand);
        if layout.rows() == 1 {
            let dims = self.layout(self.result()).dims();
            let shape: Vec<usize> = dims.iter().map(|&extent| extent as usize).collect();
            let mut strides = vec![0; shape.len()];
            strides[shape.len() - 1] = 1;
            job.operands[operand].layout =
                Layout::new(layout.dtype(), &shape)?.with_strides(&strides)?;
        }
        Ok(job)
    }

    /// Text of a function that moves an element: bits stay as they are where the type does.
    pub(super) fn mover(&self, name: &str, from: usize, to: usize) -> String {
        let (source, target) = (&self.operands[from], &self.operands[to]);
        let halves = self.target.halves;
        let plain =
            matches!(self.dtype(from), DType::F32) || (halves && self.dtype(from) == DType::F16);
        let body = if plain && self.dtype(from) == self.dtype(to) {
            let array = |operand: usize| {
                self.operands[self.operands[operand].same_as.unwrap_or(operand)].name
            };
            let (a, b) = (array(to), array(from));
            let (to, from) = (target.name, source.name);
            format!("b_{a}[to + P.{to}.place.x] = b_{b}[at + P.{from}.place.x];")
        } else {
            format!("put_{}(to, get_{}(at));", target.name, source.name)
        };
        format!("fn {name}(to: u32, at: u32) {{ {body} }}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_fold_into_the_limits_of_the_device() {
        let target = Target {
            subgroup: 8,
            max_invocations: 384,
            shared_bytes: 16384,
            max_groups: 100,
            max_binding: 1 << 27,
            packed_dot: false,
            cooperative: false,
            halves: true,
            tickets: true,
            counters: false,
            processors: 1,
        };
        for groups in [1, 99, 100, 101, 9_999, 10_000, 10_001, 1_000_000] {
            let folded = target.fold(groups);
            assert!(folded.iter().all(|&extent| (1..=100).contains(&extent)), "{folded:?}");
            assert!(folded.iter().map(|&extent| u64::from(extent)).product::<u64>() >= groups);
        }
        assert_eq!(target.fold(100), [100, 1, 1]);
        assert_eq!((target.width(256), target.width(1024)), (256, 256));
    }
}
