//! Mutation: real faults put into optimised lists, every one of which the verifier must report.
//!
//! Each kind of fault is chosen so that it is one: the barrier is needed, the consumer sees bytes
//! of the producer, the neighbour is alive (an oracle that runs every byte says so).
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests stand outside of them

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use clearway_graph::fuse::TestCatalog;
use clearway_graph::place::Slot;
use clearway_graph::testkit::{
    Lives, Oracle, Rng, Run, Shape, Touch, flows, graph_of, plan_by_groups, random_graph, tampered,
    with_nodes,
};
use clearway_graph::verify::{Fault, Placement, Problem, Proof, verify};
use clearway_graph::{
    Access, Accesses, BarrierReason, BufferRange, CapturedNode, ComputeGraph, DType, Dispatch,
    DispatchId, Layout, MemoryPlan, NodeId,
};

/// A buffer no random list uses.
const SLAB: usize = 1000;

/// A recorded list and what the stages made of it, with and without addresses.
struct Case {
    seed: u64,
    rng: Rng,
    recorded: ComputeGraph,
    last: ComputeGraph,
    plan: MemoryPlan,
    placed: ComputeGraph,
}

impl Case {
    fn new(seed: u64) -> Self {
        let shape = Shape { dispatches: (4, 30), replayed: 100, ..Shape::default() };
        let recorded = random_graph(seed, &shape);
        let mut rng = Rng::new(seed);
        let mut last = recorded.clone();
        if rng.chance(50) {
            last.fuse(&mut TestCatalog::new(), &()).unwrap();
        }
        last.reorder();
        last.place_barriers();
        let plan = plan_by_groups(&last, 4, &mut rng);
        let placed = at_addresses(&last, &plan);
        let case = Self { seed, rng, recorded, last, plan, placed };
        case.verify(&case.last, None).unwrap();
        case.verify(&case.placed, Some(&case.plan)).unwrap();
        case
    }

    fn verify(&self, last: &ComputeGraph, plan: Option<&MemoryPlan>) -> Result<(), Fault> {
        verify(&self.recorded, last, plan.map(placement)).map(drop)
    }

    /// Both lists, with the plan of the second.
    fn lists(&self) -> [(&ComputeGraph, Option<&MemoryPlan>); 2] {
        [(&self.last, None), (&self.placed, Some(&self.plan))]
    }

    #[track_caller]
    fn must_fail(&self, last: &ComputeGraph, plan: Option<&MemoryPlan>, what: &str) -> Fault {
        match self.verify(last, plan) {
            Err(fault) => fault,
            Ok(()) => panic!("list of seed {}: {what} went unseen\n{}", self.seed, last.to_text()),
        }
    }
}

fn placement(plan: &MemoryPlan) -> Placement<'_> {
    Placement { plan, slab_buf_ids: &[SLAB] }
}

fn at_addresses(graph: &ComputeGraph, plan: &MemoryPlan) -> ComputeGraph {
    let mut graph = graph.clone();
    graph.assign_addresses(plan, &[SLAB]).unwrap();
    graph
}

/// Runs `mutate` over random optimised lists and counts its mutations, of which there must be some.
fn for_each(name: &str, mutate: impl Fn(&mut Case) -> u64) {
    let (start, run) = (Instant::now(), Run::from_env(name, 1));
    let tried: u64 = run.seeds().map(|seed| mutate(&mut Case::new(seed))).sum();
    let seconds = start.elapsed().as_secs_f64();
    println!("{name}: {tried} mutations, all reported ({seconds:.1} s)");
    assert!(tried > 0, "no list had anything to mutate");
}

#[test]
fn a_removed_barrier_is_reported() {
    for_each("removed barriers", |case| {
        let mut tried = 0;
        for (list, plan) in case.lists() {
            for at in 0..list.nodes().len() {
                if list.nodes()[at].dispatch().is_none() {
                    let mut nodes = list.nodes().to_vec();
                    nodes.remove(at);
                    case.must_fail(&with_nodes(list, nodes), plan, "a removed barrier");
                    tried += 1;
                }
            }
        }
        tried
    });
}

