use std::sync::Arc;

use smallvec::SmallVec;

use super::*;
use crate::node::Dispatch;
use crate::place::Slot;
use crate::testkit::{Touch, branches, decoder_like, dispatch_of, graph_of, with_nodes};
use crate::{
    Access, Accesses, BarrierReason, CapturedNode, CapturedOpKind, DType, DispatchId, HazardKind,
    InPlace, Layout, NodeId, Origin,
};

mod derive;
mod repeats;

const LEN: u64 = 64;

fn read(buf_id: usize, p0: u64, p1: u64) -> Touch {
    Touch::read(buf_id, LEN, p0, p1)
}

fn write(buf_id: usize, p0: u64, p1: u64) -> Touch {
    Touch::write(buf_id, LEN, p0, p1)
}

/// All of a value.
fn reads(value: u32) -> Touch {
    read(NodeId(value).buf_id(), 0, LEN)
}

fn writes(value: u32) -> Touch {
    write(NodeId(value).buf_id(), 0, LEN)
}

fn barrier() -> CapturedNode {
    CapturedNode::Barrier(BarrierReason::Requested)
}

/// The list of these positions with a barrier after each.
fn ordered(graph: &ComputeGraph, positions: &[usize]) -> ComputeGraph {
    let nodes = positions.iter().flat_map(|&at| [graph.nodes()[at].clone(), barrier()]);
    with_nodes(graph, nodes.collect())
}

/// `graph` with a barrier after each dispatch and one dispatch changed.
fn changed(graph: &ComputeGraph, at: usize, change: impl FnOnce(&mut Dispatch)) -> ComputeGraph {
    let mut nodes = graph.nodes().to_vec();
    let CapturedNode::Dispatch(dispatch) = &mut nodes[at] else { panic!("a dispatch") };
    change(Arc::make_mut(dispatch));
    let mut graph = with_nodes(graph, nodes);
    graph.place_barriers_everywhere();
    graph
}

fn accesses(dispatch: &mut Dispatch) -> &mut SmallVec<[Access; 4]> {
    match &mut dispatch.accesses {
        Accesses::Known(list) => list,
        Accesses::Unknown => panic!("an annotated dispatch"),
    }
}

#[track_caller]
fn fails(recorded: &ComputeGraph, last: &ComputeGraph, proof: Proof, problem: Problem) -> Fault {
    let fault = verify(recorded, last, None).unwrap_err();
    assert_eq!((fault.proof, fault.problem), (proof, problem), "{fault}");
    fault
}

/// Nothing is wrong but that no rule makes such a fusion, which is told last.
#[track_caller]
fn holds_but_for_its_rule(recorded: &ComputeGraph, last: &ComputeGraph) {
    let fault = verify(recorded, last, None).unwrap_err();
    assert_eq!(fault.proof, Proof::Derivation, "{fault}");
}

/// 0 makes a value, 1 reads it and makes another, 2 writes that into a buffer.
fn chain() -> ComputeGraph {
    graph_of(&[&[writes(0)], &[reads(0), writes(1)], &[reads(1), write(0, 0, 64)]])
}

#[test]
fn a_list_with_its_barriers_holds_and_is_counted() {
    let recorded = graph_of(&[
        &[writes(0)],
        &[reads(0), writes(1)],
        &[reads(0), writes(2)],
        &[reads(1), reads(2), write(0, 0, 64)],
    ]);
    let mut last = recorded.clone();
    last.place_barriers();
    let stats = verify(&recorded, &last, None).unwrap();
    let expected = VerifyStats { dispatches: 4, groups: 3, barriers: 2, longest_chain: 3 };
    assert_eq!(stats, expected);
    last.place_barriers_everywhere();
    let stats = verify(&recorded, &last, None).unwrap();
    assert_eq!((stats.groups, stats.barriers, stats.longest_chain), (4, 4, 3));
    assert_eq!(verify(&ComputeGraph::new(), &ComputeGraph::new(), None).unwrap().groups, 0);
}

