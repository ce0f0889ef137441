//! Random lists: few buffers with many views that overlap, values written once and read several times,
//! tensors with gaps, transposed, repeated by stride 0 or overlapping themselves, fusable runs, and now
//! and then a dispatch nobody may cross.

use std::sync::Arc;

use super::Rng;
use super::build::{Touch, dispatch_of};
use super::kernels::record_op;
use crate::{
    CapturedNode, CapturedOpKind, ComputeGraph, DType, InPlace, Layout, NodeId, TensorView,
};

/// What a random list looks like. Percentages are of dispatches.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Least and most dispatches.
    pub dispatches: (u64, u64),
    /// Real buffers.
    pub buffers: u64,
    /// Bytes in each: even.
    pub buffer_bytes: u64,
    /// Most accesses of a dispatch.
    pub touches: u64,
    /// Dispatches whose access is unknown.
    pub unknown: u64,
    /// Dispatches that keep their place.
    pub pinned: u64,
    /// Dispatches that start a fusable run.
    pub runs: u64,
    /// Accesses to values rather than to real buffers.
    pub values: u64,
    /// Lists that are replayed.
    pub replayed: u64,
    /// Accesses through tensors that do not lie densely.
    pub strided: u64,
    /// Accesses that do not care whether anybody has written what they read.
    pub undefined: u64,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            dispatches: (1, 40),
            buffers: 3,
            buffer_bytes: 256,
            touches: 4,
            unknown: 3,
            pinned: 3,
            runs: 15,
            values: 60,
            replayed: 50,
            strided: 30,
            undefined: 0,
        }
    }
}

/// The random list of a seed.
pub fn random_graph(seed: u64, shape: &Shape) -> ComputeGraph {
    let mut maker = Maker {
        rng: Rng::new(seed),
        shape,
        graph: ComputeGraph::new(),
        count: 0,
        values: Vec::new(),
        tensors: Vec::new(),
        written: Vec::new(),
    };
    let replayed = maker.rng.chance(shape.replayed);
    maker.graph.set_replayed(replayed);
    for _ in 0..maker.rng.below(4) {
        let input = maker.declare();
        match maker.rng.chance(70) {
            true => maker.graph.mark_input(input).unwrap(),
            false => maker.graph.mark_kept(input).unwrap(),
        }
        maker.values.push(input);
    }
    let target = maker.rng.within(shape.dispatches.0, shape.dispatches.1);
    while u64::from(maker.count) < target {
        match maker.rng.below(100) {
            n if n < shape.unknown => maker.unknown(),
            n if n < shape.unknown + shape.pinned => maker.plain(CapturedOpKind::Pinned),
            n if n < shape.unknown + shape.pinned + shape.runs => maker.fusable(),
            _ => maker.plain(CapturedOpKind::Custom),
        }
    }
    for id in (0..maker.graph.values().len() as u32).map(NodeId) {
        let bytes = maker.graph.values()[id.index()].bytes;
        let any = maker.rng.chance(maker.shape.undefined);
        if maker.rng.chance(12) && (any || maker.is_written(id.buf_id(), &[(0, bytes)])) {
            maker.graph.mark_output(id).unwrap();
        }
    }
    maker.graph
}

struct Maker<'a> {
    rng: Rng,
    shape: &'a Shape,
    graph: ComputeGraph,
    /// Dispatches so far; also the next id.
    count: u32,
    /// Values that hold something.
    values: Vec<NodeId>,
    /// Those with a shape that ops agree on.
    tensors: Vec<TensorView>,
    /// Per value and byte: whether somebody has written it.
    written: Vec<Vec<bool>>,
}

