//! The costs the core promises: a tracker that does not scan, and stages that grow with the list.
//!
//! Besides criterion's tables it prints two figures that must hold: how many times faster the
//! indexed tracker answers than a linear scan, and how many times longer the stages take for ten
//! times the dispatches.
#![allow(missing_docs)] // criterion's macros make public items
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use clearway_graph::fuse::TestCatalog;
use clearway_graph::testkit::decoder_like;
use clearway_graph::verify::verify;
use clearway_graph::{BufferRange, ComputeGraph, ConflictTracker, DispatchId, MemRangeRole};
use criterion::{BenchmarkId, Criterion, SamplingMode, criterion_group};

/// Buffers the live ranges are spread over.
const BUFFERS: u64 = 8;
/// Bytes of a live range, and of the gap behind it.
const BYTES: u64 = 64;

/// What most runtimes do: a list of ranges, scanned for every dispatch.
#[derive(Default)]
struct LinearTracker(Vec<BufferRange>);

impl LinearTracker {
    fn check(&self, ranges: &[BufferRange]) -> bool {
        !ranges.iter().any(|range| self.0.iter().any(|live| live.conflicts_with(range)))
    }
}

fn range(index: u64, gap: bool, role: MemRangeRole) -> BufferRange {
    let p0 = index / BUFFERS * 2 * BYTES + u64::from(gap) * BYTES;
    BufferRange { buf_id: (index % BUFFERS) as usize, p0, p1: p0 + BYTES, role }
}

/// Both trackers with `live` ranges in them, and dispatches of three ranges that may join: they
/// touch the live ranges without sharing a byte.
struct Group {
    indexed: ConflictTracker,
    linear: LinearTracker,
    candidates: Vec<[BufferRange; 3]>,
}

impl Group {
    fn new(live: u64) -> Self {
        let mut group = Self {
            indexed: ConflictTracker::new(),
            linear: LinearTracker::default(),
            candidates: Vec::new(),
        };
        for index in 0..live {
            let range = range(index, false, MemRangeRole::Dst);
            group.indexed.add(DispatchId(index as u32), [&range]);
            group.linear.0.push(range);
        }
        // Far apart from one another, as the operands of a dispatch are.
        let at = |step: u64| (step * 7_919) % live;
        group.candidates = (0..64)
            .map(|step| {
                let roles = [MemRangeRole::Src, MemRangeRole::Src, MemRangeRole::Dst];
                [0, 1, 2].map(|i| range(at(3 * step + i), true, roles[i as usize]))
            })
            .collect();
        group
    }

    fn ask_indexed(&self) -> bool {
        let joins =
            |ranges: &[BufferRange; 3]| self.indexed.check(DispatchId(u32::MAX), ranges).is_ok();
        black_box(&self.candidates).iter().all(joins)
    }

    fn ask_linear(&self) -> bool {
        black_box(&self.candidates).iter().all(|ranges| self.linear.check(ranges))
    }
}

fn tracker(criterion: &mut Criterion) {
    let mut table = criterion.benchmark_group("tracker, 64 questions");
    table.sample_size(10).warm_up_time(Duration::from_millis(200));
    table.measurement_time(Duration::from_millis(800)).sampling_mode(SamplingMode::Flat);
    for live in [1_000, 10_000, 100_000] {
        let group = Group::new(live);
        assert!(group.ask_indexed() && group.ask_linear(), "every question has the dear answer");
        table.bench_function(BenchmarkId::new("indexed", live), |b| b.iter(|| group.ask_indexed()));
        table.bench_function(BenchmarkId::new("linear", live), |b| b.iter(|| group.ask_linear()));
    }
    table.finish();
    for live in [1_000, 10_000, 100_000] {
        let group = Group::new(live);
        let indexed = fastest(20, || group.ask_indexed());
        let linear = fastest(3, || group.ask_linear());
        let ratio = linear.as_secs_f64() / indexed.as_secs_f64();
        println!("tracker at {live} live ranges: {ratio:.0} times faster than a linear scan");
    }
}

/// Fuse, reorder, place barriers, verify.
fn stages(recorded: &ComputeGraph) -> u32 {
    let mut graph = recorded.clone();
    graph.fuse_with(&mut TestCatalog::new(), &(), true).unwrap();
    graph.quantise(&mut TestCatalog::new(), &()).unwrap();
    graph.reorder();
    graph.place_barriers();
    verify(recorded, &graph, None).unwrap().groups
}

fn pipeline(criterion: &mut Criterion) {
    let graphs = [10_000, 100_000].map(|dispatches| (dispatches, decoder_like(dispatches)));
    let mut table = criterion.benchmark_group("fuse + reorder + place + verify");
    table.sample_size(10).warm_up_time(Duration::from_millis(200));
    table.measurement_time(Duration::from_secs(3)).sampling_mode(SamplingMode::Flat);
    for (dispatches, graph) in &graphs {
        table.bench_function(BenchmarkId::from_parameter(dispatches), |b| b.iter(|| stages(graph)));
    }
    table.finish();
    // In turns, and often: a neighbour that fills the shared cache slows only the large one down.
    let rounds = (0..60).map(|_| graphs.each_ref().map(|(_, graph)| fastest(1, || stages(graph))));
    let fastest = |a: [Duration; 2], b: [Duration; 2]| [a[0].min(b[0]), a[1].min(b[1])];
    let [small, large] = rounds.reduce(fastest).unwrap();
    let ratio = large.as_secs_f64() / small.as_secs_f64();
    println!(
        "100000 dispatches cost {ratio:.1} times what 10000 cost ({large:.1?} and {small:.1?})"
    );
}

/// The shortest of some runs: what the machine does besides only ever adds.
fn fastest<T>(runs: usize, mut work: impl FnMut() -> T) -> Duration {
    let time = |_| {
        let start = Instant::now();
        black_box(work());
        start.elapsed()
    };
    (0..runs).map(time).min().unwrap_or_default()
}

criterion_group!(core, tracker, pipeline);

fn main() {
    core();
    Criterion::default().configure_from_args().final_summary();
}
