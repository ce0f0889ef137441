//! Several rules on one list: order of the rules, fixpoint, barriers, the report.

use super::setup::{COLS, ROWS, Step, layout};
use crate::fuse::{FuseReport, Place, Refusal, TestCatalog};
use crate::op::CapturedOpKind as Kind;
use crate::testkit::kind;
use crate::{BarrierReason, CapturedNode, ComputeGraph, DispatchId, Layout, TensorView};

/// Records ops on new values.
#[derive(Default)]
pub(super) struct List {
    pub(super) graph: ComputeGraph,
    buffers: usize,
}

impl List {
    pub(super) fn buffer(&mut self, layout: Layout) -> TensorView {
        self.buffers += 1;
        TensorView { buf_id: self.buffers, buf_len: layout.span_bytes(), offset: 0, layout }
    }

    pub(super) fn input(&mut self) -> TensorView {
        let view = self.graph.declare_value(layout(&[ROWS, COLS]));
        self.graph.mark_input(view.value().unwrap()).unwrap();
        view
    }

    pub(super) fn op(&mut self, kind: Kind, inputs: &[TensorView]) -> TensorView {
        let y = self.graph.declare_value(layout(&[ROWS, COLS]));
        self.op_into(kind, inputs, y)
    }

    pub(super) fn op_into(
        &mut self,
        kind: Kind,
        inputs: &[TensorView],
        y: TensorView,
    ) -> TensorView {
        Step::new(kind, &[inputs, &[y]].concat()).record(&mut self.graph, "");
        y
    }

    pub(super) fn output(&mut self, view: TensorView) {
        self.graph.mark_output(view.value().unwrap()).unwrap();
    }

    pub(super) fn matmul(&mut self, x: TensorView) -> TensorView {
        let w = self.buffer(layout(&[COLS, COLS]));
        self.op(Kind::MATMUL, &[x, w])
    }

    pub(super) fn weight(&mut self) -> TensorView {
        self.buffer(layout(&[COLS]))
    }

    pub(super) fn fuse(mut self, catalog: &mut TestCatalog) -> (ComputeGraph, FuseReport) {
        self.graph.fuse(catalog, &()).unwrap();
        let report = self.graph.fuse_report().unwrap().clone();
        (self.graph, report)
    }
}

pub(super) fn kinds(graph: &ComputeGraph) -> Vec<Kind> {
    graph.dispatches().map(|d| d.kind).collect()
}

/// add, rms_norm, mul; the sum is an output.
fn normed_sum() -> (List, [TensorView; 3]) {
    let mut list = List::default();
    let (a, b, w) = (list.input(), list.input(), list.weight());
    let sum = list.op(Kind::ADD, &[a, b]);
    let normed = list.op(Kind::RmsNorm, &[sum]);
    let y = list.op(Kind::MUL, &[w, normed]);
    list.output(sum);
    (list, [sum, w, y])
}

#[test]
fn add_norm_and_weight_become_one() {
    let (list, [sum, w, y]) = normed_sum();
    let inputs: Vec<_> = list.graph.dispatches().next().unwrap().bindings[..2].to_vec();
    let (graph, report) = list.fuse(&mut TestCatalog::new());
    assert_eq!(kinds(&graph), [Kind::AddRmsNormMul]);
    assert_eq!(report.fired(), 2);
    let fused = graph.dispatches().next().unwrap();
    assert_eq!(fused.bindings.to_vec(), [inputs[0], inputs[1], w, sum, y]);
    assert_eq!(fused.origins.to_vec(), [0, 1, 2].map(DispatchId));
    assert_eq!(fused.params.to_vec(), [1e-5f32.to_bits()]);
    let members: Vec<_> = fused.accesses().iter().map(|a| a.origin.dispatch.0).collect();
    assert_eq!(members, [0, 0, 2, 0, 2]);
}

#[test]
fn the_same_is_reached_without_the_kernel_in_the_middle() {
    let (list, _) = normed_sum();
    let (graph, report) = list.fuse(&mut TestCatalog::new().without(Kind::RmsNormMul));
    assert_eq!(kinds(&graph), [Kind::AddRmsNormMul]);
    let fired = |rule| report.fired_by(rule);
    assert_eq!((fired("add_rms_norm"), fired("add_rms_norm_then_mul")), (1, 1));
    let fused = graph.dispatches().next().unwrap();
    let (direct, _) = normed_sum().0.fuse(&mut TestCatalog::new());
    assert_eq!(**direct.dispatches().next().unwrap(), **fused);
    // What was refused on the way is gone with its members.
    assert_eq!(report.refusals, []);
}

