//! A fused kernel gives the bits of its parts where these store f32, whatever the weights' type.

use super::*;
use clearway_graph::testkit::kind;

const EPS: [f32; 1] = [1e-5];

/// Rows of an odd length, with gaps between them.
const ROWS: usize = 5;
const COLS: usize = 1037;

fn rows(rig: &mut Rig) -> TensorView {
    let x = rig.random(DType::F32, &[ROWS * (COLS + 3)]);
    strided(x, &[ROWS, COLS], &[COLS + 3, 1])
}

/// A second operand as wide as the first, or as one row; f32 or f16.
fn seconds(rig: &mut Rig) -> Vec<TensorView> {
    let shapes = [vec![ROWS, COLS], vec![COLS], vec![1, COLS]];
    let mut all = Vec::new();
    for shape in &shapes {
        all.push(rig.random(DType::F32, shape));
        all.push(rig.random(DType::F16, shape));
    }
    all
}

fn results<const N: usize>(rig: &mut Rig) -> [TensorView; N] {
    std::array::from_fn(|_| rig.output(DType::F32, &[ROWS, COLS]))
}

#[test]
fn norm_and_weight() {
    let mut rig = Rig::new(2);
    let x = rows(&mut rig);
    for w in seconds(&mut rig) {
        let [normed, expected, fused] = results(&mut rig);
        rig.op(Kind::RmsNorm, &[x, normed], &bits(&EPS));
        rig.op(Kind::MUL, &[normed, w, expected], &[]);
        rig.op(Kind::RmsNormMul, &[x, w, fused], &bits(&EPS)).run();
        assert_eq!(rig.bits(fused), rig.bits(expected), "{}", w.layout);
    }
}

#[test]
fn sum_and_norm_and_weight() {
    let mut rig = Rig::new(2);
    let a = rows(&mut rig);
    let seconds = seconds(&mut rig);
    for (&b, &w) in seconds.iter().zip(seconds.iter().rev()) {
        let [sum, normed, product] = results(&mut rig);
        rig.op(Kind::ADD, &[a, b, sum], &[]);
        rig.op(Kind::RmsNorm, &[sum, normed], &bits(&EPS));
        rig.op(Kind::MUL, &[normed, w, product], &[]);
        let [sum1, y1, y2, sum3, y3, y4] = results(&mut rig);
        rig.op(Kind::AddRmsNorm, &[a, b, sum1, y1], &bits(&EPS));
        rig.op(Kind::AddRmsNorm, &[a, b, y2], &bits(&EPS));
        rig.op(Kind::AddRmsNormMul, &[a, b, w, sum3, y3], &bits(&EPS));
        rig.op(Kind::AddRmsNormMul, &[a, b, w, y4], &bits(&EPS)).run();
        for (found, expected) in
            [(sum1, sum), (y1, normed), (y2, normed), (sum3, sum), (y3, product), (y4, product)]
        {
            assert_eq!(rig.bits(found), rig.bits(expected), "{} {}", b.layout, w.layout);
        }
    }
}

#[test]
fn activation_and_gate() {
    let mut rig = Rig::new(2);
    for (plain, fused) in [(Kind::SILU, Kind::SILU_MUL), (Kind::GELU, Kind::GELU_MUL)] {
        let (gate, up) = (rows(&mut rig), rows(&mut rig));
        let [active, expected, y] = results(&mut rig);
        rig.op(plain, &[gate, active], &[]);
        rig.op(Kind::MUL, &[active, up, expected], &[]);
        rig.op(fused, &[gate, up, y], &[]).run();
        assert_eq!(rig.bits(y), rig.bits(expected), "{plain:?}");
    }
}

#[test]
fn product_and_sum() {
    let (rows, inner, outer) = (67, 96, 83);
    let mut rig = Rig::new(2);
    let x = rig.random(DType::F32, &[rows, inner]);
    for weights in [DType::F32, DType::F16, DType::Q5_1] {
        let w = rig.random(weights, &[outer, inner]);
        for shape in [vec![rows, outer], vec![outer]] {
            for dtype in [DType::F32, DType::F16] {
                let c = rig.random(dtype, &shape);
                let out = |rig: &mut Rig| rig.output(DType::F32, &[rows, outer]);
                let (product, expected, fused) = (out(&mut rig), out(&mut rig), out(&mut rig));
                rig.op(Kind::MATMUL, &[x, w, product], &[]);
                rig.op(Kind::ADD, &[product, c, expected], &[]);
                rig.op(kind("matmul_add"), &[x, w, c, fused], &[]).run();
                assert_eq!(rig.bits(fused), rig.bits(expected), "{weights} {dtype} {shape:?}");
            }
        }
    }
}

#[test]
fn rotation_and_cache_write() {
    let (tokens, heads, head, cache_rows) = (90, 3, 40, 100);
    for (dims, mode) in [(40, 0), (40, 1), (24, 0), (24, 1)] {
        for cache in [DType::F32, DType::F16] {
            let mut rig = Rig::new(2);
            let x = rig.random(DType::F32, &[tokens, heads, head]);
            let positions: Vec<u32> = (0..tokens as u32).map(|t| t * 41 % 103).collect();
            let at = rig.u32(&positions, &[tokens]);
            let factors = rig.f32(&vec![1.25; dims / 2], &[dims / 2]);
            let params =
                [dims as u32, mode, 10_000f32.to_bits(), 0.5f32.to_bits(), 1.25f32.to_bits()];
            let rotated = rig.output(DType::F32, &[tokens, heads, head]);
            let (expected, fused) = (
                rig.output(cache, &[cache_rows, heads, head]),
                rig.output(cache, &[cache_rows, heads, head]),
            );
            rig.op(Kind::Rope, &[x, at, factors, rotated], &params);
            rig.op(Kind::KvWrite, &[rotated, at, expected], &[]);
            rig.op(Kind::RopeKvWrite, &[x, at, factors, at, fused], &params).run();
            assert_eq!(rig.bits(fused), rig.bits(expected), "{dims} {mode} {cache}");
            let kept = rig.floats(fused).iter().filter(|&&x| x == -77.0).count();
            assert_eq!(kept % (heads * head), 0);
            assert!(kept > 0 && kept < cache_rows * heads * head);
        }
    }
}
