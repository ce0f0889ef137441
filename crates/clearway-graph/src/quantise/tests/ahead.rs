//! Norms in the product in front of them.

use super::{COLS, row, weights};
use crate::fuse::{Refusal, TestCatalog};
use crate::op::CapturedOpKind as Kind;
use crate::testkit::kind;
use crate::verify::verify;
use crate::{ComputeGraph, DType, DispatchId, KernelContract, Layout, TensorView};

/// A product, the residual, the norm of the sum and its weight, and two products of that.
struct Setup {
    graph: ComputeGraph,
    catalog: TestCatalog,
    buffers: usize,
    layout: Layout,
    /// What the sum in front and the norm with its weight give.
    sum: TensorView,
    scaled: TensorView,
}

impl Setup {
    /// The ops up to the products, each changed by `change` before it is recorded; `between` comes before the
    /// op of this number.
    fn with(
        layout: Layout,
        mut change: impl FnMut(&mut Self, Kind, &mut Vec<TensorView>),
        between: Option<usize>,
    ) -> Self {
        let mut graph = ComputeGraph::new();
        let [product, sum, norm, scaled] = [(); 4].map(|()| graph.declare_value(layout));
        let catalog = TestCatalog::new();
        let mut setup = Self { graph, catalog, buffers: 0, layout, sum, scaled };
        let [x, w, residual] = [row(32), weights(), layout].map(|layout| setup.buffer(layout));
        let weight = setup.buffer(Layout::new(DType::F32, &[layout.cols()]).unwrap());
        let steps = [
            (Kind::MATMUL, vec![x, w, product]),
            (Kind::ADD, vec![residual, product, sum]),
            (Kind::RmsNorm, vec![sum, norm]),
            (Kind::MUL, vec![norm, weight, scaled]),
        ];
        for (number, (kind, mut views)) in steps.into_iter().enumerate() {
            change(&mut setup, kind, &mut views);
            if between == Some(number) {
                let views = [row(8), row(8)].map(|layout| setup.buffer(layout));
                setup.dispatch(Kind::SILU, &views, &[]);
            }
            let params = if kind == Kind::RmsNorm { &[7][..] } else { &[] };
            setup.dispatch(kind, &views, params);
        }
        setup
    }

    fn new() -> Self {
        let mut setup = Self::with(row(COLS), |_, _, _| {}, None);
        setup.readers();
        setup
    }

    /// Two products of what the norm gives, and the residual's next user.
    fn readers(&mut self) {
        for _ in 0..2 {
            let [w, y] = [weights(), row(8)].map(|layout| self.buffer(layout));
            self.dispatch(Kind::MATMUL, &[self.scaled, w, y], &[]);
        }
        self.next_sum();
    }

    fn next_sum(&mut self) {
        let [other, to] = [self.layout; 2].map(|layout| self.buffer(layout));
        self.dispatch(Kind::ADD, &[self.sum, other, to], &[]);
    }

    fn buffer(&mut self, layout: Layout) -> TensorView {
        self.buffers += 1;
        TensorView { buf_id: self.buffers, buf_len: layout.span_bytes(), offset: 0, layout }
    }

    fn dispatch(&mut self, kind: Kind, views: &[TensorView], params: &[u32]) -> DispatchId {
        let contract = TestCatalog::contract(kind, views.len()).unwrap();
        self.graph.dispatch(kind, &contract, views, params, "").unwrap()
    }

    /// Applies the rules, and proves what they give.
    fn fuse(&mut self) -> Vec<Kind> {
        let recorded = self.graph.clone();
        self.graph.fuse_with(&mut self.catalog, &(), true).unwrap();
        self.graph.place_barriers();
        verify(&recorded, &self.graph, None).unwrap();
        self.graph.dispatches().map(|d| d.kind).collect()
    }

    fn fired(&self) -> u32 {
        self.graph.fuse_report().unwrap().fired_by("matmul_add_norm")
    }

    #[track_caller]
    fn ahead(&mut self) -> Vec<Kind> {
        let kinds = self.fuse();
        assert_eq!(self.fired(), 1);
        kinds
    }

    /// The only reason for which the norm stays out of the product in front of it.
    #[track_caller]
    fn refused(&mut self) -> Refusal {
        self.fuse();
        assert_eq!(self.fired(), 0);
        let mut refusals = self.graph.quantise_report().unwrap().refusals.clone();
        assert_eq!(refusals.len(), 1, "{refusals:?}");
        let refused = refusals.remove(0);
        assert_eq!(refused.rule, "matmul_add_norm");
        refused.reason
    }

    /// The norm stays out of the product in front of it, and nobody would expect anything else.
    #[track_caller]
    fn ignored(&mut self) {
        self.fuse();
        assert_eq!(self.fired(), 0);
        assert_eq!(self.graph.quantise_report().unwrap().refusals, []);
    }
}

