//! The same on a Vulkan device, and kernels in WGSL that ask for what the device or the contract does not give.

use clearway::vulkan::{VulkanDevice, VulkanOptions};
use clearway::{
    BindingContract, BindingRole, CapturedOpKind as Kind, ComputeGraph, CustomKernel, DType,
    Device, GpuError, GraphExecutor, KernelContract, KernelRegistry, Program, TensorView, Upload,
};

use crate::threads::hammer;
use crate::{bounds, dispatches, lowered, part, threads, whole};

/// The best device; a line that says why there is none, or a failure where `CLEARWAY_NEED` names Vulkan.
fn open() -> Option<VulkanDevice> {
    let options = VulkanOptions { disk_cache: false, ..VulkanOptions::default() };
    match VulkanDevice::open(options) {
        Ok(device) => Some(device),
        Err(error @ (GpuError::NoDevice { .. } | GpuError::Unsupported { .. })) => {
            let need = std::env::var("CLEARWAY_NEED").unwrap_or_default();
            assert!(!need.split(',').any(|part| part.trim() == "vulkan"), "{error}");
            let thread = std::thread::current();
            eprintln!("skipped: vulkan: {}: {error}", thread.name().unwrap_or("outside"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_refused_list_does_not_run_on_vulkan() {
    let Some(device) = open() else { return };
    dispatches::a_refused_list_does_not_run_when_it_is_committed_again(&device);
}

#[test]
fn a_refused_dispatch_does_not_run_on_vulkan() {
    let Some(device) = open() else { return };
    dispatches::a_refused_dispatch_does_not_run(&device);
}

#[test]
fn transfers_outside_a_buffer_are_refused_on_vulkan() {
    let Some(device) = open() else { return };
    bounds::transfers_outside_a_buffer_are_refused(&device);
}

#[test]
fn views_that_lie_are_refused_on_vulkan() {
    let Some(device) = open() else { return };
    bounds::views_that_lie_about_their_buffer_are_refused(&device);
    bounds::views_that_lie_about_weights_are_refused(&device);
    bounds::misaligned_and_overlapping_operands_are_refused(&device);
}

#[test]
fn a_session_goes_on_after_a_refusal_on_vulkan() {
    let Some(device) = open() else { return };
    bounds::a_session_goes_on_after_a_refusal(&GraphExecutor::new(device));
}

#[test]
fn fills_that_declare_nothing_are_refused_on_vulkan() {
    let Some(device) = open() else { return };
    let y = device.upload(&[0.0_f32; 64]).unwrap();
    let view = y.tensor(DType::F32, &[64]).unwrap();
    let nothing = KernelContract::new("fill", [part(BindingRole::Write, 0..0)]);
    let mut graph = ComputeGraph::new();
    for value in [1.0_f32, 2.0] {
        graph.dispatch(Kind::Fill, &nothing, &[view], &[value.to_bits()], "").unwrap();
    }
    let outcome = lowered(&device, &KernelRegistry::new(), &graph).map(|_| ());
    assert!(matches!(outcome, Err(GpuError::WrongContract { .. })), "{outcome:?}");
}

#[test]
fn reads_are_whole_while_others_write_on_vulkan() {
    let Some(device) = open() else { return };
    let words = vec![0_u32; 1 << 14];
    hammer(&device.upload(&words).unwrap(), 2);
    let visible = device.alloc_host_visible(4 << 14).unwrap();
    visible.write_slice(0, &words).unwrap();
    hammer(&visible, 2);
}

#[test]
fn reads_are_whole_when_the_vulkan_device_is_gone() {
    let Some(device) = open() else { return };
    let buffer = device.upload(&vec![0_u32; 1 << 14]).unwrap();
    drop(device);
    hammer(&buffer, 2);
}

#[test]
fn reads_are_whole_while_programs_run_on_vulkan() {
    let Some(device) = open() else { return };
    threads::reads_are_whole_while_programs_run_on(&device);
}

/// A call of a kernel in WGSL that writes its last operand and reads the others, lowered.
fn wgsl(
    device: &VulkanDevice,
    body: &str,
    groups: [u32; 3],
    bindings: Vec<BindingContract>,
    views: &[TensorView],
) -> Result<Box<dyn Program>, GpuError> {
    let contract = KernelContract::new("mine", bindings);
    let mut kernels = KernelRegistry::new();
    kernels.register(CustomKernel::new(contract.clone()).with_wgsl(body, move |_, _| groups))?;
    let mut graph = ComputeGraph::new();
    graph.dispatch(Kind::Custom, &contract, views, &[], "")?;
    lowered(device, &kernels, &graph)
}

const FILL: &str = "
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    put_o0(id.x, 7.0);
}
";

#[test]
fn workgroups_that_the_device_cannot_start_are_refused() {
    let Some(device) = open() else { return };
    let y = device.upload(&[0.0_f32; 64]).unwrap();
    let view = y.tensor(DType::F32, &[64]).unwrap();
    let most = u32::MAX;
    for groups in [[most, 1, 1], [1, most, 1], [1, 1, most], [most; 3]] {
        // Lowered only: a device that took it would be busy for a while.
        let outcome = wgsl(&device, FILL, groups, vec![whole(BindingRole::Write)], &[view]);
        assert!(outcome.is_err(), "{groups:?}");
    }
    let mut fine = wgsl(&device, FILL, [1; 3], vec![whole(BindingRole::Write)], &[view]).unwrap();
    fine.run().unwrap();
    assert_eq!(y.read_vec::<f32>(0, 64).unwrap(), [7.0; 64]);
}

#[test]
fn a_partial_extent_is_refused_on_vulkan() {
    let Some(device) = open() else { return };
    let y = device.upload(&[0.0_f32; 64]).unwrap();
    let view = y.tensor(DType::F32, &[64]).unwrap();
    for bytes in [0..0, 0..128, 4..256] {
        let bindings = vec![part(BindingRole::Write, bytes)];
        let outcome = wgsl(&device, FILL, [1; 3], bindings, &[view]).map(|_| ());
        assert!(matches!(outcome, Err(GpuError::PartialExtent { .. })), "{outcome:?}");
    }
}

#[test]
fn a_write_outside_its_operand_leaves_other_buffers_alone() {
    let Some(device) = open() else { return };
    let neighbour = || device.upload(&[42.0_f32; 4096]).unwrap();
    let before = neighbour();
    let y = device.upload(&[0.0_f32; 64]).unwrap();
    let behind = neighbour();
    let view = y.tensor(DType::F32, &[64]).unwrap();
    let bindings = vec![whole(BindingRole::Write)];
    wgsl(&device, FILL, [256, 1, 1], bindings, &[view]).unwrap().run().unwrap();
    for buffer in [before, behind] {
        assert_eq!(buffer.read_vec::<f32>(0, 4096).unwrap(), [42.0; 4096]);
    }
    assert_eq!(y.read_vec::<f32>(0, 64).unwrap(), [7.0; 64]);
}

#[test]
fn a_read_outside_its_operand_sees_no_other_buffer() {
    const FAR: &str = "
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    put_o1(id.x, get_o0(id.x));
}
";
    let Some(device) = open() else { return };
    let secret = || device.upload(&[42.0_f32; 4096]).unwrap();
    let _before = secret();
    let x = device.upload(&[1.0_f32; 64]).unwrap();
    let _behind = secret();
    let y = device.upload(&[0.0_f32; 8192]).unwrap();
    let views = [x.tensor(DType::F32, &[64]).unwrap(), y.tensor(DType::F32, &[8192]).unwrap()];
    let bindings = vec![whole(BindingRole::Read), whole(BindingRole::Write)];
    wgsl(&device, FAR, [128, 1, 1], bindings, &views).unwrap().run().unwrap();
    let seen = y.read_vec::<f32>(0, 8192).unwrap();
    assert_eq!(seen[..64], [1.0; 64]);
    assert!(seen.iter().all(|&value| value == 0.0 || value == 1.0), "another buffer was read");
}
