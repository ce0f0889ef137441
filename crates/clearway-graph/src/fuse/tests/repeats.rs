//! Producers that every reader takes in a copy of, and pairs that read one tensor.

use super::chains::{List, kinds};
use super::setup::{COLS, ROWS, Setup, Step, layout};
use crate::fuse::{FuseReport, RULES, Refusal, TestCatalog};
use crate::op::{CapturedOpKind as Kind, Product};
use crate::testkit::decoder_like;
use crate::testkit::kind;
use crate::verify::verify;
use crate::{ComputeGraph, DType, DispatchId, HazardKind, Layout, TensorView};

/// A norm with its weight, 0 and 1 of the list, and what it reads.
fn norm(list: &mut List) -> (TensorView, TensorView) {
    let (x, weight) = (list.buffer(layout(&[ROWS, COLS])), list.weight());
    let normed = list.op(Kind::RmsNorm, &[x]);
    (x, list.op(Kind::MUL, &[normed, weight]))
}

/// The list before and after, proven and with its report.
fn fuse(list: List, catalog: &mut TestCatalog) -> (ComputeGraph, FuseReport) {
    let recorded = list.graph.clone();
    let (graph, report) = list.fuse(catalog);
    let mut last = graph.clone();
    last.place_barriers();
    verify(&recorded, &last, None).unwrap();
    (graph, report)
}

/// Reasons by consumer.
fn reasons(report: &FuseReport) -> Vec<(u32, Refusal)> {
    report.refusals.iter().map(|pair| (pair.consumer.0, pair.reason.clone())).collect()
}

const fn second_reader(id: u32) -> Refusal {
    Refusal::SecondReader { reader: DispatchId(id) }
}