#[test]
fn a_removed_replay_barrier_is_reported_by_the_wrap_around_proof() {
    for_each("removed replay barriers", |case| {
        let mut tried = 0;
        for (list, plan) in case.lists() {
            let Some(CapturedNode::Barrier(BarrierReason::Replay(_))) = list.nodes().last() else {
                continue;
            };
            let nodes = list.nodes()[..list.nodes().len() - 1].to_vec();
            let fault = case.must_fail(&with_nodes(list, nodes), plan, "a removed replay barrier");
            assert_eq!(fault.proof, Proof::WrapAround, "seed {}: {fault}", case.seed);
            tried += 1;
        }
        tried
    });
}

#[test]
fn a_producer_swapped_with_its_consumer_is_reported() {
    for_each("swapped producers and consumers", |case| {
        let mut tried = 0;
        let flows = flows(&case.recorded);
        // With a barrier everywhere only the value flow can tell.
        let mut apart = case.last.clone();
        apart.place_barriers_everywhere();
        let placed = at_addresses(&apart, &case.plan);
        let lists = [(&apart, None), (&placed, Some(&case.plan))];
        for (list, plan) in case.lists().into_iter().chain(lists) {
            let carriers = |id: DispatchId| -> BTreeSet<usize> {
                let carries = |d: &Arc<Dispatch>| d.origins.contains(&id);
                let nodes = list.nodes().iter().enumerate();
                let carriers = nodes.filter(|(_, node)| node.dispatch().is_some_and(carries));
                carriers.map(|(at, _)| at).collect()
            };
            for &(producer, consumer) in &flows {
                let (a, b) = (carriers(producer), carriers(consumer));
                assert!(!a.is_empty() && !b.is_empty(), "{producer} or {consumer} is lost");
                // Where both are carried out by one dispatch the bytes flow inside it.
                for &b in b.difference(&a) {
                    for &a in &a {
                        let mut nodes = list.nodes().to_vec();
                        nodes.swap(a, b);
                        case.must_fail(&with_nodes(list, nodes), plan, "a swapped producer");
                        tried += 1;
                    }
                }
            }
        }
        tried
    });
}

#[test]
fn a_copy_that_reads_at_another_time_is_reported() {
    // Fused lists in which several dispatches carry out one member; each copy is put to the other
    // side of each dispatch that writes what the member reads.
    for_each("copies that read at another time", |case| {
        let shape = Shape { runs: 60, unknown: 0, pinned: 0, ..Shape::default() };
        case.recorded = random_graph(case.seed, &shape);
        let (mut tried, oracle) = (0, Oracle::new(&case.recorded));
        let mut fused = case.recorded.clone();
        fused.fuse(&mut TestCatalog::new(), &()).unwrap();
        let nodes: Vec<Arc<Dispatch>> = fused.dispatches().cloned().collect();
        let repeated = |id: DispatchId| {
            nodes.iter().filter(|dispatch| dispatch.origins.contains(&id)).count() > 1
        };
        for (place, copy) in nodes.iter().enumerate() {
            let of_copy = |a: &&Access| !a.range.is_write() && repeated(a.origin.dispatch);
            let reads: Vec<BufferRange> =
                copy.accesses().iter().filter(of_copy).map(|a| a.range).collect();
            for (other, dispatch) in nodes.iter().enumerate() {
                let writes_it = |range: &BufferRange| {
                    reads.iter().any(|read| {
                        range.buf_id == read.buf_id && range.p0.max(read.p0) < range.p1.min(read.p1)
                    })
                };
                if other == place || !dispatch.writes().any(writes_it) {
                    continue;
                }
                let mut moved = nodes.clone();
                let copy = moved.remove(place);
                moved.insert(other, copy);
                let moved = moved.into_iter().map(CapturedNode::Dispatch).collect();
                let mut list = with_nodes(&fused, moved);
                list.place_barriers_everywhere();
                // What it reads then may be the same, if something else writes it once more.
                if oracle.accepts(&list, None).is_err() {
                    case.must_fail(&list, None, "a copy that reads at another time");
                    tried += 1;
                }
            }
        }
        tried
    });
}

