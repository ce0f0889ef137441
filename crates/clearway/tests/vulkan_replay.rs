//! A replayed step on Vulkan submits and waits: it allocates nothing and encodes nothing.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::alloc::System;
use std::sync::Arc;

use clearway::testkit::open_vulkan;
use clearway::vulkan::{VulkanCounts, VulkanOptions};
use clearway::{CompileOptions, DType, GraphExecutor, Layout, Ops, Upload};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

/// Counts allocations of the whole process; this file holds one test so that nothing else adds any.
/// What a driver allocates in C is not seen.
#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const REPLAYS: u64 = 200;

#[test]
fn a_replayed_step_only_submits() {
    let options = VulkanOptions { disk_cache: false, ..VulkanOptions::default() };
    let Some(device) = open_vulkan(options).unwrap() else { return };
    let device = Arc::new(device);
    let executor = GraphExecutor::on(device.clone());
    let weight: Vec<f32> = (0..64 * 64).map(|i| ((i * 7) % 13) as f32 / 100.0).collect();
    let weight = executor.device().upload(&weight).unwrap();
    let matrix = weight.tensor(DType::F32, &[64, 64]).unwrap();
    let mut pass = executor.begin_recorded().unwrap();
    let input = pass.input(Layout::new(DType::F32, &[2, 64]).unwrap()).unwrap();
    let mut x = input;
    for _ in 0..4 {
        let normed = pass.rms_norm(x, 1e-5).unwrap();
        let gate = pass.matmul(normed, matrix).unwrap();
        let gate = pass.silu(gate).unwrap();
        x = pass.add(x, gate).unwrap();
    }
    pass.output(x).unwrap();
    let mut graph = pass.compile(&CompileOptions::default()).unwrap();
    graph.write(input, &[0.5_f32; 128]).unwrap();
    graph.run().unwrap();
    let expected = graph.read_f32(x).unwrap();

    graph.run().unwrap();
    let (before, bytes) = (device.counts(), device.allocated_bytes());
    let region = Region::new(COUNTING);
    for _ in 0..REPLAYS {
        graph.run().unwrap();
    }
    let allocations = region.change().allocations;
    let after = device.counts();
    let submissions = before.submissions + REPLAYS;
    assert_eq!(after, VulkanCounts { submissions, ..before }, "a replay must only submit");
    assert_eq!(allocations, 0, "a replay must not allocate");
    assert_eq!(device.allocated_bytes(), bytes);
    assert_eq!(graph.read_f32(x).unwrap(), expected, "the bits stay the same");
    println!("{REPLAYS} replays: {allocations} allocations, {after:?}");
}
