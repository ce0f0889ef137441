//! Random lists: nothing is lost, nothing passes what it conflicts with, the result is the same,
//! and a list that was reordered first fuses as well as one that was not.

use std::collections::BTreeMap;

use super::meaning::visible;
use super::setup::Step;
use crate::fuse::{FuseReport, RULES, Stage, TestCatalog};
use crate::op::{Activation, CapturedOpKind as Kind};
use crate::schedule::Strategy;
use crate::testkit::{
    Rng, Run, Shape, conflicting_pairs, decoder_like, members_once, out_of_order, random_graph,
};
use crate::verify::verify;
use crate::{ComputeGraph, DType, DispatchId, Layout, TensorView};

const ROWS: usize = 2;
const COLS: usize = 4;

fn fuse(graph: &ComputeGraph) -> (ComputeGraph, FuseReport) {
    let mut fused = graph.clone();
    fused.fuse(&mut TestCatalog::new(), &()).unwrap();
    let report = fused.fuse_report().unwrap().clone();
    (fused, report)
}

/// Everything that must hold of any fused list.
fn check(recorded: &ComputeGraph, fused: &ComputeGraph, report: &FuseReport, what: &str) {
    assert!(members_once(recorded, fused), "{what}: members lost or doubled");
    let removed = recorded.dispatch_count() - fused.dispatch_count();
    assert_eq!(removed, report.fired() - report.repeats, "{what}");
    assert_eq!(out_of_order(&conflicting_pairs(recorded), fused), None, "{what}");
    assert_eq!(visible(recorded), visible(fused), "{what}: another result");
    let mut last = fused.clone();
    last.place_barriers();
    verify(recorded, &last, None).unwrap_or_else(|fault| panic!("{what}: {fault}"));

    // Every reason names dispatches of this list, pairs are in its order, and each stands once.
    let place = |id: DispatchId| fused.dispatches().position(|d| d.id == id);
    let mut before = None;
    for pair in &report.refusals {
        let key = (place(pair.consumer), place(pair.producer));
        let named = pair.reason.rests_on().into_iter().map(place);
        assert!(key.0.is_some() && key.1.is_some(), "{what}: {pair}");
        assert!(named.into_iter().all(|place| place.is_some()), "{what}: {pair}");
        assert!(before < Some(key), "{what}: {report}");
        before = Some(key);
    }
}

/// Ops of a model on values that are written once, with weights and caches in real buffers.
pub(super) struct Model {
    rng: Rng,
    graph: ComputeGraph,
    /// Values, and which op made them.
    made: Vec<(TensorView, Kind)>,
    buffers: usize,
    caches: Vec<TensorView>,
    /// Values that may be operands, from the last one made on back, and how many of a hundred are one
    /// of the last few.
    window: usize,
    few: u64,
}

impl Model {
    fn new(seed: u64) -> Self {
        let (rng, graph) = (Rng::new(seed), ComputeGraph::new());
        let (made, caches) = Default::default();
        let mut model = Self { rng, graph, made, buffers: 0, caches, window: usize::MAX, few: 85 };
        for _ in 0..2 {
            let input = model.graph.declare_value(full());
            model.graph.mark_input(input.value().unwrap()).unwrap();
            model.made.push((input, Kind::Copy));
            let cache = model.buffer(layout(&[6, 2, COLS / 2]));
            model.caches.push(cache);
        }
        model
    }

    /// One in which no value is used long after it was made.
    pub(super) fn of_short_lives(seed: u64) -> Self {
        Self { window: 6, few: 60, ..Self::new(seed) }
    }

    /// The list of this many ops.
    pub(super) fn list(mut self, ops: u64) -> ComputeGraph {
        for _ in 0..ops {
            self.op();
        }
        for index in 0..self.made.len() {
            if self.rng.chance(6) {
                let output = self.made[index].0.value().unwrap();
                self.graph.mark_output(output).unwrap();
            }
        }
        self.graph
    }

