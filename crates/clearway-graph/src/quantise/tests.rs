use super::*;
use crate::testkit::kind;
mod ahead;
mod halve;

use crate::fuse::TestCatalog;
use crate::verify::{Problem, Proof, verify};
use crate::{DType, KernelContract, Layout, TensorView, View};

const COLS: usize = 64;

/// A gated product and a product of what it gives, with room for one more thing to go wrong.
struct Setup {
    graph: ComputeGraph,
    /// What goes from the one to the other.
    value: TensorView,
    buffers: usize,
    catalog: TestCatalog,
}

impl Setup {
    fn of(layout: Layout) -> Self {
        let mut graph = ComputeGraph::new();
        let value = graph.declare_value(layout);
        Self { graph, value, buffers: 0, catalog: TestCatalog::new() }
    }

    fn new() -> Self {
        let mut setup = Self::of(row(COLS));
        setup.gated(setup.value);
        setup
    }

    fn buffer(&mut self, layout: Layout) -> TensorView {
        self.buffers += 1;
        TensorView { buf_id: self.buffers, buf_len: layout.span_bytes(), offset: 0, layout }
    }

    fn dispatch(&mut self, kind: Kind, views: &[TensorView]) -> DispatchId {
        let contract = TestCatalog::contract(kind, views.len()).unwrap();
        self.graph.dispatch(kind, &contract, views, &[], "").unwrap()
    }

    /// A gated product that gives `result`.
    fn gated(&mut self, result: TensorView) -> DispatchId {
        let [x, w, u] = [row(32), weights(), weights()].map(|layout| self.buffer(layout));
        self.dispatch(kind("matmul_silu_gated"), &[x, w, u, result])
    }

    /// A product of `activations`.
    fn product(&mut self, product: Kind, activations: TensorView) -> DispatchId {
        let [w, c, y] = [weights(), row(8), row(8)].map(|layout| self.buffer(layout));
        match product == kind("matmul_add") {
            true => self.dispatch(product, &[activations, w, c, y]),
            false => self.dispatch(product, &[activations, w, y]),
        }
    }

    fn quantise(&mut self) -> QuantiseReport {
        self.graph.quantise(&mut self.catalog, &()).unwrap();
        self.graph.quantise_report().unwrap().clone()
    }

    /// The only reason for which nothing is quantised; the list stays as it is.
    #[track_caller]
    fn refused(&mut self) -> Refusal {
        let before = self.graph.nodes().to_vec();
        let mut report = self.quantise();
        assert_eq!(report.quantised, []);
        assert_eq!(self.graph.nodes(), before);
        assert_eq!(report.refusals.len(), 1, "{report}");
        report.refusals.remove(0).reason
    }
}

fn row(cols: usize) -> Layout {
    Layout::new(DType::F32, &[1, cols]).unwrap()
}

fn weights() -> Layout {
    Layout::new(DType::Q4_0, &[8, COLS]).unwrap()
}

fn dtypes_of(graph: &ComputeGraph, value: TensorView) -> Vec<DType> {
    let views = graph.dispatches().flat_map(|d| d.bindings.clone());
    views.filter(|v| v.buf_id == value.buf_id).map(|v| v.layout.dtype()).collect()
}

#[test]
fn all_who_touch_a_value_find_it_quantised_and_nothing_else_changes() {
    for kinds in [&[Kind::MATMUL][..], &[kind("matmul_add")], &[Kind::MATMUL, kind("matmul_add")]] {
        let mut setup = Setup::new();
        let readers: Vec<_> = kinds.iter().map(|&kind| setup.product(kind, setup.value)).collect();
        let recorded = setup.graph.clone();
        let report = setup.quantise();
        let expected =
            QuantisedValue { buf_id: setup.value.buf_id, writer: DispatchId(0), readers };
        assert_eq!((report.quantised, report.refusals), (vec![expected], vec![]));
        assert_eq!(dtypes_of(&setup.graph, setup.value), vec![DType::A8; 1 + kinds.len()]);
        for (now, was) in setup.graph.dispatches().zip(recorded.dispatches()) {
            assert_eq!((now.id, now.accesses()), (was.id, was.accesses()));
        }
        setup.graph.place_barriers();
        verify(&recorded, &setup.graph, None).unwrap();
        // A second time there is nothing to do.
        let nodes = setup.graph.nodes().to_vec();
        assert_eq!(setup.graph.quantise(&mut setup.catalog, &()).unwrap(), 1);
        assert_eq!(setup.graph.nodes(), nodes);
    }
}