#[test]
fn the_longest_chain_counts_hazards_of_every_kind_and_unknown_dispatches() {
    let chain_of = |graph: &ComputeGraph| {
        let mut last = graph.clone();
        last.place_barriers_everywhere();
        verify(graph, &last, None).unwrap().longest_chain
    };
    let war =
        graph_of(&[&[read(0, 0, 8)], &[read(0, 0, 64)], &[write(0, 4, 12)], &[read(0, 8, 9)]]);
    assert_eq!(chain_of(&war), 3);
    let waw = graph_of(&[&[write(0, 0, 8)], &[write(0, 8, 16)], &[write(0, 7, 9)]]);
    assert_eq!(chain_of(&waw), 2);
    let custom = CapturedOpKind::Custom;
    let unknown = ComputeGraph::from_nodes(vec![
        dispatch_of(0, custom, &[write(0, 0, 8)], true),
        dispatch_of(1, custom, &[], false),
        dispatch_of(2, custom, &[write(1, 0, 8)], true),
        dispatch_of(3, custom, &[write(2, 0, 8)], true),
    ]);
    assert_eq!(chain_of(&unknown.unwrap()), 3);
    assert_eq!(chain_of(&branches(3, 5)), 7);
}

#[test]
fn conflicts_inside_a_group_are_reported_with_both_dispatches_and_the_bytes() {
    for (first, second, kind) in [
        (write(0, 0, 32), read(0, 16, 48), HazardKind::ReadAfterWrite),
        (read(0, 0, 32), write(0, 16, 48), HazardKind::WriteAfterRead),
        (write(0, 0, 32), write(0, 16, 48), HazardKind::WriteAfterWrite),
        (write(0, 16, 48), write(0, 0, 32), HazardKind::WriteAfterWrite),
    ] {
        let recorded = graph_of(&[&[first], &[write(1, 0, 64)], &[second]]);
        let fault = fails(&recorded, &recorded, Proof::Groups, Problem::Conflict(kind));
        assert_eq!((fault.dispatch, fault.other), (Some(DispatchId(2)), Some(DispatchId(0))));
        assert_eq!(fault.bytes, Some(FaultBytes { buf_id: 0, p0: 16, p1: 32 }));
    }
    let beside = graph_of(&[&[write(0, 0, 32)], &[write(0, 32, 64)], &[read(0, 9, 9)]]);
    assert_eq!(verify(&beside, &beside, None).unwrap().groups, 1);
}

#[test]
fn a_long_range_that_starts_early_is_not_forgotten() {
    // The short access in between belongs to the dispatch with the long one.
    let recorded =
        graph_of(&[&[write(0, 0, 60), read(0, 4, 6)], &[read(1, 0, 8)], &[read(0, 50, 54)]]);
    let raw = Problem::Conflict(HazardKind::ReadAfterWrite);
    fails(&recorded, &recorded, Proof::Groups, raw);
    // Another dispatch reads as far; the write of the first is still seen.
    let recorded = graph_of(&[&[write(0, 0, 20)], &[read(0, 20, 60)], &[write(0, 30, 40)]]);
    let war = Problem::Conflict(HazardKind::WriteAfterRead);
    fails(&recorded, &recorded, Proof::Groups, war);
    // The access that reaches furthest is the writer's own; the next furthest is not.
    let recorded = graph_of(&[&[read(0, 0, 30)], &[read(0, 0, 60), write(0, 20, 24)]]);
    fails(&recorded, &recorded, Proof::Groups, war);
}

#[test]
fn a_dispatch_with_unknown_access_has_a_group_of_its_own() {
    let custom = CapturedOpKind::Custom;
    let nodes = vec![
        dispatch_of(0, custom, &[], false),
        barrier(),
        dispatch_of(1, custom, &[write(0, 0, 8)], true),
        dispatch_of(2, custom, &[], false),
    ];
    let recorded = ComputeGraph::from_nodes(nodes).unwrap();
    let fault = fails(&recorded, &recorded, Proof::Groups, Problem::NotAlone);
    assert_eq!((fault.dispatch, fault.other), (Some(DispatchId(2)), Some(DispatchId(1))));
    assert_eq!(
        fault.to_string(),
        "groups: #2 touches unknown memory, but no barrier keeps #1 apart"
    );
}

