//! Many replays of a small graph on Vulkan: no wrong result, no growth.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::sync::Arc;

use clearway::testkit::open_vulkan;
use clearway::vulkan::VulkanOptions;
use clearway::{CompileOptions, DType, Executable, GraphExecutor, Layout, Ops, TensorView, Upload};

/// Bytes the process may grow by: buffers of the standard library and of the driver.
const SLACK_BYTES: u64 = 4 << 20;

/// Replays: `CLEARWAY_REPLAYS`, or a share of the cases of this run.
fn replays() -> u64 {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let of_cases = || 10 * number("CLEARWAY_CASES").unwrap_or(2_000);
    let replays = number("CLEARWAY_REPLAYS").unwrap_or_else(of_cases);
    // Nothing is random here; the line is what a soak collects.
    println!("vulkan replays of a small graph: CLEARWAY_SEED=0, {replays} cases");
    replays
}

/// Bytes of memory this process has in use; none where the system does not say.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

fn small_graph(executor: &GraphExecutor) -> (Executable, TensorView, TensorView) {
    let weight: Vec<f32> = (0..32 * 32).map(|i| ((i * 7) % 13) as f32 / 50.0 - 0.1).collect();
    let weight = executor.device().upload(&weight).unwrap();
    let matrix = weight.tensor(DType::F32, &[32, 32]).unwrap();
    let mut pass = executor.begin_recorded().unwrap();
    let input = pass.input(Layout::new(DType::F32, &[1, 32]).unwrap()).unwrap();
    let normed = pass.rms_norm(input, 1e-5).unwrap();
    let left = pass.matmul(normed, matrix).unwrap();
    let right = pass.silu(input).unwrap();
    let y = pass.add(left, right).unwrap();
    pass.output(y).unwrap();
    (pass.compile(&CompileOptions::default()).unwrap(), input, y)
}

#[test]
fn many_replays_neither_grow_nor_err() {
    let options = VulkanOptions { disk_cache: false, ..VulkanOptions::default() };
    let Some(device) = open_vulkan(options).unwrap() else { return };
    let device = Arc::new(device);
    let executor = GraphExecutor::on(device.clone());
    let (mut graph, input, output) = small_graph(&executor);
    let mut step = |value: usize| {
        let input_row: Vec<f32> = (0..32).map(|i| ((i * 3 + value) % 8) as f32 - 3.0).collect();
        graph.write(input, &input_row).unwrap();
        graph.run().unwrap();
        graph.read_f32(output).unwrap()
    };
    let expected: Vec<Vec<f32>> = (0..8).map(&mut step).collect();
    let replays = replays();
    let warm_up = (replays / 10).min(1_000) as usize;
    for replay in 0..warm_up {
        assert_eq!(step(replay % 8), expected[replay % 8]);
    }
    let (resident, allocated) = (resident_bytes(), device.allocated_bytes());
    let pieces = device.counts().pieces;
    let start = std::time::Instant::now();
    for replay in 0..replays as usize {
        assert!(step(replay % 8) == expected[replay % 8], "replay {replay} is wrong");
    }
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(device.allocated_bytes(), allocated, "device memory grew");
    assert_eq!(device.counts().pieces, pieces);
    if let (Some(before), Some(after)) = (resident, resident_bytes()) {
        println!("{replays} replays in {seconds:.1} s: {before} bytes resident, then {after}");
        assert!(after <= before + SLACK_BYTES, "{before} bytes resident grew to {after}");
    } else {
        println!("{replays} replays in {seconds:.1} s; the system does not tell resident bytes");
    }
}
