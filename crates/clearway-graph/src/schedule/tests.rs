use smallvec::SmallVec;

use super::*;
use crate::dtype::DType;
use crate::ids::NodeId;
use crate::layout::{Layout, TensorView};
use crate::node::{Access, Accesses, BarrierReason, DispatchFields, HazardKind, Origin, Params};
use crate::op::CapturedOpKind;
use crate::range::BufferRange;
use crate::range::MemRangeRole::{self, Dst, Src};

/// Dispatches built one after another over real buffers and values.
#[derive(Default)]
struct List(Vec<Dispatch>);

impl List {
    fn add(&mut self, accesses: Accesses) -> &mut Dispatch {
        let id = DispatchId(self.0.len() as u32);
        self.0.push(Dispatch::from_fields(DispatchFields {
            id,
            kind: CapturedOpKind::Custom,
            kernel: "test".into(),
            params: Params::new(),
            bindings: SmallVec::new(),
            accesses,
            in_place: SmallVec::new(),
            origins: SmallVec::from_slice(&[id]),
            label: Arc::from(""),
        }));
        self.0.last_mut().unwrap()
    }

    fn ranges(&mut self, ranges: &[(usize, u64, u64, MemRangeRole)]) -> &mut Dispatch {
        let dispatch = DispatchId(self.0.len() as u32);
        let access = |(&(buf_id, p0, p1, role), access)| Access {
            range: BufferRange { buf_id, p0, p1, role },
            binding: 0,
            origin: Origin { dispatch, access },
            keeps: false,
        };
        self.add(Accesses::Known(ranges.iter().zip(0..).map(access).collect()))
    }

    /// Reads whole buffers and writes one, 8 bytes each.
    fn op(&mut self, reads: &[usize], write: usize) -> &mut Dispatch {
        let reads = reads.iter().map(|&buf| (buf, 0, 8, Src));
        self.ranges(&reads.chain([(write, 0, 8, Dst)]).collect::<Vec<_>>())
    }

    /// As `op` over values, given with their bytes.
    fn value_op(&mut self, reads: &[(u32, usize)], write: (u32, usize)) -> &mut Dispatch {
        let view = |(value, bytes): (u32, usize)| {
            TensorView::of_value(NodeId(value), Layout::new(DType::F32, &[bytes / 4]).unwrap())
        };
        let range = |value: (u32, usize), role| (NodeId(value.0).buf_id(), 0, value.1 as u64, role);
        let mut ranges: Vec<_> = reads.iter().map(|&value| range(value, Src)).collect();
        ranges.push(range(write, Dst));
        let dispatch = self.ranges(&ranges);
        dispatch.bindings = reads.iter().chain([&write]).map(|&value| view(value)).collect();
        dispatch
    }

    fn unknown(&mut self) -> &mut Dispatch {
        self.add(Accesses::Unknown)
    }

    fn graph(self) -> ComputeGraph {
        let nodes = self.0.into_iter().map(|d| CapturedNode::Dispatch(Arc::new(d)));
        ComputeGraph::from_nodes(nodes.collect()).unwrap()
    }
}

fn ids(graph: &ComputeGraph) -> Vec<u32> {
    graph.dispatches().map(|dispatch| dispatch.id.0).collect()
}

fn groups(graph: &mut ComputeGraph) -> u32 {
    graph.place_barriers() + u32::from(graph.dispatch_count() > 0)
}

fn refusal(graph: &ComputeGraph, id: u32) -> Option<MoveRefusal> {
    let refusals = &graph.schedule_report().unwrap().refusals;
    refusals.iter().find(|(dispatch, _)| dispatch.0 == id).map(|(_, refusal)| *refusal)
}

const BOTH: [Strategy; 2] = [Strategy::Levels, Strategy::LookAhead { window: 64 }];

