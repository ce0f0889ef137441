//! What kernels of the user's own may ask for on Vulkan: words in quads, and memory between workgroups.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use clearway_gpu::vulkan::{VulkanDevice, VulkanOptions};
use clearway_gpu::{
    CustomKernel, Device, GpuError, KernelRegistry, Program, Result, Upload, WgslKernel,
};
use clearway_graph::{
    BindingContract, BindingRole, CapturedOpKind as Kind, ComputeGraph, DType, KernelContract,
    Layout, TensorView,
};

mod vulkan;

fn open() -> Option<VulkanDevice> {
    let options = VulkanOptions { disk_cache: false, ..VulkanOptions::default() };
    vulkan::open(options)
}

/// A program of one call that reads all of its operands and writes the last.
fn program(
    device: &VulkanDevice,
    kernel: WgslKernel,
    views: &[TensorView],
) -> Result<Box<dyn Program>> {
    let last = views.len() - 1;
    let binding = |index: usize| {
        let role = if index == last { BindingRole::Write } else { BindingRole::Read };
        BindingContract::new(["a", "b", "c", "d", "e", "f", "g", "h", "i"][index], role)
    };
    let bindings: Vec<BindingContract> = (0..views.len()).map(binding).collect();
    let contract = KernelContract::new("mine", bindings);
    let mut kernels = KernelRegistry::new();
    kernels.register(CustomKernel::new(contract.clone()).with_wgsl_kernel(kernel))?;
    let mut graph = ComputeGraph::new();
    graph.dispatch(Kind::Custom, &contract, views, &[], "")?;
    let mut encoder = device.encoder(&kernels);
    graph.encode_with_barriers(&mut *encoder)?;
    encoder.into_program()
}

/// Every workgroup leaves the sum of its quad of numbers; the one that comes last adds them up.
const LAST_ADDS: &str = "
var<workgroup> last: u32;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lid: u32, @builtin(workgroup_id) group: vec3<u32>) {
    if (lid == 0u) {
        let four = bitcast<vec4<f32>>(b_o0[group.x]);
        b_scratch[group.x] = four.x + four.y + four.z + four.w;
    }
    storageBarrier();
    if (lid == 0u) {
        last = u32(atomicAdd(&b_tickets[1], 1u) == 299u);
    }
    workgroupBarrier();
    if (last == 0u) {
        return;
    }
    storageBarrier();
    if (lid == 0u) {
        var sum = 0.0;
        for (var i = 0u; i < 300u; i++) {
            sum += b_scratch[i];
        }
        put_o1(0u, sum);
        atomicStore(&b_tickets[1], 0u);
    }
}
";

#[test]
fn workgroups_leave_numbers_for_the_last_one_in_every_run() {
    let Some(device) = open() else { return };
    let numbers: Vec<f32> = (0..1200).map(|i| (i % 7) as f32).collect();
    let (x, y) = (device.upload(&numbers).unwrap(), device.alloc(4).unwrap());
    let views = [x.tensor(DType::F32, &[1200]).unwrap(), y.tensor(DType::F32, &[1]).unwrap()];
    let kernel = WgslKernel::new(LAST_ADDS, |_, _| [300, 1, 1]).quads(0).scratch(300 * 4, 2);
    let mut program = program(&device, kernel, &views).unwrap();
    let expected: f32 = numbers.iter().sum();
    for run in 0..3 {
        y.write_slice(0, &[-1.0_f32]).unwrap();
        program.run().unwrap();
        assert_eq!(y.read_vec::<f32>(0, 1).unwrap(), [expected], "run {run}");
    }
    program.run_many(5).unwrap();
    assert_eq!(y.read_vec::<f32>(0, 1).unwrap(), [expected]);
}

#[test]
fn what_cannot_be_bound_is_an_error() {
    let Some(device) = open() else { return };
    let buffer = device.upload(&[0.0_f32; 64]).unwrap();
    let layout = Layout::new(DType::F32, &[4]).unwrap();
    let view = |element: u64| buffer.view(4 * element, layout).unwrap();
    let kernel = || {
        let body = "@compute @workgroup_size(1) fn main() { put_o1(0u, bitcast<f32>(b_o0[0].x)); }";
        WgslKernel::new(body, |_, _| [1, 1, 1])
    };
    assert!(program(&device, kernel().quads(0), &[view(0), view(16)]).is_ok());
    for (quads, first) in [(0, 1), (2, 0), (usize::MAX, 0)] {
        match program(&device, kernel().quads(quads), &[view(first), view(16)]).err() {
            Some(GpuError::KernelCompile { message, .. }) => {
                assert!(message.contains(&format!("operand {quads} ")), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
    let scratch = kernel().quads(0).scratch(0, 0);
    assert!(program(&device, scratch.clone(), &[view(0), view(16)]).is_ok(), "none is the least");
    let nine: Vec<TensorView> = (0..9).map(|index| view(4 * index)).collect();
    match program(&device, scratch, &nine).err() {
        Some(GpuError::Arity { what: "bindings", found: 11, expected: 10, .. }) => {}
        other => panic!("{other:?}"),
    }
    for bytes in [1 << 40, u64::MAX] {
        let scratch = kernel().quads(0).scratch(bytes, 1);
        match program(&device, scratch, &[view(0), view(16)]).err() {
            Some(GpuError::BindingTooLarge { operand: "scratch", bytes: found, .. }) => {
                assert_eq!(found, bytes);
            }
            other => panic!("{other:?}"),
        }
    }
}