#[test]
fn lost_repeated_and_invented_dispatches_are_reported() {
    let recorded = chain();
    let fault = fails(&recorded, &ordered(&recorded, &[0, 1]), Proof::Structure, Problem::Lost);
    assert_eq!(fault.dispatch, Some(DispatchId(2)));

    let twice = changed(&recorded, 2, |d| d.origins = SmallVec::from_slice(&[DispatchId(0)]));
    fails(&recorded, &twice, Proof::Structure, Problem::Repeated);

    let invented = changed(&recorded, 2, |d| d.origins = SmallVec::from_slice(&[DispatchId(9)]));
    let fault = fails(&recorded, &invented, Proof::Structure, Problem::NotRecorded);
    assert_eq!(fault.to_string(), "structure: #2 stands for #9, which was not recorded");

    let nothing = changed(&recorded, 2, |d| d.origins.clear());
    let what = "set of members";
    fails(&recorded, &nothing, Proof::Structure, Problem::Altered { what });
}

#[test]
fn an_unfused_dispatch_stays_what_it_was() {
    type Change = fn(&mut Dispatch);
    let recorded = chain();
    let changes: [(&str, Change); 10] = [
        ("set of in-place operands", |d| d.in_place.push(InPlace { output: 1, input: 0 })),
        ("kind", |d| d.kind = CapturedOpKind::ADD),
        ("kernel", |d| d.kernel = "other".into()),
        ("set of constants", |d| d.params.push(1)),
        ("number of bindings", |d| {
            d.bindings.pop();
        }),
        ("layout", |d| d.bindings[0].layout = write(0, 0, 32).view().layout),
        ("knowledge of its accesses", |d| d.accesses = Accesses::Unknown),
        ("number of accesses", |d| {
            accesses(d).pop();
        }),
        ("length of an access", |d| accesses(d)[0].range.p1 -= 1),
        ("role of an access", |d| accesses(d)[0].range.role = crate::MemRangeRole::Dst),
    ];
    for (what, change) in changes {
        let last = changed(&recorded, 1, change);
        let fault = fails(&recorded, &last, Proof::Structure, Problem::Altered { what });
        assert_eq!(fault.dispatch, Some(DispatchId(1)));
    }
    let swapped = changed(&recorded, 1, |d| {
        let list = accesses(d);
        let (a, b) = (list[0].binding, list[1].binding);
        (list[0].binding, list[1].binding) = (b, a);
    });
    fails(&recorded, &swapped, Proof::Structure, Problem::Moved);
}

#[test]
fn accesses_lie_where_they_were_recorded() {
    let recorded = graph_of(&[&[write(0, 0, 32)], &[read(0, 0, 32), write(1, 0, 32)]]);
    // The range alone leaves its view; view and range together leave their place.
    let outside = changed(&recorded, 1, |d| {
        let range = &mut accesses(d)[0].range;
        (range.p0, range.p1) = (8, 40);
    });
    fails(&recorded, &outside, Proof::Structure, Problem::Moved);
    let elsewhere = changed(&recorded, 1, |d| {
        d.bindings[0].offset = 8;
        let range = &mut accesses(d)[0].range;
        (range.p0, range.p1) = (8, 40);
    });
    fails(&recorded, &elsewhere, Proof::Structure, Problem::Moved);
    let beyond = changed(&recorded, 1, |d| d.bindings[0].buf_len = 16);
    fails(&recorded, &beyond, Proof::Structure, Problem::Moved);
}

#[test]
fn an_access_carries_out_one_recorded_access_of_its_members() {
    let recorded = chain();
    for origin in [(0, 0), (1, 1), (1, 7), (5, 0)] {
        let origin = Origin { dispatch: DispatchId(origin.0), access: origin.1 };
        let last = changed(&recorded, 1, |d| accesses(d)[0].origin = origin);
        fails(&recorded, &last, Proof::Structure, Problem::ForeignAccess);
    }
}

#[test]
fn nothing_crosses_a_dispatch_that_keeps_its_place() {
    for (kind, known) in [(CapturedOpKind::Pinned, true), (CapturedOpKind::Custom, false)] {
        let nodes = vec![
            dispatch_of(0, CapturedOpKind::Custom, &[write(0, 0, 8)], true),
            dispatch_of(1, kind, &[], known),
            dispatch_of(2, CapturedOpKind::Custom, &[write(1, 0, 8)], true),
        ];
        let recorded = ComputeGraph::from_nodes(nodes).unwrap();
        assert!(verify(&recorded, &ordered(&recorded, &[0, 1, 2]), None).is_ok());
        for order in [[1, 0, 2], [0, 2, 1], [2, 0, 1]] {
            let last = ordered(&recorded, &order);
            let fault = fails(&recorded, &last, Proof::Structure, Problem::Crossed);
            assert_eq!(fault.other, Some(DispatchId(1)));
        }
    }
}

