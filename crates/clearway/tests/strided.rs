//! Writes with gaps and values that nothing has written, from op calls to numbers.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use clearway::cpu::CpuDevice;
use clearway::schedule::Strategy;
use clearway::{
    BindingContract, BindingRole, CapturedOpKind as Kind, CompileError, CompileOptions,
    CustomKernel, DType, Error, GraphError, GraphExecutor, GraphSession, KernelContract, Layout,
    Ops, TensorView, Upload,
};

fn executor() -> GraphExecutor {
    GraphExecutor::new(CpuDevice::with_threads(2))
}

fn layout(shape: &[usize]) -> Layout {
    Layout::new(DType::F32, shape).unwrap()
}

/// Every combination of the switches.
fn switches() -> Vec<CompileOptions> {
    let mut all = Vec::new();
    for reorder in [None, Some(Strategy::Levels), Some(Strategy::LookAhead { window: 64 })] {
        for bits in 0..8 {
            let [fuse, elide, reuse] = [0, 1, 2].map(|bit| bits >> bit & 1 == 1);
            all.push(CompileOptions { fuse, reorder, elide, reuse, ..CompileOptions::default() });
        }
    }
    all
}

fn fill(s: &mut GraphSession<'_>, view: TensorView, value: f32) {
    s.push(Kind::Fill, &[view], &[value.to_bits()]).unwrap();
}

/// Row 1 of the left half is filled with nines, then both halves are written, rows eight floats apart;
/// the span of the right half covers the row.
fn record(s: &mut GraphSession<'_>) -> TensorView {
    let y = s.declare(layout(&[2, 8])).unwrap();
    let half = layout(&[2, 4]).with_strides(&[8, 1]).unwrap();
    fill(s, y.reinterpret(32, layout(&[4])).unwrap(), 9.0);
    fill(s, y.reinterpret(0, half).unwrap(), 1.0);
    fill(s, y.reinterpret(16, half).unwrap(), 2.0);
    s.scale(y, 1.0).unwrap()
}

#[test]
fn halves_written_over_a_row_give_the_same_numbers_through_all_stages() {
    let executor = executor();
    let expected = [[1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]; 2].concat();
    let mut direct = executor.begin().unwrap();
    let y = record(&mut direct);
    assert_eq!(direct.finish().unwrap().read_f32(y).unwrap(), expected);
    for options in switches() {
        let mut session = executor.begin_recorded().unwrap();
        let y = record(&mut session);
        session.output(y).unwrap();
        let mut graph = session.compile(&options).unwrap();
        for _ in 0..2 {
            graph.run().unwrap();
            assert_eq!(graph.read_f32(y).unwrap(), expected, "{options:?}");
        }
    }
}

fn undefined(session: GraphSession<'_>) -> GraphError {
    match session.compile(&CompileOptions::default()) {
        Err(Error::Compile(CompileError::Graph(error))) => error,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("what nothing has written was read"),
    }
}

#[test]
fn a_value_that_nothing_has_written_is_not_read() {
    let executor = executor();
    let mut session = executor.begin_recorded().unwrap();
    let x = session.declare(layout(&[2, 8])).unwrap();
    let y = session.silu(x).unwrap();
    session.output(y).unwrap();
    let error = undefined(session);
    assert!(matches!(error, GraphError::UndefinedRead { p0: 0, p1: 64, .. }), "{error}");
    assert!(error.to_string().contains("declare the value as an input or as kept"), "{error}");
}

#[test]
fn a_half_that_nothing_has_written_is_not_read() {
    let executor = executor();
    let half = layout(&[2, 4]).with_strides(&[8, 1]).unwrap();
    for written in [&[0][..], &[0, 16]] {
        let mut session = executor.begin_recorded().unwrap();
        let x = session.declare(layout(&[2, 8])).unwrap();
        for &offset in written {
            fill(&mut session, x.reinterpret(offset, half).unwrap(), 3.0);
        }
        let y = session.silu(x).unwrap();
        session.output(y).unwrap();
        if written.len() == 2 {
            session.compile(&CompileOptions::default()).unwrap();
        } else {
            let error = undefined(session);
            assert!(matches!(error, GraphError::UndefinedRead { p0: 16, p1: 32, .. }), "{error}");
        }
    }
}

#[test]
fn an_output_and_a_cache_that_nothing_has_written_are_not_read() {
    let executor = executor();
    let mut session = executor.begin_recorded().unwrap();
    let x = session.declare(layout(&[2, 8])).unwrap();
    fill(&mut session, x.reinterpret(0, layout(&[8])).unwrap(), 3.0);
    session.output(x).unwrap();
    let error = undefined(session);
    assert!(matches!(error, GraphError::UndefinedOutput { p0: 32, p1: 64, .. }), "{error}");

    // A cache is read where it is not written.
    let rows = executor.device().upload(&[1.0_f32; 8]).unwrap();
    let at = executor.device().upload(&[1_u32]).unwrap();
    let mut session = executor.begin_recorded().unwrap();
    let cache = session.declare(layout(&[4, 1, 8])).unwrap();
    let row = rows.tensor(DType::F32, &[1, 1, 8]).unwrap();
    session.kv_write(row, at.tensor(DType::U32, &[1]).unwrap(), cache).unwrap();
    session.output(cache).unwrap();
    let error = undefined(session);
    assert!(matches!(error, GraphError::UndefinedRead { p0: 0, p1: 128, .. }), "{error}");
}

#[test]
fn a_kept_value_holds_what_the_step_before_left() {
    let executor = executor();
    let one = executor.device().upload(&[1.0_f32; 8]).unwrap();
    for options in switches() {
        let mut session = executor.begin_recorded().unwrap();
        let sum = session.kept(layout(&[8])).unwrap();
        let one = one.tensor(DType::F32, &[8]).unwrap();
        // Values that come and go, and would lie over the sum if it were one of them.
        let doubled = session.scale(sum, 2.0).unwrap();
        let next = session.add(sum, one).unwrap();
        session.copy_into(next, sum).unwrap();
        let last = session.add(doubled, one).unwrap();
        let last = session.scale(last, 1.0).unwrap();
        session.output(last).unwrap();
        let mut graph = session.compile(&options).unwrap();
        for step in 0..4 {
            graph.run().unwrap();
            assert_eq!(graph.read_f32(last).unwrap(), [2.0 * step as f32 + 1.0; 8], "{options:?}");
            assert_eq!(graph.read_f32(sum).unwrap(), [step as f32 + 1.0; 8], "{options:?}");
        }
        graph.write(sum, &[10.0_f32; 8]).unwrap();
        graph.run().unwrap();
        assert_eq!(graph.read_f32(last).unwrap(), [21.0; 8], "{options:?}");
    }
    assert!(matches!(executor.begin().unwrap().kept(layout(&[8])), Err(Error::NeedsRecorded(_))));
}

#[test]
fn a_users_kernel_cannot_write_elements_that_share_bytes() {
    let executor = executor();
    let contract = KernelContract::new("ones", [BindingContract::new("y", BindingRole::Write)]);
    executor.register(CustomKernel::new(contract)).unwrap();
    for strides in [[0, 1], [2, 1]] {
        let mut session = executor.begin_recorded().unwrap();
        let y = session.declare(layout(&[16])).unwrap();
        let shared = layout(&[2, 4]).with_strides(&strides).unwrap();
        let error =
            session.call_kernel("ones", &[y.reinterpret(0, shared).unwrap()], &[]).unwrap_err();
        assert!(error.to_string().contains("may share bytes"), "{error}");
    }
}
