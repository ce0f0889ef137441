//! The table itself.

use clearway_graph::{BindingRole, CapturedOpKind as Kind};

use super::check::{self, Call};
use crate::error::Result;

/// One operand of an op.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Name, as errors and reports show it.
    pub name: &'static str,
    /// Read, written, or both.
    pub role: BindingRole,
    /// May be left out.
    pub optional: bool,
    /// Operands this output may lie exactly over: each of their elements is read only to write the
    /// same element of the output, and before that.
    pub over: &'static [u16],
}

/// How a 32-bit constant is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// An unsigned integer.
    U32,
    /// A float by its bits.
    F32,
}

/// One constant of an op.
#[derive(Clone, Copy, Debug)]
pub struct ParamSpec {
    /// Name, as errors and reports show it.
    pub name: &'static str,
    /// Integer or float.
    pub kind: ParamKind,
}

/// One op: everything all backends share.
#[derive(Debug)]
pub struct OpSpec {
    /// What it computes.
    pub kind: Kind,
    /// Kernel name.
    pub name: &'static str,
    /// Operands, inputs before outputs.
    pub operands: &'static [Operand],
    /// Constants.
    pub params: &'static [ParamSpec],
    pub(super) check: fn(&Call<'_>) -> Result<()>,
}

const fn read(name: &'static str) -> Operand {
    Operand { name, role: BindingRole::Read, optional: false, over: &[] }
}

const fn write(name: &'static str) -> Operand {
    write_over(name, &[])
}

const fn write_over(name: &'static str, over: &'static [u16]) -> Operand {
    Operand { name, role: BindingRole::Write, optional: false, over }
}

const fn write_if_read(name: &'static str) -> Operand {
    Operand { name, role: BindingRole::Write, optional: true, over: &[] }
}

const fn update(name: &'static str) -> Operand {
    Operand { name, role: BindingRole::ReadWrite, optional: false, over: &[] }
}

const fn float(name: &'static str) -> ParamSpec {
    ParamSpec { name, kind: ParamKind::F32 }
}

const fn int(name: &'static str) -> ParamSpec {
    ParamSpec { name, kind: ParamKind::U32 }
}

const fn op(
    kind: Kind,
    name: &'static str,
    operands: &'static [Operand],
    params: &'static [ParamSpec],
    check: fn(&Call<'_>) -> Result<()>,
) -> OpSpec {
    OpSpec { kind, name, operands, params, check }
}

const ROPE_PARAMS: &[ParamSpec] = &[int("n_dims"), int("mode"), float("base"), float("scale")];
const NORM_ROPE_PARAMS: &[ParamSpec] =
    &[float("eps"), int("n_dims"), int("mode"), float("base"), float("scale")];

/// Every op, plain ones first, then the fused ones.
#[rustfmt::skip] // a table reads by columns
pub static OPS: &[OpSpec] = &[
    op(Kind::Gather, "gather", &[read("table"), read("ids"), write("y")], &[float("scale")], check::gather),
    op(Kind::RmsNorm, "rms_norm", &[read("x"), write("y")], &[float("eps")], check::unary),
    op(Kind::LayerNorm, "layer_norm", &[read("x"), read("w"), read("b"), write("y")], &[float("eps")], check::layer_norm),
    op(Kind::Add, "add", &[read("a"), read("b"), write_over("y", &[0, 1])], &[], check::binary),
    op(Kind::Mul, "mul", &[read("a"), read("b"), write_over("y", &[0, 1])], &[], check::binary),
    op(Kind::Scale, "scale", &[read("x"), write_over("y", &[0])], &[float("s")], check::unary),
    op(Kind::Silu, "silu", &[read("x"), write_over("y", &[0])], &[], check::unary),
    op(Kind::Gelu, "gelu", &[read("x"), write_over("y", &[0])], &[], check::unary),
    op(Kind::SiluMul, "silu_mul", &[read("gate"), read("up"), write_over("y", &[0, 1])], &[], check::gated),
    op(Kind::GeluMul, "gelu_mul", &[read("gate"), read("up"), write_over("y", &[0, 1])], &[], check::gated),
    op(Kind::SoftCap, "soft_cap", &[read("x"), write_over("y", &[0])], &[float("cap")], check::soft_cap),
    op(Kind::MatMul, "matmul", &[read("x"), read("w"), write("y")], &[], check::matmul),
    op(Kind::MatMulExperts, "matmul_experts", &[read("x"), read("w"), read("ids"), write("y")], &[], check::matmul_experts),
    op(Kind::RouterTopK, "router_top_k", &[read("logits"), write("ids"), write("weights")], &[int("mode"), int("renorm"), float("scale")], check::router),
    op(Kind::ExpertSum, "expert_sum", &[read("x"), read("weights"), write("y")], &[], check::expert_sum),
    op(Kind::Rope, "rope", &[read("x"), read("positions"), read("factors"), write("y")], ROPE_PARAMS, check::rope),
    op(Kind::Softmax, "softmax", &[read("x"), read("mask"), write("y")], &[float("scale")], check::softmax),
    op(Kind::Attention, "attention", &[read("q"), read("k"), read("v"), read("positions"), write("y")], &[float("scale"), int("window"), float("softcap")], check::attention),
    op(Kind::KvWrite, "kv_write", &[read("x"), read("positions"), update("cache")], &[], check::kv_write),
    op(Kind::Copy, "copy", &[read("x"), write("y")], &[], check::copy),
    op(Kind::Concat, "concat", &[read("a"), read("b"), write("y")], &[], check::concat),
    op(Kind::ArgMax, "arg_max", &[read("x"), write("ids")], &[], check::arg_max),
    op(Kind::TopK, "top_k", &[read("x"), write("values"), write("ids")], &[], check::top_k),
    op(Kind::Fill, "fill", &[write("y")], &[float("value")], check::fill),
    op(Kind::RmsNormMul, "rms_norm_mul", &[read("x"), read("w"), write("y")], &[float("eps")], check::binary),
    op(Kind::AddRmsNorm, "add_rms_norm", &[read("a"), read("b"), write_if_read("sum"), write("y")], &[float("eps")], check::add_rms_norm),
    op(Kind::AddRmsNormMul, "add_rms_norm_mul", &[read("a"), read("b"), read("w"), write_if_read("sum"), write("y")], &[float("eps")], check::add_rms_norm_mul),
    op(Kind::MatMulAdd, "matmul_add", &[read("x"), read("w"), read("c"), write("y")], &[], check::matmul_add),
    op(Kind::MatMulSiluMul, "matmul_silu_mul", &[read("x"), read("w"), read("up"), write("y")], &[], check::matmul_gate),
    op(Kind::MatMulGeluMul, "matmul_gelu_mul", &[read("x"), read("w"), read("up"), write("y")], &[], check::matmul_gate),
    op(Kind::MatMulSiluGated, "matmul_silu_gated", &[read("x"), read("w"), read("u"), write("y")], &[], check::matmul_gated),
    op(Kind::MatMulGeluGated, "matmul_gelu_gated", &[read("x"), read("w"), read("u"), write("y")], &[], check::matmul_gated),
    op(Kind::NormMatMul, "norm_matmul", &[read("x"), read("g"), read("w"), write("y")], &[float("eps")], check::norm_matmul),
    op(Kind::NormMatMulAdd, "norm_matmul_add", &[read("x"), read("g"), read("w"), read("c"), write("y")], &[float("eps")], check::norm_matmul_add),
    op(Kind::NormMatMulSiluGated, "norm_matmul_silu_gated", &[read("x"), read("g"), read("w"), read("u"), write("y")], &[float("eps")], check::norm_matmul_gated),
    op(Kind::NormMatMulGeluGated, "norm_matmul_gelu_gated", &[read("x"), read("g"), read("w"), read("u"), write("y")], &[float("eps")], check::norm_matmul_gated),
    op(Kind::NormMatMulRope, "norm_matmul_rope", &[read("x"), read("g"), read("w"), read("positions"), read("factors"), write("y")], NORM_ROPE_PARAMS, check::norm_matmul_rope),
    op(Kind::NormMatMulRopeKv, "norm_matmul_rope_kv", &[read("x"), read("g"), read("w"), read("positions"), read("factors"), read("kv_positions"), update("cache")], NORM_ROPE_PARAMS, check::norm_matmul_rope_kv),
    op(Kind::NormMatMulKv, "norm_matmul_kv", &[read("x"), read("g"), read("w"), read("positions"), update("cache")], &[float("eps")], check::norm_matmul_kv),
    op(Kind::MatMulRope, "matmul_rope", &[read("x"), read("w"), read("positions"), read("factors"), write("y")], ROPE_PARAMS, check::matmul_rope),
    op(Kind::MatMulRopeKv, "matmul_rope_kv", &[read("x"), read("w"), read("positions"), read("factors"), read("kv_positions"), update("cache")], ROPE_PARAMS, check::matmul_rope_kv),
    op(Kind::MatMulKv, "matmul_kv", &[read("x"), read("w"), read("positions"), update("cache")], &[], check::matmul_kv),
    op(Kind::MatMulAddNorm, "matmul_add_norm", &[read("x"), read("w"), read("c"), read("next"), write_if_read("sum"), write("y")], &[float("eps")], check::matmul_add_norm),
    op(Kind::RopeKvWrite, "rope_kv_write", &[read("x"), read("positions"), read("factors"), read("kv_positions"), update("cache")], ROPE_PARAMS, check::rope_kv_write),
];
