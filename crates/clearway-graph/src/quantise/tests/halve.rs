//! Values that are f16 for the products that read them.

use super::*;
use crate::op::CapturedOpKind as Kind;

const ROWS: usize = 16;

fn rows(cols: usize) -> Layout {
    Layout::new(DType::F32, &[ROWS, cols]).unwrap()
}

/// Somebody who may write f16, with a result of this shape.
fn write(setup: &mut Setup, kind: Kind) {
    let value = setup.value;
    let inputs = match kind {
        Kind::Attention => 4,
        Kind::AttentionSinks => 5,
        Kind::RmsNorm => 1,
        Kind::AddRmsNormMul => 3,
        _ => 2,
    };
    let mut views: Vec<TensorView> = (0..inputs).map(|_| setup.buffer(value.layout)).collect();
    views.push(value);
    setup.dispatch(kind, &views);
}

fn halve(setup: &mut Setup) -> QuantiseReport {
    setup.graph.halve(&mut setup.catalog, &()).unwrap();
    setup.graph.quantise_report().unwrap().clone()
}

const WRITERS: [Kind; 8] = [
    Kind::RmsNorm,
    Kind::RmsNormMul,
    Kind::AddRmsNormMul,
    Kind::SILU_MUL,
    Kind::GELU_MUL,
    Kind::CLAMPED_GATE,
    Kind::Attention,
    Kind::AttentionSinks,
];

#[test]
fn what_norms_gates_and_attention_give_to_products_is_f16() {
    for kind in WRITERS {
        let mut setup = Setup::of(rows(COLS));
        write(&mut setup, kind);
        let value = setup.value;
        let readers = vec![setup.product(Kind::MATMUL, value), setup.product(Kind::MATMUL, value)];
        let recorded = setup.graph.clone();
        let report = halve(&mut setup);
        let expected = QuantisedValue { buf_id: value.buf_id, writer: DispatchId(0), readers };
        assert_eq!((report.halved, report.refusals), (vec![expected], vec![]), "{kind}");
        assert_eq!(dtypes_of(&setup.graph, value), [DType::A16; 3]);
        for (now, was) in setup.graph.dispatches().zip(recorded.dispatches()) {
            assert_eq!((now.id, now.accesses()), (was.id, was.accesses()));
        }
        setup.graph.place_barriers();
        verify(&recorded, &setup.graph, None).unwrap();
    }
}

#[test]
fn heads_that_are_read_as_rows_stay_where_they_are() {
    let mut setup = Setup::of(Layout::new(DType::F32, &[ROWS, 2, COLS / 2]).unwrap());
    write(&mut setup, Kind::Attention);
    let joined = setup.value.reinterpret(0, rows(COLS)).unwrap();
    setup.product(Kind::MATMUL, joined);
    let recorded = setup.graph.clone();
    assert_eq!(halve(&mut setup).halved.len(), 1);
    setup.graph.place_barriers();
    verify(&recorded, &setup.graph, None).unwrap();
    // A part of it is not all of it.
    let mut setup = Setup::of(rows(2 * COLS));
    write(&mut setup, Kind::RmsNorm);
    let part = setup.value.reinterpret(0, rows(COLS)).unwrap();
    setup.product(Kind::MATMUL, part);
    let report = halve(&mut setup);
    let (written, read) = (setup.value.layout, part.layout);
    assert_eq!(report.refusals[0].reason, Refusal::Shape { written, read });
}

#[test]
fn what_others_read_stays_f32() {
    let new = || {
        let mut setup = Setup::of(rows(COLS));
        write(&mut setup, Kind::RmsNormMul);
        setup.product(Kind::MATMUL, setup.value);
        setup
    };
    let mut setup = new();
    let to = setup.buffer(rows(COLS));
    let reader = setup.dispatch(Kind::SILU, &[setup.value, to]);
    assert_eq!(halve(&mut setup).refusals[0].reason, Refusal::SecondReader { reader });
    let mut setup = new();
    setup.graph.mark_output(setup.value.value().unwrap()).unwrap();
    assert_eq!(halve(&mut setup).refusals[0].reason, Refusal::IsOutput);
    // A device without kernels for it says so to nobody.
    let mut setup = new();
    setup.catalog = TestCatalog::new().without(Kind::MATMUL);
    assert_eq!(halve(&mut setup), QuantiseReport::default());
    assert_eq!(dtypes_of(&setup.graph, setup.value), [DType::F32; 2]);
}