#[test]
fn four_ops_become_one_and_the_products_behind_find_it_rounded() {
    let mut setup = Setup::new();
    let kinds = setup.ahead();
    assert_eq!(kinds, [kind("matmul_add_norm"), Kind::MATMUL, Kind::MATMUL, Kind::ADD]);
    let fused = setup.graph.dispatches().next().unwrap().clone();
    let views: Vec<_> = fused.bindings.iter().map(|view| view.buf_id).collect();
    let (sum, scaled) = (setup.sum.buf_id, setup.scaled.buf_id);
    assert_eq!(views, [1, 2, 3, 4, sum, scaled], "the sum is kept");
    assert_eq!(fused.bindings[5].layout, row(COLS).quantised().unwrap());
    assert_eq!((fused.params.to_vec(), fused.id), (vec![7], DispatchId(3)));
    assert_eq!(fused.origins.to_vec(), [0, 1, 2, 3].map(DispatchId));
    assert_eq!(setup.graph.quantise(&mut setup.catalog, &()).unwrap(), 1);
    let report = setup.graph.quantise_report().unwrap();
    assert_eq!(report.quantised[0].readers, [DispatchId(4), DispatchId(5)]);
}

#[test]
fn a_sum_that_nobody_needs_is_not_kept() {
    let mut setup = Setup::with(row(COLS), |_, _, _| {}, None);
    let [w, y] = [weights(), row(8)].map(|layout| setup.buffer(layout));
    setup.dispatch(Kind::MATMUL, &[setup.scaled, w, y], &[]);
    let mut output = Setup { graph: setup.graph.clone(), catalog: TestCatalog::new(), ..setup };
    assert_eq!(output.ahead(), [kind("matmul_add_norm"), Kind::MATMUL]);
    assert_eq!(output.graph.dispatches().next().unwrap().bindings.len(), 5);
    // The host needs it, or nobody but the norm does but it is read twice.
    let mut output = Setup::with(row(COLS), |_, _, _| {}, None);
    output.graph.mark_output(output.sum.value().unwrap()).unwrap();
    let [w, y] = [weights(), row(8)].map(|layout| output.buffer(layout));
    output.dispatch(Kind::MATMUL, &[output.scaled, w, y], &[]);
    assert_eq!(output.ahead(), [kind("matmul_add_norm"), Kind::MATMUL]);
    assert_eq!(output.graph.dispatches().next().unwrap().bindings.len(), 6);
}

#[test]
fn operands_may_stand_either_way_round() {
    for swapped in [Kind::ADD, Kind::MUL] {
        let swap = |_: &mut Setup, kind: Kind, views: &mut Vec<TensorView>| {
            if kind == swapped {
                views.swap(0, 1);
            }
        };
        let mut setup = Setup::with(row(COLS), swap, None);
        setup.readers();
        assert_eq!(setup.ahead()[0], kind("matmul_add_norm"));
        let first = setup.graph.dispatches().next().unwrap().clone();
        let views: Vec<_> = first.bindings.iter().map(|view| view.buf_id).collect();
        assert_eq!(views[..4], [1, 2, 3, 4]);
    }
}

#[test]
fn without_its_switch_the_rule_takes_no_part() {
    let mut setup = Setup::new();
    setup.graph.fuse(&mut setup.catalog, &()).unwrap();
    assert_eq!(setup.fired(), 0);
    assert_eq!(setup.graph.quantise_report(), None);
    let kinds: Vec<_> = setup.graph.dispatches().map(|d| d.kind).collect();
    let norm = kind("norm_matmul");
    assert_eq!(kinds, [kind("matmul_add"), norm, norm, Kind::ADD]);
}

#[test]
fn what_computes_the_norm_counts_and_not_where_it_stands() {
    for between in 1..4 {
        let mut setup = Setup::with(row(COLS), |_, _, _| {}, Some(between));
        setup.readers();
        setup.ahead();
    }
}

#[test]
fn a_norm_that_no_product_reads_or_gives_stays_as_it_is() {
    // Nobody multiplies it by weights.
    let mut setup = Setup::with(row(COLS), |_, _, _| {}, None);
    let to = setup.buffer(row(COLS));
    setup.dispatch(Kind::SILU, &[setup.scaled, to], &[]);
    setup.ignored();
    // The norm is one of something else.
    let other = |setup: &mut Setup, kind: Kind, views: &mut Vec<TensorView>| {
        if kind == Kind::RmsNorm {
            views[0] = setup.buffer(row(COLS));
        }
    };
    let mut setup = Setup::with(row(COLS), other, None);
    setup.readers();
    setup.ignored();
}

