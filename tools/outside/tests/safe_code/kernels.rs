//! Kernels that grasp at what is not theirs.

use clearway::cpu::{CpuDevice, CpuKernel, Grid, Piece};
use clearway::{BindingRole, DType, GpuError, Layout, TensorView, Upload};

use crate::{registry, run_on, whole};

/// Runs a kernel over two tensors of 4 rows of 8 floats, the second of which it writes.
fn attempt(
    grid: impl Fn(&[TensorView], &[u32]) -> Grid + Send + Sync + 'static,
    run: impl Fn(&mut Piece<'_>) + Send + Sync + 'static,
) -> Result<(), GpuError> {
    let device = CpuDevice::with_threads(2);
    let (x, y) = (device.upload(&[1.0_f32; 32]).unwrap(), device.upload(&[0.0_f32; 32]).unwrap());
    let views = [x.tensor(DType::F32, &[4, 8]).unwrap(), y.tensor(DType::F32, &[4, 8]).unwrap()];
    let bindings = [whole(BindingRole::Read), whole(BindingRole::Write)];
    let (kernels, contract) = registry("mine", bindings, CpuKernel::new(grid, run));
    run_on(&device, &kernels, &contract, &views)
}

#[test]
fn a_piece_hands_out_what_is_its_own() {
    type Run = fn(&mut Piece<'_>);
    let attempts: [(&str, Run); 9] = [
        ("a row of another piece", |p| p.dst_row::<f32>(1, (p.rows().start + 1) % 4).fill(1.0)),
        ("a row that does not exist", |p| p.dst_row::<f32>(1, 4).fill(1.0)),
        ("an input as an output", |p| p.dst_row::<f32>(0, p.rows().start).fill(1.0)),
        ("an output as an input", |p| _ = p.src::<f32>(1)),
        ("an operand that does not exist", |p| _ = p.src::<f32>(2)),
        ("an output in larger elements", |p| p.dst_row::<u64>(1, p.rows().start).fill(1)),
        ("an output in smaller elements", |p| p.dst_row::<u16>(1, p.rows().start).fill(1)),
        ("a column that does not exist", |p| p.put(1, p.rows().start, 8, 1.0)),
        ("an element of another piece", |p| p.put(1, (p.rows().start + 1) % 4, 0, 1.0)),
    ];
    for (what, run) in attempts {
        let outcome = attempt(|_, _| Grid::rows(4, 1), run);
        assert!(matches!(outcome, Err(GpuError::KernelFailed { .. })), "{what}: {outcome:?}");
    }
    assert_eq!(attempt(|_, _| Grid::rows(4, 1), |_| ()), Ok(()));
}

#[test]
fn a_grid_that_does_not_cut_the_outputs_is_refused() {
    let grids: [fn() -> Grid; 7] = [
        || Grid::rows(5, 1),
        || Grid::rows(3, 1),
        || Grid::rows(0, 1),
        || Grid::rows(usize::MAX, 1),
        || Grid::tiles(4, 1, 9, 1),
        || Grid::tiles(usize::MAX, usize::MAX, usize::MAX, usize::MAX),
        || Grid::lanes(usize::MAX),
    ];
    for grid in grids {
        let outcome = attempt(move |_, _| grid(), |_| ());
        assert!(matches!(outcome, Err(GpuError::KernelFailed { .. })), "{:?}: {outcome:?}", grid());
    }
    for block in [0, 3, usize::MAX] {
        assert_eq!(attempt(move |_, _| Grid::rows(4, block), |_| ()), Ok(()));
        assert_eq!(attempt(move |_, _| Grid::tiles(4, block, 8, block), |_| ()), Ok(()));
    }
}

/// Without an output no shape holds the grid, so its size must be looked at.
#[test]
fn a_grid_without_outputs_has_a_limit() {
    let device = CpuDevice::with_threads(2);
    let x = device.upload(&[1.0_f32; 8]).unwrap();
    let view = x.tensor(DType::F32, &[8]).unwrap();
    for grid in [Grid::rows(usize::MAX, 1), Grid::tiles(usize::MAX, 1, usize::MAX, 1)] {
        let kernel = CpuKernel::new(move |_, _| grid, |_| ());
        let (kernels, contract) = registry("reader", [whole(BindingRole::Read)], kernel);
        let outcome = run_on(&device, &kernels, &contract, &[view]);
        assert!(matches!(outcome, Err(GpuError::KernelFailed { .. })), "{outcome:?}");
    }
}

#[test]
fn an_output_whose_elements_share_bytes_is_refused() {
    let device = CpuDevice::with_threads(2);
    let y = device.upload(&[0.0_f32; 32]).unwrap();
    for strides in [[0, 1], [4, 1], [1, 1]] {
        let layout = Layout::new(DType::F32, &[4, 8]).unwrap().with_strides(&strides).unwrap();
        let view = y.view(0, layout).unwrap();
        let kernel = CpuKernel::new(|_, _| Grid::rows(4, 1), |_| ());
        let (kernels, contract) = registry("mine", [whole(BindingRole::Write)], kernel);
        let outcome = run_on(&device, &kernels, &contract, &[view]);
        assert!(outcome.is_err(), "{strides:?}");
    }
}

#[test]
fn outputs_do_not_lie_over_one_another_whatever_the_contract_allows() {
    let device = CpuDevice::with_threads(2);
    let y = device.upload(&[0.0_f32; 8]).unwrap();
    let view = y.tensor(DType::F32, &[8]).unwrap();
    for roles in [[BindingRole::Write; 2], [BindingRole::ReadWrite; 2]] {
        let bindings = [whole(roles[0]).over(vec![1]), whole(roles[1]).over(vec![0])];
        let kernel = CpuKernel::new(|_, _| Grid::rows(1, 1), |_| ());
        let (kernels, contract) = registry("both", bindings, kernel);
        let outcome = run_on(&device, &kernels, &contract, &[view, view]);
        assert!(matches!(outcome, Err(GpuError::OperandOverlap { .. })), "{outcome:?}");
    }
}

#[test]
fn an_input_that_an_output_lies_over_is_read_through_the_output() {
    let device = CpuDevice::with_threads(2);
    let y = device.upload(&[1.0_f32; 8]).unwrap();
    let view = y.tensor(DType::F32, &[8]).unwrap();
    let attempt = |run: fn(&mut Piece<'_>)| {
        let bindings = [whole(BindingRole::Read), whole(BindingRole::Write).over(vec![0])];
        let (kernels, contract) =
            registry("over", bindings, CpuKernel::new(|_, _| Grid::rows(1, 1), run));
        run_on(&device, &kernels, &contract, &[view, view])
    };
    let both = attempt(|piece| {
        let x = piece.src_row::<f32>(0, 0);
        piece.dst_row::<f32>(1, 0).copy_from_slice(x);
    });
    assert!(matches!(both, Err(GpuError::KernelFailed { .. })), "{both:?}");
    attempt(|piece| piece.dst_row::<f32>(1, 0).iter_mut().for_each(|y| *y += 1.0)).unwrap();
    assert_eq!(y.read_vec::<f32>(0, 8).unwrap(), [2.0; 8]);
}

/// Panics again when what it panicked with is dropped.
struct Again;

impl Drop for Again {
    fn drop(&mut self) {
        panic!("again");
    }
}

/// A worker that is thrown out of a program would let the caller at buffers that others still work on.
#[test]
fn a_panic_that_panics_again_leaves_the_device_usable() {
    let device = CpuDevice::with_threads(2);
    let y = device.upload(&[0.0_f32; 8]).unwrap();
    let view = y.tensor(DType::F32, &[8, 1]).unwrap();
    let kernel = CpuKernel::new(|_, _| Grid::rows(8, 1), |_| std::panic::panic_any(Again));
    let (kernels, contract) = registry("again", [whole(BindingRole::Write)], kernel);
    for _ in 0..3 {
        let outcome = run_on(&device, &kernels, &contract, &[view]);
        assert!(matches!(outcome, Err(GpuError::KernelFailed { .. })), "{outcome:?}");
    }
    let kernel = CpuKernel::new(
        |_, _| Grid::rows(8, 1),
        |piece| {
            let row = piece.rows().start;
            piece.dst_row::<f32>(0, row)[0] = 1.0;
        },
    );
    let (kernels, contract) = registry("fine", [whole(BindingRole::Write)], kernel);
    run_on(&device, &kernels, &contract, &[view]).unwrap();
    assert_eq!(y.read_vec::<f32>(0, 8).unwrap(), [1.0; 8]);
}
