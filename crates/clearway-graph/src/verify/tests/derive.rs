//! Fused and rounded dispatches that are not what the rules make of their members.
//!
//! For every rule a real fusion is spoilt in each way of [`mutants`]; then the same with random lists.

use super::*;
use crate::fuse::{Bind, RULES, Rule, Source, TestCatalog};
use crate::op::{Activation, CapturedOpKind as Kind, PlainInput, PlainShape, Product, Slot};
use crate::testkit::{Rng, Run, Shape, kind, random_graph};
use crate::{DType, Layout, TensorView};

/// Columns of all tensors: whole chunks, so that values can be rounded.
const COLS: usize = 32;

/// The product with the norm behind it.
const AHEAD: Kind = Kind::Product(Product::WITH_NORM);

/// Records plain ops on new values, each with constants of its own.
struct List {
    graph: ComputeGraph,
    rows: usize,
    buffers: usize,
    constants: u32,
}

impl List {
    fn new(rows: usize) -> Self {
        Self { graph: ComputeGraph::new(), rows, buffers: 0, constants: 0 }
    }

    fn full(&self) -> Layout {
        floats(&[self.rows, COLS])
    }

    fn heads(&self) -> Layout {
        floats(&[self.rows, 2, COLS / 2])
    }

    fn buffer(&mut self, layout: Layout) -> TensorView {
        self.buffers += 1;
        TensorView { buf_id: self.buffers, buf_len: layout.span_bytes(), offset: 0, layout }
    }

    fn full_buffer(&mut self) -> TensorView {
        self.buffer(self.full())
    }

    fn record(&mut self, kind: Kind, views: &[TensorView]) {
        let contract = TestCatalog::contract(kind, views.len()).unwrap();
        let params = [self.constants, self.constants + 1];
        self.constants += 2;
        self.graph.dispatch(kind, &contract, views, &params, "").unwrap();
    }

    fn op(&mut self, kind: Kind, inputs: &[TensorView], layout: Layout) -> TensorView {
        let result = self.graph.declare_value(layout);
        self.record(kind, &[inputs, &[result]].concat());
        result
    }

    fn product(&mut self, x: TensorView) -> TensorView {
        let w = self.buffer(floats(&[COLS, COLS]));
        self.op(Kind::MATMUL, &[x, w], self.full())
    }

    fn with_buffer(&mut self, kind: Kind, x: TensorView) -> TensorView {
        let other = self.full_buffer();
        self.op(kind, &[x, other], self.full())
    }

    /// A norm and its weight, which has the layout of a tensor of one row.
    fn normed(&mut self, x: TensorView) -> TensorView {
        let normed = self.op(Kind::RmsNorm, &[x], self.full());
        let weight = self.buffer(floats(&[1, COLS]));
        self.op(Kind::MUL, &[normed, weight], self.full())
    }

    fn gated(&mut self, activation: Activation, x: TensorView) -> TensorView {
        let (gate, up) = (self.product(x), self.product(x));
        let gate = self.activated(activation, gate);
        self.op(Kind::MUL, &[gate, up], self.full())
    }

    fn rope(&mut self, x: TensorView) -> TensorView {
        let [positions, factors] =
            [ids(self.rows), floats(&[COLS / 4])].map(|layout| self.buffer(layout));
        self.op(Kind::Rope, &[x, positions, factors], self.heads())
    }

    fn kv_write(&mut self, x: TensorView) {
        let [positions, cache] =
            [ids(self.rows), floats(&[64, 2, COLS / 2])].map(|layout| self.buffer(layout));
        self.record(Kind::KvWrite, &[x, positions, cache]);
    }

    fn output(&mut self, view: TensorView) {
        self.graph.mark_output(view.value().unwrap()).unwrap();
    }

