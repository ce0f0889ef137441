//! Every op refuses wrong operands and constants with an error that names the op and what is wrong,
//! and records nothing.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

#[path = "op_errors/fused.rs"]
mod fused;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use clearway_gpu::cpu::CpuDevice;
use clearway_gpu::ops::{self, OPS, OpSpec};
use clearway_gpu::{GpuError, Ops, Recorder};
use clearway_graph::testkit::kind;
use clearway_graph::{
    CapturedOpKind as Kind, DType, GraphError, Layout, Map, MapInputs, Product, TensorView,
};

/// What is wrong with a call, and which operand is blamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Shape(&'static str),
    DType(&'static str),
}

use Wrong::{DType as D, Shape as S};

/// An op, a call it takes, and calls it refuses. Tensors are written as errors print them; strides, if
/// any, follow a slash.
struct Calls {
    op: &'static str,
    good: &'static str,
    params: &'static [Param],
    bad: &'static [(&'static str, Wrong)],
    /// Index, value and name of constants it refuses.
    bad_params: &'static [(usize, Param, &'static str)],
}

impl Calls {
    fn kind(&self) -> Kind {
        kind(self.op)
    }
}

#[derive(Clone, Copy, Debug)]
enum Param {
    F(f32),
    U(u32),
}

use Param::{F, U};

const NAN: Param = F(f32::NAN);
const INF: Param = F(f32::INFINITY);
const BAD_EPS: &[(usize, Param, &str)] = &[(0, F(-1e-6), "eps"), (0, NAN, "eps"), (0, INF, "eps")];

/// Refusals of ops with one input and one result of its shape.
const UNARY: &[(&str, Wrong)] = &[
    ("f32[3x8] f32[3x8]/0,1", S("y")),
    ("u32[3x8] u32[3x8]", D("x")),
    ("bf16[3x8] bf16[3x8]", D("x")),
    ("q8_0[3x32] f32[3x32]", D("x")),
    ("f32[3x8]/1,3 f32[3x8]", S("x")),
    ("f32[3x8] f16[3x8]", D("y")),
    ("f16[3x8] f32[3x8]", D("y")),
    ("f32[3x8] f32[3x9]", S("y")),
    ("f32[3x8] f32[2x8]", S("y")),
    ("f32[3x8] f32[24]", S("y")),
    ("f32[3x8] f32[1x3x8]", S("y")),
    ("f32[3x8] f32[3x8]/1,3", S("y")),
];

/// Refusals of ops whose second operand may be one row.
const ADD: &[(&str, Wrong)] = &[
    ("u32[3x8] f32[3x8] u32[3x8]", D("a")),
    ("f32[3x8]/1,3 f32[3x8] f32[3x8]", S("a")),
    ("f32[3x8] q4_0[3x32] f32[3x8]", D("b")),
    ("f32[3x8] u32[8] f32[3x8]", D("b")),
    ("f32[3x8] f32[9] f32[3x8]", S("b")),
    ("f32[3x8] f32[1] f32[3x8]", S("b")),
    ("f32[3x8] f32[2x8] f32[3x8]", S("b")),
    ("f32[3x8] f32[3x1] f32[3x8]", S("b")),
    ("f32[3x8] f32[3x8]/1,3 f32[3x8]", S("b")),
    ("f32[3x8] f32[8] f16[3x8]", D("y")),
    ("f32[3x8] f32[8] f32[8]", S("y")),
    ("f32[3x8] f32[8] f32[3x8]/1,3", S("y")),
];

const GATED: &[(&str, Wrong)] = &[
    ("bf16[3x8] bf16[3x8] bf16[3x8]", D("gate")),
    ("f32[3x8]/1,3 f32[3x8] f32[3x8]", S("gate")),
    ("f32[3x8] f16[3x8] f32[3x8]", D("up")),
    ("f32[3x8] f32[8] f32[3x8]", S("up")),
    ("f32[3x8] f32[3x9] f32[3x8]", S("up")),
    ("f32[3x8] f32[3x8] u32[3x8]", D("y")),
    ("f32[3x8] f32[3x8] f32[3x9]", S("y")),
];

const ROPE: &[Param] = &[U(8), U(0), F(1e4), F(1.0), F(1.0)];
const BAD_ROPE: &[(usize, Param, &str)] = &[
    (0, U(0), "n_dims"),
    (0, U(7), "n_dims"),
    (0, U(10), "n_dims"),
    (0, U(u32::MAX), "n_dims"),
    (1, U(2), "mode"),
    (2, F(0.0), "base"),
    (2, F(-1.0), "base"),
    (2, NAN, "base"),
    (3, INF, "scale"),
    (4, NAN, "magnitude"),
];

