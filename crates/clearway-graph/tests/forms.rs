//! The text and JSON forms of a small decoder layer, between all stages.
#![allow(clippy::unwrap_used)]

use clearway_graph::{
    BarrierReason, BindingContract, CapturedNode, CapturedOpKind as Kind, ComputeGraph, DType,
    FusedRequest, JSON_VERSION, KernelCatalog, KernelContract, Layout, Operand, Result, TensorView,
};
use insta::assert_snapshot;
use serde_json::{Value, json};

/// The contract of an op with bindings that have numbers for names.
fn contract(kind: Kind, bound: usize) -> KernelContract {
    let operands = kind.spec().unwrap().bound(bound).unwrap().enumerate();
    let binding = |(index, operand): (usize, &Operand)| {
        BindingContract::new(format!("b{index}"), operand.role)
    };
    KernelContract::new(kind.name(), operands.map(binding).collect::<Vec<_>>())
}

/// Has every kernel that is asked for.
struct Catalog;

impl KernelCatalog for Catalog {
    type Device = ();

    fn fused_kernel(
        &mut self,
        (): &(),
        request: &FusedRequest<'_>,
    ) -> Result<Option<KernelContract>> {
        Ok(Some(contract(request.kind, request.bindings.len())))
    }
}

#[derive(Default)]
struct Layer {
    graph: ComputeGraph,
    weights: usize,
}

fn layout(dtype: DType, shape: &[usize]) -> Layout {
    Layout::new(dtype, shape).unwrap()
}

impl Layer {
    fn input(&mut self, layout: Layout) -> TensorView {
        let view = self.graph.declare_value(layout);
        self.graph.mark_input(view.value().unwrap()).unwrap();
        view
    }

    /// Every weight begins at byte 256 of a buffer of its own.
    fn weight(&mut self, layout: Layout) -> TensorView {
        self.weights += 1;
        let buf_len = 256 + layout.span_bytes();
        TensorView { buf_id: self.weights - 1, buf_len, offset: 256, layout }
    }

    fn op_into(&mut self, kind: Kind, views: &[TensorView], params: &[u32], label: &str) {
        let contract = contract(kind, views.len());
        self.graph.dispatch(kind, &contract, views, params, label).unwrap();
    }

    fn op(
        &mut self,
        kind: Kind,
        inputs: &[TensorView],
        shape: &[usize],
        params: &[u32],
        label: &str,
    ) -> TensorView {
        let y = self.graph.declare_value(layout(DType::F32, shape));
        self.op_into(kind, &[inputs, &[y]].concat(), params, label);
        y
    }

    fn norm(&mut self, x: TensorView, label: &str) -> TensorView {
        let weight = self.weight(layout(DType::F32, &[64]));
        let normed = self.op(Kind::RmsNorm, &[x], &[1, 64], &[1e-5f32.to_bits()], label);
        self.op(Kind::MUL, &[normed, weight], &[1, 64], &[], label)
    }

    fn matmul(&mut self, x: TensorView, outer: usize, label: &str) -> TensorView {
        let weight = self.weight(layout(DType::Q4_0, &[outer, x.layout.cols()]));
        self.op(Kind::MATMUL, &[x, weight], &[1, outer], &[], label)
    }
}

/// One layer with 4 heads of 16 and 2 key-value heads over a cache of 32 rows.
fn decoder_layer() -> ComputeGraph {
    let mut layer = Layer::default();
    let x = layer.input(layout(DType::F32, &[1, 64]));
    let positions = layer.input(layout(DType::U32, &[1]));
    let factors = layer.weight(layout(DType::F32, &[8]));
    let cache = layout(DType::F16, &[32, 2, 16]);
    let (k_cache, v_cache) = (layer.weight(cache), layer.weight(cache));
    let rope = [16, 0, 10_000f32.to_bits(), 1f32.to_bits()];
    let heads =
        |view: TensorView, count| view.reinterpret(0, layout(DType::F32, &[1, count, 16])).unwrap();

    let normed = layer.norm(x, "attn_norm");
    let q = layer.matmul(normed, 64, "attn_q");
    let k = layer.matmul(normed, 32, "attn_k");
    let v = layer.matmul(normed, 32, "attn_v");
    let q = layer.op(Kind::Rope, &[heads(q, 4), positions, factors], &[1, 4, 16], &rope, "q_rope");
    let k = layer.op(Kind::Rope, &[heads(k, 2), positions, factors], &[1, 2, 16], &rope, "k_rope");
    layer.op_into(Kind::KvWrite, &[k, positions, k_cache], &[], "k_cache");
    layer.op_into(Kind::KvWrite, &[heads(v, 2), positions, v_cache], &[], "v_cache");
    let attention = [0.25f32.to_bits(), 0, 0];
    let operands = [q, k_cache, v_cache, positions];
    let attended = layer.op(Kind::Attention, &operands, &[1, 64], &attention, "attn");
    let projected = layer.matmul(attended, 64, "attn_out");
    let x = layer.op(Kind::ADD, &[projected, x], &[1, 64], &[], "attn_residual");
    let normed = layer.norm(x, "ffn_norm");
    let gate = layer.matmul(normed, 128, "ffn_gate");
    let up = layer.matmul(normed, 128, "ffn_up");
    let gate = layer.op(Kind::SILU, &[gate], &[1, 128], &[], "ffn_act");
    let hidden = layer.op(Kind::MUL, &[gate, up], &[1, 128], &[], "ffn_act");
    let down = layer.matmul(hidden, 64, "ffn_down");
    let y = layer.op(Kind::ADD, &[down, x], &[1, 64], &[], "ffn_residual");
    layer.graph.mark_output(y.value().unwrap()).unwrap();
    layer.graph.set_replayed(true);
    layer.graph
}