    fn op(&mut self) {
        const KINDS: [Kind; 12] = [
            Kind::RmsNorm,
            Kind::RmsNorm,
            Kind::MUL,
            Kind::MUL,
            Kind::MUL,
            Kind::ADD,
            Kind::ADD,
            Kind::MATMUL,
            Kind::MATMUL,
            Kind::Rope,
            Kind::KvWrite,
            Kind::Attention,
        ];
        if self.rng.chance(12) {
            return self.products();
        }
        if self.window < usize::MAX && self.rng.chance(80) {
            self.caches = [(); 2].map(|()| self.buffer(layout(&[6, 2, COLS / 2]))).to_vec();
        }
        let pick = self.rng.below((KINDS.len() + Activation::ALL.len()) as u64) as usize;
        let kind = match KINDS.get(pick) {
            Some(&kind) => kind,
            None => Activation::ALL[pick - KINDS.len()].op(),
        };
        match kind {
            Kind::MUL => {
                let (a, made_by) = self.recent();
                // A norm is scaled by a weight, which nothing in the list computes.
                let b = match made_by {
                    Kind::RmsNorm => self.buffer(layout(&[COLS])),
                    _ => self.plain(),
                };
                self.either_order(kind, a, b);
            }
            Kind::ADD => {
                let (a, _) = self.recent();
                let b = match self.rng.chance(25) {
                    true => self.buffer(layout(&[COLS])),
                    false => self.recent().0,
                };
                self.either_order(kind, a, b);
            }
            Kind::MATMUL => {
                let (x, w) = (self.recent().0, self.buffer(layout(&[COLS, COLS])));
                self.value(kind, &[x, w], full());
            }
            Kind::Rope => {
                let x = self.recent().0;
                self.rope(x);
            }
            Kind::KvWrite => {
                let x = self.recent().0;
                self.kv_write(x);
            }
            Kind::Attention => {
                let q = as_heads(self.recent().0);
                let operands = [q, self.caches[0], self.caches[1], self.buffer(ids())];
                self.value(kind, &operands, full());
            }
            _ => {
                let x = self.recent().0;
                self.value(kind, &[x], full());
            }
        }
    }

    fn rope(&mut self, x: TensorView) -> TensorView {
        let operands = [as_heads(x), self.buffer(ids()), self.buffer(layout(&[1]))];
        self.value(Kind::Rope, &operands, full())
    }

    fn head_norm(&mut self, x: TensorView) -> TensorView {
        let weight = self.buffer(layout(&[COLS / 2]));
        let normed = self.value(Kind::RmsNorm, &[as_heads(x)], full());
        self.value(Kind::MUL, &[as_heads(normed), weight], full())
    }

    fn kv_write(&mut self, x: TensorView) {
        let cache = *self.rng.pick(&self.caches).unwrap();
        let views = [as_heads(x), self.buffer(ids()), cache];
        Step::new(Kind::KvWrite, &views).record(&mut self.graph, "");
    }

    /// Products of one tensor, mostly a norm: some on their own or with a bias, some in gated pairs,
    /// some as queries, keys or values.
    fn products(&mut self) {
        let mut x = self.recent().0;
        if self.rng.chance(80) {
            let weight = self.buffer(layout(&[COLS]));
            let normed = self.value(Kind::RmsNorm, &[x], full());
            x = self.either_order(Kind::MUL, normed, weight);
        }
        if self.rng.chance(30) {
            return self.experts(x);
        }
        for _ in 0..self.rng.within(1, 3) {
            let [w, u] = [(); 2].map(|()| self.buffer(layout(&[COLS, COLS])));
            let product = self.value(Kind::MATMUL, &[x, w], full());
            if self.rng.chance(30) {
                let bias = self.buffer(layout(&[COLS]));
                let product = self.value(Kind::ADD, &[product, bias], full());
                if self.rng.chance(50) {
                    self.heads(product);
                }
            } else if self.rng.chance(40) {
                let up = self.value(Kind::MATMUL, &[x, u], full());
                let activation = self.rng.below(Activation::ALL.len() as u64) as usize;
                let act = Activation::ALL[activation].op();
                let gate = self.value(act, &[product], full());
                self.either_order(Kind::MUL, gate, up);
            } else if self.rng.chance(60) {
                self.heads(product);
            }
        }
    }

    /// The experts that were chosen for each row, summed with a residual.
    fn experts(&mut self, x: TensorView) {
        let (chosen, residual) = (self.buffer(ids()), self.recent().0);
        let [w, u, d] = [(); 3].map(|()| self.buffer(layout(&[COLS, COLS])));
        let [gate, up] = [w, u].map(|w| self.value(Kind::MatMulExperts, &[x, w, chosen], full()));
        let activation = self.rng.below(2) as usize;
        let gate = self.value(Activation::ALL[activation].op(), &[gate], full());
        let y = self.either_order(Kind::MUL, gate, up);
        let y = self.value(Kind::MatMulExperts, &[y, d, chosen], full());
        let weights = self.buffer(layout(&[ROWS, 2]));
        let y = self.value(Kind::ExpertSum, &[y, weights], full());
        self.either_order(Kind::ADD, residual, y);
    }

