//! Products with weight matrices, and the sum over experts.

use clearway_graph::{Activation, Epilogue, Gate, Product, Slot};

use super::{RefTensor, elementwise, norm, positional};

/// A product with what is fused to it: each part in turn, over whole tensors.
pub(super) fn fused(parts: Product, operands: &[RefTensor], params: &[u32]) -> Vec<RefTensor> {
    // The call was checked: what a part needs is there.
    let get = |slot| parts.operand(slot, operands.len()).map(|index| &operands[index]);
    let at = |slot| get(slot).unwrap_or(&operands[0]);
    let Epilogue { add, rope, cache, norm } = parts.epilogue();
    let eps = || f64::from(f32::from_bits(params[0]));
    let (mut x, w) = (operands[0].clone(), at(Slot::Weight));
    if parts.is_normed() {
        x = weighted_norm(&x, at(Slot::NormWeight), eps());
    }
    let mut y = RefTensor::output(x.dtype, &[x.rows(), w.rows()]);
    y.data = matmul(&x, w);
    match parts.gate() {
        Gate::None => {}
        Gate::Operand(activation) => {
            y.data = elementwise::gated(&y, at(Slot::Up), function(activation));
        }
        Gate::Weights(activation) => {
            let up = y.with(matmul(&x, at(Slot::UpWeight)));
            y.data = elementwise::gated(&y, &up, function(activation));
        }
    }
    if add {
        y.data = elementwise::add(&y, at(Slot::Addend));
    }
    let result = &operands[operands.len() - 1];
    if let (true, &[.., heads, head]) = (parts.epilogue().heads(), &result.shape[..]) {
        y = RefTensor::output(y.dtype, &[x.rows(), heads, head]).with(y.data);
    }
    if rope {
        let turn = &params[parts.rope_params()..];
        y.data = positional::rope(&y, at(Slot::Positions), at(Slot::Factors), turn);
    }
    if cache {
        y.data = positional::kv_write(&y, at(Slot::CacheRows), result);
    }
    let sum = get(Slot::Sum).map(|sum| sum.with(y.data.clone()));
    if norm {
        y = weighted_norm(&y, at(Slot::NextNormWeight), eps());
    }
    sum.into_iter().chain([result.with(y.data)]).collect()
}

fn function(activation: Activation) -> fn(f64) -> f64 {
    match activation {
        Activation::Silu => elementwise::silu,
        Activation::Gelu => elementwise::gelu,
    }
}

fn weighted_norm(x: &RefTensor, weight: &RefTensor, eps: f64) -> RefTensor {
    let normed = x.with(norm::rms(x, eps));
    x.with(elementwise::mul(&normed, weight))
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