#[test]
fn a_swapped_producer_is_seen_by_its_consumer() {
    let recorded = chain();
    let fault = verify(&recorded, &ordered(&recorded, &[1, 0, 2]), None).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "value flow: #1 reads what %0 held at byte 0 before the list, but recorded it read byte 0 \
         of what #0 wrote by its access 0 (%0 bytes 0..64)"
    );
    assert_eq!((fault.dispatch, fault.other), (Some(DispatchId(1)), Some(DispatchId(0))));
}

#[test]
fn a_read_between_two_writes_sees_the_right_part_of_each() {
    let recorded =
        graph_of(&[&[write(0, 0, 40)], &[write(0, 32, 64)], &[read(0, 16, 48), write(1, 0, 32)]]);
    assert!(verify(&recorded, &ordered(&recorded, &[0, 1, 2]), None).is_ok());
    let fault = verify(&recorded, &ordered(&recorded, &[1, 0, 2]), None).unwrap_err();
    assert_eq!(fault.bytes, Some(FaultBytes { buf_id: 0, p0: 32, p1: 40 }));
    let expected = Content::Written { dispatch: DispatchId(1), access: 0, byte: 0 };
    let found = Content::Written { dispatch: DispatchId(0), access: 0, byte: 32 };
    assert_eq!(fault.problem, Problem::WrongRead { expected, found });
}

#[test]
fn buffers_and_outputs_end_as_recorded() {
    let recorded = graph_of(&[&[write(0, 0, 40)], &[write(0, 32, 64)]]);
    let fault = verify(&recorded, &ordered(&recorded, &[1, 0]), None).unwrap_err();
    assert!(matches!(fault.problem, Problem::WrongResult { .. }), "{fault}");
    assert_eq!(fault.bytes, Some(FaultBytes { buf_id: 0, p0: 32, p1: 40 }));

    let mut recorded = graph_of(&[&[writes(0)], &[write(NodeId(0).buf_id(), 0, 8)]]);
    let swapped = ordered(&recorded, &[1, 0]);
    assert!(verify(&recorded, &swapped, None).is_ok(), "nobody looks at the value");
    recorded.mark_output(NodeId(0)).unwrap();
    let fault = verify(&recorded, &swapped, None).unwrap_err();
    assert!(matches!(fault.problem, Problem::WrongResult { .. }), "{fault}");
}

#[test]
fn what_was_never_written_matches_anything() {
    // The gaps between the rows of a value, which nobody writes, may come from anywhere.
    let rows = Layout::new(DType::F16, &[2, 8]).unwrap().with_strides(&[16, 1]).unwrap();
    let value = NodeId(0).buf_id();
    let (rows_written, rows_read) =
        (write(value, 0, 0).of_tensor(rows), Touch::read(value, LEN, 0, 0).of_tensor(rows));
    let recorded = graph_of(&[&[rows_written], &[rows_read, write(0, 0, 64)]]);
    let slots = vec![Some(Slot { slab: 0, offset: 0, bytes: LEN })];
    let plan = MemoryPlan::new(slots, vec![LEN]);
    let mut last = recorded.clone();
    last.place_barriers();
    last.assign_addresses(&plan, &[7]).unwrap();
    let placement = Placement { plan: &plan, slab_buf_ids: &[7] };
    assert!(verify(&recorded, &last, Some(placement)).is_ok());
}