    /// The ops that a rule makes into one, from the first to the last. What a rule may keep is `kept`.
    fn ops_of(&mut self, rule: &Rule, kept: bool) {
        let x = self.full_buffer();
        let result = match rule.fused {
            Kind::Product(product) => self.parts_of(product, kept, x),
            Kind::RmsNormMul => Some(self.normed(x)),
            Kind::ExpertSumAdd => {
                let weights = self.buffer(floats(&[self.rows, 2]));
                let sum = self.op(Kind::ExpertSum, &[x, weights], self.full());
                Some(self.with_buffer(Kind::ADD, sum))
            }
            Kind::RmsNormMulAdd => {
                let normed = self.normed(x);
                Some(self.with_buffer(Kind::ADD, normed))
            }
            Kind::SILU_MUL | Kind::GELU_MUL => {
                let activation = Activation::ALL.into_iter().find(|a| a.mul() == Some(rule.fused));
                let gate = self.activated(activation.unwrap(), x);
                Some(self.with_buffer(Kind::MUL, gate))
            }
            Kind::AddRmsNorm | Kind::AddRmsNormMul => {
                let sum = self.with_buffer(Kind::ADD, x);
                if kept {
                    self.output(sum);
                }
                Some(match rule.fused {
                    Kind::AddRmsNorm => self.op(Kind::RmsNorm, &[sum], self.full()),
                    _ => self.normed(sum),
                })
            }
            Kind::RopeKvWrite => {
                let turned = self.rope(x.reinterpret(0, self.heads()).unwrap());
                self.kv_write(turned);
                None
            }
            other => panic!("a rule without a recipe: {other}"),
        };
        if let Some(result) = result {
            self.output(result);
        }
    }

    /// The ops that are the parts of a product; its result, if it goes into no cache. A norm behind is read by
    /// another product.
    fn parts_of(&mut self, product: Product, kept: bool, x: TensorView) -> Option<TensorView> {
        let mut given: Vec<TensorView> = Vec::new();
        // Two products of experts have the same.
        let chosen = self.buffer_of(Slot::Ids);
        for op in product.plain_ops() {
            let heads = matches!(op.shape, PlainShape::Heads | PlainShape::Cache);
            let mut inputs = Vec::new();
            for input in &op.inputs {
                inputs.push(match *input {
                    PlainInput::Slot(Slot::Input) => x,
                    PlainInput::Slot(Slot::Ids) => chosen,
                    PlainInput::Slot(slot) => self.buffer_of(slot),
                    PlainInput::Op(earlier) if heads => {
                        given[earlier].reinterpret(0, self.heads()).unwrap()
                    }
                    PlainInput::Op(earlier) => given[earlier],
                });
            }
            if op.shape == PlainShape::Cache {
                let cache = self.buffer_of(Slot::Cache);
                self.record(op.kind, &[&inputs[..], &[cache]].concat());
                return None;
            }
            let layout = if heads { self.heads() } else { self.full() };
            let result = self.op(op.kind, &inputs, layout);
            if op.result == Some(Slot::Sum) && kept {
                self.output(result);
            }
            given.push(result);
        }
        let last = *given.last().unwrap();
        Some(if product.epilogue().norm { self.product(last) } else { last })
    }

    fn buffer_of(&mut self, slot: Slot) -> TensorView {
        let layout = match slot {
            Slot::Input | Slot::Up | Slot::Addend | Slot::Sum | Slot::Result => self.full(),
            // Of the layout of a tensor of one row.
            Slot::NormWeight | Slot::NextNormWeight => floats(&[1, COLS]),
            Slot::HeadNormWeight => floats(&[1, COLS / 2]),
            Slot::Weight | Slot::UpWeight => floats(&[COLS, COLS]),
            Slot::Positions | Slot::CacheRows | Slot::Ids => ids(self.rows),
            Slot::Factors => floats(&[COLS / 4]),
            Slot::Cache => floats(&[64, 2, COLS / 2]),
        };
        self.buffer(layout)
    }

    fn activated(&mut self, activation: Activation, x: TensorView) -> TensorView {
        self.op(activation.op(), &[x], self.full())
    }
}

fn floats(shape: &[usize]) -> Layout {
    Layout::new(DType::F32, shape).unwrap()
}

fn ids(count: usize) -> Layout {
    Layout::new(DType::U32, &[count]).unwrap()
}