#[test]
fn a_product_between_two_values_finds_and_gives_them_quantised() {
    let mut setup = Setup::new();
    let next = setup.graph.declare_value(row(COLS));
    let [w, u] = [weights(), weights()].map(|layout| setup.buffer(layout));
    setup.dispatch(kind("matmul_silu_gated"), &[setup.value, w, u, next]);
    setup.product(Kind::MATMUL, next);
    let recorded = setup.graph.clone();
    assert_eq!(setup.quantise().quantised.len(), 2);
    for value in [setup.value, next] {
        assert_eq!(dtypes_of(&setup.graph, value), vec![DType::A8; 2]);
    }
    setup.graph.place_barriers();
    verify(&recorded, &setup.graph, None).unwrap();
}

#[test]
fn only_products_of_what_a_gated_product_gives_are_looked_at() {
    let mut setup = Setup::new();
    let other = setup.buffer(row(COLS));
    setup.dispatch(Kind::SILU, &[setup.value, other]);
    assert_eq!(setup.quantise(), QuantiseReport::default());
    // As weights of a product, not as activations.
    let mut setup = Setup::new();
    let [x, y] = [row(COLS), row(1)].map(|layout| setup.buffer(layout));
    setup.dispatch(Kind::MATMUL, &[x, setup.value, y]);
    assert_eq!(setup.quantise(), QuantiseReport::default());
}

#[test]
fn what_others_see_stays_as_it_is() {
    let with_product = || {
        let mut setup = Setup::new();
        let product = setup.product(Kind::MATMUL, setup.value);
        (setup, product)
    };
    let (mut setup, _) = with_product();
    setup.graph.mark_output(setup.value.value().unwrap()).unwrap();
    assert_eq!(setup.refused(), Refusal::IsOutput);
    let (mut setup, _) = with_product();
    setup.graph.mark_input(setup.value.value().unwrap()).unwrap();
    assert_eq!(setup.refused(), Refusal::IsInput);
    let (mut setup, _) = with_product();
    let to = setup.buffer(row(COLS));
    let reader = setup.dispatch(Kind::SILU, &[setup.value, to]);
    assert_eq!(setup.refused(), Refusal::SecondReader { reader });
    let (mut setup, _) = with_product();
    let writer = setup.gated(setup.value);
    assert_eq!(setup.refused(), Refusal::OtherWriter { writer });
    let (mut setup, _) = with_product();
    let unknown = KernelContract::unknown("blob");
    let dispatch = setup.graph.dispatch(Kind::Custom, &unknown, &[setup.value], &[], "").unwrap();
    assert_eq!(setup.refused(), Refusal::BoundUnannotated { dispatch });
    // The product reads it as activations and adds it, too.
    let mut setup = Setup::new();
    let [w, y] = [weights(), row(COLS)].map(|layout| setup.buffer(layout));
    let views = [setup.value, w, setup.value, y];
    let reader = setup.dispatch(kind("matmul_add"), &views);
    assert_eq!(setup.refused(), Refusal::SecondReader { reader });
    // The product stands before what it would read.
    let mut setup = Setup::of(row(COLS));
    let reader = setup.product(Kind::MATMUL, setup.value);
    setup.gated(setup.value);
    assert_eq!(setup.refused(), Refusal::SecondReader { reader });
}

#[test]
fn it_is_read_as_it_was_written_and_whole() {
    let mut setup = Setup::new();
    let half = setup.value.reinterpret(0, row(COLS / 2)).unwrap();
    setup.product(Kind::MATMUL, half);
    let (written, read) = (setup.value.layout, half.layout);
    assert_eq!(setup.refused(), Refusal::Shape { written, read });
    let mut setup = Setup::of(row(COLS));
    let half = setup.value.reinterpret(0, row(COLS / 2)).unwrap();
    setup.gated(half);
    setup.product(Kind::MATMUL, half);
    let (p1, bytes) = (half.byte_len(), setup.value.byte_len());
    assert_eq!(setup.refused(), Refusal::PartialWrite { p0: 0, p1, bytes });
}