/// One source, `branches` chains of `len` listed one after another, one join.
fn branch_graph(branches: usize, len: usize) -> ComputeGraph {
    let mut list = List::default();
    list.op(&[], 0);
    let mut ends = Vec::new();
    for branch in 0..branches {
        let mut last = 0;
        for step in 0..len {
            let next = 1 + branch * len + step;
            list.op(&[last], next);
            last = next;
        }
        ends.push(last);
    }
    list.op(&ends, branches * len + 1);
    list.graph()
}

#[test]
fn levels_reach_the_longest_chain_where_look_ahead_does_not() {
    for (branches, len, chain, look_ahead) in
        [(2, 100, 102, 138), (4, 100, 102, 237), (8, 40, 42, 120)]
    {
        let mut graph = branch_graph(branches, len);
        graph.reorder();
        assert_eq!(groups(&mut graph), chain, "levels, {branches} x {len}");
        assert_eq!(graph.schedule_report().unwrap().longest_chain, chain);
        let mut graph = branch_graph(branches, len);
        graph.reorder_with(Strategy::LookAhead { window: 64 });
        assert_eq!(groups(&mut graph), look_ahead, "look-ahead, {branches} x {len}");
        assert_eq!(graph.schedule_report().unwrap().longest_chain, chain);
    }
}

#[test]
fn a_window_of_20_loses_more_groups() {
    for (branches, len, look_ahead) in [(2, 100, 182), (4, 100, 342), (8, 40, 182)] {
        let mut graph = branch_graph(branches, len);
        graph.reorder_with(Strategy::LookAhead { window: 20 });
        assert_eq!(groups(&mut graph), look_ahead, "{branches} x {len}");
    }
}

#[test]
fn reorder_strips_barriers() {
    for strategy in BOTH {
        let mut graph = branch_graph(2, 3);
        graph.place_barriers_everywhere();
        graph.reorder_with(strategy);
        assert_eq!(graph.barrier_count(), 0);
        assert_eq!(graph.dispatch_count(), 8);
    }
}

#[test]
fn reorder_returns_nodes_that_moved_earlier_not_those_that_shifted() {
    for strategy in BOTH {
        let mut list = List::default();
        for step in 0..5 {
            list.op(&[step], step + 1);
        }
        list.op(&[50], 51);
        let mut graph = list.graph();
        assert_eq!(graph.reorder_with(strategy), 1, "{strategy:?}: only the last one was pulled");
        assert_eq!(ids(&graph), [0, 5, 1, 2, 3, 4]);
        assert_eq!(graph.schedule_report().unwrap().moved, 1);
        assert_eq!(graph.reorder_with(strategy), 0, "{strategy:?}: nothing is left to move");
    }
}

#[test]
fn hazards_are_bytes_not_edges() {
    for strategy in BOTH {
        // 2 reads nothing 1 made, but overwrites bytes it reads.
        let mut list = List::default();
        list.ranges(&[(0, 0, 8, Dst)]);
        list.ranges(&[(0, 0, 8, Src), (1, 0, 64, Src), (2, 0, 8, Dst)]);
        list.ranges(&[(1, 56, 72, Dst)]);
        let mut graph = list.graph();
        graph.reorder_with(strategy);
        assert_eq!(ids(&graph), [0, 1, 2], "{strategy:?}");

        // The same with a slice that only touches: it may pass.
        let mut list = List::default();
        list.ranges(&[(0, 0, 8, Dst)]);
        list.ranges(&[(0, 0, 8, Src), (1, 0, 64, Src), (2, 0, 8, Dst)]);
        list.ranges(&[(1, 64, 72, Dst)]);
        let mut graph = list.graph();
        graph.reorder_with(strategy);
        assert_eq!(ids(&graph), [0, 2, 1], "{strategy:?}");
    }
}

