//! What it costs to take each built-in shape through all stages: record, fuse, order, place, prove.
//!
//! cargo bench -p clearway-llm --bench shapes
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::hint::black_box;
use std::time::Duration;

use clearway::cpu::CpuDevice;
use clearway::pipeline::{Compiled, compile};
use clearway::{CompileError, CompileOptions, KernelRegistry, MemoryPlan};
use clearway_llm::model::{self, ModelShape, RecordOptions};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

fn all_stages(shape: &ModelShape, tokens: usize, device: &CpuDevice) -> Compiled {
    let recorded = model::record(shape, &RecordOptions::new(tokens, 4096)).unwrap();
    let slabs = |plan: &MemoryPlan| {
        Ok::<_, CompileError>((1 << 40..).take(plan.slab_bytes().len()).collect())
    };
    let options = CompileOptions::default();
    compile(recorded.graph(), &mut KernelRegistry::new(), device, &options, slabs).unwrap()
}

fn shapes(criterion: &mut Criterion) {
    let device = CpuDevice::with_threads(1);
    let mut group = criterion.benchmark_group("all_stages");
    group.warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    group.sample_size(20);
    for shape in model::builtin_shapes() {
        for tokens in [1, 512] {
            let stats = *all_stages(&shape, tokens, &device).stats();
            assert_eq!(stats.groups, stats.longest_chain, "{} at {tokens}", shape.name);
            let id = BenchmarkId::new(&shape.name, tokens);
            group.bench_function(id, |bencher| {
                bencher.iter(|| black_box(all_stages(&shape, tokens, &device)));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, shapes);
criterion_main!(benches);