#[test]
fn what_others_see_stays_as_it_is() {
    type Which = fn(&Setup) -> TensorView;
    type Mark = fn(&mut ComputeGraph, crate::NodeId) -> crate::Result<()>;
    let cases: [(Which, Mark, Refusal); 3] = [
        (|s| s.scaled, ComputeGraph::mark_output, Refusal::IsOutput),
        (|s| s.sum, ComputeGraph::mark_input, Refusal::IsInput),
        (|s| s.scaled, ComputeGraph::mark_input, Refusal::IsInput),
    ];
    for (which, mark, reason) in cases {
        let mut setup = Setup::new();
        let value = which(&setup).value().unwrap();
        mark(&mut setup.graph, value).unwrap();
        assert_eq!(setup.refused(), reason);
    }
    let mut setup = Setup::new();
    let (view, to) = (setup.scaled, setup.buffer(row(COLS)));
    let reader = setup.dispatch(Kind::SILU, &[view, to], &[]);
    assert_eq!(setup.refused(), Refusal::SecondReader { reader });
    for which in [|s: &Setup| s.sum, |s: &Setup| s.scaled] {
        let mut setup = Setup::new();
        let (view, from) = (which(&setup), setup.buffer(row(COLS)));
        let writer = setup.dispatch(Kind::SILU, &[from, view], &[]);
        assert_eq!(setup.refused(), Refusal::OtherWriter { writer });
        let mut setup = Setup::new();
        let unknown = KernelContract::unknown("blob");
        let views = [which(&setup)];
        let dispatch = setup.graph.dispatch(Kind::Custom, &unknown, &views, &[], "").unwrap();
        assert_eq!(setup.refused(), Refusal::BoundUnannotated { dispatch });
    }
}

#[test]
fn shapes_are_those_of_one_row_of_whole_chunks() {
    let mut setup = Setup::with(row(40), |_, _, _| {}, None);
    let weights = Layout::new(DType::F32, &[8, 40]).unwrap();
    let [w, y] = [weights, row(8)].map(|layout| setup.buffer(layout));
    setup.dispatch(Kind::MATMUL, &[setup.scaled, w, y], &[]);
    assert_eq!(setup.refused(), Refusal::NoKernel { kind: kind("matmul_add_norm") });
    assert!(!setup.catalog.requests.contains(&kind("matmul_add_norm")));
    // A residual that is repeated over rows, and a weight that is no row.
    let two = Layout::new(DType::F32, &[2, COLS]).unwrap();
    for (wrong, at, with) in [(Kind::ADD, 0, row(COLS)), (Kind::MUL, 1, two)] {
        let change = |setup: &mut Setup, kind: Kind, views: &mut Vec<TensorView>| {
            if kind == wrong {
                views[at] = setup.buffer(with);
            }
        };
        let mut setup = Setup::with(two, change, None);
        setup.readers();
        assert_eq!(setup.refused(), Refusal::Operand { operand: with, result: two });
    }
}

#[test]
fn the_device_is_asked_for_every_kernel() {
    for missing in [kind("matmul_add_norm"), Kind::MATMUL] {
        let mut setup = Setup::new();
        setup.catalog = TestCatalog::new().without(missing);
        assert_eq!(setup.refused(), Refusal::NoKernel { kind: missing });
    }
}

#[test]
fn the_product_of_one_norm_may_be_the_one_in_front_of_the_next() {
    let mut setup = Setup::with(row(COLS), |_, _, _| {}, None);
    let [product, sum, norm, scaled] = [(); 4].map(|()| setup.graph.declare_value(row(COLS)));
    let square = Layout::new(DType::Q4_0, &[COLS, COLS]).unwrap();
    let [w, residual, last] = [square, row(COLS), weights()].map(|l| setup.buffer(l));
    let gain = setup.buffer(Layout::new(DType::F32, &[COLS]).unwrap());
    let y = setup.buffer(row(8));
    setup.dispatch(Kind::MATMUL, &[setup.scaled, w, product], &[]);
    setup.dispatch(Kind::ADD, &[product, residual, sum], &[]);
    setup.dispatch(Kind::RmsNorm, &[sum, norm], &[7]);
    setup.dispatch(Kind::MUL, &[norm, gain, scaled], &[]);
    setup.dispatch(Kind::MATMUL, &[scaled, last, y], &[]);
    let recorded = setup.graph.clone();
    assert_eq!(setup.graph.fuse_with(&mut setup.catalog, &(), true).unwrap(), 6);
    assert_eq!(setup.fired(), 2);
    let kinds: Vec<_> = setup.graph.dispatches().map(|d| d.kind).collect();
    assert_eq!(kinds, [kind("matmul_add_norm"), kind("matmul_add_norm"), Kind::MATMUL]);
    let second = setup.graph.dispatches().nth(1).unwrap().clone();
    assert_eq!(second.bindings[0].layout.dtype(), DType::A8, "it finds its activations rounded");
    setup.graph.place_barriers();
    verify(&recorded, &setup.graph, None).unwrap();
}

#[test]
fn a_sum_with_gaps_stays_apart() {
    let layout = Layout::new(DType::F32, &[2, COLS]).unwrap();
    let gapped = layout.with_strides(&[COLS + 4, 1]).unwrap();
    let change = |setup: &mut Setup, kind: Kind, views: &mut Vec<TensorView>| match kind {
        Kind::ADD => {
            setup.sum = setup.graph.declare_value(gapped);
            views[2] = setup.sum;
        }
        Kind::RmsNorm => views[0] = setup.sum,
        _ => {}
    };
    let mut setup = Setup::with(layout, change, None);
    setup.readers();
    assert_eq!(setup.refused(), Refusal::Stride { written: gapped, read: gapped });
}