#[test]
fn nothing_crosses_an_unannotated_dispatch() {
    for strategy in BOTH {
        let mut list = List::default();
        list.op(&[], 0);
        list.op(&[0], 1);
        list.unknown();
        list.op(&[], 2);
        list.op(&[2], 3);
        list.op(&[], 4);
        let mut graph = list.graph();
        graph.reorder_with(strategy);
        assert_eq!(ids(&graph), [0, 1, 2, 3, 5, 4], "{strategy:?}");
        let crosses = MoveRefusal::CrossesUnannotated(DispatchId(2));
        assert_eq!(refusal(&graph, 2), Some(MoveRefusal::Immovable));
        assert_eq!((refusal(&graph, 3), refusal(&graph, 5)), (Some(crosses), Some(crosses)));
        assert_eq!(graph.schedule_report().unwrap().longest_chain, 5);
        assert_eq!(groups(&mut graph), 5);
        let fence = CapturedNode::Barrier(BarrierReason::Unannotated(DispatchId(2)));
        let at = graph.nodes().iter().position(|n| n.dispatch().is_some_and(|d| d.id.0 == 2));
        let at = at.unwrap();
        assert_eq!((&graph.nodes()[at - 1], &graph.nodes()[at + 1]), (&fence, &fence));
    }
}

#[test]
fn a_pinned_dispatch_keeps_its_place_and_nothing_crosses_it() {
    for strategy in BOTH {
        let mut list = List::default();
        list.op(&[], 0);
        list.op(&[0], 1);
        list.op(&[], 9).kind = CapturedOpKind::Pinned;
        list.op(&[1], 2);
        list.op(&[], 3);
        let mut graph = list.graph();
        graph.reorder_with(strategy);
        assert_eq!(ids(&graph)[..3], [0, 1, 2], "{strategy:?}");
        assert_eq!(refusal(&graph, 2), Some(MoveRefusal::Immovable));
        assert_eq!(refusal(&graph, 4), Some(MoveRefusal::CrossesPinned(DispatchId(2))));
        // Its memory is known, so it shares a group with what it does not conflict with.
        assert_eq!(graph.schedule_report().unwrap().longest_chain, 3);
        assert_eq!(groups(&mut graph), 3, "{}", graph.to_text());
    }
}

#[test]
fn a_dispatch_that_only_writes_may_move() {
    for strategy in BOTH {
        let mut list = List::default();
        list.op(&[], 0);
        list.op(&[0], 1);
        list.ranges(&[(5, 0, 8, Dst)]);
        let mut graph = list.graph();
        assert_eq!(graph.reorder_with(strategy), 1);
        assert_eq!(ids(&graph), [0, 2, 1]);
    }
}

#[test]
fn refused_moves_carry_the_hazard() {
    for strategy in BOTH {
        let mut list = List::default();
        list.op(&[], 0);
        list.ranges(&[(0, 4, 12, Src), (1, 0, 8, Dst)]);
        let mut graph = list.graph();
        graph.reorder_with(strategy);
        let (earlier, later) = (DispatchId(0), DispatchId(1));
        let kind = HazardKind::ReadAfterWrite;
        let hazard = Hazard { kind, earlier, later, buf_id: 0, p0: 4, p1: 8 };
        assert_eq!(refusal(&graph, 1), Some(MoveRefusal::Hazard(hazard)));
        assert_eq!(refusal(&graph, 0), None, "{strategy:?}: it stands first already");
    }
}

#[test]
fn the_look_ahead_window_counts_the_blocked_dispatch() {
    for (followers, pulled) in [(63, true), (64, false)] {
        // 1 is blocked by 0; those between are blocked by 1; the last one is free.
        let mut list = List::default();
        list.op(&[], 0);
        list.op(&[0], 1);
        for extra in 0..followers - 1 {
            list.op(&[1], 2 + extra);
        }
        list.op(&[], 999);
        let mut graph = list.graph();
        graph.reorder_with(Strategy::LookAhead { window: 64 });
        let moved = ids(&graph)[1] == followers as u32 + 1;
        assert_eq!(moved, pulled, "{followers} dispatches follow the blocked one");
    }
}

