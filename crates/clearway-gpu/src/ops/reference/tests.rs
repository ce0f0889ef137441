//! The reference against values worked out by hand or from closed forms.

use super::*;
use clearway_graph::testkit::kind;

fn t(shape: &[usize], data: &[f64]) -> RefTensor {
    RefTensor::new(DType::F32, shape, data.to_vec())
}

fn ids(shape: &[usize], data: &[f64]) -> RefTensor {
    RefTensor::new(DType::U32, shape, data.to_vec())
}

fn y(shape: &[usize]) -> RefTensor {
    RefTensor::output(DType::F32, shape)
}

fn run(kind: Kind, operands: &[RefTensor], params: &[u32]) -> Vec<Vec<f64>> {
    reference(kind, operands, params).unwrap().into_iter().map(|t| t.data).collect()
}

fn one(kind: Kind, operands: &[RefTensor], params: &[u32]) -> Vec<f64> {
    let mut results = run(kind, operands, params);
    assert_eq!(results.len(), 1);
    results.remove(0)
}

fn bits(v: f32) -> u32 {
    v.to_bits()
}

#[track_caller]
fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{found:?} against {expected:?}");
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= 1e-9 * e.abs().max(1.0), "{found:?} against {expected:?}");
    }
}

#[test]
fn elementwise_ops_repeat_a_single_row() {
    let a = t(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let row = t(&[2], &[10.0, 20.0]);
    let full = t(&[2, 2], &[10.0, 20.0, 30.0, 40.0]);
    close(&one(Kind::ADD, &[a.clone(), row.clone(), y(&[2, 2])], &[]), &[11.0, 22.0, 13.0, 24.0]);
    close(&one(Kind::MUL, &[a.clone(), full, y(&[2, 2])], &[]), &[10.0, 40.0, 90.0, 160.0]);
    close(&one(Kind::SCALE, &[row, y(&[2])], &[bits(0.5)]), &[5.0, 10.0]);
    close(
        &one(Kind::Concat, &[a, t(&[2, 1], &[7.0, 8.0]), y(&[2, 3])], &[]),
        &[1.0, 2.0, 7.0, 3.0, 4.0, 8.0],
    );
    close(&one(Kind::Fill, &[y(&[3])], &[bits(2.5)]), &[2.5, 2.5, 2.5]);
    close(&one(Kind::Copy, &[t(&[2], &[3.0, 4.0]), y(&[2])], &[]), &[3.0, 4.0]);
}

#[test]
fn norms_put_epsilon_under_the_root() {
    let x = t(&[2, 2], &[3.0, 4.0, 0.0, 2.0]);
    // Means of squares 12.5 and 2; with an epsilon of 3.5 the first root is 4.
    close(
        &one(Kind::RmsNorm, &[x.clone(), y(&[2, 2])], &[bits(3.5)]),
        &[0.75, 1.0, 0.0, 2.0 / 5.5_f64.sqrt()],
    );
    let w = t(&[2], &[2.0, 10.0]);
    close(
        &one(Kind::RmsNormMul, &[x.clone(), w.clone(), y(&[2, 2])], &[bits(3.5)])[..2],
        &[1.5, 10.0],
    );
    // Rows 3, 4: mean 3.5, variance 0.25; 0, 2: mean 1, variance 1.
    let b = t(&[2], &[1.0, 0.0]);
    close(
        &one(Kind::LayerNorm, &[x.clone(), w.clone(), b, y(&[2, 2])], &[bits(0.0)]),
        &[-1.0, 10.0, -1.0, 10.0],
    );
    let half = t(&[2, 2], &[1.5, 2.0, 0.0, 1.0]);
    let sum_and_norm =
        run(Kind::AddRmsNorm, &[half.clone(), half.clone(), y(&[2, 2]), y(&[2, 2])], &[bits(3.5)]);
    close(&sum_and_norm[0], &[3.0, 4.0, 0.0, 2.0]);
    close(&sum_and_norm[1][..2], &[0.75, 1.0]);
    let product = one(Kind::AddRmsNormMul, &[half.clone(), half, w, y(&[2, 2])], &[bits(3.5)]);
    close(&product[..2], &[1.5, 10.0]);
}

#[test]
fn softmax_masks_and_repeats_its_mask() {
    let ln = |v: f64| v.ln();
    let x = t(&[2, 1, 2], &[ln(1.0), ln(9.0), ln(4.0), ln(4.0)]);
    let open = t(&[1, 2], &[0.0, 0.0]);
    // A scale of one half takes square roots of the odds.
    close(
        &one(Kind::Softmax, &[x.clone(), open, y(&[2, 1, 2])], &[bits(0.5)]),
        &[0.25, 0.75, 0.5, 0.5],
    );
    let inf = f64::NEG_INFINITY;
    let half = t(&[1, 2], &[0.0, inf]);
    close(
        &one(Kind::Softmax, &[x.clone(), half, y(&[2, 1, 2])], &[bits(1.0)]),
        &[1.0, 0.0, 1.0, 0.0],
    );
    let shut = t(&[1, 2], &[inf, inf]);
    close(&one(Kind::Softmax, &[x, shut, y(&[2, 1, 2])], &[bits(1.0)]), &[0.0; 4]);
}

#[test]
fn products_take_rows_of_the_weight() {
    let x = t(&[1, 2], &[2.0, 3.0]);
    let w = t(&[3, 2], &[1.0, 0.0, 0.0, 1.0, 10.0, 100.0]);
    close(&one(Kind::MATMUL, &[x.clone(), w.clone(), y(&[1, 3])], &[]), &[2.0, 3.0, 320.0]);
    let c = t(&[3], &[1.0, 1.0, 1.0]);
    close(&one(kind("matmul_add"), &[x.clone(), w, c, y(&[1, 3])], &[]), &[3.0, 4.0, 321.0]);

    let experts = t(&[2, 1, 2], &[1.0, 1.0, 10.0, 10.0]);
    let chosen = ids(&[1, 3], &[1.0, 0.0, 2.0]);
    let out = [experts.clone(), chosen.clone(), y(&[1, 3, 1])];
    let shared = [&[x], &out[..]].concat();
    close(&one(Kind::MatMulExperts, &shared, &[]), &[50.0, 5.0, 0.0]);
    let own = [&[t(&[1, 3, 2], &[1.0, 0.0, 0.0, 2.0, 4.0, 4.0])], &out[..]].concat();
    close(&one(Kind::MatMulExperts, &own, &[]), &[10.0, 2.0, 0.0]);

    let parts = t(&[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let weights = t(&[1, 2], &[10.0, 1.0]);
    close(&one(Kind::ExpertSum, &[parts, weights, y(&[1, 2])], &[]), &[13.0, 24.0]);
}

#[test]
fn fused_products_are_the_plain_ones_in_turn() {
    let e = std::f64::consts::E;
    let (x, w) = (t(&[1, 2], &[2.0, 3.0]), t(&[2, 2], &[2.0, -1.0, 0.5, 0.0]));
    let up = t(&[1, 2], &[10.0, 3.0]);
    // Gates are 1 and 1.
    let silu = e / (e + 1.0);
    let gelu = 0.841_191_990_608_276_7;
    for (kind, act) in [(kind("matmul_silu_mul"), silu), (kind("matmul_gelu_mul"), gelu)] {
        let operands = [x.clone(), w.clone(), up.clone(), y(&[1, 2])];
        close(&one(kind, &operands, &[]), &[10.0 * act, 3.0 * act]);
    }
    // The other product is 5 and 12.
    let u = t(&[2, 2], &[1.0, 1.0, 0.0, 4.0]);
    for (kind, act) in [(kind("matmul_silu_gated"), silu), (kind("matmul_gelu_gated"), gelu)] {
        let operands = [x.clone(), w.clone(), u.clone(), y(&[1, 2])];
        close(&one(kind, &operands, &[]), &[5.0 * act, 12.0 * act]);
    }
    // Mean of squares 12.5, an epsilon of 3.5, so a root of 4: the norm is 0.75 and 1, with its
    // weight 2 and 3.
    let (far, g) = (t(&[1, 2], &[3.0, 4.0]), t(&[2], &[8.0 / 3.0, 3.0]));
    let eps = [bits(3.5)];
    let operands = [far.clone(), g.clone(), u.clone(), y(&[1, 2])];
    close(&one(kind("norm_matmul"), &operands, &eps), &[5.0, 12.0]);
    let operands = [far.clone(), g.clone(), u.clone(), t(&[2], &[1.0, -2.0]), y(&[1, 2])];
    close(&one(kind("norm_matmul_add"), &operands, &eps), &[6.0, 10.0]);
    for (kind, act) in
        [(kind("norm_matmul_silu_gated"), silu), (kind("norm_matmul_gelu_gated"), gelu)]
    {
        let operands = [far.clone(), g.clone(), w.clone(), u.clone(), y(&[1, 2])];
        close(&one(kind, &operands, &eps), &[5.0 * act, 12.0 * act]);
    }
}

#[test]
fn products_that_rotate_and_go_into_a_cache_are_the_plain_ones_in_turn() {
    // As above the norm is 2 and 3 with its weight, in both rows; the product is 2, 3, 5 and 12, two
    // heads of two.
    let x = t(&[2, 2], &[3.0, 4.0, 3.0, 4.0]);
    let g = t(&[2], &[8.0 / 3.0, 3.0]);
    let w = t(&[4, 2], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 4.0]);
    let in_front = [x, g, w];
    // Position 3 at a third of the scale and a factor of one half: an angle of 2.
    let turn = [ids(&[2], &[0.0, 3.0]), t(&[1], &[0.5])];
    let (s, c) = 2.0_f64.sin_cos();
    let rows = [
        [2.0, 3.0, 5.0, 12.0],
        [2.0 * c - 3.0 * s, 2.0 * s + 3.0 * c, 5.0 * c - 12.0 * s, 5.0 * s + 12.0 * c],
    ];
    let params = [bits(3.5), 2, 0, bits(1e4), bits(1.0 / 3.0), bits(1.0)];
    let close = |found: &[f64], expected: &[f64]| {
        // The scale is no third, but the nearest float.
        let near = |(f, e): (&f64, &f64)| (f - e).abs() < 1e-5;
        assert!(found.len() == expected.len() && found.iter().zip(expected).all(near), "{found:?}");
    };
    let operands = [&in_front[..], &turn, &[y(&[2, 2, 2])]].concat();
    close(&one(kind("norm_matmul_rope"), &operands, &params), &rows.concat());

    // To one row of a cache: the last one wins; and beyond its end: nothing is written.
    let cache = t(&[3, 2, 2], &[9.0; 12]);
    let nines = [9.0; 4];
    for (to, expected) in [
        ([1.0, 0.0], [rows[1], rows[0], nines]),
        ([2.0, 2.0], [nines, nines, rows[1]]),
        ([0.0, 3.0], [rows[0], nines, nines]),
    ] {
        let to = [ids(&[2], &to), cache.clone()];
        let operands = [&in_front[..], &turn, &to].concat();
        close(&one(kind("norm_matmul_rope_kv"), &operands, &params), &expected.concat());
        let operands = [&in_front[..], &to].concat();
        let plain = expected.map(|row| if row == nines { nines } else { rows[0] });
        close(&one(kind("norm_matmul_kv"), &operands, &params[..1]), &plain.concat());
    }
}

#[test]
fn gather_scales_and_gives_zeros_beyond_the_table() {
    let table = t(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let picked = ids(&[3], &[1.0, 2.0, 0.0]);
    close(
        &one(Kind::Gather, &[table, picked, y(&[3, 2])], &[bits(2.0)]),
        &[6.0, 8.0, 0.0, 0.0, 2.0, 4.0],
    );
}

#[test]
fn the_largest_come_first_and_of_equals_the_lower_index() {
    let x = t(&[2, 4], &[1.0, 5.0, 5.0, 2.0, -0.0, 0.0, -1.0, -2.0]);
    assert_eq!(one(Kind::ArgMax, &[x.clone(), ids(&[2], &[])], &[]), [1.0, 0.0]);
    let results = run(Kind::TopK, &[x, y(&[2, 3]), ids(&[2, 3], &[])], &[]);
    assert_eq!(results[0], [5.0, 5.0, 2.0, 0.0, 0.0, -1.0]);
    assert_eq!(results[1], [1.0, 2.0, 3.0, 0.0, 1.0, 2.0]);
}

#[test]
fn a_row_that_is_not_finite_has_no_largest_element_and_shows_why_first() {
    let (nan, high, low) = (f64::NAN, f64::INFINITY, f64::NEG_INFINITY);
    let none = f64::from(crate::ops::NO_INDEX);
    for (row, best, order) in [
        ([1.0, -nan, 5.0, nan], none, [1.0, 3.0, 2.0, 0.0]),
        ([high, 7.0, low, high], none, [0.0, 3.0, 1.0, 2.0]),
        ([low, low, low, low], none, [0.0, 1.0, 2.0, 3.0]),
        ([low, -7.0, low, low], 1.0, [1.0, 0.0, 2.0, 3.0]),
    ] {
        let x = t(&[1, 4], &row);
        assert_eq!(one(Kind::ArgMax, &[x.clone(), ids(&[1], &[])], &[]), [best], "{row:?}");
        let found = run(Kind::TopK, &[x, y(&[1, 4]), ids(&[1, 4], &[])], &[]);
        assert_eq!(found[1], order, "{row:?}");
    }
}

#[test]
fn a_router_has_three_modes() {
    let ln = |v: f64| v.ln();
    let logits = t(&[1, 3], &[ln(1.0), ln(6.0), ln(3.0)]);
    let operands = [logits, ids(&[1, 2], &[]), y(&[1, 2])];
    let route = |mode, renorm, scale: f32| {
        let results = run(Kind::RouterTopK, &operands, &[mode, renorm, bits(scale)]);
        assert_eq!(results[0], [1.0, 2.0]);
        results[1].clone()
    };
    close(&route(0, 0, 1.0), &[0.6, 0.3]);
    close(&route(0, 1, 1.0), &[2.0 / 3.0, 1.0 / 3.0]);
    close(&route(1, 0, 3.0), &[2.0, 1.0]);
    close(&route(2, 0, 1.0), &[6.0 / 7.0, 0.75]);
    let sum = 6.0 / 7.0 + 0.75;
    close(&route(2, 1, 2.0), &[2.0 * 6.0 / 7.0 / sum, 1.5 / sum]);
}

#[test]
fn a_router_with_groups_chooses_among_those_of_the_best() {
    // Sigmoids of 0.5, 0.6, 0.9, 0.1, 0.7, 0.65: the second group has the best expert, the third the best two.
    let logit = |share: f64| (share / (1.0 - share)).ln();
    let logits = t(&[1, 6], &[0.5, 0.6, 0.9, 0.1, 0.7, 0.65].map(logit));
    let route = |bias: Option<[f64; 6]>, mode, groups_used, best| {
        let bias = bias.map(|bias| t(&[6], &bias));
        let results = [ids(&[1, 2], &[]), y(&[1, 2])];
        let operands: Vec<_> =
            [Some(logits.clone()), bias].into_iter().flatten().chain(results).collect();
        let found = run(Kind::RouterGroups, &operands, &[mode, 0, bits(2.0), 3, groups_used, best]);
        (found[0].clone(), found[1].clone())
    };
    let check = |found: (Vec<f64>, Vec<f64>), chosen: [f64; 2], weights: [f64; 2]| {
        assert_eq!(found.0, chosen);
        close(&found.1, &weights);
    };
    check(route(None, 2, 1, 1), [2.0, 3.0], [1.8, 0.2]);
    check(route(None, 2, 1, 2), [4.0, 5.0], [1.4, 1.3]);
    check(route(None, 2, 2, 2), [4.0, 5.0], [1.4, 1.3]);
    check(route(None, 2, 2, 1), [2.0, 4.0], [1.8, 1.4]);
    // A bias counts for the choice and not in the weights.
    check(route(Some([0.0, 0.5, 0.0, 0.0, 0.0, 0.0]), 2, 1, 2), [1.0, 0.0], [1.2, 1.0]);
    assert_eq!(route(None, 0, 1, 1).0, [2.0, 3.0]);
}

#[test]
fn rope_turns_pairs_of_either_layout() {
    let x = t(&[1, 1, 5], &[1.0, 2.0, 3.0, 4.0, 9.0]);
    let at = |position: f64| ids(&[1], &[position]);
    let factors = t(&[2], &[1.0, 4.0]);
    let scaled = |mode, position, magnitude| {
        let operands = [x.clone(), at(position), factors.clone(), y(&[1, 1, 5])];
        one(Kind::Rope, &operands, &[4, mode, bits(16.0), bits(0.5), bits(magnitude)])
    };
    let turn = |mode, position| scaled(mode, position, 1.0);
    // What does not turn stays as it is.
    assert_eq!(scaled(0, 0.0, 1.5), [1.5, 3.0, 4.5, 6.0, 9.0]);
    assert_eq!(turn(0, 0.0), x.data);
    // Position 2 at half scale: angles 1 and 16^(-2/4) / 4 = 1/16.
    let (s0, c0) = 1.0_f64.sin_cos();
    let (s1, c1) = 0.0625_f64.sin_cos();
    close(
        &turn(0, 2.0),
        &[c0 - 2.0 * s0, s0 + 2.0 * c0, 3.0 * c1 - 4.0 * s1, 3.0 * s1 + 4.0 * c1, 9.0],
    );
    close(
        &turn(1, 2.0),
        &[c0 - 3.0 * s0, 2.0 * c1 - 4.0 * s1, s0 + 3.0 * c0, 2.0 * s1 + 4.0 * c1, 9.0],
    );
}

#[test]
fn the_cache_keeps_rows_that_are_not_written() {
    let x = t(&[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]);
    let cache = t(&[3, 1, 2], &[9.0; 6]);
    let written = one(Kind::KvWrite, &[x.clone(), ids(&[2], &[2.0, 7.0]), cache.clone()], &[]);
    assert_eq!(written, [9.0, 9.0, 9.0, 9.0, 1.0, 2.0]);
    // Turned by position 0, which changes nothing, and written to rows of another tensor.
    let operands = [x, ids(&[2], &[0.0, 0.0]), t(&[1], &[1.0]), ids(&[2], &[1.0, 0.0]), cache];
    let written = one(Kind::RopeKvWrite, &operands, &[2, 0, bits(1e4), bits(1.0), bits(1.0)]);
    assert_eq!(written, [3.0, 4.0, 1.0, 2.0, 9.0, 9.0]);
}

#[test]
fn attention_sees_the_past_within_its_window() {
    // Equal scores make an average of what is visible, so the rows seen can be read off.
    let q = t(&[1, 2, 1], &[0.0, 0.0]);
    let k = t(&[4, 1, 1], &[1.0, 2.0, 3.0, 4.0]);
    let v = t(&[4, 1, 1], &[1.0, 10.0, 100.0, 1000.0]);
    let see = |position: f64, window| {
        let operands = [q.clone(), k.clone(), v.clone(), ids(&[1], &[position]), y(&[1, 2, 1])];
        one(Kind::Attention, &operands, &[bits(1.0), window, bits(0.0), 0])
    };
    close(&see(0.0, 0), &[1.0, 1.0]);
    close(&see(2.0, 0), &[37.0, 37.0]);
    close(&see(2.0, 2), &[55.0, 55.0]);
    close(&see(2.0, 1), &[100.0, 100.0]);
    close(&see(9.0, 0), &[277.75, 277.75]);
    close(&see(5.0, 3), &[1000.0, 1000.0]);
    close(&see(9.0, 3), &[0.0, 0.0]);
}

#[test]
fn attention_scores_are_scaled_then_capped_and_heads_are_grouped() {
    // Four heads share two of the cache; the first pair attends by k = 1 and 0, the second by 0 and 2.
    let q = t(&[1, 4, 1], &[2.0, 4.0, 2.0, 0.0]);
    let k = t(&[2, 2, 1], &[1.0, 0.0, 0.0, 2.0]);
    let v = t(&[2, 2, 1], &[1.0, 0.0, 0.0, 1.0]);
    let run = |cap: f32| {
        let operands = [q.clone(), k.clone(), v.clone(), ids(&[1], &[1.0]), y(&[1, 4, 1])];
        one(Kind::Attention, &operands, &[bits(0.5), 0, bits(cap), 0])
    };
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    close(&run(0.0), &[sigmoid(1.0), sigmoid(2.0), sigmoid(2.0), 0.5]);
    let cap = |x: f64| 3.0 * (x / 3.0).tanh();
    close(&run(3.0), &[sigmoid(cap(1.0)), sigmoid(cap(2.0)), sigmoid(cap(2.0)), 0.5]);
}

#[test]
fn a_sink_takes_its_share_and_gives_nothing() {
    // Scores 0 and 0, and a sink of ln 2, which counts as much as both.
    let q = t(&[1, 2, 1], &[0.0, 0.0]);
    let (k, v) = (t(&[2, 1, 1], &[1.0, 2.0]), t(&[2, 1, 1], &[4.0, 8.0]));
    let sinks = t(&[2], &[2_f64.ln(), -1e9]);
    let run = |position: f64, window| {
        let at = ids(&[1], &[position]);
        let operands = [q.clone(), k.clone(), v.clone(), at, sinks.clone(), y(&[1, 2, 1])];
        one(Kind::AttentionSinks, &operands, &[bits(3.0), window, bits(1.0), 0])
    };
    close(&run(1.0, 0), &[3.0, 6.0]);
    close(&run(0.0, 0), &[4.0 / 3.0, 4.0]);
    // A query that sees only its sink.
    close(&run(9.0, 1), &[0.0, 0.0]);
}

#[test]
fn bad_operands_are_errors() {
    let x = t(&[2], &[1.0, 2.0]);
    let error = reference(Kind::SILU, &[x.clone(), y(&[3])], &[]).unwrap_err();
    assert!(matches!(error, GpuError::Shape { op: "silu", binding: "y", .. }), "{error}");
    let short = RefTensor::new(DType::F32, &[3], vec![1.0]);
    let error = reference(Kind::SILU, &[short, y(&[3])], &[]).unwrap_err();
    assert!(matches!(error, GpuError::TransferMismatch { .. }), "{error}");
    let error = reference(Kind::Custom, &[x], &[]).unwrap_err();
    assert!(matches!(error, GpuError::UnknownKernel { .. }), "{error}");
    assert!(reference(Kind::Fill, &[], &[0]).is_err());
    let zero = RefTensor::new(DType::F32, &[0], Vec::new());
    assert!(matches!(reference(Kind::Fill, &[zero], &[0]), Err(GpuError::Graph(_))));
}