/// Everything a form can show: unknown access, partial and strided views, replay, all reasons.
fn every_oddity() -> ComputeGraph {
    let mut layer = Layer::default();
    let square = layout(DType::F32, &[4, 4]);
    let x = layer.input(square);
    let column = layout(DType::F32, &[4, 1]).with_strides(&[4, 1]).unwrap();
    let y = layer.op(Kind::Copy, &[x.reinterpret(4, column).unwrap()], &[4, 1], &[], "a\tlabel");
    let blob = KernelContract::unknown("blob");
    let params = [7, 0.5f32.to_bits(), f32::NAN.to_bits()];
    layer.graph.dispatch(Kind::Custom, &blob, &[x, y], &params, "").unwrap();
    let stamp = KernelContract::new("stamp", []);
    layer.graph.dispatch(Kind::Pinned, &stamp, &[], &[], "").unwrap();
    layer.graph.record(CapturedNode::Barrier(BarrierReason::Requested)).unwrap();
    let z = layer.op(Kind::SCALE, &[y], &[4, 1], &[2f32.to_bits()], "");
    layer.op_into(
        Kind::ADD,
        &[y, z, x.reinterpret(0, layout(DType::F32, &[4, 1])).unwrap()],
        &[],
        "",
    );
    layer.graph.set_replayed(true);
    layer.graph
}

/// One line per element of a list, so that a snapshot is read like a table.
fn lines(json: &Value, path: &str) -> String {
    match json {
        Value::Object(map) if path.matches('.').count() < 3 => {
            map.iter().map(|(key, value)| lines(value, &format!("{path}.{key}"))).collect()
        }
        Value::Array(list) if !list.is_empty() => {
            let element = |(index, value)| format!("{path}[{index}] = {value}\n");
            list.iter().enumerate().map(element).collect()
        }
        leaf => format!("{path} = {leaf}\n"),
    }
}

fn json_lines(graph: &ComputeGraph) -> String {
    lines(&graph.to_json(), "")
}

#[test]
fn text_of_a_recorded_layer() {
    assert_snapshot!(decoder_layer().to_text());
}

#[test]
fn text_of_a_reordered_layer_with_barriers() {
    let mut graph = decoder_layer();
    graph.reorder();
    graph.place_barriers();
    assert_snapshot!(graph.to_text());
}

#[test]
fn text_of_a_fused_layer() {
    let mut graph = decoder_layer();
    graph.fuse(&mut Catalog, &()).unwrap();
    assert_snapshot!(graph.to_text());
}

#[test]
fn text_of_a_fused_and_reordered_layer_with_barriers() {
    let mut graph = decoder_layer();
    graph.fuse(&mut Catalog, &()).unwrap();
    graph.reorder();
    graph.place_barriers();
    assert_snapshot!(graph.to_text());
}

#[test]
fn json_of_a_fused_and_reordered_layer_with_barriers() {
    let mut graph = decoder_layer();
    graph.fuse(&mut Catalog, &()).unwrap();
    graph.reorder();
    graph.place_barriers();
    assert_snapshot!(json_lines(&graph));
}

#[test]
fn text_of_every_oddity() {
    let mut graph = every_oddity();
    assert_snapshot!("text_of_every_oddity_as_recorded", graph.to_text());
    graph.reorder();
    graph.place_barriers();
    assert_snapshot!("text_of_every_oddity_with_barriers", graph.to_text());
}

