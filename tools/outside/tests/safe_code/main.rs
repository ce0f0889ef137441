//! What safe code of another crate may try, and what it gets: a typed error, or the right bits.
#![forbid(unsafe_code)]

mod bounds;
mod dispatches;
mod extents;
mod kernels;
mod threads;
mod vulkan;

use std::ops::Range;
use std::sync::Arc;

use clearway::cpu::{CpuDevice, CpuKernel};
use clearway::{
    BindingContract, BindingRole, CapturedOpKind, ComputeGraph, CustomKernel, Device, Extent,
    GpuError, KernelContract, KernelRegistry, Program, TensorView,
};

/// A binding of which the contract declares some bytes.
fn part(role: BindingRole, bytes: Range<u64>) -> BindingContract {
    let mut binding = BindingContract::new("part", role);
    binding.extent = Extent::Computed(Arc::new(move |_, _| bytes.clone()));
    binding
}

/// A binding of which the contract declares everything.
fn whole(role: BindingRole) -> BindingContract {
    BindingContract::new("whole", role)
}

/// A registry with one kernel for the CPU, and its contract.
fn registry(
    name: &'static str,
    bindings: impl Into<Vec<BindingContract>>,
    cpu: CpuKernel,
) -> (KernelRegistry, KernelContract) {
    let contract = KernelContract::new(name, bindings);
    let mut kernels = KernelRegistry::new();
    kernels.register(CustomKernel::new(contract.clone()).with_cpu(cpu)).unwrap();
    (kernels, contract)
}

/// The list as it stands, lowered for a device.
fn lowered(
    device: &dyn Device,
    kernels: &KernelRegistry,
    graph: &ComputeGraph,
) -> Result<Box<dyn Program>, GpuError> {
    let mut encoder = device.encoder(kernels);
    graph.encode_sequential(&mut *encoder)?;
    encoder.into_program()
}

/// Lowers and runs one call of a kernel on a CPU of two workers.
fn run_on(
    device: &CpuDevice,
    kernels: &KernelRegistry,
    contract: &KernelContract,
    views: &[TensorView],
) -> Result<(), GpuError> {
    let mut graph = ComputeGraph::new();
    graph.dispatch(CapturedOpKind::Custom, contract, views, &[], "")?;
    lowered(device, kernels, &graph)?.run()
}