#[test]
fn a_value_shifted_onto_a_live_neighbour_is_reported() {
    for_each("values shifted onto live neighbours", |case| {
        let mut tried = 0;
        let lives = Lives::of(&case.last);
        let values: Vec<NodeId> = (0..case.recorded.values().len() as u32).map(NodeId).collect();
        let recorded = case.recorded.clone();
        let oracle = Oracle::new(&recorded);
        for &moved in &values {
            let live = |&other: &NodeId| moved != other && lives.meet(moved, other);
            let neighbours: Vec<NodeId> = values.iter().copied().filter(live).collect();
            // Each value onto two of its neighbours: the count is squared otherwise.
            for _ in 0..2 {
                let Some(&onto) = case.rng.pick(&neighbours) else { continue };
                let plan = shifted(&case.plan, moved, onto, &mut case.rng);
                let list = at_addresses(&case.last, &plan);
                // A neighbour whose shared bytes nobody reads any more is not hurt.
                if oracle.accepts(&list, Some(placement(&plan))).is_err() {
                    case.must_fail(&list, Some(&plan), &format!("{moved} on {onto}"));
                    tried += 1;
                }
            }
        }
        tried
    });
}

/// Two halves of a value of 2 x 8 floats are written, the rows of each 8 floats apart; before that, a row
/// of the left half is filled, and at last all of it is read. Filling the row after the left half
/// instead is wrong, although both orders end in a write whose span covers the row.
#[test]
fn a_fill_moved_across_writes_with_gaps_is_reported() {
    let value = NodeId(0).buf_id();
    let half = Layout::new(DType::F32, &[2, 4]).unwrap().with_strides(&[8, 1]).unwrap();
    let fill = [Touch::write(value, 64, 32, 48)];
    let left = [Touch::write(value, 64, 0, 0).of_tensor(half)];
    let right = [Touch::write(value, 64, 16, 16).of_tensor(half)];
    let all = [Touch::read(value, 64, 0, 64)];
    let recorded = graph_of(&[&fill, &left, &right, &all]);
    let list = |order: [usize; 4]| {
        let nodes = order.iter().map(|&at| recorded.nodes()[at].clone()).collect();
        let mut list = with_nodes(&recorded, nodes);
        list.place_barriers_everywhere();
        list
    };
    verify(&recorded, &list([0, 1, 2, 3]), None).unwrap();
    let wrong = list([1, 0, 2, 3]);
    assert!(Oracle::of_elements(&recorded).accepts(&wrong, None).is_err());
    let fault = verify(&recorded, &wrong, None).unwrap_err();
    // The left half, all of whose span counts as read, comes before the fill it came after.
    assert_eq!((fault.proof, fault.dispatch), (Proof::ValueFlow, Some(DispatchId(1))), "{fault}");
    let Problem::WrongRead { expected, .. } = fault.problem else { panic!("{fault}") };
    assert_eq!(expected.dispatch(), Some(DispatchId(0)), "{fault}");
    // No stage gives that order.
    for reordered in [false, true] {
        let mut last = recorded.clone();
        if reordered {
            last.reorder();
        }
        last.place_barriers();
        verify(&recorded, &last, None).unwrap();
    }
}

#[test]
fn a_write_with_gaps_recorded_as_one_without_is_reported() {
    for_each("gaps recorded as written", |case| {
        let mut tried = 0;
        for at in 0..case.recorded.nodes().len() {
            let mut nodes = case.recorded.nodes().to_vec();
            let CapturedNode::Dispatch(dispatch) = &nodes[at] else { continue };
            let keeps = |access: &Access| access.keeps;
            let Some(kept) = dispatch.accesses().iter().position(keeps) else { continue };
            let without = tampered(dispatch, |_, accesses| {
                let Accesses::Known(list) = accesses else { panic!("it has accesses") };
                list.remove(kept);
                for (number, access) in list.iter_mut().enumerate() {
                    access.origin.access = number as u16;
                }
            });
            nodes[at] = CapturedNode::Dispatch(Arc::new(without));
            let recorded = with_nodes(&case.recorded, nodes);
            let mut last = recorded.clone();
            last.place_barriers();
            let fault = verify(&recorded, &last, None).unwrap_err();
            assert_eq!(fault.problem, Problem::GapsOverwritten, "seed {}: {fault}", case.seed);
            tried += 1;
        }
        tried
    });
}

