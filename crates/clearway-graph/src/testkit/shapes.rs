//! Lists of a known form.

use super::kernels::record_op;
use crate::{CapturedOpKind, ComputeGraph, DType, Layout, TensorView};

/// One source, `width` branches of `length` dispatches one after another, one join.
pub fn branches(width: usize, length: usize) -> ComputeGraph {
    let mut list = Lister::default();
    let layout = Layout::new(DType::F32, &[16]).unwrap();
    let kind = CapturedOpKind::Custom;
    let source = list.op(kind, &[], layout);
    let tails: Vec<TensorView> =
        (0..width).map(|_| (0..length).fold(source, |x, _| list.op(kind, &[x], layout))).collect();
    let joined = list.op(kind, &tails, layout);
    list.graph.mark_output(joined.value().unwrap()).unwrap();
    list.graph
}

/// Exactly `dispatches` dispatches of a decoder: layers of 20 with weights, two cache buffers each
/// and values that live as long as those of a model do.
pub fn decoder_like(dispatches: usize) -> ComputeGraph {
    let mut list = Lister { limit: dispatches, ..Lister::default() };
    let row = |cols: usize| Layout::new(DType::F32, &[1, cols]).unwrap();
    let heads = |count: usize| Layout::new(DType::F32, &[1, count, 16]).unwrap();
    let ids = Layout::new(DType::U32, &[1]).unwrap();
    let (embd, kv, ffn) = (64, 32, 128);

    let token = list.graph.declare_value(ids);
    let position = list.graph.declare_value(ids);
    for input in [token, position] {
        list.graph.mark_input(input.value().unwrap()).unwrap();
    }
    let factors = list.weight(row(8));
    let table = list.weight(row(embd * 4));
    let mut x = list.op(CapturedOpKind::Gather, &[table, token], row(embd));
    while list.count < dispatches {
        let normed = list.norm(x, embd);
        let q = list.matmul(normed, embd, embd);
        let k = list.matmul(normed, embd, kv);
        let v = list.matmul(normed, embd, kv);
        let [q, k, v] = [(q, 4), (k, 2), (v, 2)].map(|(x, n)| x.reinterpret(0, heads(n)).unwrap());
        let q = list.op(CapturedOpKind::Rope, &[q, position, factors], heads(4));
        let k = list.op(CapturedOpKind::Rope, &[k, position, factors], heads(2));
        let cache = Layout::new(DType::F32, &[32, 2, 16]).unwrap();
        let (k_cache, v_cache) = (list.weight(cache), list.weight(cache));
        list.op_into(CapturedOpKind::KvWrite, &[k, position, k_cache]);
        list.op_into(CapturedOpKind::KvWrite, &[v, position, v_cache]);
        let attended =
            list.op(CapturedOpKind::Attention, &[q, k_cache, v_cache, position], row(embd));
        let projected = list.matmul(attended, embd, embd);
        x = list.op(CapturedOpKind::ADD, &[projected, x], row(embd));
        let normed = list.norm(x, embd);
        let gate = list.matmul(normed, embd, ffn);
        let up = list.matmul(normed, embd, ffn);
        let gate = list.op(CapturedOpKind::SILU, &[gate], row(ffn));
        let hidden = list.op(CapturedOpKind::MUL, &[gate, up], row(ffn));
        let down = list.matmul(hidden, ffn, embd);
        x = list.op(CapturedOpKind::ADD, &[down, x], row(embd));
    }
    if let Some(value) = x.value() {
        list.graph.mark_output(value).unwrap();
    }
    list.graph.set_replayed(true);
    list.graph
}

/// Records ops on new values until the limit is reached; what follows is left out.
struct Lister {
    graph: ComputeGraph,
    limit: usize,
    count: usize,
    buffers: usize,
}

impl Default for Lister {
    fn default() -> Self {
        Self { graph: ComputeGraph::new(), limit: usize::MAX, count: 0, buffers: 0 }
    }
}

impl Lister {
    /// A real buffer of its own.
    fn weight(&mut self, layout: Layout) -> TensorView {
        self.buffers += 1;
        let buf_len = layout.span_bytes();
        TensorView { buf_id: self.buffers - 1, buf_len, offset: 0, layout }
    }

    fn op(&mut self, kind: CapturedOpKind, inputs: &[TensorView], layout: Layout) -> TensorView {
        if self.count >= self.limit {
            return inputs[0];
        }
        let output = self.graph.declare_value(layout);
        self.op_into(kind, &[inputs, &[output]].concat());
        output
    }

    fn op_into(&mut self, kind: CapturedOpKind, views: &[TensorView]) {
        if self.count < self.limit {
            record_op(&mut self.graph, kind, views);
            self.count += 1;
        }
    }

    fn norm(&mut self, x: TensorView, cols: usize) -> TensorView {
        let layout = Layout::new(DType::F32, &[1, cols]).unwrap();
        let weight = self.weight(layout);
        let normed = self.op(CapturedOpKind::RmsNorm, &[x], layout);
        self.op(CapturedOpKind::MUL, &[normed, weight], layout)
    }

    fn matmul(&mut self, x: TensorView, inner: usize, outer: usize) -> TensorView {
        let weight = self.weight(Layout::new(DType::F32, &[outer, inner]).unwrap());
        let layout = Layout::new(DType::F32, &[1, outer]).unwrap();
        self.op(CapturedOpKind::MATMUL, &[x, weight], layout)
    }
}