#[test]
fn look_ahead_never_passes_a_skipped_dispatch_it_conflicts_with() {
    let mut list = List::default();
    list.op(&[], 0);
    list.op(&[0], 1);
    list.op(&[0], 2);
    // Free of the open group {0}, but it overwrites what the skipped 2 writes.
    list.op(&[], 2);
    let mut graph = list.graph();
    assert_eq!(graph.reorder_with(Strategy::LookAhead { window: 64 }), 0);
    assert_eq!(ids(&graph), [0, 1, 2, 3]);
}

#[test]
fn a_section_ends_where_a_fixed_dispatch_stands() {
    let mut list = List::default();
    list.op(&[], 0);
    list.op(&[], 1);
    list.unknown();
    list.unknown();
    list.op(&[], 2);
    let dispatches: Vec<_> = list.0.into_iter().map(Arc::new).collect();
    let found: Vec<_> = sections(&dispatches).collect();
    assert_eq!(found, [0..2, 2..3, 3..4, 4..5]);
}

/// Small deterministic generator, seeded by the test.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % n
    }
}

fn random_list(seed: u64, fixed: bool) -> List {
    let mut random = Random(seed);
    let mut list = List::default();
    for _ in 0..random.below(60) {
        if fixed && random.below(12) == 0 {
            list.unknown();
            continue;
        }
        let mut ranges = Vec::new();
        for _ in 0..random.below(4) {
            let p0 = random.below(48);
            let role = if random.below(3) == 0 { Dst } else { Src };
            ranges.push((random.below(3) as usize, p0, p0 + random.below(10), role));
        }
        let pinned = fixed && random.below(12) == 0;
        let dispatch = list.ranges(&ranges);
        if pinned {
            dispatch.kind = CapturedOpKind::Pinned;
        }
    }
    list
}