#[test]
fn what_was_never_written_is_not_read() {
    let value = NodeId(0).buf_id();
    let verdict = |recorded: &ComputeGraph| {
        let mut last = recorded.clone();
        last.place_barriers();
        verify(recorded, &last, None).map(drop)
    };
    let fault_of = |recorded: &ComputeGraph| {
        let fault = verdict(recorded).unwrap_err();
        assert_eq!((fault.proof, fault.problem), (Proof::ValueFlow, Problem::UndefinedRead));
        let bytes = fault.bytes.unwrap();
        (fault.dispatch, bytes.p0, bytes.p1)
    };
    let mut half = graph_of(&[&[write(value, 0, 32)], &[reads(0), write(0, 0, 64)]]);
    assert_eq!(fault_of(&half), (Some(DispatchId(1)), 32, 64));
    half.mark_kept(NodeId(0)).unwrap();
    assert_eq!(verdict(&half), Ok(()));
    // A part of a value is updated that holds nothing.
    let update = graph_of(&[&[Touch::update(value, LEN, 8, 16)]]);
    assert_eq!(fault_of(&update), (Some(DispatchId(0)), 8, 16));
    // The gaps between rows are written by nobody, until somebody does.
    let rows = Layout::new(DType::F16, &[2, 8]).unwrap().with_strides(&[16, 1]).unwrap();
    let rows = write(value, 0, 0).of_tensor(rows);
    let read = Touch::read(value, LEN, 0, 48);
    assert_eq!(fault_of(&graph_of(&[&[rows], &[read]])), (Some(DispatchId(1)), 16, 32));
    assert_eq!(verdict(&graph_of(&[&[rows], &[write(value, 16, 32)], &[read]])), Ok(()));
    assert_eq!(verdict(&graph_of(&[&[write(value, 0, 48)], &[rows], &[read]])), Ok(()));
    // The host reads all of an output.
    let mut output = graph_of(&[&[rows], &[write(value, 16, 40)]]);
    output.mark_output(NodeId(0)).unwrap();
    assert_eq!(fault_of(&output), (None, 48, 64));
}

#[test]
fn an_unknown_dispatch_sees_every_buffer_and_the_values_it_binds_as_recorded() {
    let custom = CapturedOpKind::Custom;
    let list = |last_read: Touch| {
        ComputeGraph::from_nodes(vec![
            dispatch_of(0, custom, &[write(0, 0, 40)], true),
            dispatch_of(1, custom, &[write(0, 32, 64)], true),
            dispatch_of(2, custom, &[writes(0)], true),
            dispatch_of(3, custom, &[reads(0)], false),
            dispatch_of(4, custom, &[last_read, write(1, 0, 64)], true),
        ])
        .unwrap()
    };
    let recorded = list(reads(0));
    assert!(verify(&recorded, &ordered(&recorded, &[2, 0, 1, 3, 4]), None).is_ok());
    let fault = verify(&recorded, &ordered(&recorded, &[1, 0, 2, 3, 4]), None).unwrap_err();
    assert!(matches!(fault.problem, Problem::WrongRead { .. }), "{fault}");
    assert_eq!((fault.dispatch, fault.bytes.unwrap().buf_id), (Some(DispatchId(3)), 0));
    // It may have changed every buffer, even one that nobody else touches.
    let recorded = list(read(2, 0, 64));
    assert!(verify(&recorded, &ordered(&recorded, &[0, 1, 2, 3, 4]), None).is_ok());

    let recorded = ComputeGraph::from_nodes(vec![
        dispatch_of(0, custom, &[], false),
        dispatch_of(1, custom, &[write(0, 0, 64)], true),
        dispatch_of(2, custom, &[read(0, 0, 64)], true),
    ]);
    let recorded = recorded.unwrap();
    let fault = verify(&recorded, &ordered(&recorded, &[0, 2, 1]), None).unwrap_err();
    let expected = Content::Written { dispatch: DispatchId(1), access: 0, byte: 0 };
    let found = Content::Unknown { dispatch: DispatchId(0), buf_id: 0, byte: 0 };
    assert_eq!(fault.problem, Problem::WrongRead { expected, found });
}

/// 0 and 1 of [`chain`] as one dispatch that writes only what 1 wrote.
fn fused(recorded: &ComputeGraph, keep: impl Fn(&Access) -> bool) -> ComputeGraph {
    let members: Vec<&Dispatch> = recorded.dispatches().take(2).map(|d| &**d).collect();
    let CapturedNode::Dispatch(both) = dispatch_of(90, CapturedOpKind::SILU_MUL, &[], true) else {
        panic!("a dispatch")
    };
    let mut both = Arc::unwrap_or_clone(both);
    both.origins = SmallVec::from_slice(&[DispatchId(0), DispatchId(1)]);
    for access in members.iter().flat_map(|d| d.accesses()).filter(|a| keep(a)) {
        let member = members[access.origin.dispatch.0 as usize];
        let binding = both.bindings.len() as u16;
        both.bindings.push(member.bindings[usize::from(access.binding)]);
        accesses(&mut both).push(Access { binding, ..*access });
    }
    let mut nodes = recorded.nodes().to_vec();
    nodes.splice(0..2, [CapturedNode::Dispatch(Arc::new(both))]);
    let mut last = with_nodes(recorded, nodes);
    last.place_barriers_everywhere();
    last
}

