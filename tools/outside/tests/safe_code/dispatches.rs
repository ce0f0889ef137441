//! Dispatches that say something else than the kernel that runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use clearway::cpu::{CpuDevice, CpuKernel, Grid};
use clearway::{
    BindingContract, BindingRole, CapturedOpKind as Kind, ComputeGraph, CustomKernel, DType,
    Device, GpuError, GraphError, KernelContract, KernelRegistry, Upload,
};

use crate::{lowered, part, registry, whole};

/// What op calls are recorded with.
fn fill() -> KernelContract {
    KernelContract::new("fill", [BindingContract::new("y", BindingRole::Write)])
}

#[test]
fn two_fills_of_the_same_bytes_in_one_group_are_refused_whatever_their_contracts_say() {
    let device = CpuDevice::with_threads(2);
    let y = device.upload(&[0.0_f32; 64]).unwrap();
    let view = y.tensor(DType::F32, &[64]).unwrap();
    let nothing = KernelContract::new("fill", [part(BindingRole::Write, 0..0)]);
    let only_read = KernelContract::new("fill", [whole(BindingRole::Read)]);
    let unknown = KernelContract::unknown("fill");
    for (name, contract) in [("nothing", &nothing), ("only read", &only_read), ("honest", &fill())]
    {
        let mut graph = ComputeGraph::new();
        for value in [1.0_f32, 2.0] {
            graph.dispatch(Kind::Fill, contract, &[view], &[value.to_bits()], "").unwrap();
        }
        let outcome = lowered(&device, &KernelRegistry::new(), &graph).map(|_| ());
        match (name, outcome) {
            ("honest", Err(GpuError::Unverified(_))) => {}
            ("honest", other) => panic!("{other:?}"),
            (_, Err(GpuError::WrongContract { .. })) => {}
            (_, other) => panic!("{name}: {other:?}"),
        }
    }
    // One of unknown access stands alone; the kernel is known here, though.
    let mut graph = ComputeGraph::new();
    graph.dispatch(Kind::Fill, &unknown, &[view], &[0], "").unwrap();
    let outcome = lowered(&device, &KernelRegistry::new(), &graph).map(|_| ());
    assert!(matches!(outcome, Err(GpuError::WrongContract { .. })), "{outcome:?}");
    assert_eq!(y.read_vec::<f32>(0, 64).unwrap(), [0.0; 64]);
}

#[test]
fn a_kernel_does_not_run_under_the_name_of_another() {
    let device = CpuDevice::with_threads(2);
    let y = device.upload(&[0.0_f32; 8]).unwrap();
    let view = y.tensor(DType::F32, &[8]).unwrap();
    // The check is that of `fill`, the kernel would be another.
    for name in ["matmul", "copy", "silu"] {
        let contract = KernelContract::new(name, [whole(BindingRole::Write)]);
        let mut graph = ComputeGraph::new();
        graph.dispatch(Kind::Fill, &contract, &[view], &[0], "").unwrap();
        let outcome = lowered(&device, &KernelRegistry::new(), &graph).map(|_| ());
        assert!(matches!(outcome, Err(GpuError::WrongContract { .. })), "{name}: {outcome:?}");
        // Nor is a user's kernel one of ours.
        let mut graph = ComputeGraph::new();
        graph.dispatch(Kind::Custom, &contract, &[view], &[0], "").unwrap();
        let outcome = lowered(&device, &KernelRegistry::new(), &graph).map(|_| ());
        assert!(matches!(outcome, Err(GpuError::UnknownKernel { .. })), "{name}: {outcome:?}");
    }
}

#[test]
fn a_kernel_runs_by_the_contract_it_is_registered_with() {
    let device = CpuDevice::with_threads(2);
    let y = device.upload(&[0.0_f32; 8]).unwrap();
    let view = y.tensor(DType::F32, &[8]).unwrap();
    let kernel =
        CpuKernel::new(|_, _| Grid::rows(1, 1), |piece| piece.dst_row::<f32>(0, 0).fill(1.0));
    let (kernels, _) = registry("mine", [whole(BindingRole::Write)], kernel);
    let others = [
        KernelContract::new("mine", [whole(BindingRole::Read)]),
        KernelContract::new("mine", [part(BindingRole::Write, 0..4)]),
        KernelContract::new("mine", [whole(BindingRole::Write).over(vec![0])]),
        KernelContract::unknown("mine"),
    ];
    for contract in others {
        let mut graph = ComputeGraph::new();
        graph.dispatch(Kind::Custom, &contract, &[view], &[], "").unwrap();
        let outcome = lowered(&device, &kernels, &graph).map(|_| ());
        assert!(matches!(outcome, Err(GpuError::WrongContract { .. })), "{outcome:?}");
    }
    // One that must keep its place is not recorded as one that may move, nor the other way round.
    let contract = KernelContract::new("mine", [whole(BindingRole::Write)]);
    let mut graph = ComputeGraph::new();
    graph.dispatch(Kind::Pinned, &contract, &[view], &[], "").unwrap();
    let outcome = lowered(&device, &kernels, &graph).map(|_| ());
    assert!(matches!(outcome, Err(GpuError::WrongContract { .. })), "{outcome:?}");
    assert_eq!(y.read_vec::<f32>(0, 8).unwrap(), [0.0; 8]);
}