const PLAIN: &[Calls] = &[
    Calls {
        op: "gather",
        good: "q4_0[10x32] u32[3] f16[3x32]",
        params: &[F(1.0)],
        bad: &[
            ("f32[8] u32[3] f32[3x8]", S("table")),
            ("f32[2x10x8] u32[3] f32[3x8]", S("table")),
            ("f32[10x8]/1,10 u32[3] f32[3x8]", S("table")),
            ("u32[10x8] u32[3] f32[3x8]", D("table")),
            ("f32[10x8] u32[3x1] f32[3x8]", S("ids")),
            ("f32[10x8] u32[3]/2 f32[3x8]", S("ids")),
            ("f32[10x8] f32[3] f32[3x8]", D("ids")),
            ("f32[10x8] u32[3] f32[4x8]", S("y")),
            ("f32[10x8] u32[3] f32[3x9]", S("y")),
            ("f32[10x8] u32[3] f32[24]", S("y")),
            ("f32[10x8] u32[3] f32[3x8]/1,3", S("y")),
            ("f32[10x8] u32[3] bf16[3x8]", D("y")),
        ],
        bad_params: &[(0, NAN, "scale"), (0, INF, "scale")],
    },
    Calls {
        op: "rms_norm",
        good: "f32[3x8] f32[3x8]",
        params: &[F(1e-5)],
        bad: UNARY,
        bad_params: BAD_EPS,
    },
    Calls {
        op: "layer_norm",
        good: "f16[3x8] f32[8] f32[8] f16[3x8]",
        params: &[F(1e-5)],
        bad: &[
            ("q8_0[3x32] f32[32] f32[32] f32[3x32]", D("x")),
            ("f32[3x8]/1,3 f32[8] f32[8] f32[3x8]", S("x")),
            ("f32[3x8] bf16[8] f32[8] f32[3x8]", D("w")),
            ("f32[3x8] f32[9] f32[8] f32[3x8]", S("w")),
            ("f32[3x8] f32[1x8] f32[8] f32[3x8]", S("w")),
            ("f32[3x8] f32[8]/2 f32[8] f32[3x8]", S("w")),
            ("f32[3x8] f32[8] u32[8] f32[3x8]", D("b")),
            ("f32[3x8] f32[8] f32[3x8] f32[3x8]", S("b")),
            ("f32[3x8] f32[8] f32[8] f16[3x8]", D("y")),
            ("f32[3x8] f32[8] f32[8] f32[8]", S("y")),
        ],
        bad_params: BAD_EPS,
    },
    Calls {
        op: "matmul",
        good: "f32[3x256] q4_k[5x256] f32[3x5]",
        params: &[],
        bad: &[
            ("bf16[3x8] f32[5x8] bf16[3x5]", D("x")),
            ("f32[8] f32[5x8] f32[1x5]", S("x")),
            ("f32[3x8]/1,3 f32[5x8] f32[3x5]", S("x")),
            ("f32[3x8] u32[5x8] f32[3x5]", D("w")),
            ("f32[3x32] c8[5x32] f32[3x5]", D("w")),
            ("f32[3x8] f32[8] f32[3x5]", S("w")),
            ("f32[3x8] f32[2x5x8] f32[3x5]", S("w")),
            ("f32[3x8] f32[5x9] f32[3x5]", S("w")),
            ("f32[3x8] f32[5x8]/1,5 f32[3x5]", S("w")),
            ("f32[3x8] f32[5x8] f16[3x5]", D("y")),
            ("f32[3x8] f32[5x8] f32[3x6]", S("y")),
            ("f32[3x8] f32[5x8] f32[15]", S("y")),
        ],
        bad_params: &[],
    },
    Calls {
        op: "matmul_experts",
        good: "f32[3x2x32] q8_0[4x5x32] u32[3x2] f32[3x2x5]",
        params: &[],
        bad: &[
            ("u32[3x8] f32[4x5x8] u32[3x2] u32[3x2x5]", D("x")),
            ("f32[3x9] f32[4x5x8] u32[3x2] f32[3x2x5]", S("x")),
            ("f32[2x8] f32[4x5x8] u32[3x2] f32[3x2x5]", S("x")),
            ("f32[3x3x8] f32[4x5x8] u32[3x2] f32[3x2x5]", S("x")),
            ("f32[24] f32[4x5x8] u32[3x2] f32[3x2x5]", S("x")),
            ("f32[3x8] u32[4x5x8] u32[3x2] f32[3x2x5]", D("w")),
            ("f32[3x8] f32[20x8] u32[3x2] f32[3x2x5]", S("w")),
            ("f32[3x8] f32[4x5x8] f32[3x2] f32[3x2x5]", D("ids")),
            ("f32[3x8] f32[4x5x8] u32[6] f32[3x2x5]", S("ids")),
            ("f32[3x8] f32[4x5x8] u32[3x2]/1,3 f32[3x2x5]", S("ids")),
            ("f32[3x8] f32[4x5x8] u32[3x2] f16[3x2x5]", D("y")),
            ("f32[3x8] f32[4x5x8] u32[3x2] f32[3x5]", S("y")),
            ("f32[3x8] f32[4x5x8] u32[3x2] f32[3x2x8]", S("y")),
            ("f32[3x8] f32[4x5x8] u32[3x2] f32[12] f32[3x2x5]", D("order")),
            ("f32[3x8] f32[4x5x8] u32[3x2] u32[11] f32[3x2x5]", S("order")),
            ("f32[3x8] f32[4x5x8] u32[3x2] u32[12] f32[3x2x8]", S("y")),
        ],
        bad_params: &[],
    },
    Calls {
        op: "expert_order",
        good: "u32[3x2] u32[12]",
        params: &[U(4)],
        bad: &[
            ("f32[3x2] u32[12]", D("ids")),
            ("u32[6] u32[12]", S("ids")),
            ("u32[3x2]/1,3 u32[12]", S("ids")),
            ("u32[3x2] f32[12]", D("order")),
            ("u32[3x2] u32[11]", S("order")),
        ],
        bad_params: &[(0, U(0), "experts")],
    },
    Calls {
        op: "router_top_k",
        good: "f16[3x8] u32[3x2] f32[3x2]",
        params: &[U(0), U(1), F(1.0)],
        bad: &[
            ("u32[3x8] u32[3x2] f32[3x2]", D("logits")),
            ("f32[8] u32[1x2] f32[1x2]", S("logits")),
            ("f32[3x8]/1,3 u32[3x2] f32[3x2]", S("logits")),
            ("f32[3x8] f32[3x2] f32[3x2]", D("ids")),
            ("f32[3x8] u32[2x2] f32[3x2]", S("ids")),
            ("f32[3x8] u32[6] f32[3x2]", S("ids")),
            ("f32[3x8] u32[3x9] f32[3x9]", S("ids")),
            ("f16[3x8] u32[3x2] f16[3x2]", D("weights")),
            ("f32[3x8] u32[3x2] f32[3x3]", S("weights")),
        ],
        bad_params: &[
            (0, U(3), "mode"),
            (0, U(u32::MAX), "mode"),
            (1, U(2), "renorm"),
            (2, NAN, "scale"),
        ],
    },
    Calls {
        op: "router_groups",
        good: "f16[3x8] f32[8] u32[3x2] f32[3x2]",
        params: &[U(2), U(1), F(1.0), U(4), U(2), U(2)],
        bad: &[
            ("u32[3x8] f32[8] u32[3x2] f32[3x2]", D("logits")),
            ("f32[8] f32[8] u32[1x2] f32[1x2]", S("logits")),
            ("f32[3x1032] f32[1032] u32[3x2] f32[3x2]", S("logits")),
            ("f32[3x8] f16[8] u32[3x2] f32[3x2]", D("bias")),
            ("f32[3x8] f32[7] u32[3x2] f32[3x2]", S("bias")),
            ("f32[3x8] f32[8]/2 u32[3x2] f32[3x2]", S("bias")),
            ("f32[3x8] f32[8] f32[3x2] f32[3x2]", D("ids")),
            ("f32[3x8] f32[8] u32[2x2] f32[3x2]", S("ids")),
            ("f32[3x8] f32[8] u32[3x9] f32[3x9]", S("ids")),
            ("f32[3x8] f32[8] u32[3x2] f16[3x2]", D("weights")),
            ("f32[3x8] f32[8] u32[3x2] f32[3x3]", S("weights")),
            ("f32[3x8] u32[3x2] f32[3x3]", S("weights")),
        ],
        bad_params: &[
            (0, U(0), "mode"),
            (0, U(1), "mode"),
            (0, U(3), "mode"),
            (1, U(2), "renorm"),
            (2, NAN, "scale"),
            (3, U(0), "groups"),
            (3, U(3), "groups"),
            (4, U(0), "groups_used"),
            (4, U(5), "groups_used"),
            (5, U(0), "best"),
            (5, U(3), "best"),
        ],
    },
    Calls {
        op: "expert_sum",
        good: "f16[3x2x8] f32[3x2] f16[3x8]",
        params: &[],
        bad: &[
            ("bf16[3x2x8] f32[3x2] bf16[3x8]", D("x")),
            ("f32[6x8] f32[3x2] f32[3x8]", S("x")),
            ("f16[3x2x8] f16[3x2] f16[3x8]", D("weights")),
            ("f32[3x2x8] f32[2x3] f32[3x8]", S("weights")),
            ("f32[3x2x8] f32[6] f32[3x8]", S("weights")),
            ("f32[3x2x8] f32[3x2] f16[3x8]", D("y")),
            ("f32[3x2x8] f32[3x2] f32[3x2x8]", S("y")),
        ],
        bad_params: &[],
    },
    Calls {
        op: "expert_sum_add",
        good: "f16[3x2x8] f32[3x2] f32[8] f16[3x8]",
        params: &[],
        bad: &[
            ("bf16[3x2x8] f32[3x2] f32[8] bf16[3x8]", D("x")),
            ("f32[6x8] f32[3x2] f32[8] f32[3x8]", S("x")),
            ("f16[3x2x8] f16[3x2] f32[8] f16[3x8]", D("weights")),
            ("f32[3x2x8] f32[2x3] f32[8] f32[3x8]", S("weights")),
            ("f32[3x2x8] f32[3x2] bf16[3x8] f32[3x8]", D("c")),
            ("f32[3x2x8] f32[3x2] f32[2x8] f32[3x8]", S("c")),
            ("f32[3x2x8] f32[3x2] f32[3x8]/1,3 f32[3x8]", S("c")),
            ("f32[3x2x8] f32[3x2] f32[8] f16[3x8]", D("y")),
            ("f32[3x2x8] f32[3x2] f32[8] f32[3x2x8]", S("y")),
        ],
        bad_params: &[],
    },
    Calls {
        op: "rope",
        good: "f16[3x2x8] u32[3] f32[4] f16[3x2x8]",
        params: ROPE,
        bad: &[
            ("bf16[3x2x8] u32[3] f32[4] bf16[3x2x8]", D("x")),
            ("f32[6x8] u32[6] f32[4] f32[6x8]", S("x")),
            ("f32[3x2x8] f32[3] f32[4] f32[3x2x8]", D("positions")),
            ("f32[3x2x8] u32[2] f32[4] f32[3x2x8]", S("positions")),
            ("f32[3x2x8] u32[3x1] f32[4] f32[3x2x8]", S("positions")),
            ("f16[3x2x8] u32[3] f16[4] f16[3x2x8]", D("factors")),
            ("f32[3x2x8] u32[3] f32[8] f32[3x2x8]", S("factors")),
            ("f32[3x2x8] u32[3] f32[4] f16[3x2x8]", D("y")),
            ("f32[3x2x8] u32[3] f32[4] f32[6x8]", S("y")),
        ],
        bad_params: BAD_ROPE,
    },
    Calls {
        op: "softmax",
        good: "f32[2x3x8] f16[3x8] f32[2x3x8]",
        params: &[F(0.5)],
        bad: &[
            ("u32[3x8] f32[3x8] u32[3x8]", D("x")),
            ("f32[3x8]/1,3 f32[3x8] f32[3x8]", S("x")),
            ("f32[3x8] bf16[3x8] f32[3x8]", D("mask")),
            ("f32[3x8] f32[8] f32[3x8]", S("mask")),
            ("f32[3x8] f32[3x9] f32[3x8]", S("mask")),
            ("f32[2x3x8] f32[2x3x8] f32[2x3x8]", S("mask")),
            ("f32[3x8] f32[3x8] f16[3x8]", D("y")),
            ("f32[3x8] f32[3x8] f32[3x9]", S("y")),
        ],
        bad_params: &[(0, NAN, "scale")],
    },
    Calls {
        op: "attention",
        good: "f32[3x4x8] f16[16x2x8] f16[16x2x8] u32[3] f32[3x4x8]",
        params: &[F(0.5), U(0), F(0.0), U(0)],
        bad: &[
            ("u32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] u32[3x4x8]", D("q")),
            ("f32[12x8] f32[16x2x8] f32[16x2x8] u32[3] f32[12x8]", S("q")),
            ("f32[3x4x8] bf16[16x2x8] bf16[16x2x8] u32[3] f32[3x4x8]", D("k")),
            ("f32[3x4x8] f32[32x8] f32[32x8] u32[3] f32[3x4x8]", S("k")),
            ("f32[3x4x8] f32[16x3x8] f32[16x3x8] u32[3] f32[3x4x8]", S("k")),
            ("f32[3x4x8] f32[16x8x8] f32[16x8x8] u32[3] f32[3x4x8]", S("k")),
            ("f32[3x4x8] f32[16x2x9] f32[16x2x9] u32[3] f32[3x4x8]", S("k")),
            ("f32[3x4x8] f32[16x2x8] f16[16x2x8] u32[3] f32[3x4x8]", D("v")),
            ("f32[3x4x8] f32[16x2x8] f32[15x2x8] u32[3] f32[3x4x8]", S("v")),
            ("f32[3x4x8] f32[16x2x8] f32[16x1x8] u32[3] f32[3x4x8]", S("v")),
            ("f32[3x4x8] f32[16x2x8] f32[16x16] u32[3] f32[3x4x8]", S("v")),
            ("f32[3x4x8] f32[16x2x8] f32[16x2x6] u32[3] f32[3x4x8]", S("y")),
            ("f32[3x4x8] f32[16x2x8] f32[16x2x8] f32[3] f32[3x4x8]", D("positions")),
            ("f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[4] f32[3x4x8]", S("positions")),
            ("f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] f16[3x4x8]", D("y")),
            ("f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] f32[3x32]", S("y")),
            (
                "f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] f32[3] u32[2x4] f32[3x4x8]",
                D("sequences"),
            ),
            (
                "f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] u32[4] u32[2x4] f32[3x4x8]",
                S("sequences"),
            ),
            ("f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] u32[3] f32[2x4] f32[3x4x8]", D("blocks")),
            ("f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] u32[3] u32[8] f32[3x4x8]", S("blocks")),
        ],
        bad_params: &[
            (0, NAN, "scale"),
            (2, F(-1.0), "softcap"),
            (2, NAN, "softcap"),
            (3, U(1), "block"),
        ],
    },
    Calls {
        op: "attention_sinks",
        good: "f32[3x4x8] f16[16x2x8] f16[16x2x8] u32[3] f32[4] f32[3x4x8]",
        params: &[F(0.5), U(0), F(0.0), U(0)],
        bad: &[
            ("u32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] f32[4] u32[3x4x8]", D("q")),
            ("f32[12x8] f32[16x2x8] f32[16x2x8] u32[3] f32[4] f32[12x8]", S("q")),
            ("f32[3x4x8] bf16[16x2x8] bf16[16x2x8] u32[3] f32[4] f32[3x4x8]", D("k")),
            ("f32[3x4x32] q8_0[16x2x32] q8_0[16x2x32] u32[3] f32[4] f32[3x4x32]", D("k")),
            ("f32[3x4x32] c8[16x2x32] f16[16x2x32] u32[3] f32[4] f32[3x4x32]", D("v")),
            ("f32[3x4x8] f32[16x3x8] f32[16x3x8] u32[3] f32[4] f32[3x4x8]", S("k")),
            ("f32[3x4x8] f32[16x2x8] f16[16x2x8] u32[3] f32[4] f32[3x4x8]", D("v")),
            ("f32[3x4x8] f32[16x2x8] f32[15x2x8] u32[3] f32[4] f32[3x4x8]", S("v")),
            ("f32[3x4x8] f32[16x2x8] f32[16x2x8] f32[3] f32[4] f32[3x4x8]", D("positions")),
            ("f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[4] f32[4] f32[3x4x8]", S("positions")),
            ("f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] f16[4] f32[3x4x8]", D("sinks")),
            ("f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] f32[2] f32[3x4x8]", S("sinks")),
            ("f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] f32[4]/2 f32[3x4x8]", S("sinks")),
            ("f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] f32[4] f16[3x4x8]", D("y")),
            ("f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] f32[4] f32[3x32]", S("y")),
            (
                "f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] f32[3] u32[2x4] f32[4] f32[3x4x8]",
                D("sequences"),
            ),
            (
                "f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] u32[4] u32[2x4] f32[4] f32[3x4x8]",
                S("sequences"),
            ),
            (
                "f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] u32[3] f32[2x4] f32[4] f32[3x4x8]",
                D("blocks"),
            ),
            (
                "f32[3x4x8] f32[16x2x8] f32[16x2x8] u32[3] u32[3] u32[8] f32[4] f32[3x4x8]",
                S("blocks"),
            ),
        ],
        bad_params: &[
            (0, NAN, "scale"),
            (2, F(-1.0), "softcap"),
            (2, NAN, "softcap"),
            (3, U(1), "block"),
        ],
    },
    Calls {
        op: "kv_write",
        good: "f32[3x2x8] u32[3] f16[16x2x8]",
        params: &[],
        bad: &[
            ("bf16[3x2x8] u32[3] f16[16x2x8]", D("x")),
            ("f32[6x8] u32[3] f32[16x2x8]", S("x")),
            ("f32[3x2x8] f32[3] f32[16x2x8]", D("positions")),
            ("f32[3x2x8] u32[2] f32[16x2x8]", S("positions")),
            ("f32[3x2x8] u32[3] bf16[16x2x8]", D("cache")),
            ("f32[3x2x8] u32[3] f32[16x16]", S("cache")),
            ("f32[3x2x8] u32[3] f32[16x3x8]", S("cache")),
            ("f32[3x2x8] u32[3] f32[16x2x9]", S("cache")),
            ("c8[3x2x32] u32[3] f16[16x2x32]", D("x")),
            ("f32[3x2x32] u32[3] q8_0[16x2x32]", D("cache")),
            ("f32[3x2x32] u32[3] c8[16x1x64]", S("cache")),
        ],
        bad_params: &[],
    },
    Calls {
        op: "copy",
        good: "q6_k[3x256] bf16[3x256]",
        params: &[],
        bad: &[
            ("u32[3x8] f32[3x8]", D("x")),
            ("f32[3x8] u32[3x8]", D("y")),
            ("f32[3x32] q8_0[3x32]", D("y")),
            ("f32[3x8] f32[8x3]", S("y")),
            ("f32[3x8] f32[24]", S("y")),
        ],
        bad_params: &[],
    },
    Calls {
        op: "concat",
        good: "f16[3x8] f16[3x4] f16[3x12]",
        params: &[],
        bad: &[
            ("u32[3x8] u32[3x4] u32[3x12]", D("a")),
            ("f32[3x8]/1,3 f32[3x4] f32[3x12]", S("a")),
            ("f32[3x8] f16[3x4] f32[3x12]", D("b")),
            ("f32[3x8] f32[2x4] f32[3x12]", S("b")),
            ("f32[3x8] f32[4] f32[3x12]", S("b")),
            ("f32[1x2147483648] f32[1x2147483648] f32[1x8]", S("y")),
            ("f32[3x8] f32[3x4] f16[3x12]", D("y")),
            ("f32[3x8] f32[3x4] f32[3x8]", S("y")),
            ("f32[3x8] f32[3x4] f32[6x8]", S("y")),
        ],
        bad_params: &[],
    },
    Calls {
        op: "arg_max",
        good: "f16[3x8] u32[3]",
        params: &[],
        bad: &[
            ("u32[3x8] u32[3]", D("x")),
            ("f32[8] u32[1]", S("x")),
            ("f32[3x8] f32[3]", D("ids")),
            ("f32[3x8] u32[8]", S("ids")),
            ("f32[3x8] u32[3x1]", S("ids")),
        ],
        bad_params: &[],
    },
    Calls {
        op: "top_k",
        good: "f16[3x8] f16[3x2] u32[3x2]",
        params: &[],
        bad: &[
            ("bf16[3x8] bf16[3x2] u32[3x2]", D("x")),
            ("f32[8] f32[1x2] u32[1x2]", S("x")),
            ("f32[3x8] f16[3x2] u32[3x2]", D("values")),
            ("f32[3x8] f32[2x2] u32[2x2]", S("values")),
            ("f32[3x8] f32[3x9] u32[3x9]", S("values")),
            ("f32[3x8] f32[2] u32[3x2]", S("values")),
            ("f32[3x8] f32[3x2] f32[3x2]", D("ids")),
            ("f32[3x8] f32[3x2] u32[3x3]", S("ids")),
        ],
        bad_params: &[],
    },
    Calls {
        op: "fill",
        good: "f16[3x8]/1,3",
        params: &[F(f32::NEG_INFINITY)],
        bad: &[("u32[3x8]", D("y")), ("q4_0[3x32]", D("y")), ("bf16[3x8]", D("y"))],
        bad_params: &[],
    },
    Calls {
        op: "rms_norm_mul",
        good: "f32[3x8] f16[8] f32[3x8]",
        params: &[F(1e-5)],
        bad: &[
            ("bf16[3x8] f32[8] bf16[3x8]", D("x")),
            ("f32[3x8]/1,3 f32[8] f32[3x8]", S("x")),
            ("f32[3x8] u32[8] f32[3x8]", D("w")),
            ("f32[3x8] f32[9] f32[3x8]", S("w")),
            ("f32[3x8] f32[2x8] f32[3x8]", S("w")),
            ("f32[3x8] f32[8] f16[3x8]", D("y")),
            ("f32[3x8] f32[8] f32[8]", S("y")),
        ],
        bad_params: BAD_EPS,
    },
    Calls {
        op: "rms_norm_mul_add",
        good: "f32[3x8] f16[8] f32[3x8] f32[3x8]",
        params: &[F(1e-5)],
        bad: &[
            ("bf16[3x8] f32[8] f32[3x8] bf16[3x8]", D("x")),
            ("f32[3x8]/1,3 f32[8] f32[3x8] f32[3x8]", S("x")),
            ("f32[3x8] u32[8] f32[3x8] f32[3x8]", D("w")),
            ("f32[3x8] f32[9] f32[3x8] f32[3x8]", S("w")),
            ("f32[3x8] f32[8] bf16[3x8] f32[3x8]", D("c")),
            ("f32[3x8] f32[8] f32[2x8] f32[3x8]", S("c")),
            ("f32[3x8] f32[8] f32[3x8] f16[3x8]", D("y")),
            ("f32[3x8] f32[8] f32[3x8] f32[8]", S("y")),
        ],
        bad_params: BAD_EPS,
    },
    Calls {
        op: "add_rms_norm",
        good: "f32[3x8] f32[8] f32[3x8]",
        params: &[F(1e-5)],
        bad: &[
            ("u32[3x8] f32[3x8] u32[3x8]", D("a")),
            ("f32[3x8]/1,3 f32[3x8] f32[3x8]", S("a")),
            ("f32[3x8] bf16[3x8] f32[3x8]", D("b")),
            ("f32[3x8] f32[9] f32[3x8]", S("b")),
            ("f32[3x8] f32[3x8] f16[3x8] f32[3x8]", D("sum")),
            ("f32[3x8] f32[3x8] f32[8] f32[3x8]", S("sum")),
            ("f32[3x8] f32[3x8] f32[3x8] f16[3x8]", D("y")),
            ("f32[3x8] f32[3x8] f32[3x8] f32[24]", S("y")),
            ("f32[3x8] f32[3x8] f16[3x8]", D("y")),
            ("f32[3x8] f32[3x8] f32[24]", S("y")),
        ],
        bad_params: BAD_EPS,
    },
    Calls {
        op: "add_rms_norm_mul",
        good: "f32[3x8] f32[3x8] f32[8] f32[3x8] f32[3x8]",
        params: &[F(1e-5)],
        bad: &[
            ("bf16[3x8] f32[3x8] f32[8] bf16[3x8]", D("a")),
            ("f32[3x8]/1,3 f32[3x8] f32[8] f32[3x8]", S("a")),
            ("f32[3x8] u32[3x8] f32[8] f32[3x8]", D("b")),
            ("f32[3x8] f32[2x8] f32[8] f32[3x8]", S("b")),
            ("f32[3x8] f32[3x8] q8_0[32] f32[3x8]", D("w")),
            ("f32[3x8] f32[3x8] f32[9] f32[3x8]", S("w")),
            ("f32[3x8] f32[3x8] f32[8] f16[3x8] f32[3x8]", D("sum")),
            ("f32[3x8] f32[3x8] f32[8] f32[3x9] f32[3x8]", S("sum")),
            ("f32[3x8] f32[3x8] f32[8] f32[3x8] f16[3x8]", D("y")),
            ("f32[3x8] f32[3x8] f32[8] f32[3x9]", S("y")),
            ("f32[3x8] f32[3x8] f32[8] f16[3x8]", D("y")),
        ],
        bad_params: BAD_EPS,
    },
    Calls {
        op: "matmul_add",
        good: "f16[3x32] q5_1[5x32] f32[5] f16[3x5]",
        params: &[],
        bad: &[
            ("u32[3x8] f32[5x8] f32[5] u32[3x5]", D("x")),
            ("f32[2x3x8] f32[5x8] f32[5] f32[3x5]", S("x")),
            ("f32[3x8] u32[5x8] f32[5] f32[3x5]", D("w")),
            ("f32[3x8] f32[8x5] f32[5] f32[3x5]", S("w")),
            ("f32[3x8] f32[5x8] bf16[5] f32[3x5]", D("c")),
            ("f32[3x8] f32[5x8] f32[8] f32[3x5]", S("c")),
            ("f32[3x8] f32[5x8] f32[2x5] f32[3x5]", S("c")),
            ("f32[3x8] f32[5x8] f32[3x5]/1,3 f32[3x5]", S("c")),
            ("f32[3x8] f32[5x8] f32[5] f16[3x5]", D("y")),
            ("f32[3x8] f32[5x8] f32[5] f32[5x3]", S("y")),
        ],
        bad_params: &[],
    },
    Calls {
        op: "rope_kv_write",
        good: "f32[3x2x8] u32[3] f32[4] u32[3] f16[16x2x8]",
        params: ROPE,
        bad: &[
            ("u32[3x2x8] u32[3] f32[4] u32[3] f16[16x2x8]", D("x")),
            ("f32[6x8] u32[6] f32[4] u32[6] f16[16x2x8]", S("x")),
            ("f32[3x2x8] f32[3] f32[4] u32[3] f16[16x2x8]", D("positions")),
            ("f32[3x2x8] u32[2] f32[4] u32[3] f16[16x2x8]", S("positions")),
            ("f32[3x2x8] u32[3] u32[4] u32[3] f16[16x2x8]", D("factors")),
            ("f32[3x2x8] u32[3] f32[3] u32[3] f16[16x2x8]", S("factors")),
            ("f32[3x2x8] u32[3] f32[4] f32[3] f16[16x2x8]", D("kv_positions")),
            ("f32[3x2x8] u32[3] f32[4] u32[4] f16[16x2x8]", S("kv_positions")),
            ("f32[3x2x8] u32[3] f32[4] u32[3] bf16[16x2x8]", D("cache")),
            ("f32[3x2x8] u32[3] f32[4] u32[3] f16[16x1x8]", S("cache")),
            ("f32[3x2x8] u32[3] f32[4] u32[3] f16[16x16]", S("cache")),
        ],
        bad_params: BAD_ROPE,
    },
];