/// A recorded list and what the stages made of it, which is proven.
struct Case {
    recorded: ComputeGraph,
    last: ComputeGraph,
}

impl Case {
    fn new(recorded: ComputeGraph, mut catalog: TestCatalog, rounds: bool) -> Self {
        let mut last = recorded.clone();
        last.fuse_with(&mut catalog, &(), rounds).unwrap();
        if rounds {
            last.quantise(&mut catalog, &()).unwrap();
        }
        last.place_barriers();
        verify(&recorded, &last, None).unwrap();
        Self { recorded, last }
    }

    /// Positions of the fused dispatches.
    fn fused(&self) -> Vec<usize> {
        let nodes = self.last.nodes().iter().enumerate();
        let fused = nodes.filter(|(_, n)| n.dispatch().is_some_and(|d| d.origins.len() > 1));
        fused.map(|(at, _)| at).collect()
    }

    fn at(&self, node: usize) -> &Dispatch {
        self.last.nodes()[node].dispatch().unwrap()
    }

    /// The list with these dispatches instead, by node.
    fn with(&self, changes: Vec<(usize, Dispatch)>) -> ComputeGraph {
        let mut nodes = self.last.nodes().to_vec();
        for (at, dispatch) in changes {
            nodes[at] = CapturedNode::Dispatch(Arc::new(dispatch));
        }
        with_nodes(&self.last, nodes)
    }

    #[track_caller]
    fn must_fail(&self, last: &ComputeGraph, what: &str) -> Fault {
        match verify(&self.recorded, last, None) {
            Err(fault) => fault,
            Ok(_) => panic!("{what} went unseen\n{}", last.to_text()),
        }
    }

    /// Spoils one dispatch in every way; returns in how many.
    fn spoil(&self, node: usize, what: &str) -> usize {
        let mutants = mutants(self.at(node));
        for (how, mutant) in &mutants {
            self.must_fail(&self.with(vec![(node, mutant.clone())]), &format!("{what}: {how}"));
        }
        mutants.len()
    }
}

/// A dispatch with one thing changed, in every way that is no identity.
fn mutants(dispatch: &Dispatch) -> Vec<(String, Dispatch)> {
    let mut all: Vec<(String, Dispatch)> = Vec::new();
    let mut add = |what: String, change: &dyn Fn(&mut Dispatch)| {
        let mut mutant = dispatch.clone();
        change(&mut mutant);
        all.push((what, mutant));
    };
    let count = dispatch.bindings.len();
    let takes = |&kind: &Kind| TestCatalog::contract(kind, count).is_some();
    let kinds = Kind::all().chain([Kind::Custom, Kind::Pinned]).filter(takes);
    for kind in kinds.filter(|&kind| kind != dispatch.kind) {
        add(format!("kind {kind}"), &|d| (d.kind, d.kernel) = (kind, kind.name().into()));
    }
    for index in 0..dispatch.params.len() {
        add(format!("constant {index}"), &|d| d.params[index] ^= 1);
        add(format!("no constant {index}"), &|d| {
            d.params.remove(index);
        });
        for other in 0..index {
            if dispatch.params[index] != dispatch.params[other] {
                add(format!("constants {other} and {index}"), &|d| d.params.swap(index, other));
            }
        }
    }
    add("one more constant".into(), &|d| d.params.push(0));
    for index in 0..count {
        for other in 0..index {
            // One tensor at both is the same call. The addends of a sum are not: addition is
            // commutative, but each has its place in the rule, where shapes are checked.
            if dispatch.bindings[index] != dispatch.bindings[other] {
                add(format!("bindings {other} and {index}"), &|d| swap_bindings(d, other, index));
            }
        }
        let layout = dispatch.bindings[index].layout;
        let elems: usize = layout.dims().iter().map(|&extent| extent as usize).product();
        if layout.dtype() == DType::F32 && layout.is_dense() && layout.rank() > 1 {
            add(format!("binding {index} in one row"), &|d| {
                d.bindings[index].layout = floats(&[elems]);
            });
        }
    }
    add("one more binding".into(), &|d| {
        let first = d.bindings[0];
        d.bindings.push(first);
    });
    for index in 0..dispatch.accesses().len() {
        add(format!("no access {index}"), &|d| {
            accesses(d).remove(index);
        });
    }
    for index in 0..dispatch.origins.len() {
        add(format!("no member {index}"), &|d| {
            d.origins.remove(index);
        });
        for other in 0..index {
            add(format!("members {other} and {index}"), &|d| d.origins.swap(index, other));
        }
    }
    all
}

