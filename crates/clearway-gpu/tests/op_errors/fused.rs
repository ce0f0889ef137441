//! Bad calls of products that hold a norm or a gate.

use super::{BAD_EPS, Calls, D, F, Kind, S, Wrong};

/// One entry for each of them.
pub(super) const CALLS: &[Calls] = &[
    Calls {
        kind: Kind::MatMulSiluMul,
        good: "f16[3x32] q5_1[5x32] f16[3x5] f16[3x5]",
        params: &[],
        bad: BAD_GATE,
        bad_params: &[],
    },
    Calls {
        kind: Kind::MatMulGeluMul,
        good: "f16[3x32] q5_1[5x32] f16[3x5] f16[3x5]",
        params: &[],
        bad: BAD_GATE,
        bad_params: &[],
    },
    Calls {
        kind: Kind::MatMulSiluGated,
        good: "f16[3x32] q5_1[5x32] bf16[5x32] f16[3x5]",
        params: &[],
        bad: BAD_GATED,
        bad_params: &[],
    },
    Calls {
        kind: Kind::MatMulGeluGated,
        good: "f16[3x32] q5_1[5x32] bf16[5x32] f16[3x5]",
        params: &[],
        bad: BAD_GATED,
        bad_params: &[],
    },
    Calls {
        kind: Kind::NormMatMul,
        good: "f16[3x32] f32[32] q5_1[5x32] f16[3x5]",
        params: &[F(1e-5)],
        bad: &[
            ("u32[3x8] f32[8] f32[5x8] u32[3x5]", D("x")),
            ("f32[2x3x8] f32[8] f32[5x8] f32[3x5]", S("x")),
            ("f32[3x8] bf16[8] f32[5x8] f32[3x5]", D("g")),
            ("f32[3x8] f32[5] f32[5x8] f32[3x5]", S("g")),
            ("f32[3x8] f32[3x8] f32[5x8] f32[3x5]", S("g")),
            ("f32[3x8] f32[8] u32[5x8] f32[3x5]", D("w")),
            ("f32[3x8] f32[8] f32[8x5] f32[3x5]", S("w")),
            ("f32[3x8] f32[8] f32[5x8] f16[3x5]", D("y")),
            ("f32[3x8] f32[8] f32[5x8] f32[5x3]", S("y")),
        ],
        bad_params: BAD_EPS,
    },
    Calls {
        kind: Kind::NormMatMulAdd,
        good: "f16[3x32] f32[32] q5_1[5x32] f32[5] f16[3x5]",
        params: &[F(1e-5)],
        bad: &[
            ("u32[3x8] f32[8] f32[5x8] f32[5] u32[3x5]", D("x")),
            ("f32[2x3x8] f32[8] f32[5x8] f32[5] f32[3x5]", S("x")),
            ("f32[3x8] q8_0[32] f32[5x8] f32[5] f32[3x5]", D("g")),
            ("f32[3x8] f32[9] f32[5x8] f32[5] f32[3x5]", S("g")),
            ("f32[3x8] f32[8] u32[5x8] f32[5] f32[3x5]", D("w")),
            ("f32[3x8] f32[8] f32[8x5] f32[5] f32[3x5]", S("w")),
            ("f32[3x8] f32[8] f32[5x8] bf16[5] f32[3x5]", D("c")),
            ("f32[3x8] f32[8] f32[5x8] f32[2x5] f32[3x5]", S("c")),
            ("f32[3x8] f32[8] f32[5x8] f32[5] f16[3x5]", D("y")),
            ("f32[3x8] f32[8] f32[5x8] f32[5] f32[5x3]", S("y")),
        ],
        bad_params: BAD_EPS,
    },
    Calls {
        kind: Kind::NormMatMulSiluGated,
        good: "f16[3x32] f32[32] q5_1[5x32] bf16[5x32] f16[3x5]",
        params: &[F(1e-5)],
        bad: BAD_NORM_GATED,
        bad_params: BAD_EPS,
    },
    Calls {
        kind: Kind::NormMatMulGeluGated,
        good: "f16[3x32] f32[32] q5_1[5x32] bf16[5x32] f16[3x5]",
        params: &[F(1e-5)],
        bad: BAD_NORM_GATED,
        bad_params: BAD_EPS,
    },
];

const BAD_GATE: &[(&str, Wrong)] = &[
    ("u32[3x8] f32[5x8] f32[3x5] u32[3x5]", D("x")),
    ("f32[2x3x8] f32[5x8] f32[3x5] f32[3x5]", S("x")),
    ("f32[3x8] u32[5x8] f32[3x5] f32[3x5]", D("w")),
    ("f32[3x8] f32[8x5] f32[3x5] f32[3x5]", S("w")),
    ("f32[3x8] f32[5x8] f16[3x5] f32[3x5]", D("up")),
    ("f32[3x8] f32[5x8] f32[5] f32[3x5]", S("up")),
    ("f32[3x8] f32[5x8] f32[3x5]/1,3 f32[3x5]", S("up")),
    ("f32[3x8] f32[5x8] f32[3x5] f16[3x5]", D("y")),
    ("f32[3x8] f32[5x8] f32[5x3] f32[5x3]", S("y")),
];

const BAD_GATED: &[(&str, Wrong)] = &[
    ("u32[3x8] f32[5x8] f32[5x8] u32[3x5]", D("x")),
    ("f32[2x3x8] f32[5x8] f32[5x8] f32[3x5]", S("x")),
    ("f32[3x8] u32[5x8] f32[5x8] f32[3x5]", D("w")),
    ("f32[3x8] f32[8x5] f32[8x5] f32[3x5]", S("w")),
    ("f32[3x8] f32[5x8] u32[5x8] f32[3x5]", D("u")),
    ("f32[3x8] f32[5x8] f32[6x8] f32[3x5]", S("u")),
    ("f32[3x8] f32[5x8] f32[5x8]/1,5 f32[3x5]", S("u")),
    ("f32[3x8] f32[5x8] f32[5x8] f16[3x5]", D("y")),
    ("f32[3x8] f32[5x8] f32[5x8] f32[5x3]", S("y")),
];

const BAD_NORM_GATED: &[(&str, Wrong)] = &[
    ("u32[3x8] f32[8] f32[5x8] f32[5x8] u32[3x5]", D("x")),
    ("f32[2x3x8] f32[8] f32[5x8] f32[5x8] f32[3x5]", S("x")),
    ("f32[3x8] u32[8] f32[5x8] f32[5x8] f32[3x5]", D("g")),
    ("f32[3x8] f32[2x8] f32[5x8] f32[5x8] f32[3x5]", S("g")),
    ("f32[3x8] f32[8] u32[5x8] f32[5x8] f32[3x5]", D("w")),
    ("f32[3x8] f32[8] f32[8x5] f32[8x5] f32[3x5]", S("w")),
    ("f32[3x8] f32[8] f32[5x8] u32[5x8] f32[3x5]", D("u")),
    ("f32[3x8] f32[8] f32[5x8] f32[6x8] f32[3x5]", S("u")),
    ("f32[3x8] f32[8] f32[5x8] f32[5x8] f16[3x5]", D("y")),
    ("f32[3x8] f32[8] f32[5x8] f32[5x8] f32[5x3]", S("y")),
];