/// Calls of an element-wise op, which follow from its row of the table.
fn of_map(map: Map) -> Calls {
    let (good, bad) = match map.inputs() {
        MapInputs::One => ("f16[3x8] f16[3x8]", UNARY),
        MapInputs::Two => ("f32[3x8] f16[8] f32[3x8]", ADD),
        MapInputs::Gated => ("f32[3x8] f32[3x8] f32[3x8]", GATED),
    };
    let spec = map.spec();
    let mut bad_params = Vec::new();
    for (index, param) in spec.params.iter().enumerate() {
        let below = if param.positive { &[F(0.0), F(-1.0)][..] } else { &[] };
        let values = [NAN, INF].into_iter().chain(below.iter().copied());
        bad_params.extend(values.map(|value| (index, value, param.name)));
    }
    let params = vec![F(2.0); spec.params.len()].leak();
    Calls { op: spec.name, good, params, bad, bad_params: bad_params.leak() }
}

/// Every entry: those written down, then those that follow from tables.
fn all_calls() -> impl Iterator<Item = &'static Calls> {
    static DERIVED: LazyLock<Vec<Calls>> = LazyLock::new(|| {
        let written = |product: &&Product| {
            let name = product.spec().name;
            !PLAIN.iter().chain(fused::CALLS).any(|calls| calls.op == name)
        };
        let products = Product::all().iter().filter(written).map(|&product| fused::of(product));
        Map::ALL.iter().map(|&map| of_map(map)).chain(products).collect()
    });
    PLAIN.iter().chain(fused::CALLS).chain(&*DERIVED)
}

