//! Plans: lives over groups, sharing by right, a budget, and the random graphs of docs.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use clearway_graph::place::{
    CostModel, PlaceOptions, alias_classes, fit_budget, front, lifetimes, live_bytes, plan,
};
use clearway_graph::testkit::{Run, Shape, random_dag, random_graph, record_op};
use clearway_graph::verify::{Placement, verify};
use clearway_graph::{
    BarrierReason, CapturedNode, CapturedOpKind, ComputeGraph, DType, GraphError, Layout,
    MemoryPlan, schedule,
};

const SLAB: usize = usize::MAX >> 1;
const ALIGN: u64 = 256;

fn scheduled(graph: &ComputeGraph) -> ComputeGraph {
    let mut graph = graph.clone();
    graph.reorder();
    graph.place_barriers();
    graph
}

/// Addresses filled in, and the list proven. Replayed lists get the barrier their seam needs.
fn prove(recorded: &ComputeGraph, list: &ComputeGraph, plan: &MemoryPlan) -> Result<u32, String> {
    let mut placed = list.clone();
    placed.assign_addresses(plan, &[SLAB]).map_err(|error| error.to_string())?;
    let before = placed.barrier_count();
    placed.place_barriers();
    let placement = Placement { plan, slab_buf_ids: &[SLAB] };
    verify(recorded, &placed, Some(placement)).map_err(|fault| fault.to_string())?;
    Ok(placed.barrier_count().saturating_sub(before))
}

#[test]
fn no_two_live_values_share_a_byte_unless_one_runs_in_place_over_the_other() {
    for seed in Run::from_env("plans", 1).seeds() {
        let recorded = random_graph(seed, &Shape::default());
        let list = scheduled(&recorded);
        let plan = plan(&list, ALIGN).unwrap();
        let classes = alias_classes(&list);
        let class_of = |value| classes.iter().position(|c| c.values.contains(&value));
        let lives = lifetimes(&list);
        for (i, a) in lives.iter().enumerate() {
            for b in &lives[..i] {
                let (x, y) = (plan.slot(a.value).unwrap(), plan.slot(b.value).unwrap());
                let bytes = x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes;
                let groups = a.first <= b.last && b.first <= a.last;
                let same = class_of(a.value) == class_of(b.value);
                assert!(!bytes || !groups || same, "seed {seed}: {a:?} and {b:?} share bytes");
            }
        }
        assert_eq!(plan.lower_bound(), live_bytes_aligned(&list), "seed {seed}");
        assert!(plan.total_bytes() >= plan.lower_bound());
    }
}

fn live_bytes_aligned(list: &ComputeGraph) -> u64 {
    let classes = alias_classes(list);
    let groups = classes.iter().map(|c| c.last + 1).max().unwrap_or(0);
    let live = |group: u32| {
        let here = classes.iter().filter(|c| c.first <= group && group <= c.last);
        here.map(|c| c.bytes.next_multiple_of(ALIGN)).sum::<u64>()
    };
    (0..groups).map(live).max().unwrap_or(0)
}

#[test]
fn plans_survive_the_proof_add_no_barrier_and_are_the_same_on_every_rerun() {
    for seed in Run::from_env("proofs", 8).seeds() {
        let recorded = random_dag(seed, 2 + (seed % 7) as usize);
        let list = scheduled(&recorded);
        let plan = plan(&list, ALIGN).unwrap();
        assert_eq!(prove(&recorded, &list, &plan), Ok(0), "seed {seed}");
        let again = clearway_graph::place::plan(&scheduled(&recorded), ALIGN).unwrap();
        assert_eq!(plan, again, "seed {seed}");
    }
}

#[test]
fn shifting_any_one_offset_into_a_live_neighbour_is_reported() {
    let mut shifted = 0;
    for seed in Run::from_env("shifts", 100).seeds() {
        let recorded = random_dag(seed, 4);
        let list = scheduled(&recorded);
        let plan = plan(&list, ALIGN).unwrap();
        let classes = alias_classes(&list);
        for class in classes.iter().step_by(7) {
            let meets = |c: &&clearway_graph::place::AliasClass| {
                *c != class && c.first <= class.last && class.first <= c.last
            };
            let Some(neighbour) = classes.iter().find(meets) else { continue };
            let mut slots = plan.slots().to_vec();
            let target = plan.slot(neighbour.values[0]).unwrap().offset;
            for value in &class.values {
                slots[value.index()].as_mut().unwrap().offset = target;
            }
            let height = plan.total_bytes() + class.bytes;
            let wrong = MemoryPlan::new(slots, vec![height]);
            let mut placed = list.clone();
            placed.assign_addresses(&wrong, &[SLAB]).unwrap();
            let placement = Placement { plan: &wrong, slab_buf_ids: &[SLAB] };
            let verdict = verify(&recorded, &placed, Some(placement));
            assert!(verdict.is_err(), "seed {seed}: {class:?} over {neighbour:?}");
            shifted += 1;
        }
    }
    assert!(shifted > 0);
    println!("{shifted} offsets shifted, all reported");
}

