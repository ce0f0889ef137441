//! Every op on Vulkan against the scalar reference.
//!
//! The whole list runs in the test command and in soak. With float activations one case of every class with block weights runs,
//! guarded one of every twentieth class, and all of them in soak.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use std::sync::LazyLock;

use clearway_gpu::Device;
use clearway_gpu::ops::OPS;
use clearway_gpu::ops::suite::{self, DEFAULT_SEED, OpCase};
use clearway_gpu::vulkan::{Counting, VulkanDevice, VulkanOptions};
use clearway_graph::testkit::say;

#[path = "common/scope.rs"]
mod scope;
mod vulkan;
use scope::Scope;
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
    let scope = Scope::from_env();
    let cases = match scope {
        Scope::Some(_) => scope.cases(1),
        Scope::Whole | Scope::Sample => suite::cases(seed),
    };
    let summary = suite::run_cases(device, &cases);
    let seconds = start.elapsed().as_secs_f64();
    let kernels = device.pipeline_count();
    println!(
        "CLEARWAY_SEED={seed} on {}: {seconds:.1} s, {kernels} kernels\n{summary}",
        device.info().description
    );
    assert!(summary.failed.is_empty(), "{} cases failed", summary.failed.len());
    if !matches!(scope, Scope::Some(_)) {
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
    assert!(!device.quantises_activations());
    let has_blocks = |case: &OpCase| case.operands.iter().any(|o| o.dtype.is_quantised());
    let blocks: Vec<OpCase> = Scope::from_env().cases(1).into_iter().filter(has_blocks).collect();
    let summary = suite::run_cases(&device, &blocks);
    println!("{summary}");
    assert!(summary.failed.is_empty(), "{} cases failed", summary.failed.len());
    assert!(summary.passed >= 100, "{} of {} cases", summary.passed, blocks.len());
}

#[test]
fn kernels_that_are_counted_agree_too() {
    let options =
        VulkanOptions { disk_cache: false, counting: Counting::Always, ..VulkanOptions::default() };
    let Some(device) = open(options) else { return };
    let few = |case: &OpCase| case.operands[0].shape.iter().rev().skip(1).product::<usize>() <= 8;
    let some: Vec<OpCase> = Scope::from_env().cases(2).into_iter().filter(few).collect();
    let summary = suite::run_cases(&device, &some);
    assert!(summary.failed.is_empty(), "{summary}");
    assert!(device.kernels_with("b_counters") >= 20, "{summary}");
}

#[test]
fn guarded_kernels_agree_too() {
    let options = VulkanOptions { disk_cache: false, checks: true, ..VulkanOptions::default() };
    let Some(device) = open(options) else { return };
    let some = Scope::from_env().cases(20);
    let summary = suite::run_cases(&device, &some);
    assert!(summary.failed.is_empty(), "{summary}");
}