#[test]
fn without_the_kernel_for_all_three_two_stay() {
    let (list, _) = normed_sum();
    let (graph, report) = list.fuse(&mut TestCatalog::new().without(Kind::AddRmsNormMul));
    assert_eq!(kinds(&graph), [Kind::ADD, Kind::RmsNormMul]);
    let refused = &report.refusals[..];
    assert_eq!(refused.len(), 1);
    assert_eq!((refused[0].rule, refused[0].consumer), ("add_rms_norm_mul", DispatchId(2)));
    assert_eq!(refused[0].reason, Refusal::NoKernel { kind: Kind::AddRmsNormMul });
}

#[test]
fn a_residual_goes_into_the_product_first() {
    let residual = || {
        let mut list = List::default();
        let (x, residual, w) = (list.input(), list.input(), list.weight());
        let product = list.matmul(x);
        let sum = list.op(Kind::ADD, &[residual, product]);
        let normed = list.op(Kind::RmsNorm, &[sum]);
        let y = list.op(Kind::MUL, &[normed, w]);
        list.output(sum);
        list.output(y);
        list
    };
    let (graph, _) = residual().fuse(&mut TestCatalog::new());
    assert_eq!(kinds(&graph), [kind("matmul_add"), Kind::RmsNormMul]);
    let (graph, _) = residual().fuse(&mut TestCatalog::new().without(kind("matmul_add")));
    assert_eq!(kinds(&graph), [Kind::MATMUL, Kind::AddRmsNormMul]);
}

#[test]
fn of_two_products_the_first_operand_is_taken() {
    let mut list = List::default();
    let x = list.input();
    let (a, b) = (list.matmul(x), list.matmul(x));
    list.op(Kind::ADD, &[b, a]);
    let (graph, report) = list.fuse(&mut TestCatalog::new());
    assert_eq!(kinds(&graph), [Kind::MATMUL, kind("matmul_add")]);
    assert_eq!(*report.fusions[0].members, [1, 2].map(DispatchId));

    // Unless it cannot be: then the second is.
    let mut list = List::default();
    let x = list.input();
    let (a, b) = (list.matmul(x), list.matmul(x));
    list.op(Kind::ADD, &[b, a]);
    list.output(b);
    let (_, report) = list.fuse(&mut TestCatalog::new());
    assert_eq!(*report.fusions[0].members, [0, 2].map(DispatchId));
    assert_eq!(report.refusals, []);
}

#[test]
fn a_value_times_itself_is_refused_once() {
    let mut list = List::default();
    let x = list.input();
    let v = list.op(Kind::SILU, &[x]);
    list.op(Kind::MUL, &[v, v]);
    let (_, report) = list.fuse(&mut TestCatalog::new());
    let [refused] = &report.refusals[..] else { panic!("{report}") };
    assert_eq!(refused.reason, Refusal::SecondReader { reader: DispatchId(1) });
}

#[test]
fn a_product_with_the_kept_sum_is_no_product_with_the_norm() {
    let mut list = List::default();
    let (a, b, w) = (list.input(), list.input(), list.weight());
    let sum = list.graph.declare_value(layout(&[ROWS, COLS]));
    let normed = list.op(Kind::AddRmsNorm, &[a, b, sum]);
    list.op(Kind::MUL, &[sum, w]);
    list.output(normed);
    let (_, report) = list.fuse(&mut TestCatalog::new());
    assert_eq!((report.fired(), report.refusals), (0, vec![]));
}

#[test]
fn a_result_that_overwrites_a_kept_sum_is_refused() {
    let mut list = List::default();
    let (a, b, w) = (list.input(), list.input(), list.weight());
    let sum = list.buffer(layout(&[ROWS, COLS]));
    let normed = list.graph.declare_value(layout(&[ROWS, COLS]));
    list.op_into(Kind::AddRmsNorm, &[a, b, sum], normed);
    list.op_into(Kind::MUL, &[normed, w], sum);
    let (_, report) = list.fuse(&mut TestCatalog::new());
    let [refused] = &report.refusals[..] else { panic!("{report}") };
    let is_overlap = |output, input| {
        let buf_id = sum.buf_id;
        let p1 = sum.layout.span_bytes();
        refused.reason == Refusal::OutputOverlapsInput { output, input, buf_id, p0: 0, p1 }
    };
    assert!(is_overlap(3, 4), "{report}");
}