/// The random graphs of planning: groups, false barriers and bytes against the sequential bound.
#[test]
fn random_graphs_keep_their_groups_and_need_few_bytes() {
    let seeds = Run::from_env("random graphs", 32).cases.min(256);
    println!("width  groups/chain  bytes/sequential: mean min max   levels alone");
    for (width, limit) in [(2, 1.12), (4, 1.14), (8, 1.17)] {
        let (mut ratios, mut plain) = (Vec::new(), 0.0);
        for seed in 0..seeds {
            let recorded = random_dag(seed, width);
            let mut sequential = recorded.clone();
            sequential.place_barriers_everywhere();
            let bound = live_bytes_aligned(&sequential) as f64;
            let list = scheduled(&recorded);
            assert_eq!(list.barrier_count() + 1, schedule::longest_chain(&recorded));
            let bytes = plan(&list, ALIGN).unwrap();
            assert_eq!(prove(&recorded, &list, &bytes), Ok(0), "seed {seed}");
            ratios.push(bytes.total_bytes() as f64 / bound);
            let mut levels = recorded.clone();
            levels.reorder_with(schedule::Strategy::LookAhead { window: usize::MAX });
            levels.place_barriers();
            plain += plan(&levels, ALIGN).unwrap().total_bytes() as f64 / bound / seeds as f64;
        }
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        let least = ratios.iter().copied().fold(f64::MAX, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        println!("{width:>5}  1.00          {mean:.3} {least:.3} {most:.3}   {plain:.3}");
        assert!(mean <= limit, "width {width}: {mean:.3} of the sequential bound");
        assert!(mean < plain, "width {width}: no better than plain levels");
    }
}

#[test]
fn a_budget_trades_groups_for_bytes_and_says_what_is_reachable() {
    let recorded = random_dag(7, 8);
    let list = scheduled(&recorded);
    let cost = CostModel::default();
    let points = front(&list, &PlaceOptions::aligned(ALIGN), &cost, 0).unwrap();
    assert!(points.len() > 2, "the front has several points");
    println!("groups       bytes  estimated us");
    for point in &points {
        println!("{:>6} {:>11} {:>13.1}", point.groups, point.bytes, point.time_ns / 1e3);
    }
    for pair in points.windows(2) {
        assert!(pair[1].bytes < pair[0].bytes && pair[1].groups > pair[0].groups);
        assert!(pair[1].time_ns > pair[0].time_ns);
    }
    for point in &points {
        assert_eq!(prove(&recorded, &point.graph, &point.plan).map(|_| ()), Ok(()));
    }
    let middle = points[points.len() / 2].bytes;
    let fitted = fit_budget(&list, &PlaceOptions::aligned(ALIGN), &cost, middle).unwrap();
    assert!(fitted.bytes <= middle);
    let smallest = points.last().unwrap().bytes;
    let error = fit_budget(&list, &PlaceOptions::aligned(ALIGN), &cost, smallest - 1).unwrap_err();
    assert_eq!(error, GraphError::BudgetTooSmall { budget: smallest - 1, smallest });
}

/// Branches that make a large value each and reduce it: side by side they need all of them, one after
/// another only one or two.
#[test]
fn a_budget_reorders_what_no_cut_can() {
    let mut recorded = ComputeGraph::new();
    let row = Layout::new(DType::F32, &[1, 1024]).unwrap();
    let id = Layout::new(DType::U32, &[1]).unwrap();
    for _ in 0..6 {
        let (large, small) = (recorded.declare_value(row), recorded.declare_value(id));
        record_op(&mut recorded, CapturedOpKind::Fill, &[large]);
        record_op(&mut recorded, CapturedOpKind::ArgMax, &[large, small]);
        recorded.mark_output(small.value().unwrap()).unwrap();
    }
    let list = scheduled(&recorded);
    let options = PlaceOptions::aligned(ALIGN);
    let points = front(&list, &options, &CostModel::default(), 0).unwrap();
    assert_eq!((points[0].groups, points[0].bytes / 4096), (2, 6));
    let last = points.last().unwrap();
    assert_eq!(last.bytes / 4096, 1, "one large value at a time");
    for point in &points {
        assert_eq!(prove(&recorded, &point.graph, &point.plan).map(|_| ()), Ok(()));
    }
    let reasons = last.graph.nodes().iter().filter_map(|node| match node {
        CapturedNode::Barrier(reason) => Some(matches!(reason, BarrierReason::Memory)),
        CapturedNode::Dispatch(_) => None,
    });
    let reasons: Vec<bool> = reasons.collect();
    assert!(reasons.contains(&true) && reasons.contains(&false), "hazards and memory: {reasons:?}");
}

#[test]
fn live_bytes_of_the_groups_peak_at_the_bound() {
    let list = scheduled(&random_dag(3, 4));
    let plan = plan(&list, 1).unwrap();
    assert_eq!(live_bytes(&list).into_iter().max(), Some(plan.lower_bound()));
}