fn origin(access: &Access) -> (u32, u16) {
    (access.origin.dispatch.0, access.origin.access)
}

#[test]
fn a_fusion_may_keep_what_only_its_members_read() {
    let recorded = chain();
    holds_but_for_its_rule(&recorded, &fused(&recorded, |a| origin(a) == (1, 1)));
    // Its result must not get lost.
    let fault = verify(&recorded, &fused(&recorded, |_| false), None).unwrap_err();
    assert!(matches!(fault.problem, Problem::WrongRead { .. }), "{fault}");
    assert_eq!((fault.dispatch, fault.other), (Some(DispatchId(2)), Some(DispatchId(1))));
}

#[test]
fn a_fusion_that_drops_what_others_read_is_reported() {
    let recorded =
        graph_of(&[&[writes(0)], &[reads(0), writes(1)], &[reads(0), reads(1), write(0, 0, 64)]]);
    let fault = verify(&recorded, &fused(&recorded, |a| origin(a) == (1, 1)), None).unwrap_err();
    assert_eq!((fault.dispatch, fault.other), (Some(DispatchId(2)), Some(DispatchId(0))));
    holds_but_for_its_rule(&recorded, &fused(&recorded, |a| origin(a) != (1, 0)));
}

#[test]
fn a_fusion_that_drops_a_read_from_outside_is_reported() {
    let recorded = graph_of(&[&[writes(0)], &[reads(0), read(1, 0, 8), writes(1)], &[reads(1)]]);
    let last = fused(&recorded, |a| origin(a) == (1, 2));
    let problem = Problem::AccessLost { access: 1 };
    let fault = fails(&recorded, &last, Proof::Structure, problem);
    assert_eq!((fault.dispatch, fault.other), (Some(DispatchId(90)), Some(DispatchId(1))));
}

#[test]
fn a_fusion_that_reads_a_member_s_result_from_memory_is_reported() {
    // A dispatch reads before it writes, and no kernel orders the two over all its workgroups.
    let recorded = chain();
    let last = fused(&recorded, |_| true);
    let raw = Problem::OwnOperands(HazardKind::ReadAfterWrite);
    let fault = fails(&recorded, &last, Proof::Groups, raw);
    assert_eq!((fault.dispatch, fault.other), (Some(DispatchId(90)), Some(DispatchId(0))));
    // Even if it could work in place: it would see what was there before.
    let last = changed(&with_nodes(&recorded, without_barriers(&last)), 0, |both| {
        both.in_place.push(InPlace { output: 0, input: 1 });
    });
    let fault = verify(&recorded, &last, None).unwrap_err();
    assert!(matches!(fault.problem, Problem::WrongRead { .. }), "{fault}");
}

fn without_barriers(graph: &ComputeGraph) -> Vec<CapturedNode> {
    graph.nodes().iter().filter(|node| node.dispatch().is_some()).cloned().collect()
}

#[test]
fn fixed_dispatches_are_never_members() {
    let nodes = |known| {
        vec![
            dispatch_of(0, CapturedOpKind::Pinned, &[writes(0)], true),
            dispatch_of(1, CapturedOpKind::Custom, &[reads(0), writes(1)], known),
        ]
    };
    let recorded = ComputeGraph::from_nodes(nodes(true)).unwrap();
    let problem = Problem::Altered { what: "set of members" };
    fails(&recorded, &fused(&recorded, |a| origin(a) == (1, 1)), Proof::Structure, problem);
}

/// `graph` with its barriers, placed in one slab at these offsets.
fn placed(graph: &ComputeGraph, offsets: &[u64]) -> (ComputeGraph, MemoryPlan) {
    let slot = |(&offset, value): (&u64, &crate::Value)| {
        Some(Slot { slab: 0, offset, bytes: value.bytes })
    };
    let slots = offsets.iter().zip(graph.values()).map(slot).collect();
    let plan = MemoryPlan::new(slots, vec![4 * LEN]);
    let mut last = graph.clone();
    last.place_barriers_everywhere();
    last.assign_addresses(&plan, &[7]).unwrap();
    (last, plan)
}

