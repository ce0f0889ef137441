//! Bad calls of products that hold a norm or a gate.

use clearway_graph::{Product, Slot};

use super::{BAD_EPS, Calls, D, F, INF, NAN, Param, S, U, Wrong};

/// Calls of a product, which follow from its operands.
pub(super) fn of(product: Product) -> Calls {
    let (heads, experts) = (product.epilogue().heads(), product.is_of_experts());
    // A tensor that fits, one of a wrong type, and one of a wrong shape.
    let operand = |slot: Slot| match slot {
        Slot::Weight if heads => ["f32[16x8]", "u32[16x8]", "f32[8x16]"],
        Slot::HeadNormWeight => ["f32[8]", "bf16[8]", "f32[9]"],
        Slot::Positions | Slot::CacheRows => ["u32[3]", "f32[3]", "u32[6]"],
        Slot::Factors => ["f32[4]", "f16[4]", "f32[8]"],
        Slot::Result if heads => ["f32[3x2x8]", "f16[3x2x8]", "f32[3x16]"],
        Slot::Cache => ["f16[16x2x8]", "u32[16x2x8]", "f16[16x16]"],
        Slot::Weight if experts => ["f32[4x5x8]", "u32[4x5x8]", "f32[20x8]"],
        Slot::UpWeight if experts => ["f32[4x5x8]", "u32[4x5x8]", "f32[4x6x8]"],
        Slot::Ids => ["u32[3x2]", "f32[3x2]", "u32[6]"],
        Slot::Up if experts => ["f32[3x2x5]", "f16[3x2x5]", "f32[3x2x6]"],
        Slot::Result if experts => ["f32[3x2x5]", "f16[3x2x5]", "f32[3x5]"],
        Slot::Input => ["f32[3x8]", "u32[3x8]", "f32[2x3x8]"],
        Slot::NormWeight => ["f32[8]", "bf16[8]", "f32[9]"],
        Slot::Weight => ["f32[5x8]", "u32[5x8]", "f32[8x5]"],
        Slot::UpWeight => ["f32[5x8]", "u32[5x8]", "f32[6x8]"],
        Slot::Up => ["f32[3x5]", "f16[3x5]", "f32[3x6]"],
        Slot::Addend => ["f32[5]", "bf16[5]", "f32[2x5]"],
        Slot::Result => ["f32[3x5]", "f16[3x5]", "f32[5x3]"],
        other => panic!("{}: write its calls down, it has {other:?}", product.spec().name),
    };
    let slots = product.slots();
    let call = |changed: Option<(usize, usize)>| -> &'static str {
        let texts = slots.iter().enumerate().map(|(index, &slot)| {
            let which = changed.filter(|&(at, _)| at == index).map_or(0, |(_, which)| which);
            operand(slot)[which]
        });
        texts.collect::<Vec<_>>().join(" ").leak()
    };
    let names = product.spec().operands.iter().map(|operand| operand.name);
    let bad: Vec<_> = names
        .enumerate()
        .flat_map(|(at, name)| [(call(Some((at, 1))), D(name)), (call(Some((at, 2))), S(name))])
        .collect();
    let (mut params, mut bad_params) = (Vec::new(), Vec::new());
    let epilogue = product.epilogue();
    if product.is_normed() {
        params.push(F(1e-5));
        bad_params.extend(BAD_EPS);
    }
    if epilogue.head_norm {
        let at = product.head_norm_param();
        bad_params.extend(BAD_EPS.iter().map(|&(_, value, _)| (at, value, "head_eps")));
        params.push(F(1e-5));
    }
    if epilogue.rope {
        let first = product.rope_params();
        bad_params.extend(BAD_ROPE.iter().map(|&(at, value, name)| (first + at, value, name)));
        params.extend(ROPE);
    }
    let (params, bad_params) = (params.leak(), bad_params.leak());
    Calls { op: product.spec().name, good: call(None), params, bad: bad.leak(), bad_params }
}