/// Operands that have any shape, and constants that have any value.
const FREE: &[(&str, &str)] = &[
    ("copy", "x"),
    ("fill", "y"),
    ("attention", "window"),
    ("attention_sinks", "window"),
    ("fill", "value"),
];

#[test]
fn the_good_calls_are_taken() {
    for calls in all_calls() {
        push(calls.kind(), &views(calls.good), &words(calls.params)).unwrap();
    }
}

#[test]
fn wrong_operands_are_named() {
    for calls in all_calls() {
        let op = name(calls.kind());
        for &(operands, wrong) in calls.bad {
            let error = push(calls.kind(), &views(operands), &words(calls.params)).unwrap_err();
            let found = match &error {
                GpuError::Shape { op: found, binding, .. } if *found == op => S(binding),
                GpuError::DType { op: found, binding, .. } if *found == op => D(binding),
                _ => panic!("{op} {operands}: {error:?}"),
            };
            assert_eq!(found, wrong, "{op} {operands}: {error}");
            let (S(binding) | D(binding)) = wrong;
            let text = error.to_string();
            let named = text.starts_with(&format!("{op}: `{binding}` is "));
            assert!(named && text.contains("needed") | text.contains("can be"), "{text}");
        }
    }
}

#[test]
fn wrong_constants_are_named() {
    for calls in all_calls() {
        let (op, views) = (name(calls.kind()), views(calls.good));
        for &(index, value, param) in calls.bad_params {
            let mut params = words(calls.params);
            params[index] = words(&[value])[0];
            let error = push(calls.kind(), &views, &params).unwrap_err();
            let GpuError::Param { op: found, param: blamed, .. } = &error else {
                panic!("{op} {param}={value:?}: {error:?}");
            };
            assert_eq!((*found, *blamed), (op, param));
            assert!(error.to_string().starts_with(&format!("{op}: constant `{param}` is ")));
        }
    }
}