#[test]
fn the_proof_finds_whoever_sees_another_form() {
    let mut setup = Setup::of(rows(COLS));
    write(&mut setup, Kind::RmsNormMul);
    let value = setup.value;
    setup.product(Kind::MATMUL, value);
    setup.product(kind("matmul_add"), value);
    let recorded = setup.graph.clone();
    halve(&mut setup);
    setup.graph.place_barriers();
    let halved = setup.graph.clone();
    verify(&recorded, &halved, None).unwrap();
    let form = Problem::Altered { what: "form of a value" };
    let touching: Vec<usize> =
        (0..halved.nodes().len()).filter(|&at| halved.nodes()[at].dispatch().is_some()).collect();
    assert_eq!(touching.len(), 3);
    for at in touching {
        for other in [Some(value.layout), value.layout.quantised()] {
            let mut spoilt = halved.clone();
            let mut dispatch = (**spoilt.nodes()[at].dispatch().unwrap()).clone();
            for view in dispatch.bindings.iter_mut().filter(|view| view.buf_id == value.buf_id) {
                view.layout = other.unwrap();
            }
            spoilt.replace(at, dispatch);
            let fault = verify(&recorded, &spoilt, None).unwrap_err();
            let seen = fault.problem == form || matches!(fault.problem, Problem::Rounded { .. });
            assert!(seen, "{fault}");
        }
    }
    // An element has its place whatever the shape; another extent is another value.
    let mut spoilt = halved.clone();
    let mut dispatch = (**spoilt.nodes()[2].dispatch().unwrap()).clone();
    dispatch.bindings[0].layout = Layout::new(DType::A16, &[ROWS / 2, 2 * COLS]).unwrap();
    spoilt.replace(2, dispatch);
    let fault = verify(&recorded, &spoilt, None).unwrap_err();
    assert_eq!(fault.problem, Problem::Altered { what: "layout" }, "{fault}");
}

#[test]
fn the_proof_lets_nobody_else_write_or_read_f16() {
    // A product may not give it, and what is no product may not read it.
    for (writer, reader) in [(Kind::SILU, Kind::MATMUL), (Kind::RmsNorm, Kind::SILU)] {
        let mut setup = Setup::of(rows(COLS));
        let (from, to) = (setup.buffer(rows(COLS)), setup.buffer(rows(COLS)));
        setup.dispatch(writer, &[from, setup.value]);
        match reader {
            Kind::SILU => setup.dispatch(reader, &[setup.value, to]),
            _ => setup.product(reader, setup.value),
        };
        let recorded = setup.graph.clone();
        assert_eq!(halve(&mut setup).halved, []);
        let mut spoilt = recorded.clone();
        for at in 0..2 {
            let mut dispatch = (**spoilt.nodes()[at].dispatch().unwrap()).clone();
            for view in dispatch.bindings.iter_mut().filter(|v| v.buf_id == setup.value.buf_id) {
                view.layout = view.layout.halved().unwrap();
            }
            spoilt.replace(at, dispatch);
        }
        spoilt.place_barriers();
        let fault = verify(&recorded, &spoilt, None).unwrap_err();
        assert!(matches!(fault.problem, Problem::Rounded { .. }), "{fault}");
    }
}

/// A value of twice the rows, and its halves.
fn in_two() -> (Setup, [TensorView; 2]) {
    let setup = Setup::of(Layout::new(DType::F32, &[2 * ROWS, COLS]).unwrap());
    let half = |at: u64| setup.value.reinterpret(at * rows(COLS).span_bytes(), rows(COLS)).unwrap();
    let halves = [half(0), half(1)];
    (setup, halves)
}

/// Attention that gives `result`.
fn attend(setup: &mut Setup, result: TensorView) -> DispatchId {
    let mut views: Vec<TensorView> = (0..4).map(|_| setup.buffer(result.layout)).collect();
    views.push(result);
    setup.dispatch(Kind::Attention, &views)
}

