//! Products on matrices of a whole workgroup, on a device that has them (VK_NV_cooperative_matrix2).
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use clearway_gpu::Device;
use clearway_gpu::ops::suite::{Fill, OpCase, OperandSpec, run_cases};
use clearway_gpu::vulkan::{Tuning, VulkanDevice, VulkanOptions};
use clearway_gpu::wgsl::planes;
use clearway_graph::testkit::{kind, say, skip};
use clearway_graph::{CapturedOpKind as Kind, DType, Layout};

mod vulkan;

/// What stands in the text of such kernels.
const WIDE: &str = "matrices of a whole workgroup";

/// A device on which kernels are chosen so. Few processors get the large tiles.
fn open(tuning: Tuning) -> Option<VulkanDevice> {
    let options = VulkanOptions {
        disk_cache: false,
        wide_matrices: true,
        processors: Some(1),
        tuning,
        ..VulkanOptions::default()
    };
    vulkan::open(options)
}

/// The same, if it has such matrices.
fn open_wide(tuning: Tuning) -> Option<VulkanDevice> {
    let device = open(tuning)?;
    if !device.has_wide_matrices() {
        skip("matrices of a workgroup", "the device has no VK_NV_cooperative_matrix2");
        return None;
    }
    Some(device)
}

/// A product, its operands in buffers of their own.
fn product(weights: DType, x: DType, add: bool, [rows, outer, inner]: [usize; 3]) -> OpCase {
    let operand = |dtype, shape: [usize; 2], fill| OperandSpec {
        dtype,
        shape: shape.to_vec(),
        strides: vec![shape[1], 1],
        buffer: 0,
        offset: 0,
        fill,
    };
    let normal = Fill::Normal { mean: 0.0, deviation: 1.0 };
    let mut operands = vec![
        operand(x, [rows, inner], normal.clone()),
        operand(weights, [outer, inner], normal.clone()),
    ];
    if add {
        operands.push(operand(DType::F32, [rows, outer], normal));
    }
    operands.push(operand(DType::F32, [rows, outer], Fill::Sentinel));
    operands.iter_mut().enumerate().for_each(|(index, operand)| operand.buffer = index);
    let kind = if add { kind("matmul_add") } else { Kind::MATMUL };
    OpCase { kind, operands, params: Vec::new(), seed: 7 }
}

fn types() -> Vec<DType> {
    let readable = |dtype: &DType| {
        let planes = Layout::new(*dtype, &[256, 256]).is_ok_and(|w| planes::supports(&w));
        matches!(dtype, DType::F16 | DType::BF16) || planes
    };
    DType::ALL.into_iter().filter(readable).collect()
}

#[test]
fn products_agree_with_the_reference_in_every_way() {
    for way in 1..=4 {
        let Some(device) = open_wide(Tuning::Variant(way)) else { return };
        let mut cases = Vec::new();
        for weights in types() {
            cases.push(product(weights, DType::A16, false, [256, 256, 512]));
            cases.push(product(weights, DType::A16, true, [512, 256, 256]));
        }
        let summary = run_cases(&device, &cases);
        let made = device.kernels_with(WIDE);
        say(&format!(
            "matrices of a workgroup, way {way}: {made} kernels, {} passed",
            summary.passed
        ));
        assert!(summary.failed.is_empty(), "way {way}: {summary}");
        assert!(made > 0, "way {way}: the driver made none");
    }
}

#[test]
fn a_choice_is_right_whatever_it_is() {
    let Some(device) = open_wide(Tuning::Always) else { return };
    let shape = [256, 4096, 2048];
    let cases = [
        product(DType::F16, DType::A16, false, shape),
        product(DType::Q4_K, DType::A16, true, shape),
        product(DType::Q8_0, DType::A16, false, shape),
    ];
    let summary = run_cases(&device, &cases);
    let chosen = device
        .wgsl_target()
        .map_or(0, |target| target.tuned.values().filter(|&&choice| choice > 0).count());
    say(&format!("matrices of a workgroup: {chosen} of {} products take them", device.tuned()));
    assert!(summary.failed.is_empty(), "{summary}");
    assert_eq!(device.tuned(), cases.len());
}

#[test]
fn a_device_without_them_says_so_and_works() {
    let Some(device) = open(Tuning::default()) else { return };
    if device.has_wide_matrices() {
        return skip("matrices of a workgroup", "this device has them");
    }
    let description = &device.info().description;
    assert!(description.contains("no matrices of a whole workgroup"), "{description}");
    let case = product(DType::Q8_0, DType::F32, false, [128, 128, 64]);
    let summary = run_cases(&device, &[case]);
    assert!(summary.failed.is_empty() && summary.passed == 1, "{summary}");
    assert_eq!(device.kernels_with(WIDE), 0);
}
