use super::*;
use crate::ops::NO_INDEX;

const NAN: f32 = f32::NAN;
const LOW: f32 = f32::NEG_INFINITY;

#[test]
fn the_first_of_equal_largest_elements_wins_if_all_are_sound() {
    let rows = [
        ([1.0, 3.0, 3.0, 2.0], 1),
        ([LOW, LOW, 5.0, LOW], 2),
        ([NAN, LOW, 5.0, -NAN], NO_INDEX),
        ([NAN, NAN, NAN, NAN], NO_INDEX),
        ([1.0, f32::INFINITY, 5.0, 2.0], NO_INDEX),
        ([-0.0, 0.0, -1.0, 0.0], 0),
        ([LOW, LOW, LOW, LOW], NO_INDEX),
    ];
    for dtype in [DType::F32, DType::F16] {
        let mut rig = Rig::new(2);
        let x: Vec<f32> = rows.iter().flat_map(|(row, _)| *row).collect();
        let x = rig.tensor(dtype, &x, &[rows.len(), 4]);
        let ids = rig.ids(&[rows.len()]);
        rig.op(Kind::ArgMax, &[x, ids], &[]).run();
        assert_eq!(rig.elems::<u32>(ids), rows.map(|(_, id)| id));
    }
}

#[test]
fn the_largest_element_is_found_in_a_long_row() {
    let mut rig = Rig::new(2);
    let mut row = vec![0.0; 100_000];
    (row[77_777], row[99_999]) = (1.0, 1.0);
    let (x, ids) = (rig.f32(&row, &[1, 100_000]), rig.ids(&[1]));
    rig.op(Kind::ArgMax, &[x, ids], &[]).run();
    assert_eq!(rig.elems::<u32>(ids), [77_777]);
}

#[test]
fn the_largest_elements_fall_with_ties_in_the_order_of_indices() {
    let mut rig = Rig::new(2);
    let x = [2.0, 7.0, NAN, 7.0, 2.0, LOW, 7.0, 1.0, NAN, 2.0, 2.0, 0.0];
    let order = [2, 8, 1, 3, 6, 0, 4, 9, 10, 7, 11, 5];
    let input = rig.f32(&x, &[1, 12]);
    for k in [1, 2, 4, 9, 12] {
        let (values, ids) = (rig.output(DType::F32, &[1, k]), rig.ids(&[1, k]));
        rig.op(Kind::TopK, &[input, values, ids], &[]).run();
        assert_eq!(rig.elems::<u32>(ids), order[..k], "k = {k}");
        let expected: Vec<u32> = order[..k].iter().map(|&i| x[i as usize].to_bits()).collect();
        assert_eq!(rig.bits(values), expected, "k = {k}");
    }
}

#[test]
fn top_k_agrees_with_sorting_on_rows_full_of_ties() {
    let mut rig = Rig::new(2);
    let rows: Vec<f32> = (0..5 * 997).map(|i| ((i * 7919) % 101) as f32).collect();
    let x = rig.f32(&rows, &[5, 997]);
    let (values, ids) = (rig.output(DType::F32, &[5, 40]), rig.ids(&[5, 40]));
    rig.op(Kind::TopK, &[x, values, ids], &[]).run();
    let found = rig.elems::<u32>(ids);
    for (row, found) in rows.chunks(997).zip(found.chunks(40)) {
        let mut order: Vec<u32> = (0..997).collect();
        order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
        assert_eq!(found, &order[..40]);
    }
}

#[test]
fn router_weights_follow_their_mode() {
    let logits = [1.0, 3.0, 3.0, -2.0];
    let exps: Vec<f32> = logits.iter().map(|l: &f32| l.exp()).collect();
    let all: f32 = exps.iter().sum();
    let cases = [
        (0, 0, 1.0, [exps[1] / all, exps[2] / all, exps[0] / all]),
        (0, 1, 2.0, [1, 2, 0].map(|i| 2.0 * exps[i] / (all - exps[3]))),
        (1, 0, 1.0, [1, 2, 0].map(|i| exps[i] / (all - exps[3]))),
        (2, 0, 0.5, [1, 2, 0].map(|i| 0.5 * exps[i] / (1.0 + exps[i]))),
    ];
    for (mode, renorm, scale, expected) in cases {
        let mut rig = Rig::new(2);
        let x = rig.f32(&logits, &[1, 4]);
        let (ids, weights) = (rig.ids(&[1, 3]), rig.output(DType::F32, &[1, 3]));
        rig.op(Kind::RouterTopK, &[x, ids, weights], &[mode, renorm, f32::to_bits(scale)]).run();
        assert_eq!(rig.elems::<u32>(ids), [1, 2, 0]);
        for (found, expected) in rig.floats(weights).iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "mode {mode}: {found} for {expected}");
        }
    }
}

#[test]
fn router_weights_of_impossible_experts_are_zero_and_not_nan() {
    for (mode, logit) in [(0, LOW), (1, LOW), (2, -200.0)] {
        let mut rig = Rig::new(1);
        let x = rig.f32(&[logit; 3], &[1, 3]);
        let (ids, weights) = (rig.ids(&[1, 2]), rig.output(DType::F32, &[1, 2]));
        rig.op(Kind::RouterTopK, &[x, ids, weights], &[mode, 1, 1f32.to_bits()]).run();
        assert_eq!((rig.elems::<u32>(ids), rig.floats(weights)), (vec![0, 1], vec![0.0; 2]));
    }
}