/// Two sums and their norms. The second sum stands between the first and its norm and reads it;
/// a copy of what the first norm overwrites stands there, too.
fn held_apart(catalog: &mut TestCatalog) -> (ComputeGraph, FuseReport) {
    let mut list = List::default();
    let (a, b) = (list.input(), list.input());
    let (old, new) = (list.buffer(layout(&[ROWS, COLS])), list.buffer(layout(&[ROWS, COLS])));
    let sum = list.op(Kind::ADD, &[a, b]);
    let next = list.op(Kind::ADD, &[sum, b]);
    list.op_into(Kind::Copy, &[old], new);
    list.op_into(Kind::RmsNorm, &[sum], old);
    let mul = list.op(Kind::RmsNorm, &[next]);
    list.output(mul);
    list.fuse(catalog)
}

#[test]
fn a_fusion_that_clears_the_way_lets_another_fire() {
    let mut catalog = TestCatalog::new();
    let (graph, report) = held_apart(&mut catalog);
    assert_eq!(kinds(&graph), [Kind::Copy, Kind::AddRmsNorm, Kind::AddRmsNorm]);
    assert_eq!(report.refusals, []);
    // The later pair came first, since the other had to wait for it.
    let results: Vec<_> = report.fusions.iter().map(|f| f.result.0).collect();
    assert_eq!(results, [4, 3]);
}

#[test]
fn what_was_absorbed_is_held_back_as_before() {
    let mut list = List::default();
    let full = layout(&[ROWS, COLS]);
    let (a, b, w) = (list.buffer(full), list.input(), list.weight());
    let (old, new) = (list.buffer(full), list.buffer(full));
    let sum = list.op(Kind::ADD, &[a, b]);
    let normed = list.op(Kind::RmsNorm, &[sum]);
    // Overwrites what the add has read, and reads what the product will overwrite.
    list.op_into(Kind::Fill, &[], a);
    list.op_into(Kind::Copy, &[old], new);
    list.op_into(Kind::MUL, &[normed, w], old);
    let (_, report) = list.fuse(&mut TestCatalog::new().without(Kind::RmsNormMul));
    assert_eq!((report.fired(), report.fired_by("add_rms_norm")), (1, 1));
    let [refused] = &report.refusals[..] else { panic!("{report}") };
    let Refusal::Crosses { producer, consumer } = refused.reason else { panic!("{report}") };
    assert_eq!(producer.to_string(), format!("WAR #1 -> #2 on @{} 0..128", a.buf_id));
    assert_eq!(consumer.to_string(), format!("WAR #3 -> #4 on @{} 0..128", old.buf_id));
}

#[test]
fn reasons_name_dispatches_of_the_final_list() {
    // The second reader is the producer of another pair and goes by the consumer's id then.
    let mut list = List::default();
    let x = list.input();
    let product = list.matmul(x);
    let wanted = list.op(Kind::ADD, &[product, x]);
    let norm = list.op(Kind::RmsNorm, &[product]);
    let w = list.weight();
    let y = list.op(Kind::MUL, &[norm, w]);
    list.output(wanted);
    list.output(y);
    let (graph, report) = list.fuse(&mut TestCatalog::new());
    // And the norm is of rows, not of heads.
    let [refused, of_heads] = &report.refusals[..] else { panic!("{report}") };
    assert_eq!(of_heads.rule, "matmul_head_norm");
    assert_eq!(refused.reason, Refusal::SecondReader { reader: DispatchId(3) });
    assert!(graph.dispatches().any(|d| d.id == DispatchId(3) && d.kind == Kind::RmsNormMul));
}