#[test]
fn a_dispatch_moved_across_a_write_with_gaps_is_reported() {
    // Few bytes, so that spans interlock; a barrier everywhere, so that only the order can be wrong.
    let shape = Shape {
        dispatches: (4, 12),
        buffers: 1,
        buffer_bytes: 64,
        unknown: 0,
        pinned: 0,
        runs: 0,
        strided: 70,
        ..Shape::default()
    };
    for_each("dispatches moved across writes with gaps", |case| {
        case.recorded = random_graph(case.seed, &shape);
        let elements = Oracle::of_elements(&case.recorded);
        let nodes: Vec<Arc<Dispatch>> = case.recorded.dispatches().cloned().collect();
        let mut tried = 0;
        for (place, gapped) in nodes.iter().enumerate() {
            let writes_gaps = |access: &Access| {
                let view = &gapped.bindings[usize::from(access.binding)];
                access.range.is_write() && view.layout.has_gaps()
            };
            if !gapped.accesses().iter().any(writes_gaps) {
                continue;
            }
            for other in (0..nodes.len()).filter(|&other| other != place) {
                let mut moved = nodes.clone();
                let dispatch = moved.remove(other);
                moved.insert(place, dispatch);
                let moved = moved.into_iter().map(CapturedNode::Dispatch).collect();
                let mut list = with_nodes(&case.recorded, moved);
                list.place_barriers_everywhere();
                if elements.accepts(&list, None).is_err() {
                    case.must_fail(&list, None, "a dispatch moved across a write with gaps");
                    tried += 1;
                }
            }
        }
        tried
    });
}

/// `plan` with `moved` over some bytes of `onto`.
fn shifted(plan: &MemoryPlan, moved: NodeId, onto: NodeId, rng: &mut Rng) -> MemoryPlan {
    let mut slots = plan.slots().to_vec();
    let (Some(neighbour), Some(slot)) = (plan.slot(onto), plan.slot(moved)) else {
        panic!("live values have a place");
    };
    let first = (neighbour.offset + 1).saturating_sub(slot.bytes);
    let offset = rng.within(first, neighbour.offset + neighbour.bytes - 1);
    slots[moved.index()] = Some(Slot { offset, ..slot });
    let top = slots.iter().flatten().map(|slot| slot.offset + slot.bytes).max();
    MemoryPlan::new(slots, vec![top.unwrap_or(0)])
}

#[test]
fn a_shortened_range_is_reported() {
    for_each("shortened ranges", |case| {
        let mut tried = 0;
        for (list, plan) in case.lists() {
            for at in 0..list.nodes().len() {
                let accesses = list.nodes()[at].dispatch().map_or(0, |d| d.accesses().len());
                for access in 0..accesses {
                    for from_front in [false, true] {
                        let mut nodes = list.nodes().to_vec();
                        if shorten(&mut nodes[at], access, from_front) {
                            case.must_fail(&with_nodes(list, nodes), plan, "a shortened range");
                            tried += 1;
                        }
                    }
                }
            }
        }
        tried
    });
}

/// Takes a byte off an access; false if it has none.
fn shorten(node: &mut CapturedNode, access: usize, from_front: bool) -> bool {
    let CapturedNode::Dispatch(dispatch) = node else { return false };
    if dispatch.accesses().get(access).is_none_or(|access| access.range.is_empty()) {
        return false;
    }
    let shorter = tampered(dispatch, |_, accesses| {
        let Accesses::Known(list) = accesses else { return };
        match from_front {
            true => list[access].range.p0 += 1,
            false => list[access].range.p1 -= 1,
        }
    });
    *node = CapturedNode::Dispatch(Arc::new(shorter));
    true
}

#[test]
fn a_lost_or_doubled_dispatch_is_reported() {
    for_each("lost and doubled dispatches", |case| {
        let mut tried = 0;
        for (list, plan) in case.lists() {
            for at in 0..list.nodes().len() {
                if list.nodes()[at].dispatch().is_some() {
                    let mut lost = list.nodes().to_vec();
                    let node = lost.remove(at);
                    case.must_fail(&with_nodes(list, lost), plan, "a lost dispatch");
                    let mut doubled = list.nodes().to_vec();
                    doubled.extend([CapturedNode::Barrier(BarrierReason::Requested), node]);
                    case.must_fail(&with_nodes(list, doubled), plan, "a doubled dispatch");
                    tried += 2;
                }
            }
        }
        tried
    });
}
