//! Every op through wgpu against the scalar reference, with all that the adapter has and with less.
//!
//! | configuration | the test command | soak |
//! |---|---|---|
//! | with all there is: texts that Vulkan runs too | one case of every third class | all cases |
//! | without subgroups, f16 and tickets: all texts that no other backend runs | one case of every class | all cases |
//! | without subgroups, without f16 | one case of every sixth class | all cases |
//! | guarded | one case of every twentieth class | all cases |
//!
//! A class is an op with the types of its operands and one, few or many rows. Which cases and classes a run takes follows
//! from its seed.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use clearway_gpu::ops::OPS;
use clearway_gpu::ops::suite::{self, DEFAULT_SEED, OpCase};
use clearway_gpu::wgpu::{WgpuDevice, WgpuOptions};
use clearway_gpu::{Device, GpuError};
use clearway_graph::CapturedOpKind as Kind;
use clearway_graph::testkit::{say, skip};

#[path = "common/scope.rs"]
mod scope;
use scope::Scope;

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

const LEAST: WgpuOptions = WgpuOptions {
    validate: false,
    checks: false,
    disk_cache: false,
    subgroups: false,
    halves: false,
    tickets: false,
    max_binding: None,
    processors: None,
    tuning: clearway_gpu::wgpu::Tuning::Hardware,
    float_activations: false,
    patience: None,
    memory_limit: None,
};

/// Runs one case of every `step`th class; at least `fewest` must pass.
fn hold(what: &str, options: WgpuOptions, step: usize, fewest: usize) {
    let Some(device) = open(options) else { return };
    let start = std::time::Instant::now();
    let scope = Scope::from_env();
    let cases = scope.cases(step);
    let summary = suite::run_cases(&device, &cases);
    let seconds = start.elapsed().as_secs_f64();
    let kernels = device.pipeline_count();
    println!(
        "{what} on {}: {seconds:.1} s, {kernels} kernels\n{summary}",
        device.info().description
    );
    assert!(summary.failed.is_empty(), "{} cases failed", summary.failed.len());
    if matches!(scope, Scope::Some(_)) {
        return;
    }
    let (passed, skipped) = (summary.passed, summary.skipped);
    say(&format!(
        "counted: op suite on wgpu, {what}: {passed} cases passed, {skipped} without a kernel"
    ));
    assert!(passed >= fewest, "{passed} cases passed, at least {fewest} must");
    // With less than all, some fused ops have no kernel.
    let all_ops = scope == Scope::Whole && options == WgpuOptions::default();
    for (op, count) in OPS.iter().zip(&summary.ops).filter(|_| all_ops) {
        assert!(count.passed > 0, "{}: all cases were skipped", op.name);
    }
}

#[test]
fn every_op_agrees_with_the_reference() {
    hold("with all there is", WgpuOptions::default(), 3, 100);
}

#[test]
fn every_op_agrees_without_subgroups() {
    let options = WgpuOptions { subgroups: false, ..WgpuOptions::default() };
    hold("without subgroups", options, 6, 30);
}

#[test]
fn every_op_agrees_without_f16_in_kernels() {
    let options = WgpuOptions { halves: false, ..WgpuOptions::default() };
    hold("without f16", options, 6, 50);
}

#[test]
fn every_op_agrees_without_any_of_it() {
    hold("without subgroups, f16 and tickets", LEAST, 1, 200);
}

#[test]
fn guarded_kernels_agree_too() {
    let options = WgpuOptions { checks: true, ..WgpuOptions::default() };
    hold("guarded", options, 20, 10);
}

/// Without subgroups 256 parts of a sum meet in workgroup memory. Added one after another they would be off by more than
/// softmax is allowed; in halves they are far from it, and a card that divides less exactly has room.
#[test]
fn long_sums_without_subgroups_are_as_exact_as_with_them() {
    let Some(device) = open(LEAST) else { return };
    let long = |case: &OpCase| {
        let x = &case.operands[0];
        case.kind == Kind::Softmax
            && x.shape == [9, 33, 300]
            && case.params == [0.125_f32.to_bits()]
    };
    let cases: Vec<OpCase> = suite::cases(DEFAULT_SEED).into_iter().filter(long).collect();
    let summary = suite::run_cases(&device, &cases);
    assert_eq!((summary.passed, cases.len()), (4, 4), "{summary}");
    let worst = summary.ops.iter().map(|op| op.share).fold(0.0, f64::max);
    println!("largest error, as a part of what is allowed: {worst:.3}");
    assert!(worst > 0.0 && worst < 0.5, "{worst}");
}