#[test]
fn barriers_go_only_if_something_fired() {
    let (mut list, _) = normed_sum();
    list.graph.place_barriers();
    let recorded = list.graph.clone();
    let none = [Kind::RmsNormMul, Kind::AddRmsNorm, Kind::AddRmsNormMul];
    let mut catalog = none.into_iter().fold(TestCatalog::new(), TestCatalog::without);
    let (graph, report) = List { graph: recorded.clone(), buffers: 0 }.fuse(&mut catalog);
    assert_eq!((graph.nodes(), report.stripped_barriers), (recorded.nodes(), 0));
    let (graph, report) = list.fuse(&mut TestCatalog::new());
    assert_eq!((graph.barrier_count(), report.stripped_barriers), (0, 2));
}

#[test]
fn a_barrier_is_no_obstacle() {
    let (mut list, _) = normed_sum();
    let requested = CapturedNode::Barrier(BarrierReason::Requested);
    let mut nodes = list.graph.nodes().to_vec();
    nodes.insert(1, requested);
    list.graph = ComputeGraph::from_nodes(nodes).unwrap();
    let (graph, _) = list.fuse(&mut TestCatalog::new());
    assert_eq!(kinds(&graph), [Kind::AddRmsNormMul]);
}

#[test]
fn fusing_again_changes_nothing() {
    let (list, _) = normed_sum();
    let (graph, _) = list.fuse(&mut TestCatalog::new());
    let mut again = graph.clone();
    assert_eq!(again.fuse(&mut TestCatalog::new(), &()).unwrap(), 0);
    assert_eq!(again.nodes(), graph.nodes());
}

#[test]
fn an_empty_list_has_an_empty_report() {
    let (graph, report) = List::default().fuse(&mut TestCatalog::new());
    assert_eq!((graph.nodes().len(), report.fired()), (0, 0));
    assert_eq!(report.to_string(), "fused 0");
}

#[test]
fn the_report_reads_as_text_and_as_data() {
    let mut list = List::default();
    let (a, b, w) = (list.input(), list.input(), list.weight());
    let sum = list.op(Kind::ADD, &[a, b]);
    let next = list.op(Kind::SILU, &[sum]);
    let normed = list.op(Kind::RmsNorm, &[sum]);
    let y = list.op(Kind::MUL, &[normed, w]);
    let z = list.op(Kind::MUL, &[next, y]);
    list.output(next);
    list.output(z);
    let (_, report) = list.fuse(&mut TestCatalog::new());
    assert_eq!(report.fusions[1].place, Place::Producer);
    let text = "fused 2: rms_norm_mul 1, add_rms_norm_mul 1
  rms_norm_mul: #2+#3 -> #3
  add_rms_norm_mul: #0+#2+#3 -> #3, intermediate kept, at the producer's place
  silu_mul: #1 and #4 by %3 refused: the host reads it";
    assert_eq!(report.to_string(), text);
    let json = serde_json::to_value(&report).unwrap();
    let refused = serde_json::json!({
        "rule": "silu_mul", "producer": 1, "consumer": 4, "buf": "%3", "reason": "is_output",
    });
    assert_eq!(json["refusals"], serde_json::json!([refused]));
    let fusion = serde_json::json!({
        "rule": "add_rms_norm_mul", "result": 3, "members": [0, 2, 3], "kept": true,
        "place": "producer",
    });
    assert_eq!(json["fusions"][1], fusion);
}

#[test]
fn a_producer_does_not_pass_a_write_of_what_it_reads() {
    let full = layout(&[ROWS, COLS]);
    for in_buffer in [false, true] {
        let mut graph = ComputeGraph::new();
        let [x, up, gate, y] = [(); 4].map(|()| graph.declare_value(full));
        for input in [x, up] {
            graph.mark_input(input.value().unwrap()).unwrap();
        }
        let x = if in_buffer { TensorView { buf_id: 5, ..x } } else { x };
        Step::new(Kind::SILU, &[x, gate]).record(&mut graph, "");
        Step::new(Kind::Fill, &[x]).record(&mut graph, "");
        Step::new(Kind::MUL, &[gate, up, y]).record(&mut graph, "");
        assert_eq!(graph.fuse(&mut TestCatalog::new(), &()).unwrap(), 1);
        let kinds: Vec<_> = graph.dispatches().map(|dispatch| dispatch.kind).collect();
        assert_eq!(kinds, [Kind::SILU_MUL, Kind::Fill], "in a buffer: {in_buffer}");
    }
}