#[test]
fn every_reader_takes_in_a_copy() {
    let mut list = List::default();
    let (x, v) = norm(&mut list);
    let product = list.matmul(v); // 2
    let other = list.matmul(v); // 3
    let bias = list.weight();
    let sum = list.op(Kind::ADD, &[other, bias]); // 4
    let (up, gate) = (list.matmul(v), list.matmul(v)); // 5, 6
    let gate = list.op(Kind::SILU, &[gate]); // 7
    let gated = list.op(Kind::MUL, &[gate, up]); // 8
    for y in [product, sum, gated] {
        list.output(y);
    }
    let (graph, report) = fuse(list, &mut TestCatalog::new());
    let expected = [kind("norm_matmul"), kind("norm_matmul_add"), kind("norm_matmul_silu_gated")];
    assert_eq!(kinds(&graph), expected, "{report}");
    assert_eq!(report.refusals, []);
    // Nine dispatches became three by eight firings, two of which took in a copy.
    assert_eq!((report.fired(), report.repeats), (8, 2));
    let members: Vec<Vec<u32>> =
        graph.dispatches().map(|d| d.origins.iter().map(|id| id.0).collect()).collect();
    assert_eq!(members, [vec![0, 1, 2], vec![0, 1, 3, 4], vec![0, 1, 5, 6, 7, 8]]);
    for dispatch in graph.dispatches() {
        assert_eq!(dispatch.bindings[0], x);
        let origins: Vec<_> = dispatch.accesses()[..2].iter().map(|a| a.origin).collect();
        assert_eq!(
            origins.iter().map(|o| (o.dispatch.0, o.access)).collect::<Vec<_>>(),
            [(0, 0), (1, 1)]
        );
    }
    let text = report.to_string();
    assert!(text.starts_with("fused 8 (2 by a copy of the producer): "), "{text}");
    assert!(text.contains("\n  norm_matmul: #0+#1+#2 -> #2, producer repeated"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["repeats"], 2);
    let repeated = json["fusions"].as_array().unwrap().iter().filter(|f| f["repeated"] == true);
    assert_eq!(repeated.count(), 3);
}

#[test]
fn one_reader_is_no_repetition() {
    let mut list = List::default();
    let (_, v) = norm(&mut list);
    list.matmul(v);
    let (graph, report) = fuse(list, &mut TestCatalog::new());
    assert_eq!(kinds(&graph), [kind("norm_matmul")]);
    assert_eq!((report.repeats, report.fusions[1].repeated), (0, false));
    assert!(serde_json::to_value(&report).unwrap()["fusions"][1].get("repeated").is_none());
}

#[test]
fn a_reader_that_no_rule_names_keeps_all_apart() {
    let mut list = List::default();
    let (_, v) = norm(&mut list);
    list.matmul(v);
    list.op(Kind::SILU, &[v]);
    list.matmul(v);
    let (graph, report) = fuse(list, &mut TestCatalog::new());
    assert_eq!(kinds(&graph), [Kind::RmsNormMul, Kind::MATMUL, Kind::SILU, Kind::MATMUL]);
    assert_eq!(reasons(&report), [(2, second_reader(3)), (4, second_reader(3))]);
    assert_eq!(report.repeats, 0);
}

#[test]
fn a_reader_without_a_kernel_keeps_all_apart() {
    let mut list = List::default();
    let (_, v) = norm(&mut list);
    list.matmul(v);
    let (other, bias) = (list.matmul(v), list.weight());
    list.op(Kind::ADD, &[other, bias]);
    let mut catalog = TestCatalog::new().without(kind("norm_matmul_add"));
    let (graph, report) = fuse(list, &mut catalog);
    assert_eq!(kinds(&graph), [Kind::RmsNormMul, Kind::MATMUL, kind("matmul_add")]);
    let none = Refusal::NoKernel { kind: kind("norm_matmul_add") };
    assert_eq!(reasons(&report), [(2, second_reader(4)), (4, none)]);
}

#[test]
fn a_reader_whose_operands_do_not_fit_keeps_all_apart() {
    let mut list = List::default();
    let (_, v) = norm(&mut list);
    list.matmul(v);
    let (w, c) = (list.buffer(layout(&[COLS, COLS])), list.buffer(layout(&[2, COLS])));
    list.op(kind("matmul_add"), &[v, w, c]);
    let (_, report) = fuse(list, &mut TestCatalog::new());
    let misfit = Refusal::Operand { operand: c.layout, result: layout(&[ROWS, COLS]) };
    assert_eq!(reasons(&report), [(2, second_reader(3)), (3, misfit)]);
}

#[test]
fn a_weight_of_many_rows_is_no_weight_of_a_norm() {
    let mut list = List::default();
    let (x, w) = (list.input(), list.input());
    let normed = list.op(Kind::RmsNorm, &[x]);
    let v = list.op(Kind::MUL, &[normed, w]);
    list.matmul(v);
    let (graph, report) = fuse(list, &mut TestCatalog::new());
    assert_eq!(kinds(&graph), [Kind::RmsNormMul, Kind::MATMUL]);
    let (operand, result) = (w.layout, v.layout);
    assert_eq!(reasons(&report), [(2, Refusal::Operand { operand, result })]);
}

#[test]
fn a_reader_that_reads_twice_keeps_all_apart() {
    let mut list = List::default();
    let (_, v) = norm(&mut list);
    list.matmul(v);
    list.op(Kind::MATMUL, &[v, v]);
    let (_, report) = fuse(list, &mut TestCatalog::new());
    assert_eq!(reasons(&report), [(2, second_reader(3)), (3, second_reader(3))]);
}

#[test]
fn an_output_is_not_repeated() {
    let mut list = List::default();
    let (_, v) = norm(&mut list);
    list.matmul(v);
    list.matmul(v);
    list.output(v);
    let (_, report) = fuse(list, &mut TestCatalog::new());
    assert_eq!(reasons(&report), [(2, Refusal::IsOutput), (3, Refusal::IsOutput)]);
}

#[test]
fn a_copy_that_would_read_too_late_keeps_all_apart() {
    let mut list = List::default();
    let (x, v) = norm(&mut list);
    list.matmul(v); // 2
    list.op_into(Kind::Fill, &[], x); // 3
    list.matmul(v); // 4
    let (graph, report) = fuse(list, &mut TestCatalog::new());
    assert_eq!(kinds(&graph), [Kind::RmsNormMul, Kind::MATMUL, Kind::Fill, Kind::MATMUL]);
    let [(2, first), (4, Refusal::CopyTooLate { hazard })] = &reasons(&report)[..] else {
        panic!("{report}")
    };
    assert_eq!(*first, second_reader(4));
    let (conflict, ids) = (hazard.kind, (hazard.earlier.0, hazard.later.0));
    assert_eq!((conflict, ids), (HazardKind::WriteAfterRead, (1, 3)));
    assert_eq!((hazard.buf_id, hazard.p0, hazard.p1), (x.buf_id, 0, BYTES));
    assert!(
        report.to_string().contains("a copy of the producer would come too late, WAR #1 -> #3")
    );

    // Overwritten behind the last copy it is out of the way, and stays there.
    let mut list = List::default();
    let (x, v) = norm(&mut list);
    list.matmul(v);
    list.matmul(v);
    list.op_into(Kind::Fill, &[], x);
    let (graph, report) = fuse(list, &mut TestCatalog::new());
    assert_eq!(kinds(&graph), [kind("norm_matmul"), kind("norm_matmul"), Kind::Fill], "{report}");
}

#[test]
fn nothing_is_copied_across_what_nobody_may_cross() {
    for pinned in [false, true] {
        let mut list = List::default();
        let (_, v) = norm(&mut list);
        list.matmul(v);
        let elsewhere = list.buffer(layout(&[COLS]));
        let mut wall = Step::new(if pinned { Kind::Pinned } else { Kind::Custom }, &[elsewhere]);
        wall.unknown = !pinned;
        wall.record(&mut list.graph, "");
        list.matmul(v);
        let (_, report) = fuse(list, &mut TestCatalog::new());
        let dispatch = DispatchId(3);
        let reason = match pinned {
            true => Refusal::CrossesPinned { dispatch },
            false => Refusal::CrossesUnannotated { dispatch },
        };
        assert_eq!(reasons(&report), [(2, second_reader(4)), (4, reason)]);
    }
}

#[test]
fn nothing_overwrites_what_a_copy_behind_it_reads() {
    // The last product could only stand where its norm stood, before the copies, and it overwrites
    // what they read.
    let mut list = List::default();
    let (x, v) = norm(&mut list); // 0, 1
    let (z, w) = norm(&mut list); // 2, 3
    list.matmul(v); // 4
    list.matmul(v); // 5
    list.op_into(Kind::Fill, &[], z); // 6
    let weight = list.buffer(layout(&[COLS, COLS]));
    list.op_into(Kind::MATMUL, &[w, weight], x); // 7
    let (graph, report) = fuse(list, &mut TestCatalog::new());
    let all =
        [Kind::RmsNormMul, kind("norm_matmul"), kind("norm_matmul"), Kind::Fill, Kind::MATMUL];
    assert_eq!(kinds(&graph), all, "{report}");
    let [(7, Refusal::Crosses { producer, consumer })] = &reasons(&report)[..] else {
        panic!("{report}")
    };
    assert_eq!((producer.earlier.0, producer.later.0), (3, 6));
    assert!([4, 5].contains(&consumer.earlier.0) && consumer.later.0 == 7, "{report}");
    assert_eq!((consumer.kind, consumer.buf_id), (HazardKind::WriteAfterRead, x.buf_id));
}

#[test]
fn rules_that_repeat_read_one_result_by_one_operand() {
    let repeating: Vec<_> = RULES.iter().filter(|rule| rule.repeats).collect();
    // A norm goes into every product that no other rule makes from one that holds it.
    let takes = |p: &&Product| p.is_normed() && !p.epilogue().heads();
    assert_eq!(repeating.len(), Product::all().iter().filter(takes).count());
    for rule in repeating {
        assert_eq!((rule.operands.len(), rule.keeps(), rule.same.len()), (1, false, 0));
        let contract = TestCatalog::contract(rule.producer, 3).unwrap();
        let graph = Setup::of(rule).record();
        let producer = graph.dispatches().next().unwrap();
        assert_eq!((producer.writes().count(), &*producer.kernel), (1, &*contract.kernel));
    }
}

/// Two products of `x` and `y` in a gated pair.
fn gated(list: &mut List, x: TensorView, y: TensorView) -> TensorView {
    let (up, gate) = (list.matmul(x), list.matmul(y));
    let gate = list.op(Kind::GELU, &[gate]);
    list.op(Kind::MUL, &[up, gate])
}

#[test]
fn a_gated_pair_reads_one_tensor() {
    let mut list = List::default();
    let x = list.input();
    gated(&mut list, x, x);
    let (graph, report) = fuse(list, &mut TestCatalog::new());
    assert_eq!(kinds(&graph), [kind("matmul_gelu_gated")], "{report}");
    assert_eq!(report.refusals, []);
}

#[test]
fn a_gated_pair_of_two_tensors_is_refused() {
    let other_view = |change: fn(&mut List, TensorView) -> TensorView| {
        let mut list = List::default();
        let x = list.buffer(layout(&[2 * ROWS, COLS]));
        let x = x.reinterpret(0, layout(&[ROWS, COLS])).unwrap();
        let y = change(&mut list, x);
        gated(&mut list, x, y);
        let (graph, report) = fuse(list, &mut TestCatalog::new());
        assert_eq!(kinds(&graph), [Kind::MATMUL, kind("matmul_gelu_mul")], "{report}");
        let different = Refusal::NotSame { reads: [x, y].into() };
        assert_eq!(reasons(&report), [(3, different)]);
        report.to_string()
    };
    other_view(|list, _| list.input());
    other_view(|_, x| x.reinterpret(BYTES, x.layout).unwrap());
    other_view(|_, x| x.reinterpret(0, x.layout.with_strides(&[2 * COLS, 1]).unwrap()).unwrap());
    other_view(|_, x| x.reinterpret(0, layout(&[1, ROWS, COLS])).unwrap());
    let text = other_view(|_, x| {
        let bits = Layout::new(DType::U32, &[ROWS, COLS]).unwrap();
        x.reinterpret(0, bits).unwrap()
    });
    assert!(
        text.contains("the two read different tensors, f32[4x8] of @1 from byte 0 on"),
        "{text}"
    );
}

const BYTES: u64 = (ROWS * COLS * 4) as u64;

#[test]
fn a_gated_pair_that_saw_different_bytes_is_refused() {
    let mut list = List::default();
    let x = list.buffer(layout(&[ROWS, COLS]));
    let up = list.matmul(x);
    list.op_into(Kind::Fill, &[], x);
    let gate = list.matmul(x);
    let gate = list.op(Kind::SILU, &[gate]);
    list.op(Kind::MUL, &[gate, up]);
    let (graph, report) = fuse(list, &mut TestCatalog::new());
    assert_eq!(kinds(&graph), [Kind::MATMUL, Kind::Fill, kind("matmul_silu_mul")]);
    let [(4, Refusal::Crosses { producer, consumer })] = &reasons(&report)[..] else {
        panic!("{report}")
    };
    assert_eq!(producer.kind, HazardKind::WriteAfterRead);
    assert_eq!(consumer.kind, HazardKind::ReadAfterWrite);
}

#[test]
fn a_decoder_layer_is_five_groups() {
    let layer = [
        kind("norm_matmul_rope"),
        kind("norm_matmul_rope_kv"),
        kind("norm_matmul_kv"),
        Kind::Attention,
        kind("matmul_add"),
        kind("norm_matmul_silu_gated"),
        kind("matmul_add"),
    ];
    let report = check_layer(&TestCatalog::new(), 5, &layer);
    assert_eq!((report.refusals.len(), report.repeats), (0, 4), "{report}");
}

#[test]
fn a_decoder_layer_is_six_groups_where_products_do_not_rotate() {
    let missing = [kind("norm_matmul_rope"), kind("norm_matmul_rope_kv"), kind("norm_matmul_kv")];
    let catalog = missing.into_iter().fold(TestCatalog::new(), TestCatalog::without);
    let layer = [
        kind("norm_matmul"),
        kind("norm_matmul"),
        kind("norm_matmul"),
        Kind::Rope,
        Kind::RopeKvWrite,
        Kind::KvWrite,
        Kind::Attention,
        kind("matmul_add"),
        kind("norm_matmul_silu_gated"),
        kind("matmul_add"),
    ];
    let report = check_layer(&catalog, 6, &layer);
    let refused: Vec<_> = report.refusals.iter().map(|pair| &pair.reason).collect();
    let no_kernel = missing.map(|kind| Refusal::NoKernel { kind });
    assert!(refused.iter().all(|reason| no_kernel.contains(reason)), "{report}");
    assert_eq!((refused.len(), report.repeats), (6, 4), "{report}");
}

/// A tensor as rows of heads.
fn as_heads(view: TensorView) -> TensorView {
    view.reinterpret(0, layout(&[ROWS, 2, COLS / 2])).unwrap()
}

/// The rotary embedding of a tensor.
fn rope(list: &mut List, x: TensorView) -> TensorView {
    let ids = list.buffer(Layout::new(DType::U32, &[ROWS]).unwrap());
    let factors = list.buffer(layout(&[2]));
    let y = as_heads(list.graph.declare_value(layout(&[ROWS, COLS])));
    list.op_into(Kind::Rope, &[as_heads(x), ids, factors], y)
}

/// A tensor written to a cache of its own.
fn kv_write(list: &mut List, x: TensorView) {
    let ids = list.buffer(Layout::new(DType::U32, &[ROWS]).unwrap());
    let cache = list.buffer(layout(&[32, 2, COLS / 2]));
    list.op_into(Kind::KvWrite, &[as_heads(x), ids], cache);
}

#[test]
fn products_of_a_norm_rotate_and_go_into_caches() {
    let mut list = List::default();
    let (x, v) = norm(&mut list); // 0, 1
    let [q, k, v] = [(); 3].map(|()| list.matmul(v)); // 2, 3, 4
    let q = rope(&mut list, q); // 5
    let k = rope(&mut list, k); // 6
    kv_write(&mut list, k); // 7
    kv_write(&mut list, v); // 8
    list.output(q);
    let (graph, report) = fuse(list, &mut TestCatalog::new());
    let expected = [kind("norm_matmul_rope"), kind("norm_matmul_rope_kv"), kind("norm_matmul_kv")];
    assert_eq!((kinds(&graph), report.refusals), (expected.to_vec(), vec![]));
    let members: Vec<Vec<u32>> =
        graph.dispatches().map(|d| d.origins.iter().map(|id| id.0).collect()).collect();
    assert_eq!(members, [vec![0, 1, 2, 5], vec![0, 1, 3, 6, 7], vec![0, 1, 4, 8]]);
    let rotation = [4, 1, 10_000f32.to_bits(), 1f32.to_bits(), 1f32.to_bits()];
    let eps = 1e-5f32.to_bits();
    for (dispatch, constants) in graph.dispatches().zip([6, 6, 1]) {
        assert_eq!(dispatch.bindings[0], x);
        let all = [&[eps], &rotation[..]].concat();
        assert_eq!(dispatch.params.to_vec(), all[..constants]);
    }
}

#[test]
fn a_product_that_is_read_twice_does_not_rotate() {
    let mut list = List::default();
    let (_, v) = norm(&mut list);
    let k = list.matmul(v); // 2
    rope(&mut list, k); // 3
    kv_write(&mut list, k); // 4
    let (graph, report) = fuse(list, &mut TestCatalog::new());
    assert_eq!(kinds(&graph), [kind("norm_matmul"), Kind::Rope, Kind::KvWrite], "{report}");
    assert_eq!(reasons(&report), [(3, second_reader(4)), (4, second_reader(3))]);
}

#[test]
fn a_rotation_that_is_read_twice_stays_a_result() {
    // Its cache write cannot take it in, but the product can.
    let mut list = List::default();
    let (_, v) = norm(&mut list);
    let k = list.matmul(v); // 2
    let rotated = rope(&mut list, k); // 3
    kv_write(&mut list, rotated); // 4
    list.output(rotated);
    let (graph, report) = fuse(list, &mut TestCatalog::new());
    assert_eq!(kinds(&graph), [kind("norm_matmul_rope"), Kind::KvWrite], "{report}");
    assert_eq!(report.refusals, []);
}

#[test]
fn a_product_with_a_bias_rotates() {
    let mut list = List::default();
    let (_, v) = norm(&mut list);
    let (product, bias) = (list.matmul(v), list.weight());
    let k = list.op(Kind::ADD, &[product, bias]);
    rope(&mut list, k);
    let (graph, report) = fuse(list, &mut TestCatalog::new());
    assert_eq!(kinds(&graph), [kind("norm_matmul_add_rope")], "{report}");
    assert_eq!(report.refusals, []);
}

#[test]
fn a_product_without_a_norm_rotates() {
    let mut list = List::default();
    let x = list.input();
    let (k, v) = (list.matmul(x), list.matmul(x));
    rope(&mut list, k);
    kv_write(&mut list, v);
    let (graph, report) = fuse(list, &mut TestCatalog::new());
    assert_eq!(kinds(&graph), [kind("matmul_rope"), kind("matmul_kv")]);
    assert_eq!(report.refusals, []);
}

/// What a layer of a decoder adds: groups and dispatches. Gives the report of two layers.
fn check_layer(catalog: &TestCatalog, groups: u32, layer: &[Kind]) -> FuseReport {
    let optimised = |layers: usize| {
        let recorded = decoder_like(1 + 20 * layers);
        let mut last = recorded.clone();
        last.fuse(&mut catalog.clone(), &()).unwrap();
        last.reorder();
        last.place_barriers();
        let stats = verify(&recorded, &last, None).unwrap();
        (last, stats)
    };
    let ((two, stats_two), (one, stats_one)) = (optimised(2), optimised(1));
    assert_eq!(stats_two.groups - stats_one.groups, groups);
    assert_eq!(stats_two.longest_chain - stats_one.longest_chain, groups);
    let sorted = |kinds: &[Kind]| {
        let mut kinds = kinds.to_vec();
        kinds.sort_unstable();
        kinds
    };
    let first = one.dispatch_count() as usize;
    assert_eq!(sorted(&kinds(&two)[first..]), sorted(layer));
    two.fuse_report().unwrap().clone()
}
