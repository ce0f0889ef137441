//! Every op on Vulkan against the scalar reference.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use std::sync::LazyLock;

use clearway_gpu::Device;
use clearway_gpu::ops::OPS;
use clearway_gpu::ops::suite::{self, DEFAULT_SEED, OpCase};
use clearway_gpu::vulkan::{VulkanDevice, VulkanOptions};
use clearway_graph::testkit::say;

mod vulkan;
use vulkan::{available, open, try_open};

/// Cases with a kernel on any Vulkan device.
const FEWEST_PASSED: usize = 2_000;

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
    if some.is_none() {
        let (passed, skipped) = (summary.passed, summary.skipped);
        say(&format!(
            "counted: op suite on Vulkan: {passed} cases passed, {skipped} without a kernel"
        ));
        // A device that offers no kernels at all must not pass.
        assert!(passed >= FEWEST_PASSED, "{passed} cases passed, at least {FEWEST_PASSED} must");
        for (op, count) in OPS.iter().zip(&summary.ops) {
            assert!(count.passed > 0, "{}: all cases were skipped", op.name);
        }
    }
}

#[test]
fn products_with_float_activations_are_exact() {
    let options =
        VulkanOptions { disk_cache: false, float_activations: true, ..VulkanOptions::default() };
    let Some(device) = open(options) else { return };
    assert!(!device.rounds_activations());
    let has_blocks = |case: &OpCase| case.operands.iter().any(|o| o.dtype.is_quantised());
    let blocks: Vec<OpCase> = suite::cases(DEFAULT_SEED).into_iter().filter(has_blocks).collect();
    let summary = suite::run_cases(&device, &blocks);
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
