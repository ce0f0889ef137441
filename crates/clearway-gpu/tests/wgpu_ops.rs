//! Every op through wgpu against the scalar reference, with all that the adapter has and with less.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use clearway_gpu::ops::OPS;
use clearway_gpu::ops::suite::{self, DEFAULT_SEED, OpCase};
use clearway_gpu::wgpu::{WgpuDevice, WgpuOptions};
use clearway_gpu::{Device, GpuError};
use clearway_graph::testkit::{say, skip};

/// The best adapter. The test is skipped where there is none.
#[track_caller]
fn open(options: WgpuOptions) -> Option<WgpuDevice> {
    let options = WgpuOptions { disk_cache: false, ..options };
    match WgpuDevice::open(options) {
        Ok(device) => Some(device),
        Err(error @ (GpuError::NoAdapter { .. } | GpuError::Unsupported { .. })) => {
            skip("vulkan", error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Every `step`th case of the suite, which Vulkan runs whole with the same kernels; all of them where `CLEARWAY_WGPU_ALL` is
/// set, and some where a kernel is being worked on.
fn cases(step: usize) -> (Vec<OpCase>, bool) {
    let step = if std::env::var_os("CLEARWAY_WGPU_ALL").is_some() { 1 } else { step };
    let seed = std::env::var("CLEARWAY_SEED").ok().and_then(|text| text.parse().ok());
    let mut cases: Vec<OpCase> = suite::cases(seed.unwrap_or(DEFAULT_SEED));
    let some = std::env::var("CLEARWAY_CASES").ok();
    cases.retain(|case| some.as_ref().is_none_or(|some| case.to_string().contains(some)));
    (cases.into_iter().step_by(step).collect(), some.is_none())
}

/// Runs every `step`th case; `fewest` must pass, and with `fused` some of each op where all cases run.
fn hold(what: &str, options: WgpuOptions, step: usize, fewest: usize, fused: bool) {
    let Some(device) = open(options) else { return };
    let start = std::time::Instant::now();
    let (cases, all) = cases(step);
    let summary = suite::run_cases(&device, &cases);
    let seconds = start.elapsed().as_secs_f64();
    let kernels = device.pipeline_count();
    println!(
        "{what} on {}: {seconds:.1} s, {kernels} kernels\n{summary}",
        device.info().description
    );
    assert!(summary.failed.is_empty(), "{} cases failed", summary.failed.len());
    if !all {
        return;
    }
    let (passed, skipped) = (summary.passed, summary.skipped);
    say(&format!(
        "counted: op suite on wgpu, {what}: {passed} cases passed, {skipped} without a kernel"
    ));
    assert!(passed >= fewest, "{passed} cases passed, at least {fewest} must");
    // A sample may miss the few cases of an op that have a kernel.
    let whole = std::env::var_os("CLEARWAY_WGPU_ALL").is_some();
    for (op, count) in OPS.iter().zip(&summary.ops).filter(|_| fused && whole) {
        assert!(count.passed > 0, "{}: all cases were skipped", op.name);
    }
}

#[test]
fn every_op_agrees_with_the_reference() {
    hold("with all there is", WgpuOptions::default(), 5, 800, true);
}

#[test]
fn every_op_agrees_without_subgroups() {
    let options = WgpuOptions { subgroups: false, ..WgpuOptions::default() };
    hold("without subgroups", options, 7, 400, false);
}

#[test]
fn every_op_agrees_without_f16_in_kernels() {
    let options = WgpuOptions { halves: false, ..WgpuOptions::default() };
    hold("without f16", options, 17, 250, false);
}

#[test]
fn every_op_agrees_without_any_of_it() {
    let options =
        WgpuOptions { subgroups: false, halves: false, tickets: false, ..WgpuOptions::default() };
    hold("without subgroups, f16 and tickets", options, 7, 400, false);
}

#[test]
fn guarded_kernels_agree_too() {
    let options = WgpuOptions { checks: true, ..WgpuOptions::default() };
    hold("guarded", options, 61, 20, false);
}