#[test]
fn json_of_every_oddity() {
    let mut graph = every_oddity();
    graph.reorder();
    graph.place_barriers();
    assert_snapshot!(json_lines(&graph));
}

#[test]
fn a_refused_fusion_has_a_reason_and_its_facts() {
    let mut layer = Layer::default();
    let x = layer.input(layout(DType::F32, &[1, 64]));
    let normed = layer.norm(x, "norm");
    let act = layer.op(Kind::SILU, &[normed], &[1, 64], &[], "act");
    layer.op(Kind::MUL, &[act, normed], &[1, 64], &[], "gated");
    layer.op(Kind::Copy, &[act], &[1, 64], &[], "second reader");
    let norm = layer.graph.dispatches().next().unwrap().bindings[1].value().unwrap();
    layer.graph.mark_output(norm).unwrap();
    assert_eq!(layer.graph.fuse(&mut Catalog, &()), Ok(0));
    let json = layer.graph.to_json();
    let refusals = json["reports"]["fuse"]["refusals"].as_array().unwrap();
    let facts: Vec<_> = refusals.iter().map(|r| (&r["rule"], &r["reason"], &r["facts"])).collect();
    let (none, second) = (json!({}), json!({ "reader": 4 }));
    let expected = [
        (&json!("rms_norm_mul"), &json!("is_output"), &none),
        (&json!("silu_mul"), &json!("second_reader"), &second),
    ];
    assert_eq!(facts, expected);
    assert!(layer.graph.to_text().contains("silu_mul: #2 and #3 by %3 refused: #4 reads it, too"));
}

#[test]
fn an_empty_graph_has_both_forms() {
    let graph = ComputeGraph::new();
    assert_eq!(
        graph.to_text(),
        "values\ncounts: dispatches 0, groups 0, barriers 0, unannotated 0\n"
    );
    let json = graph.to_json();
    assert_eq!(json["version"], JSON_VERSION);
    assert_eq!(json["counts"]["groups"], 0);
    assert!(json["reports"]["fuse"].is_null() && json["reports"]["schedule"].is_null());
}

#[test]
fn forms_agree_with_the_counts_of_the_graph() {
    let mut graph = decoder_layer();
    graph.reorder();
    let barriers = graph.place_barriers();
    let json = graph.to_json();
    assert_eq!(json["counts"]["dispatches"], graph.dispatch_count());
    assert_eq!(json["counts"]["barriers"], barriers);
    assert_eq!(json["dispatches"].as_array().unwrap().len(), graph.dispatch_count() as usize);
    assert_eq!(json["barriers"].as_array().unwrap().len(), barriers as usize);
    let chain = graph.schedule_report().unwrap().longest_chain;
    assert_eq!(json["counts"]["groups"], chain);
    let last = json["dispatches"].as_array().unwrap().last().unwrap()["group"].as_u64().unwrap();
    assert_eq!(last + 1, u64::from(chain));
    let lines = graph.to_text();
    let count = |start: &str| lines.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!(count("-- barrier: "), barriers as usize);
    assert_eq!(count("group "), chain as usize);
}

#[test]
fn barriers_in_a_row_make_no_empty_groups() {
    let fill = contract(Kind::Fill, 1);
    let mut graph = ComputeGraph::new();
    let barrier = || CapturedNode::Barrier(BarrierReason::Requested);
    let y = graph.declare_value(layout(DType::F32, &[4]));
    graph.record(barrier()).unwrap();
    for _ in 0..2 {
        graph.dispatch(Kind::Fill, &fill, &[y], &[], "").unwrap();
        graph.record(barrier()).unwrap();
        graph.record(barrier()).unwrap();
    }
    let json = graph.to_json();
    assert_eq!((&json["counts"]["groups"], &json["counts"]["barriers"]), (&json!(2), &json!(5)));
    let groups = json["dispatches"].as_array().unwrap().iter().map(|d| d["group"].as_u64());
    assert_eq!(groups.collect::<Vec<_>>(), [Some(0), Some(1)]);
    let positions = json["barriers"].as_array().unwrap().iter().map(|b| b["position"].as_u64());
    assert_eq!(positions.collect::<Vec<_>>(), [0, 1, 1, 2, 2].map(Some));
}

#[test]
fn equal_graphs_have_equal_forms() {
    assert_eq!(decoder_layer().to_text(), decoder_layer().to_text());
    assert_eq!(json_lines(&decoder_layer()), json_lines(&decoder_layer()));
}
