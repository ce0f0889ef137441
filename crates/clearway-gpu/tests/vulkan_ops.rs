//! Every op on Vulkan against the scalar reference.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use clearway_gpu::ops::suite::{self, DEFAULT_SEED};
use clearway_gpu::vulkan::{VulkanDevice, VulkanOptions};
use clearway_gpu::{Device, GpuError};

/// The best device, or why there is none.
fn open(options: VulkanOptions) -> Option<VulkanDevice> {
    match VulkanDevice::open(options) {
        Ok(device) => Some(device),
        Err(error @ (GpuError::NoDevice { .. } | GpuError::Unsupported { .. })) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_op_agrees_with_the_reference_on_vulkan() {
    let seed = std::env::var("CLEARWAY_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(DEFAULT_SEED);
    let options = VulkanOptions { disk_cache: false, ..VulkanOptions::default() };
    let Some(device) = open(options) else { return };
    let start = std::time::Instant::now();
    let summary = suite::run_cases(&device, &suite::cases(seed));
    let seconds = start.elapsed().as_secs_f64();
    let kernels = device.pipeline_count();
    println!(
        "CLEARWAY_SEED={seed} on {}: {seconds:.1} s, {kernels} kernels\n{summary}",
        device.info().description
    );
    assert!(summary.failed.is_empty(), "{} cases failed", summary.failed.len());
    assert!(summary.passed >= 2_000);
}