/// One entry for each of them.
pub(super) const CALLS: &[Calls] = &[
    Calls {
        op: "matmul_silu_mul",
        good: "f16[3x32] q5_1[5x32] f16[3x5] f16[3x5]",
        params: &[],
        bad: BAD_GATE,
        bad_params: &[],
    },
    Calls {
        op: "matmul_gelu_mul",
        good: "f16[3x32] q5_1[5x32] f16[3x5] f16[3x5]",
        params: &[],
        bad: BAD_GATE,
        bad_params: &[],
    },
    Calls {
        op: "matmul_silu_gated",
        good: "f16[3x32] q5_1[5x32] bf16[5x32] f16[3x5]",
        params: &[],
        bad: BAD_GATED,
        bad_params: &[],
    },
    Calls {
        op: "matmul_gelu_gated",
        good: "f16[3x32] q5_1[5x32] bf16[5x32] f16[3x5]",
        params: &[],
        bad: BAD_GATED,
        bad_params: &[],
    },
    Calls {
        op: "norm_matmul",
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
        op: "norm_matmul_add",
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
        op: "norm_matmul_silu_gated",
        good: "f16[3x32] f32[32] q5_1[5x32] bf16[5x32] f16[3x5]",
        params: &[F(1e-5)],
        bad: BAD_NORM_GATED,
        bad_params: BAD_EPS,
    },
    Calls {
        op: "norm_matmul_gelu_gated",
        good: "f16[3x32] f32[32] q5_1[5x32] bf16[5x32] f16[3x5]",
        params: &[F(1e-5)],
        bad: BAD_NORM_GATED,
        bad_params: BAD_EPS,
    },
    Calls {
        op: "norm_matmul_rope",
        good: "f16[3x32] f32[32] q5_1[16x32] u32[3] f32[4] f16[3x2x8]",
        params: NORM_ROPE,
        bad: &[
            ("u32[3x8] f32[8] f32[16x8] u32[3] f32[4] u32[3x2x8]", D("x")),
            ("f32[1x3x8] f32[8] f32[16x8] u32[3] f32[4] f32[3x2x8]", S("x")),
            ("f32[3x8]/1,3 f32[8] f32[16x8] u32[3] f32[4] f32[3x2x8]", S("x")),
            ("f32[3x8] bf16[8] f32[16x8] u32[3] f32[4] f32[3x2x8]", D("g")),
            ("f32[3x8] f32[3x8] f32[16x8] u32[3] f32[4] f32[3x2x8]", S("g")),
            ("f32[3x8] f32[8] u32[16x8] u32[3] f32[4] f32[3x2x8]", D("w")),
            ("f32[3x8] f32[8] f32[8x16] u32[3] f32[4] f32[3x2x8]", S("w")),
            ("f32[3x8] f32[8] f32[2x8x8] u32[3] f32[4] f32[3x2x8]", S("w")),
            ("f32[3x8] f32[8] f32[16x8] f32[3] f32[4] f32[3x2x8]", D("positions")),
            ("f32[3x8] f32[8] f32[16x8] u32[6] f32[4] f32[3x2x8]", S("positions")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f16[4] f32[3x2x8]", D("factors")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f32[8] f32[3x2x8]", S("factors")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f32[4] f16[3x2x8]", D("y")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f32[4] f32[3x16]", S("y")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f32[4] f32[3x1x8]", S("y")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f32[4] f32[6x2x8]", S("y")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f32[4] f32[3x2x8]/16,1,2", S("y")),
        ],
        bad_params: BAD_NORM_ROPE,
    },
    Calls {
        op: "norm_matmul_rope_kv",
        good: "f16[3x32] f32[32] q5_1[16x32] u32[3] f32[4] u32[3] f32[9x2x8]",
        params: NORM_ROPE,
        bad: &[
            ("u32[3x8] f32[8] f32[16x8] u32[3] f32[4] u32[3] f16[9x2x8]", D("x")),
            ("f32[1x3x8] f32[8] f32[16x8] u32[3] f32[4] u32[3] f16[9x2x8]", S("x")),
            ("f32[3x8] bf16[8] f32[16x8] u32[3] f32[4] u32[3] f16[9x2x8]", D("g")),
            ("f32[3x8] f32[9] f32[16x8] u32[3] f32[4] u32[3] f16[9x2x8]", S("g")),
            ("f32[3x8] f32[8] u32[16x8] u32[3] f32[4] u32[3] f16[9x2x8]", D("w")),
            ("f32[3x8] f32[8] f32[8x16] u32[3] f32[4] u32[3] f16[9x2x8]", S("w")),
            ("f32[3x8] f32[8] f32[16x8] f32[3] f32[4] u32[3] f16[9x2x8]", D("positions")),
            ("f32[3x8] f32[8] f32[16x8] u32[9] f32[4] u32[3] f16[9x2x8]", S("positions")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] u32[4] u32[3] f16[9x2x8]", D("factors")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f32[3] u32[3] f16[9x2x8]", S("factors")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f32[4] f32[3] f16[9x2x8]", D("kv_positions")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f32[4] u32[4] f16[9x2x8]", S("kv_positions")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f32[4] u32[3] bf16[9x2x8]", D("cache")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f32[4] u32[3] f16[9x3x8]", S("cache")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f32[4] u32[3] f16[9x16]", S("cache")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f32[4] u32[3] f16[9x2x8]/16,1,2", S("cache")),
        ],
        bad_params: BAD_NORM_ROPE,
    },
    Calls {
        op: "norm_matmul_kv",
        good: "f16[3x32] f32[32] q5_1[16x32] u32[3] f32[9x2x8]",
        params: &[F(1e-5)],
        bad: &[
            ("u32[3x8] f32[8] f32[16x8] u32[3] f16[9x2x8]", D("x")),
            ("f32[1x3x8] f32[8] f32[16x8] u32[3] f16[9x2x8]", S("x")),
            ("f32[3x8] bf16[8] f32[16x8] u32[3] f16[9x2x8]", D("g")),
            ("f32[3x8] f32[9] f32[16x8] u32[3] f16[9x2x8]", S("g")),
            ("f32[3x8] f32[8] u32[16x8] u32[3] f16[9x2x8]", D("w")),
            ("f32[3x8] f32[8] f32[8x16] u32[3] f16[9x2x8]", S("w")),
            ("f32[3x8] f32[8] f32[16x8] f32[3] f16[9x2x8]", D("kv_positions")),
            ("f32[3x8] f32[8] f32[16x8] u32[9] f16[9x2x8]", S("kv_positions")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] bf16[9x2x8]", D("cache")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f16[9x1x8]", S("cache")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f16[9x16]", S("cache")),
            ("f32[3x8] f32[8] f32[16x8] u32[3] f16[9x2x8]/16,1,2", S("cache")),
        ],
        bad_params: BAD_EPS,
    },
    Calls {
        op: "matmul_rope",
        good: "a8[1x32] q5_1[16x32] u32[1] f32[4] f32[1x2x8]",
        params: ROPE,
        bad: &[
            ("u32[3x8] f32[16x8] u32[3] f32[4] u32[3x2x8]", D("x")),
            ("f32[1x3x8] f32[16x8] u32[3] f32[4] f32[3x2x8]", S("x")),
            ("a8[3x32]/64,1 f32[16x32] u32[3] f32[4] f32[3x2x8]", S("x")),
            ("f32[3x8] u32[16x8] u32[3] f32[4] f32[3x2x8]", D("w")),
            ("f32[3x32] a8[16x32] u32[3] f32[4] f32[3x2x8]", D("w")),
            ("f32[3x8] f32[8x16] u32[3] f32[4] f32[3x2x8]", S("w")),
            ("f32[3x8] f32[16x8] f32[3] f32[4] f32[3x2x8]", D("positions")),
            ("f32[3x8] f32[16x8] u32[6] f32[4] f32[3x2x8]", S("positions")),
            ("f32[3x8] f32[16x8] u32[3] f16[4] f32[3x2x8]", D("factors")),
            ("f32[3x8] f32[16x8] u32[3] f32[8] f32[3x2x8]", S("factors")),
            ("f32[3x8] f32[16x8] u32[3] f32[4] f16[3x2x8]", D("y")),
            ("a8[3x32] f32[16x32] u32[3] f32[4] f16[3x2x8]", D("y")),
            ("f32[3x8] f32[16x8] u32[3] f32[4] f32[3x1x8]", S("y")),
        ],
        bad_params: BAD_ROPE,
    },
    Calls {
        op: "matmul_rope_kv",
        good: "a8[1x32] q5_1[16x32] u32[1] f32[4] u32[1] f16[9x2x8]",
        params: ROPE,
        bad: &[
            ("u32[3x8] f32[16x8] u32[3] f32[4] u32[3] f16[9x2x8]", D("x")),
            ("f32[1x3x8] f32[16x8] u32[3] f32[4] u32[3] f16[9x2x8]", S("x")),
            ("f32[3x8] u32[16x8] u32[3] f32[4] u32[3] f16[9x2x8]", D("w")),
            ("f32[3x8] f32[8x16] u32[3] f32[4] u32[3] f16[9x2x8]", S("w")),
            ("f32[3x8] f32[16x8] f32[3] f32[4] u32[3] f16[9x2x8]", D("positions")),
            ("f32[3x8] f32[16x8] u32[9] f32[4] u32[3] f16[9x2x8]", S("positions")),
            ("f32[3x8] f32[16x8] u32[3] u32[4] u32[3] f16[9x2x8]", D("factors")),
            ("f32[3x8] f32[16x8] u32[3] f32[3] u32[3] f16[9x2x8]", S("factors")),
            ("f32[3x8] f32[16x8] u32[3] f32[4] f32[3] f16[9x2x8]", D("kv_positions")),
            ("f32[3x8] f32[16x8] u32[3] f32[4] u32[4] f16[9x2x8]", S("kv_positions")),
            ("f32[3x8] f32[16x8] u32[3] f32[4] u32[3] bf16[9x2x8]", D("cache")),
            ("f32[3x8] f32[16x8] u32[3] f32[4] u32[3] f16[9x3x8]", S("cache")),
        ],
        bad_params: BAD_ROPE,
    },
    Calls {
        op: "matmul_kv",
        good: "a8[1x32] q5_1[16x32] u32[1] f16[9x2x8]",
        params: &[],
        bad: &[
            ("u32[3x8] f32[16x8] u32[3] f16[9x2x8]", D("x")),
            ("f32[1x3x8] f32[16x8] u32[3] f16[9x2x8]", S("x")),
            ("f32[3x8] u32[16x8] u32[3] f16[9x2x8]", D("w")),
            ("f32[3x8] f32[8x16] u32[3] f16[9x2x8]", S("w")),
            ("f32[3x8] f32[16x8] f32[3] f16[9x2x8]", D("kv_positions")),
            ("f32[3x8] f32[16x8] u32[9] f16[9x2x8]", S("kv_positions")),
            ("f32[3x8] f32[16x8] u32[3] bf16[9x2x8]", D("cache")),
            ("f32[3x8] f32[16x8] u32[3] f16[9x1x8]", S("cache")),
        ],
        bad_params: &[],
    },
    Calls {
        op: "matmul_add_norm",
        good: "a8[1x64] q5_1[32x64] f32[1x32] f16[32] f32[1x32] a8[1x32]",
        params: &[F(1e-5)],
        bad: &[
            ("u32[1x8] f32[32x8] f32[1x32] f32[32] f32[1x32] a8[1x32]", D("x")),
            ("f32[1x1x8] f32[32x8] f32[1x32] f32[32] f32[1x32] a8[1x32]", S("x")),
            ("f32[1x8] u32[32x8] f32[1x32] f32[32] f32[1x32] a8[1x32]", D("w")),
            ("f32[1x8] f32[8x32] f32[1x32] f32[32] f32[1x32] a8[1x32]", S("w")),
            ("f32[1x8] f32[32x8] a8[1x32] f32[32] f32[1x32] a8[1x32]", D("c")),
            ("f32[1x8] f32[32x8] f32[2x32] f32[32] f32[1x32] a8[1x32]", S("c")),
            ("f32[1x8] f32[32x8] f32[1x32] u32[32] f32[1x32] a8[1x32]", D("next")),
            ("f32[1x8] f32[32x8] f32[1x32] f32[8] f32[1x32] a8[1x32]", S("next")),
            ("f32[1x8] f32[32x8] f32[1x32] f32[32] a8[1x32] a8[1x32]", D("sum")),
            ("f32[1x8] f32[32x8] f32[1x32] f32[32] f32[2x32] a8[1x32]", S("sum")),
            ("f16[1x8] f32[32x8] f32[1x32] f32[32] f32[1x32] a8[1x32]", D("x")),
            ("f32[1x8] f32[32x8] f32[1x32] f32[32] f32[1x32] u32[1x32]", D("y")),
            ("f32[1x8] f32[32x8] f32[1x32] f32[32] f32[1x32] a8[1x64]", S("y")),
        ],
        bad_params: BAD_EPS,
    },
    Calls {
        op: "norm_matmul_add_rope",
        good: "f16[3x32] f32[32] q5_1[16x32] f32[16] u32[3] f32[4] f16[3x2x8]",
        params: NORM_ROPE,
        bad: &[
            ("f16[3x32] f32[32] q5_1[16x32] bf16[16] u32[3] f32[4] f16[3x2x8]", D("c")),
            ("f16[3x32] f32[32] q5_1[16x32] f32[5] u32[3] f32[4] f16[3x2x8]", S("c")),
            ("u32[3x8] f32[8] f32[16x8] f32[16] u32[3] f32[4] u32[3x2x8]", D("x")),
            ("f32[1x3x8] f32[8] f32[16x8] f32[16] u32[3] f32[4] f32[3x2x8]", S("x")),
            ("f32[3x8]/1,3 f32[8] f32[16x8] f32[16] u32[3] f32[4] f32[3x2x8]", S("x")),
            ("f32[3x8] bf16[8] f32[16x8] f32[16] u32[3] f32[4] f32[3x2x8]", D("g")),
            ("f32[3x8] f32[3x8] f32[16x8] f32[16] u32[3] f32[4] f32[3x2x8]", S("g")),
            ("f32[3x8] f32[8] u32[16x8] f32[16] u32[3] f32[4] f32[3x2x8]", D("w")),
            ("f32[3x8] f32[8] f32[8x16] f32[16] u32[3] f32[4] f32[3x2x8]", S("w")),
            ("f32[3x8] f32[8] f32[2x8x8] f32[16] u32[3] f32[4] f32[3x2x8]", S("w")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] f32[3] f32[4] f32[3x2x8]", D("positions")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[6] f32[4] f32[3x2x8]", S("positions")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f16[4] f32[3x2x8]", D("factors")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f32[8] f32[3x2x8]", S("factors")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f32[4] f16[3x2x8]", D("y")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f32[4] f32[3x16]", S("y")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f32[4] f32[3x1x8]", S("y")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f32[4] f32[6x2x8]", S("y")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f32[4] f32[3x2x8]/16,1,2", S("y")),
        ],
        bad_params: BAD_NORM_ROPE,
    },
    Calls {
        op: "norm_matmul_add_rope_kv",
        good: "f16[3x32] f32[32] q5_1[16x32] f32[16] u32[3] f32[4] u32[3] f32[9x2x8]",
        params: NORM_ROPE,
        bad: &[
            ("f16[3x32] f32[32] q5_1[16x32] bf16[16] u32[3] f32[4] u32[3] f32[9x2x8]", D("c")),
            ("f16[3x32] f32[32] q5_1[16x32] f32[5] u32[3] f32[4] u32[3] f32[9x2x8]", S("c")),
            ("u32[3x8] f32[8] f32[16x8] f32[16] u32[3] f32[4] u32[3] f16[9x2x8]", D("x")),
            ("f32[1x3x8] f32[8] f32[16x8] f32[16] u32[3] f32[4] u32[3] f16[9x2x8]", S("x")),
            ("f32[3x8] bf16[8] f32[16x8] f32[16] u32[3] f32[4] u32[3] f16[9x2x8]", D("g")),
            ("f32[3x8] f32[9] f32[16x8] f32[16] u32[3] f32[4] u32[3] f16[9x2x8]", S("g")),
            ("f32[3x8] f32[8] u32[16x8] f32[16] u32[3] f32[4] u32[3] f16[9x2x8]", D("w")),
            ("f32[3x8] f32[8] f32[8x16] f32[16] u32[3] f32[4] u32[3] f16[9x2x8]", S("w")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] f32[3] f32[4] u32[3] f16[9x2x8]", D("positions")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[9] f32[4] u32[3] f16[9x2x8]", S("positions")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] u32[4] u32[3] f16[9x2x8]", D("factors")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f32[3] u32[3] f16[9x2x8]", S("factors")),
            (
                "f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f32[4] f32[3] f16[9x2x8]",
                D("kv_positions"),
            ),
            (
                "f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f32[4] u32[4] f16[9x2x8]",
                S("kv_positions"),
            ),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f32[4] u32[3] bf16[9x2x8]", D("cache")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f32[4] u32[3] f16[9x3x8]", S("cache")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f32[4] u32[3] f16[9x16]", S("cache")),
            (
                "f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f32[4] u32[3] f16[9x2x8]/16,1,2",
                S("cache"),
            ),
        ],
        bad_params: BAD_NORM_ROPE,
    },
    Calls {
        op: "norm_matmul_add_kv",
        good: "f16[3x32] f32[32] q5_1[16x32] f32[16] u32[3] f32[9x2x8]",
        params: &[F(1e-5)],
        bad: &[
            ("f16[3x32] f32[32] q5_1[16x32] bf16[16] u32[3] f32[9x2x8]", D("c")),
            ("f16[3x32] f32[32] q5_1[16x32] f32[5] u32[3] f32[9x2x8]", S("c")),
            ("u32[3x8] f32[8] f32[16x8] f32[16] u32[3] f16[9x2x8]", D("x")),
            ("f32[1x3x8] f32[8] f32[16x8] f32[16] u32[3] f16[9x2x8]", S("x")),
            ("f32[3x8] bf16[8] f32[16x8] f32[16] u32[3] f16[9x2x8]", D("g")),
            ("f32[3x8] f32[9] f32[16x8] f32[16] u32[3] f16[9x2x8]", S("g")),
            ("f32[3x8] f32[8] u32[16x8] f32[16] u32[3] f16[9x2x8]", D("w")),
            ("f32[3x8] f32[8] f32[8x16] f32[16] u32[3] f16[9x2x8]", S("w")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] f32[3] f16[9x2x8]", D("kv_positions")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[9] f16[9x2x8]", S("kv_positions")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] bf16[9x2x8]", D("cache")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f16[9x1x8]", S("cache")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f16[9x16]", S("cache")),
            ("f32[3x8] f32[8] f32[16x8] f32[16] u32[3] f16[9x2x8]/16,1,2", S("cache")),
        ],
        bad_params: BAD_EPS,
    },
    Calls {
        op: "matmul_add_rope",
        good: "a8[1x32] q5_1[16x32] f32[16] u32[1] f32[4] f32[1x2x8]",
        params: ROPE,
        bad: &[
            ("a8[1x32] q5_1[16x32] bf16[16] u32[1] f32[4] f32[1x2x8]", D("c")),
            ("a8[1x32] q5_1[16x32] f32[5] u32[1] f32[4] f32[1x2x8]", S("c")),
            ("u32[3x8] f32[16x8] f32[16] u32[3] f32[4] u32[3x2x8]", D("x")),
            ("f32[1x3x8] f32[16x8] f32[16] u32[3] f32[4] f32[3x2x8]", S("x")),
            ("a8[3x32]/64,1 f32[16x32] f32[16] u32[3] f32[4] f32[3x2x8]", S("x")),
            ("f32[3x8] u32[16x8] f32[16] u32[3] f32[4] f32[3x2x8]", D("w")),
            ("f32[3x32] a8[16x32] f32[16] u32[3] f32[4] f32[3x2x8]", D("w")),
            ("f32[3x8] f32[8x16] f32[16] u32[3] f32[4] f32[3x2x8]", S("w")),
            ("f32[3x8] f32[16x8] f32[16] f32[3] f32[4] f32[3x2x8]", D("positions")),
            ("f32[3x8] f32[16x8] f32[16] u32[6] f32[4] f32[3x2x8]", S("positions")),
            ("f32[3x8] f32[16x8] f32[16] u32[3] f16[4] f32[3x2x8]", D("factors")),
            ("f32[3x8] f32[16x8] f32[16] u32[3] f32[8] f32[3x2x8]", S("factors")),
            ("f32[3x8] f32[16x8] f32[16] u32[3] f32[4] f16[3x2x8]", D("y")),
            ("a8[3x32] f32[16x32] f32[16] u32[3] f32[4] f16[3x2x8]", D("y")),
            ("f32[3x8] f32[16x8] f32[16] u32[3] f32[4] f32[3x1x8]", S("y")),
        ],
        bad_params: BAD_ROPE,
    },
    Calls {
        op: "matmul_add_rope_kv",
        good: "a8[1x32] q5_1[16x32] f32[16] u32[1] f32[4] u32[1] f16[9x2x8]",
        params: ROPE,
        bad: &[
            ("a8[1x32] q5_1[16x32] bf16[16] u32[1] f32[4] u32[1] f16[9x2x8]", D("c")),
            ("a8[1x32] q5_1[16x32] f32[5] u32[1] f32[4] u32[1] f16[9x2x8]", S("c")),
            ("u32[3x8] f32[16x8] f32[16] u32[3] f32[4] u32[3] f16[9x2x8]", D("x")),
            ("f32[1x3x8] f32[16x8] f32[16] u32[3] f32[4] u32[3] f16[9x2x8]", S("x")),
            ("f32[3x8] u32[16x8] f32[16] u32[3] f32[4] u32[3] f16[9x2x8]", D("w")),
            ("f32[3x8] f32[8x16] f32[16] u32[3] f32[4] u32[3] f16[9x2x8]", S("w")),
            ("f32[3x8] f32[16x8] f32[16] f32[3] f32[4] u32[3] f16[9x2x8]", D("positions")),
            ("f32[3x8] f32[16x8] f32[16] u32[9] f32[4] u32[3] f16[9x2x8]", S("positions")),
            ("f32[3x8] f32[16x8] f32[16] u32[3] u32[4] u32[3] f16[9x2x8]", D("factors")),
            ("f32[3x8] f32[16x8] f32[16] u32[3] f32[3] u32[3] f16[9x2x8]", S("factors")),
            ("f32[3x8] f32[16x8] f32[16] u32[3] f32[4] f32[3] f16[9x2x8]", D("kv_positions")),
            ("f32[3x8] f32[16x8] f32[16] u32[3] f32[4] u32[4] f16[9x2x8]", S("kv_positions")),
            ("f32[3x8] f32[16x8] f32[16] u32[3] f32[4] u32[3] bf16[9x2x8]", D("cache")),
            ("f32[3x8] f32[16x8] f32[16] u32[3] f32[4] u32[3] f16[9x3x8]", S("cache")),
        ],
        bad_params: BAD_ROPE,
    },
    Calls {
        op: "matmul_add_kv",
        good: "a8[1x32] q5_1[16x32] f32[16] u32[1] f16[9x2x8]",
        params: &[],
        bad: &[
            ("a8[1x32] q5_1[16x32] bf16[16] u32[1] f16[9x2x8]", D("c")),
            ("a8[1x32] q5_1[16x32] f32[5] u32[1] f16[9x2x8]", S("c")),
            ("u32[3x8] f32[16x8] f32[16] u32[3] f16[9x2x8]", D("x")),
            ("f32[1x3x8] f32[16x8] f32[16] u32[3] f16[9x2x8]", S("x")),
            ("f32[3x8] u32[16x8] f32[16] u32[3] f16[9x2x8]", D("w")),
            ("f32[3x8] f32[8x16] f32[16] u32[3] f16[9x2x8]", S("w")),
            ("f32[3x8] f32[16x8] f32[16] f32[3] f16[9x2x8]", D("kv_positions")),
            ("f32[3x8] f32[16x8] f32[16] u32[9] f16[9x2x8]", S("kv_positions")),
            ("f32[3x8] f32[16x8] f32[16] u32[3] bf16[9x2x8]", D("cache")),
            ("f32[3x8] f32[16x8] f32[16] u32[3] f16[9x1x8]", S("cache")),
        ],
        bad_params: &[],
    },
];

