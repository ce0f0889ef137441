//! Products with weight matrices, and the sum over experts.

use clearway_graph::{PlainInput, PlainShape, Product, Slot};

use super::RefTensor;
use crate::error::Result;

/// A product with what is fused to it: the plain ops it stands for, one after the other, over whole tensors.
pub(super) fn fused(
    parts: Product,
    operands: &[RefTensor],
    params: &[u32],
) -> Result<Vec<RefTensor>> {
    // The call was checked: what a part needs is there.
    let get = |slot| parts.operand(slot, operands.len()).map(|index| &operands[index]);
    let at = |slot| get(slot).unwrap_or(&operands[0]);
    let (x, result) = (at(Slot::Input), &operands[operands.len() - 1]);
    let product = match parts.is_of_experts() {
        true => result.shape.clone(),
        false => vec![x.rows(), at(Slot::Weight).rows()],
    };
    let heads = [&[x.rows()], &result.shape[result.shape.len().saturating_sub(2)..]].concat();
    let (mut given, mut results) = (Vec::<RefTensor>::new(), Vec::new());
    for op in parts.plain_ops() {
        let output = match op.shape {
            PlainShape::Input => RefTensor::output(x.dtype, &x.shape),
            PlainShape::Product => RefTensor::output(x.dtype, &product),
            PlainShape::Heads => RefTensor::output(x.dtype, &heads),
            PlainShape::Cache => result.clone(),
        };
        let input = |input: &PlainInput| match (*input, op.shape) {
            (PlainInput::Slot(slot), _) => at(slot).clone(),
            (PlainInput::Op(earlier), PlainShape::Heads | PlainShape::Cache) => {
                RefTensor { shape: heads.clone(), ..given[earlier].clone() }
            }
            (PlainInput::Op(earlier), PlainShape::Input | PlainShape::Product) => {
                given[earlier].clone()
            }
        };
        let inputs: Vec<RefTensor> = op.inputs.iter().map(input).chain([output]).collect();
        let computed = super::compute(op.kind, &inputs, &params[op.params])?.remove(0);
        results.extend(op.result.and_then(get).map(|kept| kept.with(computed.data.clone())));
        given.push(computed);
    }
    Ok(results)
}

/// `x[T,K] * w[N,K]` transposed: `[T,N]`.
pub(super) fn matmul(x: &RefTensor, w: &RefTensor) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.rows() * w.rows());
    for token in 0..x.rows() {
        for outer in 0..w.rows() {
            out.push(dot(x.row(token), w.row(outer)));
        }
    }
    out
}

/// `[T,k,N]`: for each token and each expert chosen for it, the product with that expert's matrix.
/// `x` is `[T,K]`, or `[T,k,K]` with a row of its own for each expert.
pub(super) fn matmul_experts(x: &RefTensor, w: &RefTensor, ids: &RefTensor) -> Vec<f64> {
    let (experts, outer) = (w.shape[0], w.shape[1]);
    let (tokens, used) = (ids.shape[0], ids.shape[1]);
    let shared = x.shape.len() == 2;
    let mut out = Vec::with_capacity(tokens * used * outer);
    for token in 0..tokens {
        for slot in 0..used {
            let x = x.row(if shared { token } else { token * used + slot });
            let expert = ids.index(token * used + slot);
            for row in 0..outer {
                let exists = expert < experts;
                out.push(if exists { dot(x, w.row(expert * outer + row)) } else { 0.0 });
            }
        }
    }
    out
}

/// `x[T,k,N]` summed over the experts by `weights[T,k]`: `[T,N]`.
pub(super) fn expert_sum(x: &RefTensor, weights: &RefTensor) -> Vec<f64> {
    let (tokens, used, cols) = (x.shape[0], x.shape[1], x.shape[2]);
    let mut out = vec![0.0; tokens * cols];
    for token in 0..tokens {
        for slot in 0..used {
            let weight = weights.row(token)[slot];
            for (col, v) in x.row(token * used + slot).iter().enumerate() {
                out[token * cols + col] += weight * v;
            }
        }
    }
    out
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
