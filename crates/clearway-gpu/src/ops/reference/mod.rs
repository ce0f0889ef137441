//! What every op computes: a scalar reference in f64.
//!
//! This is part of an op's definition, next to its row in [`OPS`](super::OPS): straightforward loops
//! over dense arrays, in the order a textbook would write them, and nothing shared with any backend.
//! Fused ops are written as the plain ones they stand for, one after another, with no rounding
//! between them. Kernels are held against it within the tolerances of the op suite.
//!
//! What is not an error when it is found only on the device has a meaning here too: an index beyond
//! the table or the experts gives zeros, a position beyond the cache is not written, and a row of
//! which nothing is visible gives zeros.

pub(super) mod elementwise;
mod norm;
mod positional;
mod product;
mod select;
#[cfg(test)]
mod tests;

use clearway_graph::{BindingRole, CapturedOpKind as Kind, DType, Layout, TensorView};

use crate::error::{GpuError, Result};

/// A dense tensor of the reference: what its elements are stored as, and their values.
///
/// Values are what the storage holds: round them to `dtype` first (decode what you would store).
/// Indices are exact in f64.
#[derive(Clone, Debug, PartialEq)]
pub struct RefTensor {
    /// How a backend would store the elements; the checks of the op look at it, the sums do not.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// Elements in row-major order; empty for an operand that is only written.
    pub data: Vec<f64>,
}

impl RefTensor {
    /// A tensor with these elements.
    pub fn new(dtype: DType, shape: &[usize], data: Vec<f64>) -> Self {
        Self { dtype, shape: shape.to_vec(), data }
    }

    /// An operand that is only written: its shape says what to compute.
    pub fn output(dtype: DType, shape: &[usize]) -> Self {
        Self::new(dtype, shape, Vec::new())
    }

    /// Extent of the innermost dimension.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Product of all other extents.
    pub fn rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// One row; rows count over all outer dimensions.
    fn row(&self, row: usize) -> &[f64] {
        let cols = self.cols();
        &self.data[row * cols..(row + 1) * cols]
    }

    /// One row, or the only one, which is then repeated.
    fn row_or_only(&self, row: usize) -> &[f64] {
        self.row(if self.rows() == 1 { 0 } else { row })
    }

    /// An element as an index.
    fn index(&self, elem: usize) -> usize {
        self.data[elem] as usize
    }

    /// The same shape with other elements.
    fn with(&self, data: Vec<f64>) -> Self {
        Self { data, ..Self::output(self.dtype, &self.shape) }
    }
}

/// Computes an op. `operands` are in the order of its row in [`OPS`](super::OPS); those it only
/// writes give their shape. Returns the ones it writes, in that order; of one that it writes in part,
/// all elements.
///
/// ```
/// use clearway_gpu::ops::reference::{RefTensor, reference};
/// use clearway_graph::{CapturedOpKind, DType};
///
/// let row = |data: &[f64]| RefTensor::new(DType::F32, &[data.len()], data.to_vec());
/// let operands = [row(&[1.0, 2.0]), row(&[10.0, 20.0]), RefTensor::output(DType::F32, &[2])];
/// let results = reference(CapturedOpKind::ADD, &operands, &[])?;
/// assert_eq!(results[0].data, [11.0, 22.0]);
/// # Ok::<(), clearway_gpu::GpuError>(())
/// ```
///
/// # Errors
/// Those of [`check`](super::check), and [`GpuError::TransferMismatch`] for an operand whose elements
/// are not as many as its shape says.
pub fn reference(kind: Kind, operands: &[RefTensor], params: &[u32]) -> Result<Vec<RefTensor>> {
    check(kind, operands, params)?;
    compute(kind, operands, params)
}