impl Maker<'_> {
    fn declare(&mut self) -> NodeId {
        let elems = self.rng.within(1, 24) as usize * 2;
        let layout = Layout::new(DType::F16, &[elems]).unwrap();
        self.graph.declare_value(layout).value().unwrap()
    }

    /// A dispatch of 1 to a few accesses; a pinned one may have none.
    fn plain(&mut self, kind: CapturedOpKind) {
        let least = u64::from(kind != CapturedOpKind::Pinned);
        let mut made = Vec::new();
        let mut touches: Vec<Touch> = (0..self.rng.within(least, self.shape.touches))
            .map(|_| match self.rng.chance(self.shape.values) {
                true => self.of_value(&mut made),
                false => self.of_buffer(),
            })
            .collect();
        for touch in touches.iter().filter(|touch| touch.write) {
            self.note_written(touch.buf_id, &touch.runs());
        }
        // Now and then the kernel may write a result over an operand.
        let operand = touches.iter().position(|t| t.read && !t.write && t.is_whole_value());
        let pair = operand.filter(|_| self.rng.chance(40)).map(|input| {
            let layout = touches[input].view().layout;
            let output = self.graph.declare_value(layout);
            made.extend(output.value());
            touches.push(Touch::write(output.buf_id, output.buf_len, 0, output.buf_len));
            self.note_written(output.buf_id, &[(0, output.buf_len)]);
            InPlace { output: touches.len() as u16 - 1, input: input as u16 }
        });
        let mut node = dispatch_of(self.count, kind, &touches, true);
        if let CapturedNode::Dispatch(dispatch) = &mut node {
            Arc::make_mut(dispatch).fields_mut().in_place.extend(pair);
        }
        self.graph.record(node).unwrap();
        self.count += 1;
        self.values.extend(made);
    }

    fn unknown(&mut self) {
        let mut made = Vec::new();
        let touches: Vec<Touch> = (0..self.rng.below(3))
            .map(|_| if self.rng.chance(50) { self.of_value(&mut made) } else { self.of_buffer() })
            .collect();
        for touch in &touches {
            self.note_written(touch.buf_id, &[(0, touch.len)]);
        }
        let node = dispatch_of(self.count, CapturedOpKind::Custom, &touches, false);
        self.graph.record(node).unwrap();
        self.count += 1;
        self.values.extend(made);
    }

    /// Bytes of a real buffer: on a coarse grid, so that ranges often touch, nest or coincide, and
    /// sometimes a byte off it.
    fn of_buffer(&mut self) -> Touch {
        let (len, rng) = (self.shape.buffer_bytes, &mut self.rng);
        let buf_id = rng.below(self.shape.buffers) as usize;
        let mut bound = || {
            let on_grid = rng.within(0, len / 16) * 16;
            if rng.chance(20) {
                (on_grid + rng.below(3)).saturating_sub(1).min(len)
            } else {
                on_grid
            }
        };
        let (a, b) = (bound(), bound());
        let (p0, p1) = if self.rng.chance(4) { (a, a) } else { (a.min(b), a.max(b)) };
        // Narrow ranges leave more freedom to reorder.
        let p1 = if self.rng.chance(60) { p1.min(p0 + 32) } else { p1 };
        let touch = match self.rng.below(10) {
            0..5 => Touch::read(buf_id, len, p0, p1),
            5..9 => Touch::write(buf_id, len, p0, p1),
            _ => Touch::update(buf_id, len, p0, p1),
        };
        self.strided(touch)
    }

    /// The touch, now and then through a tensor that does not lie densely.
    fn strided(&mut self, touch: Touch) -> Touch {
        if !self.rng.chance(self.shape.strided) {
            return touch;
        }
        let rng = &mut self.rng;
        let (rows, cols) = (rng.within(1, 4) as usize, rng.within(1, 4) as usize);
        // Elements of what is written must lie apart.
        let strides = match rng.below(if touch.write { 3 } else { 6 }) {
            0 => [cols + rng.within(1, 4) as usize, 1],
            1 => [1, rows + rng.below(3) as usize],
            2 => [2 * cols + rng.below(3) as usize, 2],
            3 => [0, 1],
            4 => [1, 0],
            _ => [rng.within(1, cols as u64) as usize, 1],
        };
        let layout = Layout::new(DType::F16, &[rows, cols]).unwrap();
        let layout = layout.with_strides(&strides).unwrap();
        let Some(room) = touch.len.checked_sub(layout.span_bytes()) else { return touch };
        let p0 = (touch.p0 & !1).min(room & !1);
        Touch { p0, ..touch }.of_tensor(layout)
    }

    /// Whether somebody has written all of these bytes, or need not have.
    fn is_written(&self, buf_id: usize, runs: &[(u64, u64)]) -> bool {
        let Some(value) = NodeId::from_buf_id(buf_id) else { return true };
        let written = self.written.get(value.index());
        let is_written = |byte: u64| written.is_some_and(|w| w.get(byte as usize) == Some(&true));
        self.graph.values()[value.index()].lasts()
            || runs.iter().all(|&(p0, p1)| (p0..p1).all(is_written))
    }

    fn note_written(&mut self, buf_id: usize, runs: &[(u64, u64)]) {
        let Some(value) = NodeId::from_buf_id(buf_id) else { return };
        self.written.resize(self.graph.values().len(), Vec::new());
        let written = &mut self.written[value.index()];
        written.resize(self.graph.values()[value.index()].bytes as usize, false);
        for &(p0, p1) in runs {
            written[p0 as usize..p1 as usize].fill(true);
        }
    }

    /// Bytes of a value: mostly a new one written whole, or an old one read.
    fn of_value(&mut self, made: &mut Vec<NodeId>) -> Touch {
        let recent = self.values.len().saturating_sub(8);
        let pool = if self.rng.chance(70) { &self.values[recent..] } else { &self.values[..] };
        let old = self.rng.pick(pool).copied();
        let Some(old) = old.filter(|_| self.rng.chance(65)) else {
            let new = self.declare();
            made.push(new);
            let len = self.graph.values()[new.index()].bytes;
            // Now and then part of a value stays undefined.
            let p1 = if self.rng.chance(5) { len / 2 } else { len };
            let touch = Touch::write(new.buf_id(), len, 0, p1);
            return if self.rng.chance(50) { self.strided(touch) } else { touch };
        };
        let (buf_id, len) = (old.buf_id(), self.graph.values()[old.index()].bytes);
        let (p0, p1) = if self.rng.chance(75) {
            (0, len)
        } else {
            let (a, b) = (self.rng.within(0, len), self.rng.within(0, len));
            (a.min(b), a.max(b))
        };
        let touch = match self.rng.below(10) {
            0..7 => Touch::read(buf_id, len, p0, p1),
            7 => Touch::update(buf_id, len, p0, p1),
            _ => Touch::write(buf_id, len, p0, p1),
        };
        let touch = self.strided(touch);
        let any = self.rng.chance(self.shape.undefined);
        if !touch.read || any || self.is_written(buf_id, &touch.runs()) {
            return touch;
        }
        Touch::write(buf_id, len, p0, p1)
    }

    /// A run of ops that some rule fuses, unless something stands in the way.
    fn fusable(&mut self) {
        use CapturedOpKind as Kind;
        let layout = self.rows();
        match self.rng.below(8) {
            0 => {
                let x = self.operand(layout);
                let n = self.op(Kind::RmsNorm, &[x], layout);
                self.scaled(n, layout);
            }
            1 => {
                let (a, b) = (self.operand(layout), self.operand(layout));
                let sum = self.op(Kind::ADD, &[a, b], layout);
                let n = self.op(Kind::RmsNorm, &[sum], layout);
                if self.rng.chance(60) {
                    self.scaled(n, layout);
                }
            }
            2 | 3 => {
                let kind = if self.rng.chance(50) { Kind::SILU } else { Kind::GELU };
                let (gate, up) = (self.operand(layout), self.operand(layout));
                let gate = self.op(kind, &[gate], layout);
                self.op(Kind::MUL, &[gate, up], layout);
            }
            4 => {
                let cols = layout.cols();
                let x = self.operand(layout);
                let w = self.real(Layout::new(DType::F32, &[cols, cols]).unwrap());
                let product = self.op(Kind::MATMUL, &[x, w], layout);
                let c = self.operand(layout);
                let order = if self.rng.chance(50) { [product, c] } else { [c, product] };
                let sum = self.op(Kind::ADD, &order, layout);
                if self.rng.chance(70) {
                    self.products_of_norm(sum, layout);
                }
            }
            5 | 6 => self.products(layout),
            _ => {
                let heads = Layout::new(DType::F32, &[1, 1, 4]).unwrap();
                let ids = Layout::new(DType::U32, &[1]).unwrap();
                let (x, factors) =
                    (self.operand(heads), self.real(Layout::new(DType::F32, &[2]).unwrap()));
                let positions = self.operand(ids);
                let roped = self.op(Kind::Rope, &[x, positions, factors], heads);
                let cache = self.real(Layout::new(DType::F32, &[4, 1, 4]).unwrap());
                self.record(Kind::KvWrite, &[roped, positions, cache]);
            }
        }
    }

    /// Products of one tensor, mostly a norm, and gated pairs of them.
    fn products(&mut self, layout: Layout) {
        let x = self.operand(layout);
        match self.rng.chance(80) {
            true => self.products_of_norm(x, layout),
            false => self.products_of(x, layout),
        }
    }

    fn products_of_norm(&mut self, x: TensorView, layout: Layout) {
        let n = self.op(CapturedOpKind::RmsNorm, &[x], layout);
        let x = self.scaled(n, layout);
        self.products_of(x, layout);
    }

    fn products_of(&mut self, x: TensorView, layout: Layout) {
        use CapturedOpKind as Kind;
        let weights = Layout::new(DType::F32, &[layout.cols(), layout.cols()]).unwrap();
        for _ in 0..self.rng.within(1, 3) {
            let (w, u) = (self.real(weights), self.real(weights));
            let gate = self.op(Kind::MATMUL, &[x, w], layout);
            if self.rng.chance(40) {
                let up = self.op(Kind::MATMUL, &[x, u], layout);
                let act = if self.rng.chance(50) { Kind::SILU } else { Kind::GELU };
                let gate = self.op(act, &[gate], layout);
                let gated = self.op(Kind::MUL, &[gate, up], layout);
                if self.rng.chance(90) {
                    let w = self.real(weights);
                    self.op(Kind::MATMUL, &[gated, w], layout);
                }
            }
        }
    }

    fn scaled(&mut self, n: TensorView, layout: Layout) -> TensorView {
        let w = self.real(Layout::new(DType::F32, &[layout.cols()]).unwrap());
        let order = if self.rng.chance(50) { [n, w] } else { [w, n] };
        self.op(CapturedOpKind::MUL, &order, layout)
    }

    fn rows(&mut self) -> Layout {
        let (rows, cols) = (self.rng.within(1, 2) as usize, self.rng.within(1, 2) as usize * 4);
        // Some in whole chunks, so that values between products can be rounded.
        let cols = if self.rng.chance(50) { 32 } else { cols };
        Layout::new(DType::F32, &[rows, cols]).unwrap()
    }

    /// A tensor to read: one made before, or bytes of a real buffer.
    fn operand(&mut self, layout: Layout) -> TensorView {
        if layout.rank() == 2 && self.rng.chance(self.shape.strided / 3) {
            let strides = if self.rng.chance(50) { [0, 1] } else { [layout.cols() + 4, 1] };
            return self.real(layout.with_strides(&strides).unwrap());
        }
        let same = |t: &&TensorView| t.layout == layout;
        let fitting: Vec<TensorView> = self.tensors.iter().filter(same).copied().collect();
        match self.rng.pick(&fitting) {
            Some(tensor) if self.rng.chance(70) => *tensor,
            _ => self.real(layout),
        }
    }

    fn real(&mut self, layout: Layout) -> TensorView {
        let (bytes, len) = (layout.span_bytes(), self.shape.buffer_bytes.max(layout.span_bytes()));
        let offset = self.rng.below((len - bytes) / 4 + 1) * 4;
        let buf_id = self.rng.below(self.shape.buffers) as usize;
        TensorView { buf_id, buf_len: self.shape.buffer_bytes.max(bytes), offset, layout }
    }

    /// Records an op with one result: a new value, or rarely bytes of a real buffer.
    fn op(&mut self, kind: CapturedOpKind, inputs: &[TensorView], layout: Layout) -> TensorView {
        let gapped = layout.rank() == 2 && self.rng.chance(self.shape.strided / 6);
        let layout = match gapped {
            true => layout.with_strides(&[layout.cols() + 4, 1]).unwrap(),
            false => layout,
        };
        let output = match self.rng.chance(12) {
            true => self.real(layout),
            false => self.graph.declare_value(layout),
        };
        let runs: Vec<(u64, u64)> =
            layout.runs().map(|r| (output.offset + r.start, output.offset + r.end)).collect();
        // Before what may follow inside of a run.
        self.note_written(output.buf_id, &runs);
        self.record(kind, &[inputs, &[output]].concat());
        if let Some(value) = output.value() {
            self.tensors.push(output);
            // Known to the others at once, so that some fusions meet a second reader.
            if self.rng.chance(60) {
                self.values.push(value);
            }
        }
        output
    }

    fn record(&mut self, kind: CapturedOpKind, views: &[TensorView]) {
        record_op(&mut self.graph, kind, views);
        self.count += 1;
        // Something unrelated between the members of a run.
        if self.rng.chance(25) {
            self.plain(CapturedOpKind::Custom);
        }
    }
}