#[test]
fn wrong_counts_are_named() {
    for calls in all_calls() {
        let spec = ops::spec(calls.kind()).unwrap();
        let (views, params) = (views(calls.good), words(calls.params));
        let most = spec.operands.len();
        let least = most - spec.operands.iter().filter(|o| o.optional).count();
        for count in (0..least).chain([most + 1, most + 5]) {
            let given: Vec<TensorView> = views.iter().cycle().take(count).copied().collect();
            refused_count(spec, "operands", count, most, push(calls.kind(), &given, &params));
        }
        for count in (0..params.len()).chain([params.len() + 1, params.len() + 9]) {
            let given: Vec<u32> =
                params.iter().copied().chain(std::iter::repeat(0)).take(count).collect();
            refused_count(
                spec,
                "constants",
                count,
                params.len(),
                push(calls.kind(), &views, &given),
            );
        }
    }
}

#[track_caller]
fn refused_count(
    spec: &OpSpec,
    what: &'static str,
    found: usize,
    expected: usize,
    result: Result<(), GpuError>,
) {
    assert_eq!(result.unwrap_err(), GpuError::Arity { op: spec.name, what, found, expected });
}

#[test]
fn the_table_has_every_op_operand_and_constant() {
    let kinds: BTreeSet<Kind> = all_calls().map(|calls| calls.kind()).collect();
    assert_eq!((kinds.len(), all_calls().count()), (OPS.len(), OPS.len()));
    for calls in all_calls() {
        let spec = ops::spec(calls.kind()).unwrap();
        let free = |name: &str| FREE.contains(&(spec.name, name));
        for operand in spec.operands {
            for wrong in [S(operand.name), D(operand.name)] {
                let there = calls.bad.iter().any(|(_, w)| *w == wrong);
                let excused = free(operand.name) && matches!(wrong, S(_));
                assert_ne!(there, excused, "{}: {wrong:?}", spec.name);
            }
        }
        for param in spec.params {
            let there = calls.bad_params.iter().any(|(.., name)| *name == param.name);
            assert_ne!(there, free(param.name), "{}: {}", spec.name, param.name);
        }
    }
}

