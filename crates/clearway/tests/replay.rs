//! A compiled graph runs again and again: with new inputs, without allocating.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::alloc::System;

use clearway::cpu::CpuDevice;
use clearway::{CompileOptions, DType, Executable, GraphExecutor, Layout, Ops, TensorView, Upload};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

/// Counts allocations of the whole process; this file holds one test so that nothing else adds any.
#[global_allocator]
static COUNTING: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn layers(executor: &GraphExecutor) -> (Executable, TensorView, TensorView) {
    let weight: Vec<f32> = (0..64 * 64).map(|i| ((i * 7) % 13) as f32 / 100.0).collect();
    let weight = executor.device().upload(&weight).unwrap();
    let matrix = weight.tensor(DType::F32, &[64, 64]).unwrap();
    let row = weight.tensor(DType::F32, &[64]).unwrap();
    let mut pass = executor.begin_recorded().unwrap();
    let input = pass.input(Layout::new(DType::F32, &[2, 64]).unwrap()).unwrap();
    let mut x = input;
    for _ in 0..8 {
        let normed = pass.rms_norm(x, 1e-5).unwrap();
        let normed = pass.mul(normed, row).unwrap();
        let gate = pass.matmul(normed, matrix).unwrap();
        let gate = pass.silu(gate).unwrap();
        let up = pass.matmul(normed, matrix).unwrap();
        let y = pass.mul(gate, up).unwrap();
        let y = pass.matmul(y, matrix).unwrap();
        x = pass.add(x, y).unwrap();
    }
    pass.output(x).unwrap();
    (pass.compile(&CompileOptions::default()).unwrap(), input, x)
}

#[test]
fn replays_follow_their_input_and_allocate_nothing() {
    let executor = GraphExecutor::new(CpuDevice::with_threads(2));
    let (mut graph, input, output) = layers(&executor);
    let step = |graph: &mut Executable, value: f32| {
        graph.write(input, &[value; 128]).unwrap();
        graph.run().unwrap();
        graph.read_f32(output).unwrap()
    };
    let one = step(&mut graph, 1.0);
    let two = step(&mut graph, -0.5);
    assert_ne!(one, two);
    assert_eq!(step(&mut graph, 1.0), one);

    graph.run().unwrap();
    let region = Region::new(COUNTING);
    for _ in 0..1000 {
        graph.run().unwrap();
    }
    assert_eq!(region.change().allocations, 0, "a replay must not allocate");
    assert_eq!(graph.read_f32(output).unwrap(), one, "1000 replays later the bits are the same");
}