/// Gives two operands each other's tensor, with all that is known of it.
fn swap_bindings(dispatch: &mut Dispatch, a: usize, b: usize) {
    dispatch.bindings.swap(a, b);
    for access in accesses(dispatch) {
        access.binding = match usize::from(access.binding) {
            at if at == a => b as u16,
            at if at == b => a as u16,
            at => at as u16,
        };
    }
}

#[test]
fn silu_and_mul_are_not_gelu_mul() {
    let mut list = List::new(1);
    let rule = RULES.iter().find(|rule| rule.name == "silu_mul").unwrap();
    list.ops_of(rule, false);
    let case = Case::new(list.graph, TestCatalog::new(), false);
    let mut other = case.at(0).clone();
    (other.kind, other.kernel) = (Kind::GELU_MUL, "gelu_mul".into());
    let fault = case.must_fail(&case.with(vec![(0, other)]), "another kind");
    assert_eq!((fault.proof, fault.dispatch), (Proof::Derivation, Some(DispatchId(1))));
    assert_eq!(
        fault.to_string(),
        "derivation: #1 is to be gelu_mul of #0 silu, #1 mul, but the rules make silu_mul of them"
    );
    let json = serde_json::to_value(&fault).unwrap();
    assert_eq!(json["problem"]["underived"]["kind"], "gelu_mul");
    assert_eq!(json["problem"]["underived"]["members"][0][1], "silu");
    assert_eq!(json["problem"]["underived"]["why"]["no_rule"]["instead"], "silu_mul");
}

#[test]
fn every_change_to_what_a_rule_makes_is_reported() {
    let mut tried = 0;
    for rule in RULES.iter() {
        let keeps = |bind: &Bind| matches!(bind.source, Source::Kept | Source::AlreadyKept);
        let keeps = rule.bindings.iter().any(keeps);
        for (rows, kept) in [(1, false), (COLS, false), (1, true)] {
            if kept && !keeps {
                continue;
            }
            let mut list = List::new(rows);
            list.ops_of(rule, kept);
            let catalog = match rule.name {
                "add_rms_norm_then_mul" => TestCatalog::new().without(Kind::RmsNormMul),
                _ => TestCatalog::new(),
            };
            let case = Case::new(list.graph, catalog, rule.quantises);
            assert!(case.last.fuse_report().unwrap().fired_by(rule.name) > 0, "{}", rule.name);
            let [node] = case.fused()[..] else { panic!("{}: one dispatch", rule.name) };
            assert_eq!(case.at(node).kind, rule.fused);
            tried += case.spoil(node, rule.name);
        }
    }
    assert!(tried > 1_000, "{tried}");
}

#[test]
fn every_change_to_a_copy_of_a_repeated_member_is_reported() {
    let mut list = List::new(1);
    let x = list.full_buffer();
    let x = list.normed(x);
    for _ in 0..2 {
        let y = list.product(x);
        list.output(y);
    }
    let case = Case::new(list.graph, TestCatalog::new(), false);
    let fused = case.fused();
    assert_eq!(fused.len(), 2, "the norm is in both products");
    for node in fused {
        case.spoil(node, "a copy");
    }
}