#[test]
fn a_view_outside_its_buffer_is_refused() {
    for calls in all_calls() {
        for index in 0..views(calls.good).len() {
            let mut views = views(calls.good);
            views[index].offset = 1;
            let error = push(calls.kind(), &views, &words(calls.params)).unwrap_err();
            let outside = matches!(error, GpuError::Graph(GraphError::ViewOutOfBounds { .. }));
            assert!(outside, "{}: {error:?}", name(calls.kind()));
        }
    }
}

#[test]
fn a_kind_without_an_op_is_refused() {
    for kind in [Kind::Custom, Kind::Pinned] {
        let error = push(kind, &views("f32[8] f32[8]"), &[]).unwrap_err();
        assert!(matches!(error, GpuError::UnknownKernel { .. }), "{error:?}");
    }
}

/// Calls the op, and makes sure that a refused call leaves no trace.
fn push(kind: Kind, views: &[TensorView], params: &[u32]) -> Result<(), GpuError> {
    let mut recorder = Recorder::new();
    let result = recorder.push(kind, views, params);
    assert_eq!(recorder.graph().nodes().len(), usize::from(result.is_ok()));
    result
}

fn name(kind: Kind) -> &'static str {
    ops::spec(kind).unwrap().name
}

fn words(params: &[Param]) -> Vec<u32> {
    let word = |param: &Param| match *param {
        F(value) => value.to_bits(),
        U(value) => value,
    };
    params.iter().map(word).collect()
}