#[test]
fn both_orders_keep_every_dispatch_and_every_conflicting_pair() {
    for seed in 0..300 {
        for strategy in BOTH {
            let mut graph = random_list(seed, true).graph();
            let recorded: Vec<_> = graph.dispatches().cloned().collect();
            graph.reorder_with(strategy);
            let order: Vec<_> = graph.dispatches().cloned().collect();
            assert_eq!(order.len(), recorded.len());
            let mut place = vec![usize::MAX; recorded.len()];
            for (position, dispatch) in order.iter().enumerate() {
                place[dispatch.id.0 as usize] = position;
            }
            for (later, b) in recorded.iter().enumerate() {
                for (earlier, a) in recorded[..later].iter().enumerate() {
                    let fixed = !a.is_movable() || !b.is_movable();
                    let conflict = || a.ranges().any(|x| b.ranges().any(|y| x.conflicts_with(y)));
                    if fixed || conflict() {
                        assert!(
                            place[earlier] < place[later],
                            "seed {seed}, {strategy:?}: {} and {} changed places",
                            a.id,
                            b.id
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn levels_use_as_many_groups_as_the_longest_chain() {
    for seed in 0..300 {
        let mut graph = random_list(seed, false).graph();
        graph.reorder();
        let chain = graph.schedule_report().unwrap().longest_chain;
        assert_eq!(groups(&mut graph), chain, "seed {seed}");
        let mut graph = random_list(seed, false).graph();
        graph.reorder_with(Strategy::LookAhead { window: 64 });
        assert!(groups(&mut graph) >= chain, "seed {seed}: no order has fewer groups");
    }
}

/// A chain of values %0.. of 64 bytes, made by dispatches 0..len.
fn value_chain(list: &mut List, len: u32) {
    list.value_op(&[], (0, 64));
    for step in 1..len {
        list.value_op(&[(step - 1, 64)], (step, 64));
    }
}

#[test]
fn in_its_slack_a_dispatch_waits_if_that_saves_memory() {
    // 5 makes 4096 bytes of nothing, read by 6 beside the end of the chain: it waits for 6's level.
    let mut list = List::default();
    value_chain(&mut list, 5);
    list.value_op(&[], (10, 4096));
    list.value_op(&[(4, 64), (10, 4096)], (11, 64));
    let mut graph = list.graph();
    graph.reorder();
    assert_eq!(groups(&mut graph), 6);
    assert_eq!(ids(&graph), [0, 1, 2, 3, 4, 5, 6]);
}

#[test]
fn in_its_slack_a_dispatch_goes_early_if_that_saves_memory() {
    // 5 turns 4096 bytes that nobody else reads into 64: it goes right behind their maker.
    let mut list = List::default();
    list.value_op(&[], (0, 64));
    list.value_op(&[], (10, 4096));
    for step in 1..5 {
        list.value_op(&[(step - 1, 64)], (step, 64));
    }
    list.value_op(&[(10, 4096)], (11, 64));
    list.value_op(&[(4, 64), (11, 64)], (12, 64));
    let mut graph = list.graph();
    graph.reorder();
    assert_eq!(groups(&mut graph), 6);
    let order = ids(&graph);
    let position = |id| order.iter().position(|&other| other == id).unwrap();
    // Maker and reader of the large value stand on neighbouring levels: between the chain's.
    assert_eq!(position(6), position(1) + 2, "{order:?}");
}

#[test]
fn in_its_slack_a_dispatch_may_stop_between_the_ends() {
    // 6 turns a large value (%10) that 4 reads as well into a middling one (%11) wanted at the end.
    // Before 4's level it only makes %11 live longer; after it, %10 as well.
    let mut list = List::default();
    list.value_op(&[], (10, 4096));
    list.value_op(&[(10, 4096)], (0, 64));
    list.value_op(&[(0, 64)], (1, 64));
    list.value_op(&[(1, 64)], (2, 64));
    list.value_op(&[(2, 64), (10, 4096)], (3, 64));
    list.value_op(&[(3, 64)], (4, 64));
    list.value_op(&[(10, 4096)], (11, 1024));
    list.value_op(&[(4, 64)], (5, 64));
    list.value_op(&[(5, 64), (11, 1024)], (12, 64));
    let mut graph = list.graph();
    graph.reorder();
    assert_eq!(groups(&mut graph), 8);
    let shares_a_group = graph.nodes().split(|node| node.dispatch().is_none()).any(|group| {
        let has = |id| group.iter().any(|node| node.dispatch().is_some_and(|d| d.id.0 == id));
        has(4) && has(6)
    });
    assert!(shares_a_group, "{}", graph.to_text());
}

#[test]
fn inputs_and_outputs_do_not_count_as_memory_to_save() {
    // As the waiting dispatch above, but its result is kept for the host anyway.
    let mut list = List::default();
    value_chain(&mut list, 5);
    list.value_op(&[], (10, 4096));
    list.value_op(&[(4, 64), (10, 4096)], (11, 64));
    let mut graph = list.graph();
    graph.mark_output(NodeId(10)).unwrap();
    graph.reorder();
    assert_eq!(ids(&graph), [0, 5, 1, 2, 3, 4, 6]);
}

#[test]
fn values_with_numbers_far_apart_are_ordered_too() {
    for strategy in BOTH {
        let mut list = List::default();
        list.value_op(&[], (60_000, 64));
        list.value_op(&[(60_000, 64)], (0, 64));
        list.value_op(&[(0, 64)], (60_001, 64));
        list.value_op(&[(60_001, 64)], (30_000, 64));
        let mut graph = list.graph();
        assert_eq!(graph.reorder_with(strategy), 0);
        assert_eq!(ids(&graph), [0, 1, 2, 3]);
        assert_eq!(graph.schedule_report().unwrap().longest_chain, 4);
    }
}

#[test]
fn memory_of_absurd_size_is_no_overflow() {
    let mut list = List::default();
    value_chain(&mut list, 5);
    list.value_op(&[], (10, 64)).bindings[0].buf_len = u64::MAX;
    list.value_op(&[(4, 64), (10, 64)], (11, 64));
    let mut graph = list.graph();
    graph.reorder();
    assert_eq!(ids(&graph), [0, 1, 2, 3, 4, 5, 6]);
}
