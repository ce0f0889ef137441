//! Contracts that declare less than the kernel touches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clearway::cpu::{CpuDevice, CpuKernel, Grid};
use clearway::{
    BindingContract, BindingRole, CapturedOpKind as Kind, ComputeGraph, DType, Extent, GpuError,
    KernelContract, Upload,
};

use crate::{lowered, part, registry, run_on, whole};

/// Writes how many elements it can see of its first operand.
fn counting() -> CpuKernel {
    CpuKernel::new(
        |_, _| Grid::rows(1, 1),
        |piece| {
            let seen = piece.src::<f32>(0).len() as f32;
            piece.dst_row::<f32>(1, 0)[0] = seen;
        },
    )
}

/// The proof lets a writer run beside a reader that declares nothing, so that reader must see nothing.
#[test]
fn a_read_that_declares_nothing_sees_nothing() {
    let device = CpuDevice::with_threads(2);
    let (shared, seen) =
        (device.upload(&[0.0_f32; 1024]).unwrap(), device.upload(&[9.0_f32]).unwrap());
    let (shared, count) =
        (shared.tensor(DType::F32, &[1, 1024]).unwrap(), seen.tensor(DType::F32, &[1]).unwrap());
    let bindings = [part(BindingRole::Read, 0..0), whole(BindingRole::Write)];
    let (kernels, contract) = registry("watch", bindings, counting());
    let fill = KernelContract::new("fill", [BindingContract::new("y", BindingRole::Write)]);
    let mut graph = ComputeGraph::new();
    graph.dispatch(Kind::Custom, &contract, &[shared, count], &[], "").unwrap();
    graph.dispatch(Kind::Fill, &fill, &[shared], &[1.0_f32.to_bits()], "").unwrap();
    lowered(&device, &kernels, &graph).unwrap().run().unwrap();
    assert_eq!(seen.read_vec::<f32>(0, 1).unwrap(), [0.0]);
}

#[test]
fn a_kernel_sees_the_declared_bytes_of_a_view_and_no_others() {
    let device = CpuDevice::with_threads(2);
    let source: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let (x, y) = (device.upload(&source).unwrap(), device.upload(&[-1.0_f32; 32]).unwrap());
    let views = [x.tensor(DType::F32, &[4, 8]).unwrap(), y.tensor(DType::F32, &[4, 8]).unwrap()];
    let copy_row = |row: usize| {
        CpuKernel::new(
            |_, _| Grid::rows(4, 4),
            move |piece| {
                assert_eq!((piece.declared(0), piece.declared(1)), (64..96, 64..96));
                assert_eq!(piece.src::<f32>(0).len(), 8);
                let mut loaded = [0.0; 8];
                piece.load_row(0, row, &mut loaded);
                assert_eq!(piece.src_row::<f32>(0, row), loaded);
                piece.dst_row::<f32>(1, row).copy_from_slice(&loaded);
            },
        )
    };
    for row in 0..4 {
        let bindings = [part(BindingRole::Read, 64..96), part(BindingRole::ReadWrite, 64..96)];
        let (kernels, contract) = registry("row", bindings, copy_row(row));
        match run_on(&device, &kernels, &contract, &views) {
            Ok(()) => assert_eq!(row, 2),
            Err(GpuError::KernelFailed { .. }) => assert_ne!(row, 2),
            Err(other) => panic!("{other}"),
        }
    }
    let mut expected = vec![-1.0; 32];
    expected[16..24].copy_from_slice(&source[16..24]);
    assert_eq!(y.read_vec::<f32>(0, 32).unwrap(), expected);
}

#[test]
fn a_write_outside_the_declared_bytes_is_refused() {
    let device = CpuDevice::with_threads(2);
    let y = device.upload(&[0.0_f32; 16]).unwrap();
    let view = y.tensor(DType::F32, &[2, 8]).unwrap();
    type Write = fn(&mut clearway::cpu::Piece<'_>);
    let writes: [Write; 3] = [
        |piece| piece.dst_row::<f32>(0, 1).fill(1.0),
        |piece| piece.store_row(0, 1, &[1.0; 8]),
        |piece| piece.put(0, 0, 7, 1.0),
    ];
    for write in writes {
        let kernel = CpuKernel::new(|_, _| Grid::rows(2, 2), write);
        let (kernels, contract) =
            registry("outside", [part(BindingRole::ReadWrite, 0..16)], kernel);
        let outcome = run_on(&device, &kernels, &contract, &[view]);
        assert!(matches!(outcome, Err(GpuError::KernelFailed { .. })), "{outcome:?}");
    }
    assert_eq!(y.read_vec::<f32>(0, 16).unwrap(), [0.0; 16]);
}

#[test]
fn an_extent_that_changes_its_mind_is_refused() {
    let device = CpuDevice::with_threads(2);
    let (x, y) = (device.upload(&[0.0_f32; 8]).unwrap(), device.upload(&[0.0_f32]).unwrap());
    let views = [x.tensor(DType::F32, &[8]).unwrap(), y.tensor(DType::F32, &[1]).unwrap()];
    let asked = Arc::new(AtomicUsize::new(0));
    let mut fickle = BindingContract::new("fickle", BindingRole::Read);
    fickle.extent = Extent::Computed(Arc::new(move |_, _| {
        if asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) { 0..0 } else { 0..32 }
    }));
    let (kernels, contract) = registry("fickle", [fickle, whole(BindingRole::Write)], counting());
    let outcome = run_on(&device, &kernels, &contract, &views);
    assert!(matches!(outcome, Err(GpuError::WrongContract { .. })), "{outcome:?}");
}