    /// What becomes of queries, keys or values.
    fn heads(&mut self, product: TensorView) {
        let normed = self.rng.chance(40);
        let product = if normed { self.head_norm(product) } else { product };
        let rotated = self.rng.chance(60);
        let row = if rotated { self.rope(product) } else { product };
        if !rotated || self.rng.chance(50) {
            self.kv_write(row);
        }
    }

    fn either_order(&mut self, kind: Kind, a: TensorView, b: TensorView) -> TensorView {
        let order = if self.rng.chance(50) { [a, b] } else { [b, a] };
        self.value(kind, &order, full())
    }

    fn value(&mut self, kind: Kind, inputs: &[TensorView], layout: Layout) -> TensorView {
        let view = self.graph.declare_value(layout);
        // Heads and rows are two shapes of one tensor.
        let result = match kind {
            Kind::Rope | Kind::Attention | Kind::RmsNorm => {
                view.reinterpret(0, inputs[0].layout).unwrap()
            }
            Kind::MUL if inputs[0].layout.rank() == 3 => {
                view.reinterpret(0, inputs[0].layout).unwrap()
            }
            _ => view,
        };
        Step::new(kind, &[inputs, &[result]].concat()).record(&mut self.graph, "");
        self.made.push((view, kind));
        view
    }

    /// One of the last few values.
    fn recent(&mut self) -> (TensorView, Kind) {
        let made = self.alive();
        let few = made.len().saturating_sub(4)..;
        let pool = if self.rng.chance(self.few) { &made[few] } else { &made[..] };
        *self.rng.pick(pool).unwrap()
    }

    /// The values that may be operands.
    fn alive(&self) -> Vec<(TensorView, Kind)> {
        self.made[self.made.len().saturating_sub(self.window)..].to_vec()
    }

    /// A value that is no norm.
    fn plain(&mut self) -> TensorView {
        let mut plain = self.recent();
        while plain.1 == Kind::RmsNorm {
            plain = match self.made.iter().rev().take(self.window).find(|m| m.1 != Kind::RmsNorm) {
                Some(_) => *self.rng.pick(&self.alive()).unwrap(),
                None => (self.value(Kind::SILU, &[plain.0], full()), Kind::SILU),
            };
        }
        plain.0
    }

    fn buffer(&mut self, layout: Layout) -> TensorView {
        self.buffers += 1;
        TensorView { buf_id: self.buffers, buf_len: layout.span_bytes(), offset: 0, layout }
    }
}

fn layout(shape: &[usize]) -> Layout {
    Layout::new(DType::F32, shape).unwrap()
}

fn ids() -> Layout {
    Layout::new(DType::U32, &[ROWS]).unwrap()
}

/// A tensor as rows of heads.
fn as_heads(view: TensorView) -> TensorView {
    view.reinterpret(0, layout(&[ROWS, 2, COLS / 2])).unwrap()
}

fn full() -> Layout {
    layout(&[ROWS, COLS])
}

#[test]
fn reordering_first_loses_no_fusion() {
    let run = Run::from_env("fusion after reordering", 1);
    let mut fired: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in run.seeds() {
        let ops = Rng::new(seed).within(2, 40);
        let recorded = Model::new(seed).list(ops);
        let (fused, report) = fuse(&recorded);
        check(&recorded, &fused, &report, &format!("seed {seed}"));
        for count in &report.rules {
            *fired.entry(count.rule).or_default() += count.fired;
        }
        for strategy in [Strategy::Levels, Strategy::LookAhead { window: 64 }] {
            let mut reordered = recorded.clone();
            reordered.reorder_with(strategy);
            let (after, other) = fuse(&reordered);
            let what = format!("seed {seed} after {strategy:?}");
            check(&recorded, &after, &other, &what);
            assert_eq!(other.rules, report.rules, "{what}\n{report}\n{other}");
        }
    }
    // The middle kernel is there, so the way round it is never taken.
    let rules = RULES.iter().filter(|rule| !rule.quantises);
    let never: Vec<_> = rules.filter(|r| fired[r.name] == 0).map(|r| r.name).collect();
    assert!(run.cases < 100 || never == ["add_rms_norm_then_mul"], "{fired:?}");
}

