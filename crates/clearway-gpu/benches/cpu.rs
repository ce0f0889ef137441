//! What the CPU backend costs: a crossing of the barrier between groups, and the product that a
//! decode step spends its time in.
//!
//! A decode step crosses hundreds of barriers, so a crossing must stay well under a microsecond.

#![allow(missing_docs)] // criterion's macros make public items
#![allow(clippy::expect_used)]

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use clearway_gpu::cpu::{CpuDevice, SpinBarrier};
use clearway_gpu::{Buffer, Device, KernelRegistry, Ops, Program, Recorder, Result, Upload, quant};
use clearway_graph::{CapturedNode, CapturedOpKind, DType};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Rows and columns of the matrix.
const SIZE: usize = 4096;

criterion_group!(benches, barriers, products);
criterion_main!(benches);

/// Crossings by two threads.
fn barriers(c: &mut Criterion) {
    let mut group = c.benchmark_group("barrier/2 threads");
    let (spinning, mut fastest) = (SpinBarrier::new(2), Duration::MAX);
    group.bench_function("spinning", |b| {
        b.iter_custom(|crossings| time_crossings(crossings, &mut fastest, || spinning.wait()));
    });
    let (parking, mut fastest) = (Barrier::new(2), Duration::MAX);
    group.bench_function("std", |b| {
        let wait = || {
            parking.wait();
        };
        b.iter_custom(|crossings| time_crossings(crossings, &mut fastest, wait));
    });
    group.finish();
}

/// Time for this many crossings at the pace of the fastest burst so far: what a crossing costs while
/// both threads run. On a machine with idle cores all bursts are alike; on a busy one most of them
/// measure how long a thread waits for a core.
fn time_crossings(crossings: u64, fastest: &mut Duration, wait: impl Fn() + Sync) -> Duration {
    const BURST: u64 = 200;
    let bursts = crossings.div_ceil(BURST);
    std::thread::scope(|scope| {
        // One crossing more in each burst, before its clock starts: the partner is there by then.
        scope.spawn(|| (0..bursts * (BURST + 1)).for_each(|_| wait()));
        for _ in 0..bursts {
            wait();
            let start = Instant::now();
            (0..BURST).for_each(|_| wait());
            *fastest = start.elapsed().min(*fastest);
        }
    });
    fastest.mul_f64(crossings as f64 / BURST as f64)
}

/// One row times a matrix, replayed.
fn products(c: &mut Criterion) {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    for threads in [1, cores] {
        let mut group = c.benchmark_group(format!("matvec {SIZE}x{SIZE}/{threads} threads"));
        for dtype in [DType::F32, DType::F16, DType::Q8_0, DType::Q4_K] {
            let mut product = product(threads, dtype).expect("shapes and types fit");
            group.throughput(Throughput::Bytes(product.weight_bytes));
            group.bench_function(dtype.name(), |b| {
                b.iter(|| black_box(&mut product.program).run().expect("the kernel does not fail"));
            });
        }
        group.finish();
    }
}

/// A recorded product and what it keeps alive.
struct Product {
    program: Box<dyn Program>,
    weight_bytes: u64,
    _buffers: [Buffer; 3],
}

fn product(threads: usize, dtype: DType) -> Result<Product> {
    let device = CpuDevice::with_threads(threads);
    let weights: Vec<f32> = (0..SIZE * SIZE).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect();
    let mut bytes = vec![0u8; weights.len() / dtype.block_elems() * dtype.block_bytes()];
    quant::encode(dtype, &weights, &mut bytes).expect("the weights are small");
    let buffers = [
        device.upload(&vec![0.5f32; SIZE])?,
        device.upload(&bytes)?,
        device.alloc(SIZE as u64 * 4)?,
    ];
    let views = [
        buffers[0].tensor(DType::F32, &[1, SIZE])?,
        buffers[1].tensor(dtype, &[SIZE, SIZE])?,
        buffers[2].tensor(DType::F32, &[1, SIZE])?,
    ];
    let mut recorder = Recorder::new();
    recorder.push(CapturedOpKind::MATMUL, &views, &[])?;
    let mut encoder = device.encoder(&KernelRegistry::new());
    for node in recorder.graph().nodes() {
        if let CapturedNode::Dispatch(dispatch) = node {
            encoder.dispatch(dispatch)?;
        }
    }
    let program = encoder.into_program()?;
    Ok(Product { program, weight_bytes: bytes.len() as u64, _buffers: buffers })
}
