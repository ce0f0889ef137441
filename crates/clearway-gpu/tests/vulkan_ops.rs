//! Every op on Vulkan against the scalar reference.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use std::sync::LazyLock;

use clearway_gpu::ops::suite::{self, DEFAULT_SEED, OpCase};
use clearway_gpu::vulkan::{VulkanDevice, VulkanOptions};
use clearway_gpu::{Buffer, Device, DeviceInfo, Encoder, KernelRegistry, Result};
use clearway_graph::FusedRequest;

mod vulkan;
use vulkan::{available, open, try_open};

/// Tests share a device, and with it the kernels that are compiled.
#[track_caller]
fn device() -> Option<&'static VulkanDevice> {
    static DEVICE: LazyLock<Result<VulkanDevice, String>> =
        LazyLock::new(|| try_open(VulkanOptions { disk_cache: false, ..VulkanOptions::default() }));
    available(DEVICE.as_ref())
}

#[test]
fn every_op_agrees_with_the_reference_on_vulkan() {
    let seed = std::env::var("CLEARWAY_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(DEFAULT_SEED);
    let Some(device) = device() else { return };
    let start = std::time::Instant::now();
    let mut cases = suite::cases(seed);
    // Some of them, while a kernel is being worked on.
    let some = std::env::var("CLEARWAY_CASES").ok();
    cases.retain(|case| some.as_ref().is_none_or(|some| case.to_string().contains(some)));
    let summary = suite::run_cases(device, &cases);
    let seconds = start.elapsed().as_secs_f64();
    let kernels = device.pipeline_count();
    println!(
        "CLEARWAY_SEED={seed} on {}: {seconds:.1} s, {kernels} kernels\n{summary}",
        device.info().description
    );
    assert!(summary.failed.is_empty(), "{} cases failed", summary.failed.len());
    assert!(summary.passed >= 2_000 || some.is_some());
}

/// Weights stay as files have them, and nothing is rounded on the way.
struct Plain(&'static VulkanDevice);

impl Device for Plain {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer> {
        self.0.alloc(bytes)
    }

    fn buffer(&self, buf_id: usize) -> Result<Buffer> {
        self.0.buffer(buf_id)
    }

    fn has_fused(&self, request: &FusedRequest<'_>) -> bool {
        self.0.has_fused(request)
    }

    fn encoder(&self, kernels: &KernelRegistry) -> Box<dyn Encoder> {
        self.0.encoder(kernels)
    }
}

#[test]
fn products_with_blocks_as_files_have_them_are_exact() {
    let Some(device) = device() else { return };
    let has_blocks = |case: &OpCase| case.operands.iter().any(|o| o.dtype.is_quantised());
    let blocks: Vec<OpCase> = suite::cases(DEFAULT_SEED).into_iter().filter(has_blocks).collect();
    let summary = suite::run_cases(&Plain(device), &blocks);
    assert!(summary.failed.is_empty(), "{summary}");
    assert!(summary.passed >= 1_000, "{} cases", summary.passed);
}

#[test]
fn guarded_kernels_agree_too() {
    let options = VulkanOptions { disk_cache: false, checks: true, ..VulkanOptions::default() };
    let Some(device) = open(options) else { return };
    let some: Vec<OpCase> = suite::cases(DEFAULT_SEED).into_iter().step_by(61).collect();
    let summary = suite::run_cases(&device, &some);
    assert!(summary.failed.is_empty(), "{summary}");
}