#[track_caller]
fn placed_fault(graph: &ComputeGraph, offsets: &[u64]) -> Fault {
    let (last, plan) = placed(graph, offsets);
    let placement = Placement { plan: &plan, slab_buf_ids: &[7] };
    verify(graph, &last, Some(placement)).unwrap_err()
}

#[test]
fn premature_reuse_is_reported() {
    let recorded = graph_of(&[
        &[writes(0)],
        &[reads(0), writes(1)],
        &[reads(1), writes(2)],
        &[reads(0), reads(2), write(0, 0, 64)],
    ]);
    let (last, plan) = placed(&recorded, &[0, 128, 64]);
    let placement = Placement { plan: &plan, slab_buf_ids: &[7] };
    assert!(verify(&recorded, &last, Some(placement)).is_ok());
    let fault = placed_fault(&recorded, &[0, 128, 32]);
    assert_eq!(fault.bytes, Some(FaultBytes { buf_id: 7, p0: 32, p1: 64 }));
    assert_eq!((fault.dispatch, fault.other), (Some(DispatchId(3)), Some(DispatchId(2))));
    assert_eq!(
        fault.to_string(),
        "value flow: #3 reads byte 0 of what #2 wrote by its access 1, but recorded it read byte \
         32 of what #0 wrote by its access 0 (@7 bytes 32..64)"
    );
}

#[test]
fn a_result_over_an_operand_is_reported_unless_the_kernel_allows_it() {
    let recorded = chain();
    let fault = placed_fault(&recorded, &[0, 32]);
    let problem = Problem::OwnOperands(HazardKind::WriteAfterRead);
    assert_eq!((fault.proof, fault.problem), (Proof::Groups, problem));
    assert_eq!(fault.bytes, Some(FaultBytes { buf_id: 7, p0: 32, p1: 64 }));

    let mut nodes = recorded.nodes().to_vec();
    let CapturedNode::Dispatch(dispatch) = &mut nodes[1] else { panic!("a dispatch") };
    Arc::make_mut(dispatch).in_place.push(InPlace { output: 1, input: 0 });
    let recorded = with_nodes(&recorded, nodes);
    let (last, plan) = placed(&recorded, &[0, 0]);
    let placement = Placement { plan: &plan, slab_buf_ids: &[7] };
    assert!(verify(&recorded, &last, Some(placement)).is_ok(), "in place, element by element");
    assert_eq!(placed_fault(&recorded, &[0, 4]).problem, problem, "shifted by an element");
}

#[test]
fn values_need_a_place_inside_their_slab() {
    let recorded = chain();
    let mut last = recorded.clone();
    last.place_barriers();
    let nowhere = MemoryPlan::default();
    let placement = Placement { plan: &nowhere, slab_buf_ids: &[7] };
    let fault = verify(&recorded, &last, Some(placement)).unwrap_err();
    assert_eq!(fault.problem, Problem::Unplaced);

    let (last, plan) = placed(&recorded, &[0, 64]);
    let cut = MemoryPlan::new(plan.slots().to_vec(), vec![LEN]);
    let placement = Placement { plan: &cut, slab_buf_ids: &[7] };
    let fault = verify(&recorded, &last, Some(placement)).unwrap_err();
    assert!(matches!(fault.problem, Problem::OutsideSlab | Problem::Moved), "{fault}");

    let placement = Placement { plan: &plan, slab_buf_ids: &[0] };
    let fault = verify(&recorded, &last, Some(placement)).unwrap_err();
    assert_eq!(fault.problem, Problem::SlabInUse);

    let placement = Placement { plan: &plan, slab_buf_ids: &[8] };
    let fault = verify(&recorded, &last, Some(placement)).unwrap_err();
    assert_eq!(fault.problem, Problem::Moved, "the list was placed elsewhere");
}

#[test]
fn what_is_wrong_with_the_record_is_told_before_what_is_wrong_with_the_list() {
    let kernel = [read(3, 0, 8), writes(0)];
    let recorded = graph_of(&[&kernel, &[reads(0), write(4, 0, LEN)]]);
    let (last, plan) = placed(&recorded, &[0]);
    let last = changed(&last, 0, |d| d.kind = CapturedOpKind::Copy);
    let problem = |slab: usize| {
        let placement = Placement { plan: &plan, slab_buf_ids: &[slab] };
        verify(&recorded, &last, Some(placement)).unwrap_err().problem
    };
    assert_eq!(problem(7), Problem::Altered { what: "kind" });
    assert_eq!(problem(4), Problem::SlabInUse, "of the last dispatch that was recorded");
}

