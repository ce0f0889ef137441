//! Ops whose result lies over an operand give the bits of those whose result does not.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use clearway::cpu::{CpuDevice, CpuKernel, Grid};
use clearway::{
    BindingContract, BindingRole, CapturedOpKind as Kind, CompileOptions, CustomKernel, DType,
    Executable, GraphExecutor, GraphSession, KernelContract, Layout, Ops, TensorView, Upload,
};

const ROWS: usize = 3;
const COLS: usize = 700; // more than one chunk, and no multiple of it

/// Every op that may run in place, with the operand it is given to run over.
const OPS: [(Kind, usize, usize); 12] = [
    (Kind::ADD, 2, 0),
    (Kind::ADD, 2, 1),
    (Kind::MUL, 2, 0),
    (Kind::MUL, 2, 1),
    (Kind::SILU_MUL, 2, 0),
    (Kind::SILU_MUL, 2, 1),
    (Kind::GELU_MUL, 2, 0),
    (Kind::GELU_MUL, 2, 1),
    (Kind::SCALE, 1, 0),
    (Kind::SILU, 1, 0),
    (Kind::GELU, 1, 0),
    (Kind::SOFT_CAP, 1, 0),
];

fn layout(dtype: DType) -> Layout {
    Layout::new(dtype, &[ROWS, COLS]).unwrap()
}

/// Makes the operands, of which the host keeps all but `over`, and the result.
fn record(
    session: &mut GraphSession<'_>,
    source: TensorView,
    dtype: DType,
    (kind, operands, over): (Kind, usize, usize),
) -> (TensorView, TensorView) {
    let inputs: Vec<TensorView> = (0..operands)
        .map(|index| {
            let x = session.scale(source, 1.0 + index as f32).unwrap();
            let x = session.copy(x, dtype).unwrap();
            if index != over {
                session.output(x).unwrap();
            }
            x
        })
        .collect();
    let params: &[u32] = match kind {
        Kind::SCALE | Kind::SOFT_CAP => &[1.7f32.to_bits()],
        _ => &[],
    };
    let y = session.call(kind, &inputs, params, dtype, &[ROWS, COLS]).unwrap();
    session.output(y).unwrap();
    (inputs[over], y)
}

fn bits(graph: &mut Executable, y: TensorView) -> Vec<u32> {
    graph.run().unwrap();
    graph.run().unwrap(); // a second run starts from what the first left
    graph.read_f32(y).unwrap().into_iter().map(f32::to_bits).collect()
}

#[test]
fn every_op_that_may_runs_over_its_operand_with_the_same_bits() {
    let executor = GraphExecutor::new(CpuDevice::with_threads(2));
    let data: Vec<f32> = (0..ROWS * COLS).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect();
    let source = executor.device().upload(&data).unwrap();
    let source = source.view(0, layout(DType::F32)).unwrap();
    let options = CompileOptions { fuse: false, ..CompileOptions::default() };
    let plain = CompileOptions { reuse: false, ..options };
    for dtype in [DType::F32, DType::F16] {
        for op in OPS {
            let compile = |options: &CompileOptions| {
                let mut session = executor.begin_recorded().unwrap();
                let (over, y) = record(&mut session, source, dtype, op);
                (session.compile(options).unwrap(), over, y)
            };
            let (mut shared, over, y) = compile(&options);
            let at = |value: TensorView| shared.arena().offset(value.value().unwrap()).unwrap();
            assert_eq!(at(over), at(y), "{op:?} in {dtype} runs in place");
            let found = bits(&mut shared, y);
            let (mut apart, over, y) = compile(&plain);
            let at = |value: TensorView| apart.arena().offset(value.value().unwrap()).unwrap();
            assert_ne!(at(over), at(y));
            assert!(found == bits(&mut apart, y), "{op:?} in {dtype}: other bits in place");
        }
    }
}

#[test]
fn one_row_that_is_repeated_is_not_run_over() {
    let executor = GraphExecutor::new(CpuDevice::with_threads(1));
    let source = executor.device().upload(&[1.5f32; ROWS * COLS]).unwrap();
    let mut session = executor.begin_recorded().unwrap();
    let a = session.scale(source.view(0, layout(DType::F32)).unwrap(), 2.0).unwrap();
    session.output(a).unwrap();
    let row = Layout::new(DType::F32, &[COLS]).unwrap();
    let b = session.scale(source.view(0, row).unwrap(), 3.0).unwrap();
    let y = session.add(a, b).unwrap();
    session.output(y).unwrap();
    let mut graph = session.compile(&CompileOptions::default()).unwrap();
    graph.run().unwrap();
    assert!(graph.read_f32(y).unwrap().iter().all(|&y| y == 7.5));
}

/// A user's kernel that may run in place but reads its operand as if it did not.
#[test]
fn a_kernel_that_reads_an_operand_it_was_placed_over_is_reported_by_name() {
    let double = |reads_source: bool| {
        let contract = KernelContract::new(
            "double",
            [
                BindingContract::new("x", BindingRole::Read),
                BindingContract::new("y", BindingRole::Write).over(vec![0]),
            ],
        );
        let kernel = CpuKernel::new(
            |views, _| Grid::rows(views[1].layout.rows(), 1),
            move |piece| {
                for row in piece.rows() {
                    if piece.over(1).is_none() || reads_source {
                        let x = piece.src_row::<f32>(0, row);
                        piece.dst_row::<f32>(1, row).copy_from_slice(x);
                    }
                    piece.dst_row::<f32>(1, row).iter_mut().for_each(|y| *y *= 2.0);
                }
            },
        );
        CustomKernel::new(contract).with_cpu(kernel)
    };
    for reads_source in [false, true] {
        let executor = GraphExecutor::new(CpuDevice::with_threads(1));
        executor.register(double(reads_source)).unwrap();
        let source = executor.device().upload(&[1.5f32; ROWS * COLS]).unwrap();
        let mut session = executor.begin_recorded().unwrap();
        let x = session.scale(source.view(0, layout(DType::F32)).unwrap(), 1.0).unwrap();
        let y = session.declare(layout(DType::F32)).unwrap();
        session.call_kernel("double", &[x, y], &[]).unwrap();
        session.output(y).unwrap();
        let mut graph = session.compile(&CompileOptions::default()).unwrap();
        match graph.run() {
            Ok(()) => assert!(graph.read_f32(y).unwrap().iter().all(|&y| y == 3.0)),
            Err(error) => assert!(reads_source && error.to_string().contains("double"), "{error}"),
        }
        assert_eq!(graph.run().is_err(), reads_source);
    }
}