const ROPE: &[Param] = &[U(8), U(0), F(1e4), F(1.0), F(1.0)];
const BAD_ROPE: &[(usize, Param, &str)] = &[
    (0, U(7), "n_dims"),
    (0, U(10), "n_dims"),
    (1, U(2), "mode"),
    (2, F(0.0), "base"),
    (3, INF, "scale"),
    (4, NAN, "magnitude"),
];

const NORM_ROPE: &[Param] = &[F(1e-5), U(8), U(0), F(1e4), F(1.0), F(1.0)];
const BAD_NORM_ROPE: &[(usize, Param, &str)] = &[
    (0, F(-1e-6), "eps"),
    (0, NAN, "eps"),
    (1, U(0), "n_dims"),
    (1, U(7), "n_dims"),
    (1, U(10), "n_dims"),
    (1, U(u32::MAX), "n_dims"),
    (2, U(2), "mode"),
    (3, F(0.0), "base"),
    (3, NAN, "base"),
    (4, INF, "scale"),
    (5, NAN, "magnitude"),
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
    ("a8[1x32] q4_0[32x32] f32[1x32] f16[1x32]", D("y")),
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
    ("a8[1x32] q4_0[32x32] q4_0[32x32] f16[1x32]", D("y")),
    ("f16[1x32] q4_0[32x32] q4_0[32x32] a8[1x32]", D("x")),
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
    ("a8[1x32] f32[32] q4_0[32x32] q4_0[32x32] f32[1x32]", D("x")),
    ("a8[1x32] f32[32] q4_0[32x32] q4_0[32x32] a8[1x32]", D("x")),
];