#[test]
fn replay_needs_the_end_ordered_before_the_beginning() {
    let mut recorded = chain();
    recorded.set_replayed(true);
    let mut last = recorded.clone();
    last.place_barriers();
    assert_eq!(last.barrier_count(), 2, "the middle of the list orders its ends");
    assert!(verify(&recorded, &last, None).is_ok());

    let mut recorded = graph_of(&[&[read(0, 0, 64), writes(0)], &[reads(0), write(0, 0, 64)]]);
    recorded.set_replayed(true);
    let mut last = recorded.clone();
    last.place_barriers();
    assert_eq!(last.barrier_count(), 2);
    assert!(verify(&recorded, &last, None).is_ok());
    let mut nodes = last.nodes().to_vec();
    let seam = nodes.pop().unwrap();
    let open = with_nodes(&recorded, nodes.clone());
    let problem = Problem::Conflict(HazardKind::ReadAfterWrite);
    let fault = fails(&recorded, &open, Proof::WrapAround, problem);
    assert_eq!((fault.dispatch, fault.other), (Some(DispatchId(0)), Some(DispatchId(1))));
    nodes.insert(0, seam);
    assert!(verify(&recorded, &with_nodes(&recorded, nodes), None).is_ok(), "a barrier in front");
}

#[test]
fn a_list_without_barriers_runs_beside_its_own_copy() {
    let mut recorded = graph_of(&[&[write(0, 0, 8)], &[read(1, 0, 8)]]);
    assert!(verify(&recorded, &recorded, None).is_ok());
    recorded.set_replayed(true);
    let problem = Problem::Conflict(HazardKind::WriteAfterWrite);
    let fault = fails(&recorded, &recorded, Proof::WrapAround, problem);
    assert_eq!((fault.dispatch, fault.other), (Some(DispatchId(0)), Some(DispatchId(0))));
    let mut unknown =
        ComputeGraph::from_nodes(vec![dispatch_of(0, CapturedOpKind::Custom, &[], false)]).unwrap();
    assert!(verify(&unknown, &unknown, None).is_ok());
    unknown.set_replayed(true);
    fails(&unknown, &unknown, Proof::WrapAround, Problem::NotAlone);
}

#[test]
fn inputs_last_for_every_replay() {
    // Value 2 is written over the input after its last reader.
    let mut recorded =
        graph_of(&[&[reads(0), writes(1)], &[reads(1), write(0, 0, 64)], &[writes(2)]]);
    recorded.mark_input(NodeId(0)).unwrap();
    let shared = |recorded: &ComputeGraph| {
        let (last, plan) = placed(recorded, &[0, 64, 0]);
        let placement = Placement { plan: &plan, slab_buf_ids: &[7] };
        verify(recorded, &last, Some(placement))
    };
    assert!(shared(&recorded).is_ok(), "one run only");
    recorded.set_replayed(true);
    let fault = shared(&recorded).unwrap_err();
    assert_eq!(fault.proof, Proof::WrapAround);
    assert!(matches!(fault.problem, Problem::InputLost { .. }), "{fault}");
}

#[test]
fn a_fault_has_a_json_form() {
    let recorded = chain();
    let fault = verify(&recorded, &recorded, None).unwrap_err();
    let json = serde_json::to_value(&fault).unwrap();
    assert_eq!(json["proof"], "groups");
    assert_eq!(json["problem"]["conflict"], "read_after_write");
    assert_eq!(json["bytes"]["buf"], "%0");
    assert_eq!((json["dispatch"].as_u64(), json["other"].as_u64()), (Some(1), Some(0)));
}

#[test]
fn a_decoder_of_any_length_holds() {
    for dispatches in [0, 1, 5, 37, 400] {
        let recorded = decoder_like(dispatches);
        let mut last = recorded.clone();
        last.reorder();
        last.place_barriers();
        let stats = verify(&recorded, &last, None).unwrap();
        assert_eq!(stats.dispatches as usize, dispatches);
        assert_eq!(stats.groups, stats.longest_chain);
    }
}
