//! Cost of the placer: decoder graphs, very large graphs, hard sets, and its checker.
#![allow(missing_docs)] // criterion's macros make public items
#![allow(clippy::expect_used)]

#[path = "../tests/pack/generate.rs"]
#[allow(dead_code)]
mod generate;

use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use clearway_graph::ComputeGraph;
use clearway_graph::pack::{Effort, Item, PackOptions, check, csv, pack};
use clearway_graph::place::plan;
use clearway_graph::testkit::{decoder_like, random_dag};
use criterion::{Criterion, criterion_group, criterion_main};

fn heuristic() -> PackOptions {
    PackOptions { effort: Effort::Heuristic, ..PackOptions::default() }
}

/// What the place stage costs inside the runtime: lives, classes, offsets of a scheduled list.
fn plans(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("plan");
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    let scheduled = |recorded: &ComputeGraph| {
        let mut list = recorded.clone();
        list.reorder();
        list.place_barriers();
        list
    };
    for (name, dispatches) in [("decoder, 640 dispatches", 640), ("100k dispatches", 100_000)] {
        let list = scheduled(&decoder_like(dispatches));
        let made = plan(&list, 256).expect("it fits 64 bits");
        assert_eq!(made.total_bytes(), made.lower_bound(), "{name}");
        group.bench_function(name, |bencher| bencher.iter(|| plan(black_box(&list), 256)));
    }
    let list = scheduled(&random_dag(1, 8));
    group.bench_function("random, 301 dispatches", |bencher| {
        bencher.iter(|| plan(black_box(&list), 256));
    });
    group.finish();
}

/// What placing costs inside the runtime: these reach the lower bound with the first greedy order.
fn graphs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pack/graph");
    let sets = [
        ("decoder, 515 values", generate::decoder(32, 4096, 14336, 512)),
        ("decoder, 1603 values", generate::decoder(100, 4096, 14336, 1)),
    ];
    for (name, items) in &sets {
        let packing = pack(items, &heuristic()).expect("valid items");
        assert_eq!(packing.height, packing.lower_bound, "{name}");
        group
            .bench_function(*name, |bencher| bencher.iter(|| pack(black_box(items), &heuristic())));
    }
    group.finish();
}

fn large(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pack/large");
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    let items = generate::crowd(100_000, 1);
    group.bench_function("100k values", |bencher| {
        bencher.iter(|| pack(black_box(&items), &heuristic()));
    });
    let packing = pack(&items, &heuristic()).expect("valid items");
    group.bench_function("100k values, check", |bencher| {
        bencher.iter(|| check(black_box(&items), &packing.offsets, None));
    });
    // Every strategy but one is too dear here: two billion conflicts.
    let dense: Vec<Item> = (0..100_000u64)
        .map(|k| {
            let lower = k * 7919 % 100_003;
            let upper = lower + 1 + k * 104_729 % 50_021;
            Item { id: k as u32, lower, upper, size: 64 * (1 + k % 997) }
        })
        .collect();
    group.bench_function("100k values, dense", |bencher| {
        bencher.iter(|| pack(black_box(&dense), &heuristic()));
    });
    group.finish();
}

/// The MiniMalloc instances: the heuristics alone, and the search to their capacity.
fn hard(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pack/hard");
    group.sample_size(10);
    for name in ["A", "B", "C", "D", "F", "G", "I", "J"] {
        let file = format!("tests/data/minimalloc/{name}.1048576.csv");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let text = std::fs::read_to_string(path).expect("instance beside the tests");
        let items = csv::parse(&text).expect("valid instance").items;
        group.bench_function(format!("{name}, heuristic"), |bencher| {
            bencher.iter(|| pack(black_box(&items), &heuristic()));
        });
        let fit = PackOptions {
            effort: Effort::Exact { node_budget: 1_000_000 },
            threads: 2,
            capacity: Some(1_048_576),
            ..PackOptions::default()
        };
        group.bench_function(format!("{name}, capacity"), |bencher| {
            bencher.iter(|| pack(black_box(&items), &fit));
        });
    }
    group.finish();
}

criterion_group!(benches, plans, graphs, large, hard);
criterion_main!(benches);