#[test]
fn any_list_computes_the_same_when_fused() {
    let run = Run::from_env("fusion of any list", 1);
    let shape = Shape { runs: 45, dispatches: (2, 40), ..Shape::default() };
    let (mut fired, mut refused) = (0, 0);
    for seed in run.seeds() {
        let recorded = random_graph(seed, &shape);
        let (fused, report) = fuse(&recorded);
        check(&recorded, &fused, &report, &format!("seed {seed}"));
        fired += report.fired();
        refused += report.refusals.len();
    }
    assert!(run.cases < 100 || (fired > 100 && refused > 100), "{fired} fired, {refused} refused");
}

#[test]
fn the_search_costs_as_much_as_the_list_is_long() {
    let no_kernels = || RULES.iter().fold(TestCatalog::new(), |c, rule| c.without(rule.fused));
    let levels = |mut graph: ComputeGraph| {
        graph.reorder();
        graph
    };
    const COUNT: usize = 4_000;
    for (what, graph) in [
        ("a decoder", decoder_like(COUNT)),
        ("a decoder in levels", levels(decoder_like(COUNT))),
        ("far apart", far_apart(COUNT)),
        ("one sum, many norms", many_norms(COUNT)),
        ("one norm, many products", many_products(COUNT, false)),
        ("one norm, many products and a copy", many_products(COUNT, true)),
    ] {
        for (what, mut catalog) in [
            (format!("{what}, every kernel"), TestCatalog::new()),
            (format!("{what}, no kernel"), no_kernels()),
        ] {
            let mut stage = Stage::new(&graph, true);
            stage.run(&mut catalog, &()).unwrap();
            let (asked, looked_at) = (catalog.requests.len(), stage.list.looked_at.get());
            assert!(asked <= COUNT && looked_at <= 4 * COUNT as u64, "{what}: {asked} {looked_at}");
        }
    }
}

/// Half of the list are producers and half their consumers, all operands in one buffer, so that
/// everything stands between every pair and shares a buffer with it.
fn far_apart(count: usize) -> ComputeGraph {
    let mut graph = ComputeGraph::new();
    let pairs = count / 2;
    let bytes = full().span_bytes();
    let part = |index: usize| TensorView {
        buf_id: 0,
        buf_len: 3 * pairs as u64 * bytes,
        offset: index as u64 * bytes,
        layout: full(),
    };
    let values: Vec<_> = (0..pairs).map(|_| graph.declare_value(full())).collect();
    for (pair, &value) in values.iter().enumerate() {
        Step::new(Kind::SILU, &[part(3 * pair), value]).record(&mut graph, "");
    }
    for (pair, &value) in values.iter().enumerate() {
        let views = [value, part(3 * pair + 1), part(3 * pair + 2)];
        Step::new(Kind::MUL, &views).record(&mut graph, "");
    }
    graph
}

/// One sum with a norm of it wherever one looks.
fn many_norms(count: usize) -> ComputeGraph {
    let mut graph = ComputeGraph::new();
    let [x, sum] = [(); 2].map(|()| graph.declare_value(full()));
    graph.mark_input(x.value().unwrap()).unwrap();
    Step::new(Kind::ADD, &[x, x, sum]).record(&mut graph, "");
    for _ in 1..count {
        let y = graph.declare_value(full());
        Step::new(Kind::RmsNorm, &[sum, y]).record(&mut graph, "");
    }
    graph
}

/// One norm with a product of it wherever one looks; a copy of it, too, keeps it where it is.
fn many_products(count: usize, copied: bool) -> ComputeGraph {
    let mut graph = ComputeGraph::new();
    let [x, normed, scaled] = [(); 3].map(|()| graph.declare_value(full()));
    graph.mark_input(x.value().unwrap()).unwrap();
    let buffer = |buf_id: usize, layout: Layout| TensorView {
        buf_id,
        buf_len: layout.span_bytes(),
        offset: 0,
        layout,
    };
    Step::new(Kind::RmsNorm, &[x, normed]).record(&mut graph, "");
    let weight = buffer(0, layout(&[COLS]));
    Step::new(Kind::MUL, &[normed, weight, scaled]).record(&mut graph, "");
    for index in 2..count {
        let y = graph.declare_value(full());
        let step = match copied && index == count / 2 {
            true => Step::new(Kind::Copy, &[scaled, y]),
            false => Step::new(Kind::MATMUL, &[scaled, buffer(index, layout(&[COLS, COLS])), y]),
        };
        step.record(&mut graph, "");
    }
    graph
}