#[test]
fn a_member_that_no_rule_asks_for_is_reported() {
    for rule in RULES.iter() {
        let mut list = List::new(1);
        list.ops_of(rule, false);
        // Nobody can tell whether it runs.
        list.op(Kind::Fill, &[], floats(&[COLS]));
        let catalog = match rule.name {
            "add_rms_norm_then_mul" => TestCatalog::new().without(Kind::RmsNormMul),
            _ => TestCatalog::new(),
        };
        let case = Case::new(list.graph, catalog, rule.quantises);
        let [node] = case.fused()[..] else { panic!("{}: one dispatch", rule.name) };
        let is_fill = |n: &CapturedNode| n.dispatch().is_some_and(|d| d.kind == Kind::Fill);
        let fill = case.last.nodes().iter().position(is_fill).unwrap();
        let id = case.at(fill).id;
        for place in 0..=case.at(node).origins.len() {
            let mut more = case.at(node).clone();
            more.origins.insert(place, id);
            more.params = {
                let members = more.origins.iter().map(|id| &case.recorded.nodes()[id.0 as usize]);
                members.flat_map(|n| n.dispatch().unwrap().params.clone()).collect()
            };
            let mut nodes = case.last.nodes().to_vec();
            nodes[node] = CapturedNode::Dispatch(Arc::new(more));
            nodes.remove(fill);
            let fault = case.must_fail(&with_nodes(&case.last, nodes), rule.name);
            assert_eq!(fault.proof, Proof::Derivation, "{}: {fault}", rule.name);
        }
    }
}

/// A block of a decoder: norms in the products in front of them, a gated product, and products of both.
fn rounded_block() -> Case {
    let mut list = List::new(1);
    let x = list.full_buffer();
    let product = list.product(x);
    let sum = list.with_buffer(Kind::ADD, product);
    let normed = list.normed(sum);
    let gated = list.gated(Activation::Silu, normed);
    let down = list.product(gated);
    let next = list.op(Kind::ADD, &[down, sum], list.full());
    let normed = list.normed(next);
    for _ in 0..2 {
        let y = list.product(normed);
        list.output(y);
    }
    let case = Case::new(list.graph, TestCatalog::new(), true);
    let kinds: Vec<_> = case.last.dispatches().map(|d| d.kind).collect();
    let ahead = AHEAD;
    assert_eq!(kinds, [ahead, kind("matmul_silu_gated"), ahead, Kind::MATMUL, Kind::MATMUL]);
    assert_eq!(case.last.quantise_report().unwrap().quantised.len(), 3);
    case
}

#[test]
fn every_change_to_what_the_quantise_stage_makes_is_reported() {
    let case = rounded_block();
    let tried: usize = case.fused().into_iter().map(|node| case.spoil(node, "rounded")).sum();
    assert!(tried > 200, "{tried}");
}

/// The list with a value in another form for all who touch it; `None` if nobody does, or somebody sees it in
/// a way that has no such form.
fn in_form(
    case: &Case,
    value: NodeId,
    form: impl Fn(Layout) -> Option<Layout>,
) -> Option<ComputeGraph> {
    let mut changes = Vec::new();
    for (at, node) in case.last.nodes().iter().enumerate() {
        let Some(dispatch) = node.dispatch() else { continue };
        let mut dispatch = (**dispatch).clone();
        let mut touched = false;
        for view in dispatch.bindings.iter_mut().filter(|view| view.buf_id == value.buf_id()) {
            view.layout = form(view.layout)?;
            touched = true;
        }
        if touched {
            changes.push((at, dispatch));
        }
    }
    (!changes.is_empty()).then(|| case.with(changes))
}

/// Rounds, for all, every value that is read and that the stage left as it was; returns how many.
fn round_others(case: &Case) -> usize {
    let mut tried = 0;
    for value in (0..case.recorded.values().len() as u32).map(NodeId) {
        let reads = |d: &Arc<Dispatch>| d.reads().any(|range| range.buf_id == value.buf_id());
        let read = case.last.dispatches().any(reads);
        let rounded = in_form(case, value, |layout| layout.quantised()).filter(|_| read);
        if let Some(list) = rounded {
            case.must_fail(&list, &format!("{value} rounded by nobody's rule"));
            tried += 1;
        }
    }
    tried
}