#[test]
fn what_two_write_one_part_behind_another_is_f16() {
    let (mut setup, [front, back]) = in_two();
    // The order does not matter.
    let writer = attend(&mut setup, back);
    attend(&mut setup, front);
    let value = setup.value;
    let readers = vec![setup.product(Kind::MATMUL, value)];
    let recorded = setup.graph.clone();
    let report = halve(&mut setup);
    let expected = QuantisedValue { buf_id: value.buf_id, writer, readers };
    assert_eq!((report.halved, report.refusals), (vec![expected], vec![]));
    assert_eq!(dtypes_of(&setup.graph, value), [DType::A16; 3]);
    setup.graph.place_barriers();
    let halved = setup.graph.clone();
    verify(&recorded, &halved, None).unwrap();
    // A part that stays as it was is found.
    for at in [0, 1, 3] {
        let mut spoilt = halved.clone();
        let mut dispatch = (**spoilt.nodes()[at].dispatch().unwrap()).clone();
        for view in dispatch.bindings.iter_mut().filter(|view| view.buf_id == value.buf_id) {
            view.layout = Layout::new(DType::F32, &[view.layout.rows(), COLS]).unwrap();
        }
        spoilt.replace(at, dispatch);
        let fault = verify(&recorded, &spoilt, None).unwrap_err();
        let form = Problem::Altered { what: "form of a value" };
        assert!(
            fault.problem == form || matches!(fault.problem, Problem::Rounded { .. }),
            "{fault}"
        );
    }
}

#[test]
fn parts_that_are_not_all_or_not_alone_stay_f32() {
    let refused = |setup: &mut Setup| halve(setup).refusals.remove(0).reason;
    // The same part twice.
    let (mut setup, [front, _]) = in_two();
    [front, front].into_iter().for_each(|part| _ = attend(&mut setup, part));
    setup.product(Kind::MATMUL, setup.value);
    assert!(matches!(refused(&mut setup), Refusal::PartialWrite { .. }));
    // Somebody else has written all of it before.
    let (mut setup, halves) = in_two();
    let from = setup.buffer(setup.value.layout);
    let writer = setup.dispatch(Kind::SILU, &[from, setup.value]);
    halves.into_iter().for_each(|part| _ = attend(&mut setup, part));
    setup.product(Kind::MATMUL, setup.value);
    assert_eq!(refused(&mut setup), Refusal::OtherWriter { writer });
    // A product reads a part only.
    let (mut setup, halves) = in_two();
    halves.into_iter().for_each(|part| _ = attend(&mut setup, part));
    setup.product(Kind::MATMUL, halves[1]);
    assert!(matches!(refused(&mut setup), Refusal::Shape { .. }));
    // A product stands between the two.
    let (mut setup, [front, back]) = in_two();
    attend(&mut setup, front);
    let reader = setup.product(Kind::MATMUL, setup.value);
    attend(&mut setup, back);
    assert_eq!(refused(&mut setup), Refusal::SecondReader { reader });
}

#[test]
fn the_proof_takes_no_part_from_somebody_who_gives_no_f16() {
    let (mut setup, [front, back]) = in_two();
    attend(&mut setup, front);
    let from = setup.buffer(back.layout);
    setup.dispatch(Kind::SILU, &[from, back]);
    setup.product(Kind::MATMUL, setup.value);
    let recorded = setup.graph.clone();
    assert_eq!(halve(&mut setup).halved, []);
    let mut spoilt = recorded.clone();
    for at in 0..3 {
        let mut dispatch = (**spoilt.nodes()[at].dispatch().unwrap()).clone();
        for view in dispatch.bindings.iter_mut().filter(|v| v.buf_id == setup.value.buf_id) {
            view.layout = view.layout.halved().unwrap();
        }
        spoilt.replace(at, dispatch);
    }
    spoilt.place_barriers();
    let fault = verify(&recorded, &spoilt, None).unwrap_err();
    assert!(matches!(fault.problem, Problem::Rounded { .. }), "{fault}");
}
