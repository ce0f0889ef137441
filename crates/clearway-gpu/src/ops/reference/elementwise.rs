//! Ops on one element at a time, and `concat`.

use clearway_graph::{Map, MapInputs};

use super::RefTensor;

/// An element-wise op over whole tensors.
pub(super) fn map(map: Map, operands: &[RefTensor], params: &[f64]) -> Vec<f64> {
    let function = crate::ops::map::row(map).reference;
    match map.inputs() {
        MapInputs::One => operands[0].data.iter().map(|&x| function(x, 0.0, params)).collect(),
        MapInputs::Two | MapInputs::Gated => {
            zip(&operands[0], &operands[1], |a, b| function(a, b, params))
        }
    }
}

pub(super) fn add(a: &RefTensor, b: &RefTensor) -> Vec<f64> {
    zip(a, b, |a, b| a + b)
}

pub(super) fn mul(a: &RefTensor, b: &RefTensor) -> Vec<f64> {
    zip(a, b, |a, b| a * b)
}

pub(in crate::ops) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// The tanh form.
pub(in crate::ops) fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

pub(in crate::ops) fn soft_cap(x: f64, cap: f64) -> f64 {
    cap * (x / cap).tanh()
}

pub(in crate::ops) fn clamped_gate(gate: f64, up: f64, limit: f64, alpha: f64) -> f64 {
    let gate = if gate > limit { limit } else { gate };
    let up = if up.is_nan() { up } else { up.clamp(-limit, limit) };
    gate * sigmoid(alpha * gate) * (up + 1.0)
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn concat(a: &RefTensor, b: &RefTensor) -> Vec<f64> {
    (0..a.rows()).flat_map(|row| a.row(row).iter().chain(b.row(row)).copied()).collect()
}

/// `b` has the shape of `a`, or is one row that is repeated.
fn zip(a: &RefTensor, b: &RefTensor, f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let mut out = Vec::with_capacity(a.data.len());
    for row in 0..a.rows() {
        for (&a, &b) in a.row(row).iter().zip(b.row_or_only(row)) {
            out.push(f(a, b));
        }
    }
    out
}