#[test]
fn a_value_that_no_rule_quantises_is_reported() {
    let case = rounded_block();
    assert_eq!(round_others(&case), 1, "the sum that is kept");
    // What a plain product gives to another one.
    let mut list = List::new(1);
    let x = list.full_buffer();
    let first = list.product(x);
    let second = list.product(first);
    list.output(second);
    let case = Case::new(list.graph, TestCatalog::new(), true);
    let value = first.value().unwrap();
    let rounded = in_form(&case, value, |layout| layout.quantised()).unwrap();
    let fault = case.must_fail(&rounded, "a product that may not round");
    let problem = Problem::Rounded { kind: Kind::MATMUL, binding: 2 };
    assert_eq!((fault.proof, fault.problem), (Proof::Derivation, problem), "{fault}");
    assert_eq!(
        fault.to_string(),
        "derivation: #0 (matmul) finds binding 2 rounded, which no rule of the quantise stage allows"
    );
}

#[test]
fn a_reader_of_another_kind_or_by_another_binding_finds_no_value_rounded() {
    for (kind, inputs, at) in
        [(Kind::MatMulExperts, 3, 0), (Kind::SILU, 1, 0), (kind("matmul_add"), 3, 2)]
    {
        let mut list = List::new(1);
        let x = list.full_buffer();
        let gated = list.gated(Activation::Silu, x);
        let mut views = vec![list.full_buffer(); inputs];
        views[at] = gated;
        let y = list.op(kind, &views, list.full());
        list.output(y);
        let case = Case::new(list.graph, TestCatalog::new(), true);
        let value = gated.value().unwrap();
        let rounded = in_form(&case, value, |layout| layout.quantised()).unwrap();
        let fault = case.must_fail(&rounded, kind.name());
        let problem = Problem::Rounded { kind, binding: at as u16 };
        assert_eq!((fault.proof, fault.problem), (Proof::Derivation, problem), "{fault}");
    }
}

#[test]
fn a_norm_in_front_of_its_products_exists_only_rounded() {
    let case = rounded_block();
    let mut floats = 0;
    for rounded in &case.last.quantise_report().unwrap().quantised {
        let value = NodeId::from_buf_id(rounded.buf_id).unwrap();
        let was = |layout: Layout| Some(Layout::new(DType::F32, &[1, layout.cols()]).unwrap());
        let list = in_form(&case, value, was).unwrap();
        match case.last.dispatches().find(|d| d.id == rounded.writer).unwrap().kind {
            AHEAD => {
                let fault = case.must_fail(&list, "a norm of parts of rows");
                let problem = Problem::NotRounded { kind: AHEAD, binding: 5 };
                let without_sum = Problem::NotRounded { kind: AHEAD, binding: 4 };
                assert!([problem, without_sum].contains(&fault.problem), "{fault}");
                floats += 1;
            }
            // Not rounding it is what was recorded.
            _ => assert!(verify(&case.recorded, &list, None).is_ok()),
        }
    }
    assert_eq!(floats, 2);
}

#[test]
fn nothing_the_rules_make_has_more_members_than_are_looked_at() {
    fn most(kind: Kind) -> usize {
        let rules = RULES.iter().filter(|rule| rule.fused == kind);
        rules.map(|rule| most(rule.producer) + most(rule.consumer)).max().unwrap_or(1)
    }
    assert_eq!(RULES.iter().map(|rule| most(rule.fused)).max(), Some(7));
    const { assert!(7 <= super::super::derive::MOST_MEMBERS) };
}

#[test]
fn every_change_to_a_random_fusion_is_reported() {
    let run = Run::from_env("changed fusions", 10);
    let shape = Shape { runs: 50, dispatches: (4, 30), ..Shape::default() };
    let (mut tried, mut rounded) = (0, 0);
    for seed in run.seeds() {
        let mut rng = Rng::new(seed);
        let rounds = rng.chance(60);
        let case = Case::new(random_graph(seed, &shape), TestCatalog::new(), rounds);
        for node in case.fused() {
            tried += case.spoil(node, &format!("seed {seed}"));
        }
        rounded += if rounds { round_others(&case) } else { 0 };
    }
    println!("{tried} changes to fusions and {rounded} rounded values, all reported");
    assert!(tried > 0 && (run.cases < 50 || rounded > 0));
}