/// The same for a call that was checked.
fn compute(kind: Kind, operands: &[RefTensor], params: &[u32]) -> Result<Vec<RefTensor>> {
    let float = |i: usize| f64::from(f32::from_bits(params[i]));
    // Operands by name of the table: x first, results last.
    let (x, y) = match operands {
        [x, .., y] => (x, y),
        [y] => (y, y),
        [] => return Err(unknown(kind)),
    };
    let one = |data: Vec<f64>| Ok(vec![y.with(data)]);
    match kind {
        Kind::Gather => one(select::gather(x, &operands[1], float(0))),
        Kind::RmsNorm => one(norm::rms(x, float(0))),
        Kind::LayerNorm => one(norm::layer(x, &operands[1], &operands[2], float(0))),
        Kind::Map(map) => {
            let constants: Vec<f64> = (0..params.len()).map(float).collect();
            one(elementwise::map(map, operands, &constants))
        }
        Kind::MatMulExperts => one(product::matmul_experts(x, &operands[1], &operands[2])),
        Kind::ExpertOrder => one(select::expert_order(x, params[0] as usize)),
        Kind::RouterTopK => {
            let (mode, renorm) = (params[0], params[1] == 1);
            let (ids, weights) = select::router(x, operands[1].cols(), mode, renorm, float(2));
            Ok(vec![operands[1].with(ids), operands[2].with(weights)])
        }
        Kind::RouterGroups => {
            let [ids, weights] = [2, 1].map(|back| operands.len() - back);
            let bias = (ids == 2).then(|| &operands[1]);
            let found = select::router_groups(x, bias, operands[ids].cols(), params);
            Ok(vec![operands[ids].with(found.0), operands[weights].with(found.1)])
        }
        Kind::ExpertSum => one(product::expert_sum(x, &operands[1])),
        Kind::Rope => one(positional::rope(x, &operands[1], &operands[2], params)),
        Kind::Softmax => one(norm::softmax(x, &operands[1], float(0))),
        Kind::Attention | Kind::AttentionSinks => {
            let (scale, window, cap) = (float(0), params[1] as usize, float(2));
            let seen = positional::seen(operands, window, params[3] as usize);
            let last = operands.len().checked_sub(2).and_then(|last| operands.get(last));
            let sinks = last.filter(|_| kind == Kind::AttentionSinks);
            one(positional::attention(x, [&operands[1], &operands[2]], sinks, &seen, scale, cap))
        }
        Kind::KvWrite => one(positional::kv_write(x, &operands[1], y)),
        Kind::Copy => one(x.data.clone()),
        Kind::Concat => one(elementwise::concat(x, &operands[1])),
        Kind::ArgMax => one(select::arg_max(x)),
        Kind::TopK => {
            let (ids, values) = select::top(x, operands[1].cols());
            Ok(vec![operands[1].with(values), operands[2].with(ids)])
        }
        Kind::Fill => one(vec![float(0); y.shape.iter().product()]),
        Kind::RmsNormMul => {
            let normed = x.with(norm::rms(x, float(0)));
            one(elementwise::mul(&normed, &operands[1]))
        }
        Kind::ExpertSumAdd => {
            let sum = y.with(product::expert_sum(x, &operands[1]));
            one(elementwise::add(&sum, &operands[2]))
        }
        Kind::RmsNormMulAdd => {
            let normed = x.with(norm::rms(x, float(0)));
            let weighted = x.with(elementwise::mul(&normed, &operands[1]));
            one(elementwise::add(&weighted, &operands[2]))
        }
        Kind::AddRmsNorm => {
            let sum = x.with(elementwise::add(x, &operands[1]));
            let normed = y.with(norm::rms(&sum, float(0)));
            Ok(if operands.len() == 4 { vec![sum, normed] } else { vec![normed] })
        }
        Kind::AddRmsNormMul => {
            let sum = x.with(elementwise::add(x, &operands[1]));
            let normed = sum.with(norm::rms(&sum, float(0)));
            let product = y.with(elementwise::mul(&normed, &operands[2]));
            Ok(if operands.len() == 5 { vec![sum, product] } else { vec![product] })
        }
        Kind::MATMUL => one(product::matmul(x, &operands[1])),
        Kind::Product(parts) => product::fused(parts, operands, params),
        Kind::RopeKvWrite => {
            let rotated = x.with(positional::rope(x, &operands[1], &operands[2], params));
            one(positional::kv_write(&rotated, &operands[3], y))
        }
        Kind::Custom | Kind::Pinned => Err(unknown(kind)),
    }
}

/// The op's own check, over dense views of these shapes, and the number of elements.
fn check(kind: Kind, operands: &[RefTensor], params: &[u32]) -> Result<()> {
    let mut views = Vec::with_capacity(operands.len());
    for (buf_id, operand) in operands.iter().enumerate() {
        let layout = Layout::new(operand.dtype, &operand.shape)?;
        views.push(TensorView { buf_id, buf_len: layout.span_bytes(), offset: 0, layout });
    }
    super::check(kind, &views, params)?;
    let contract = super::contract(kind, operands.len()).ok_or_else(|| unknown(kind))?;
    for (binding, operand) in contract.bindings.iter().flatten().zip(operands) {
        let elems: usize = operand.shape.iter().product();
        if binding.role != BindingRole::Write && operand.data.len() != elems {
            return Err(GpuError::TransferMismatch {
                what: "operand of the reference",
                found: format!("{} elements", operand.data.len()),
                expected: format!("{elems} for `{}`", binding.name),
            });
        }
    }
    Ok(())
}

fn unknown(kind: Kind) -> GpuError {
    GpuError::UnknownKernel { kernel: format!("{kind:?}") }
}