/// Tensors from text such as `f32[3x8]` or `f32[3x8]/1,3`, in a buffer of exactly their size each.
fn views(text: &str) -> Vec<TensorView> {
    let tensors = text.split_whitespace().enumerate();
    tensors.map(|(buf_id, tensor)| view(buf_id, tensor)).collect()
}

fn view(buf_id: usize, text: &str) -> TensorView {
    let (tensor, strides) = text.split_once('/').unwrap_or((text, ""));
    let (dtype, shape) = tensor.strip_suffix(']').unwrap().split_once('[').unwrap();
    let known = DType::ALL.into_iter().chain([DType::A8, DType::A16, DType::C8]);
    let dtype = known.into_iter().find(|d| d.name() == dtype).unwrap();
    let numbers = |list: &str, by: char| -> Vec<usize> {
        list.split(by).map(|number| number.parse().unwrap()).collect()
    };
    let mut layout = Layout::new(dtype, &numbers(shape, 'x')).unwrap();
    if !strides.is_empty() {
        layout = layout.with_strides(&numbers(strides, ',')).unwrap();
    }
    TensorView { buf_id, buf_len: layout.span_bytes(), offset: 0, layout }
}

#[path = "common/kernel_of_kind.rs"]
mod kernel_of_kind;

#[test]
fn a_kernel_of_another_kind_is_refused_before_it_runs() {
    kernel_of_kind::check(&CpuDevice::new());
}