/// A list that was refused is gone: asking again must not run it without a proof.
pub fn a_refused_list_does_not_run_when_it_is_committed_again(device: &dyn Device) {
    let y = device.upload(&[0.0_f32; 1024]).unwrap();
    let view = y.tensor(DType::F32, &[1024]).unwrap();
    let mut graph = ComputeGraph::new();
    for value in [1.0_f32, 2.0] {
        graph.dispatch(Kind::Fill, &fill(), &[view], &[value.to_bits()], "").unwrap();
    }
    let mut encoder = device.encoder(&KernelRegistry::new());
    graph.encode_sequential(&mut *encoder).unwrap();
    assert!(matches!(encoder.commit(), Err(GpuError::Unverified(_))));
    encoder.commit().unwrap();
    encoder.wait().unwrap();
    assert_eq!(y.read_vec::<f32>(0, 1024).unwrap(), [0.0; 1024]);
}

#[test]
fn a_refused_list_does_not_run_on_the_cpu() {
    a_refused_list_does_not_run_when_it_is_committed_again(&CpuDevice::with_threads(2));
}

/// A dispatch that the encoder refused is not run either: it is not in the list that is proven.
pub fn a_refused_dispatch_does_not_run(device: &dyn Device) {
    let y = device.upload(&[0.0_f32; 1024]).unwrap();
    let view = y.tensor(DType::F32, &[1024]).unwrap();
    let graph = ComputeGraph::new();
    let bits = 1.0_f32.to_bits();
    let first = graph.annotated(Kind::Fill, &fill(), &[view], &[bits], "").unwrap();
    // Another one under the same id.
    let second = graph.annotated(Kind::Fill, &fill(), &[view], &[2.0_f32.to_bits()], "").unwrap();
    let mut encoder = device.encoder(&KernelRegistry::new());
    encoder.dispatch(&first).unwrap();
    let outcome = encoder.dispatch(&second);
    let expected = GpuError::Graph(GraphError::DuplicateDispatch { dispatch: second.id });
    assert_eq!(outcome, Err(expected));
    encoder.commit().unwrap();
    encoder.wait().unwrap();
    assert_eq!(y.read_vec::<f32>(0, 1024).unwrap(), [1.0; 1024]);
}

#[test]
fn a_refused_dispatch_does_not_run_on_the_cpu() {
    a_refused_dispatch_does_not_run(&CpuDevice::with_threads(2));
}

#[test]
fn a_kernel_of_unknown_access_runs_beside_nothing() {
    let device = CpuDevice::with_threads(2);
    let y = device.upload(&[0.0_f32; 8]).unwrap();
    let view = y.tensor(DType::F32, &[8]).unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let count = runs.clone();
    let kernel = CpuKernel::new(
        |_, _| Grid::rows(1, 1),
        move |piece| {
            count.fetch_add(1, Ordering::Relaxed);
            piece.dst_row::<f32>(0, 0).fill(1.0);
        },
    );
    let contract = KernelContract::unknown("anything");
    let mut kernels = KernelRegistry::new();
    kernels.register(CustomKernel::new(contract.clone()).with_cpu(kernel)).unwrap();
    let mut graph = ComputeGraph::new();
    graph.dispatch(Kind::Custom, &contract, &[view], &[], "").unwrap();
    lowered(&device, &kernels, &graph).unwrap().run().unwrap();
    graph.dispatch(Kind::Fill, &fill(), &[view], &[0], "").unwrap();
    let outcome = lowered(&device, &kernels, &graph).map(|_| ());
    assert!(matches!(outcome, Err(GpuError::Unverified(_))), "{outcome:?}");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}