#[test]
fn the_device_is_asked_for_every_kernel() {
    for missing in [kind("matmul_silu_gated"), kind("matmul_add")] {
        let mut setup = Setup::new();
        setup.product(kind("matmul_add"), setup.value);
        setup.catalog = TestCatalog::new().without(missing);
        assert_eq!(setup.refused(), Refusal::NoKernel { kind: missing });
    }
    // No whole chunks, or no floats of 32 bits: nobody needs to be asked.
    for layout in [row(40), Layout::new(DType::F16, &[1, COLS]).unwrap()] {
        let mut setup = Setup::of(layout);
        setup.gated(setup.value);
        setup.product(Kind::MATMUL, setup.value);
        assert_eq!(setup.refused(), Refusal::NoKernel { kind: kind("matmul_silu_gated") });
        assert_eq!(setup.catalog.requests, []);
    }
}

#[test]
fn the_proof_finds_a_value_that_is_quantised_for_some_only() {
    let mut setup = Setup::new();
    setup.product(Kind::MATMUL, setup.value);
    let recorded = setup.graph.clone();
    setup.quantise();
    setup.graph.place_barriers();
    let quantised = setup.graph.clone();
    verify(&recorded, &quantised, None).unwrap();
    let form = Problem::Altered { what: "form of a value" };
    for back in [0, 2] {
        let mut half = quantised.clone();
        let mut dispatch = (**half.nodes()[back].dispatch().unwrap()).clone();
        for view in &mut dispatch.bindings {
            if view.buf_id == setup.value.buf_id {
                view.layout = setup.value.layout;
            }
        }
        half.replace(back, dispatch);
        let fault = verify(&recorded, &half, None).unwrap_err();
        assert_eq!((fault.proof, fault.problem), (Proof::Structure, form), "{fault}");
    }
    // The host, or somebody of unknown access, would see it.
    let mut seen = recorded.clone();
    seen.mark_output(setup.value.value().unwrap()).unwrap();
    assert_eq!(verify(&seen, &quantised, None).unwrap_err().problem, form);
    let mut bound = [recorded, quantised];
    for graph in &mut bound {
        let unknown = KernelContract::unknown("blob");
        graph.dispatch(Kind::Custom, &unknown, &[setup.value], &[], "").unwrap();
    }
    bound[1].place_barriers();
    assert_eq!(verify(&bound[0], &bound[1], None).unwrap_err().problem, form);
}

#[test]
fn the_proof_knows_no_other_form() {
    let mut setup = Setup::new();
    setup.product(Kind::MATMUL, setup.value);
    let recorded = setup.graph.clone();
    // A buffer that is not of the list; weights; another shape.
    let altered = |change: fn(&mut Dispatch)| {
        let mut graph = recorded.clone();
        let mut dispatch = (**graph.nodes()[1].dispatch().unwrap()).clone();
        change(&mut dispatch);
        graph.replace(1, dispatch);
        graph.place_barriers();
        verify(&recorded, &graph, None).unwrap_err()
    };
    let shape = altered(|d| d.bindings[0].layout = Layout::new(DType::A8, &[2, 32]).unwrap());
    let weights = altered(|d| d.bindings[1].layout = Layout::new(DType::A8, &[8, COLS]).unwrap());
    for fault in [shape, weights] {
        assert_eq!(fault.problem, Problem::Altered { what: "layout" }, "{fault}");
    }
    let mut setup = Setup::new();
    let [x, w, y] = [row(32), weights_of(32), row(8)].map(|layout| setup.buffer(layout));
    setup.dispatch(Kind::MATMUL, &[x, w, y]);
    let mut graph = setup.graph.clone();
    let mut dispatch = (**graph.nodes()[1].dispatch().unwrap()).clone();
    dispatch.bindings[0].layout = x.layout.quantised().unwrap();
    graph.replace(1, dispatch);
    graph.place_barriers();
    let fault = verify(&setup.graph, &graph, None).unwrap_err();
    assert_eq!(fault.problem, Problem::Altered { what: "form of a value" }, "{fault}");
}

fn weights_of(cols: usize) -> Layout {
    Layout::new(DType::Q4_0, &[8, cols]).unwrap()
}

#[test]
fn a_report_says_who_writes_and_who_reads() {
    let mut setup = Setup::new();
    setup.product(Kind::MATMUL, setup.value);
    let text = setup.quantise().to_string();
    assert_eq!(text, format!("quantised 1\n  {}: #0 -> #1", buf_name(setup.value.buf_id)));
}
