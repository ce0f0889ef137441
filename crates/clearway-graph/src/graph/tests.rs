use super::*;
use crate::contract::{BindingContract, BindingRole};
use crate::dtype::DType;
use crate::node::{Access, Accesses, DispatchFields, Hazard, HazardKind, Origin, Params};
use crate::range::MemRangeRole::{Dst, Src};

const BUF: usize = 7;

fn hand_built(id: u32, accesses: Option<&[BufferRange]>) -> Dispatch {
    let id = DispatchId(id);
    let accesses = match accesses {
        None => Accesses::Unknown,
        Some(ranges) => Accesses::Known(
            ranges
                .iter()
                .zip(0..)
                .map(|(&range, access)| Access {
                    range,
                    binding: 0,
                    origin: Origin { dispatch: id, access },
                    keeps: false,
                })
                .collect(),
        ),
    };
    Dispatch::from_fields(DispatchFields {
        id,
        kind: CapturedOpKind::Custom,
        kernel: "test".into(),
        params: Params::new(),
        bindings: SmallVec::new(),
        accesses,
        in_place: SmallVec::new(),
        origins: SmallVec::from_slice(&[id]),
        label: Arc::from(""),
    })
}

fn node(id: u32, ranges: &[BufferRange]) -> CapturedNode {
    CapturedNode::Dispatch(Arc::new(hand_built(id, Some(ranges))))
}

fn unknown(id: u32) -> CapturedNode {
    CapturedNode::Dispatch(Arc::new(hand_built(id, None)))
}

fn read(p0: u64, p1: u64) -> BufferRange {
    BufferRange { buf_id: BUF, p0, p1, role: Src }
}

fn write(p0: u64, p1: u64) -> BufferRange {
    BufferRange { buf_id: BUF, p0, p1, role: Dst }
}

fn requested() -> CapturedNode {
    CapturedNode::Barrier(BarrierReason::Requested)
}

fn hazard(kind: HazardKind, earlier: u32, later: u32, p0: u64, p1: u64) -> Hazard {
    Hazard { kind, earlier: DispatchId(earlier), later: DispatchId(later), buf_id: BUF, p0, p1 }
}

fn f32_layout(elems: usize) -> Layout {
    Layout::new(DType::F32, &[elems]).unwrap()
}

fn copy_contract() -> KernelContract {
    let bindings = [("x", BindingRole::Read), ("y", BindingRole::Write)];
    KernelContract::new("copy", bindings.map(|(name, role)| BindingContract::new(name, role)))
}

/// The barriers of a list, each with the number of dispatches before it.
fn barriers(graph: &ComputeGraph) -> Vec<(usize, String)> {
    let mut before = 0;
    let mut found = Vec::new();
    for node in graph.nodes() {
        match node {
            CapturedNode::Dispatch(_) => before += 1,
            CapturedNode::Barrier(reason) => found.push((before, reason.to_string())),
        }
    }
    found
}

fn placed(nodes: Vec<CapturedNode>) -> Vec<(usize, String)> {
    let mut graph = ComputeGraph::from_nodes(nodes).unwrap();
    let count = graph.place_barriers();
    let found = barriers(&graph);
    assert_eq!(count as usize, found.len());
    found
}

#[test]
fn a_list_built_by_hand_is_given_back_as_it_was() {
    let nodes = vec![node(4, &[write(0, 8)]), requested(), node(2, &[read(0, 8)]), unknown(9)];
    let graph = ComputeGraph::from_nodes(nodes.clone()).unwrap();
    assert_eq!(graph.nodes(), nodes);
    assert_eq!(graph.into_nodes(), nodes);
}

#[test]
fn record_adds_at_the_end_and_matches_from_nodes() {
    let nodes = vec![node(4, &[write(0, 8)]), requested(), node(2, &[read(0, 8)])];
    let mut graph = ComputeGraph::new();
    for node in &nodes {
        graph.record(node.clone()).unwrap();
    }
    assert_eq!(graph.nodes(), nodes);
    assert_eq!(graph.nodes(), ComputeGraph::from_nodes(nodes).unwrap().nodes());
}

#[test]
fn counts_tell_dispatches_barriers_and_unannotated_apart() {
    let nodes =
        vec![node(0, &[write(0, 8)]), requested(), unknown(1), requested(), node(2, &[read(0, 8)])];
    let graph = ComputeGraph::from_nodes(nodes).unwrap();
    assert_eq!(graph.dispatch_count(), 3);
    assert_eq!(graph.barrier_count(), 2);
    assert_eq!(graph.unannotated_dispatch_count(), 1);
    let empty = ComputeGraph::new();
    assert_eq!((empty.dispatch_count(), empty.barrier_count()), (0, 0));
}

#[test]
fn nothing_built_from_contracts_is_unannotated() {
    let mut graph = ComputeGraph::new();
    let (x, y) = (graph.declare_value(f32_layout(4)), graph.declare_value(f32_layout(4)));
    let fill = KernelContract::new("fill", [BindingContract::new("y", BindingRole::Write)]);
    graph.dispatch(CapturedOpKind::Fill, &fill, &[x], &[], "").unwrap();
    graph.dispatch(CapturedOpKind::Copy, &copy_contract(), &[x, y], &[], "").unwrap();
    assert_eq!(graph.unannotated_dispatch_count(), 0);
    let blob = KernelContract::unknown("blob");
    graph.dispatch(CapturedOpKind::Custom, &blob, &[y], &[], "").unwrap();
    assert_eq!(graph.unannotated_dispatch_count(), 1);
}

#[test]
fn a_dispatch_with_writes_and_no_reads_is_annotated() {
    let fill = hand_built(0, Some(&[write(0, 8)]));
    assert!(fill.is_annotated() && fill.is_movable());
    assert!(!hand_built(0, None).is_annotated());
    assert!(!hand_built(0, None).is_movable());
    let pair = vec![node(0, &[write(0, 8)]), node(1, &[write(8, 16)])];
    assert_eq!(placed(pair), []);
}

#[test]
fn every_kind_may_be_moved_but_a_pinned_one() {
    assert!(!CapturedOpKind::Pinned.is_reorderable());
    for kind in [CapturedOpKind::Gather, CapturedOpKind::KvWrite, CapturedOpKind::Custom] {
        assert!(kind.is_reorderable(), "{kind}");
    }
    let mut pinned = hand_built(0, Some(&[write(0, 8)]));
    pinned.kind = CapturedOpKind::Pinned;
    assert!(pinned.is_annotated() && !pinned.is_movable());
}

#[test]
fn ids_continue_after_those_given_by_hand() {
    let mut graph = ComputeGraph::from_nodes(vec![node(41, &[])]).unwrap();
    let (x, y) = (graph.declare_value(f32_layout(4)), graph.declare_value(f32_layout(4)));
    let id = graph.dispatch(CapturedOpKind::Copy, &copy_contract(), &[x, y], &[], "c").unwrap();
    assert_eq!(id, DispatchId(42));
    let dispatch = graph.dispatches().last().unwrap();
    assert_eq!((dispatch.id, &*dispatch.kernel, &*dispatch.label), (id, "copy", "c"));
    assert_eq!(*dispatch.origins, [id]);
}

#[test]
fn the_largest_id_is_no_overflow_and_nothing_follows_it() {
    let mut graph = ComputeGraph::from_nodes(vec![node(u32::MAX, &[])]).unwrap();
    let (x, y) = (graph.declare_value(f32_layout(4)), graph.declare_value(f32_layout(4)));
    let next = graph.dispatch(CapturedOpKind::Copy, &copy_contract(), &[x, y], &[], "");
    assert_eq!(next, Err(GraphError::DuplicateDispatch { dispatch: DispatchId(u32::MAX) }));
}

#[test]
fn values_are_declared_by_the_views_that_bind_them() {
    let mut dispatch = hand_built(0, Some(&[]));
    dispatch.bindings.push(TensorView::of_value(NodeId(2), f32_layout(4)));
    dispatch.bindings.push(TensorView::of_value(NodeId(2), f32_layout(6)));
    let graph = ComputeGraph::from_nodes(vec![CapturedNode::Dispatch(Arc::new(dispatch))]).unwrap();
    let bytes: Vec<_> = graph.values().iter().map(|value| value.bytes).collect();
    assert_eq!(bytes, [0, 0, 24]);
}

#[test]
fn inputs_and_outputs_are_marked_and_must_exist() {
    let mut graph = ComputeGraph::new();
    graph.declare_value(f32_layout(4));
    graph.declare_value(f32_layout(8));
    graph.mark_input(NodeId(0)).unwrap();
    graph.mark_output(NodeId(1)).unwrap();
    let expected = [
        Value { bytes: 16, input: true, ..Value::default() },
        Value { bytes: 32, output: true, ..Value::default() },
    ];
    assert_eq!(graph.values(), expected);
    for result in [graph.mark_input(NodeId(2)), graph.mark_output(NodeId(2))] {
        assert!(matches!(
            result,
            Err(GraphError::UnknownValue { value: NodeId(2), values: 2, .. })
        ));
    }
}

#[test]
fn a_range_of_a_missing_value_is_an_error_with_the_facts() {
    let range = BufferRange { buf_id: NodeId(3).buf_id(), p0: 0, p1: 4, role: Src };
    let error = ComputeGraph::from_nodes(vec![node(5, &[range])]).unwrap_err();
    let (dispatch, value) = (DispatchId(5), NodeId(3));
    assert_eq!(error, GraphError::UnknownValue { dispatch, value, values: 0 });
}

#[test]
fn a_binding_of_a_missing_value_is_an_error_even_where_access_is_unknown() {
    let mut graph = ComputeGraph::new();
    graph.declare_value(f32_layout(4));
    let mut dispatch = hand_built(0, None);
    dispatch.bindings.push(TensorView::of_value(NodeId(1), f32_layout(4)));
    let error = graph.record(CapturedNode::Dispatch(Arc::new(dispatch))).unwrap_err();
    let (dispatch, value) = (DispatchId(0), NodeId(1));
    assert_eq!(error, GraphError::UnknownValue { dispatch, value, values: 1 });
}

#[test]
fn a_wrong_value_number_is_an_error_and_allocates_no_table() {
    for buf_id in [NodeId(u32::MAX).buf_id(), NodeId(0).buf_id() | (1 << 40)] {
        let mut dispatch = hand_built(0, None);
        let mut view = TensorView::of_value(NodeId(0), f32_layout(4));
        view.buf_id = buf_id;
        dispatch.bindings.push(view);
        let nodes = vec![CapturedNode::Dispatch(Arc::new(dispatch))];
        let error = ComputeGraph::from_nodes(nodes).unwrap_err();
        assert!(matches!(error, GraphError::UnknownValue { .. }), "{error}");
    }
}

#[test]
fn a_range_outside_its_value_is_an_error_with_the_facts() {
    let mut graph = ComputeGraph::new();
    let value = graph.declare_value(f32_layout(4)).value().unwrap();
    let range = |p1| BufferRange { buf_id: value.buf_id(), p0: 8, p1, role: Dst };
    graph.record(node(0, &[range(16)])).unwrap();
    let error = graph.record(node(1, &[range(17)])).unwrap_err();
    let dispatch = DispatchId(1);
    let expected = GraphError::RangeOutsideValue { dispatch, value, p0: 8, p1: 17, bytes: 16 };
    assert_eq!(error, expected);
}

#[test]
fn a_hand_built_view_outside_its_buffer_is_an_error() {
    let mut dispatch = hand_built(0, Some(&[]));
    let layout = f32_layout(4);
    dispatch.bindings.push(TensorView { buf_id: BUF, buf_len: 31, offset: 16, layout });
    let error = ComputeGraph::from_nodes(vec![CapturedNode::Dispatch(Arc::new(dispatch))]);
    let expected = GraphError::ViewOutOfBounds { buf_id: BUF, offset: 16, len: 16, buf_len: 31 };
    assert_eq!(error.unwrap_err(), expected);
}

#[test]
fn an_inverted_range_is_an_error_with_the_facts() {
    let expected = GraphError::InvertedRange { buf_id: BUF, p0: 9, p1: 8 };
    let error = ComputeGraph::from_nodes(vec![node(0, &[read(9, 8)])]).unwrap_err();
    assert_eq!(error, expected);
    assert_eq!(ComputeGraph::new().record(node(0, &[write(9, 8)])).unwrap_err(), expected);
}

#[test]
fn a_repeated_id_is_an_error_with_the_id() {
    let expected = GraphError::DuplicateDispatch { dispatch: DispatchId(3) };
    let twice = vec![node(3, &[read(0, 8)]), requested(), node(3, &[read(8, 16)])];
    assert_eq!(ComputeGraph::from_nodes(twice).unwrap_err(), expected);
    let mut graph = ComputeGraph::from_nodes(vec![node(3, &[])]).unwrap();
    assert_eq!(graph.record(node(3, &[])).unwrap_err(), expected);
}

#[test]
fn a_barrier_that_names_a_missing_dispatch_is_an_error_with_its_position() {
    let missing = [
        BarrierReason::Hazard(hazard(HazardKind::ReadAfterWrite, 0, 8, 0, 4)),
        BarrierReason::Replay(hazard(HazardKind::WriteAfterRead, 8, 0, 0, 4)),
        BarrierReason::Unannotated(DispatchId(8)),
    ];
    for reason in missing {
        let nodes = vec![node(0, &[]), CapturedNode::Barrier(reason)];
        let expected = GraphError::UnknownDispatch { position: 1, dispatch: DispatchId(8) };
        assert_eq!(ComputeGraph::from_nodes(nodes).unwrap_err(), expected, "{reason}");
        let mut graph = ComputeGraph::from_nodes(vec![node(0, &[])]).unwrap();
        let recorded = graph.record(CapturedNode::Barrier(reason));
        assert_eq!(recorded.unwrap_err(), expected, "{reason}");
    }
}

#[test]
fn a_barrier_may_name_the_dispatch_that_follows_it() {
    let reason = BarrierReason::Hazard(hazard(HazardKind::ReadAfterWrite, 0, 1, 0, 8));
    let barrier = CapturedNode::Barrier(reason);
    let nodes = vec![node(0, &[write(0, 8)]), barrier, node(1, &[read(0, 8)])];
    assert!(ComputeGraph::from_nodes(nodes).is_ok());
}

#[test]
fn a_failed_record_leaves_the_list_as_it_was() {
    let mut graph = ComputeGraph::from_nodes(vec![node(0, &[write(0, 8)])]).unwrap();
    let before = graph.nodes().to_vec();
    assert!(graph.record(node(1, &[read(8, 0)])).is_err());
    assert!(graph.record(node(0, &[])).is_err());
    let (x, missing) = (graph.declare_value(f32_layout(4)), NodeId(9));
    let views = [x, TensorView::of_value(missing, f32_layout(4))];
    let copied = graph.dispatch(CapturedOpKind::Copy, &copy_contract(), &views, &[], "");
    assert!(matches!(copied, Err(GraphError::UnknownValue { .. })));
    assert!(graph.dispatch(CapturedOpKind::Copy, &copy_contract(), &[x], &[], "").is_err());
    assert_eq!(graph.nodes(), before);
    // The id of a refused dispatch is free again.
    graph.record(node(1, &[read(0, 8)])).unwrap();
}

#[test]
fn place_barriers_writes_the_reason_of_each_hazard() {
    let raw = placed(vec![node(0, &[write(0, 8)]), node(1, &[read(4, 12)])]);
    assert_eq!(raw, [(1, "RAW #0 -> #1 on @7 4..8".to_owned())]);
    let war = placed(vec![node(0, &[read(0, 8)]), node(1, &[write(4, 12)])]);
    assert_eq!(war, [(1, "WAR #0 -> #1 on @7 4..8".to_owned())]);
    let waw = placed(vec![node(0, &[write(0, 8)]), node(1, &[write(4, 12)])]);
    assert_eq!(waw, [(1, "WAW #0 -> #1 on @7 4..8".to_owned())]);
    let rar = placed(vec![node(0, &[read(0, 8)]), node(1, &[read(4, 12)])]);
    assert_eq!(rar, []);
}

#[test]
fn touching_and_empty_ranges_need_no_barrier() {
    let touching = [node(0, &[write(8, 16)]), node(1, &[read(0, 8)]), node(2, &[write(16, 24)])];
    assert_eq!(placed(touching.to_vec()), []);
    let empty = [node(0, &[write(0, 16)]), node(1, &[write(8, 8)])];
    assert_eq!(placed(empty.to_vec()), []);
}

#[test]
fn a_barrier_closes_the_group_for_everything_before_it() {
    let nodes = vec![
        node(0, &[write(0, 8)]),
        node(1, &[write(8, 16)]),
        node(2, &[read(0, 8)]),
        node(3, &[read(8, 16)]),
    ];
    assert_eq!(placed(nodes), [(2, "RAW #0 -> #2 on @7 0..8".to_owned())]);
}

#[test]
fn place_barriers_strips_old_barriers_and_is_idempotent() {
    let nodes = vec![
        requested(),
        node(0, &[write(0, 8)]),
        node(1, &[read(0, 8)]),
        requested(),
        node(2, &[read(0, 8)]),
        requested(),
    ];
    let mut graph = ComputeGraph::from_nodes(nodes).unwrap();
    assert_eq!(graph.place_barriers(), 1);
    assert_eq!(barriers(&graph), [(1, "RAW #0 -> #1 on @7 0..8".to_owned())]);
    let once = graph.nodes().to_vec();
    assert_eq!(graph.place_barriers(), 1);
    assert_eq!(graph.nodes(), once);
}

#[test]
fn barriers_everywhere_stand_after_every_dispatch() {
    let nodes = vec![node(0, &[]), requested(), requested(), unknown(1)];
    let mut graph = ComputeGraph::from_nodes(nodes).unwrap();
    assert_eq!(graph.place_barriers_everywhere(), 2);
    assert_eq!(graph.nodes(), [node(0, &[]), requested(), unknown(1), requested()]);
}

#[test]
fn an_unannotated_dispatch_has_a_barrier_before_and_after_it() {
    let reason = || "#1 touches unknown memory".to_owned();
    let nodes = vec![node(0, &[read(0, 8)]), unknown(1), node(2, &[read(0, 8)])];
    assert_eq!(placed(nodes), [(1, reason()), (2, reason())]);
    // Even beside dispatches that touch nothing at all.
    let nodes = vec![node(0, &[]), unknown(1), node(2, &[])];
    assert_eq!(placed(nodes), [(1, reason()), (2, reason())]);
    let two = vec![unknown(0), unknown(1)];
    assert_eq!(placed(two), [(1, "#0 touches unknown memory".to_owned())]);
    assert_eq!(placed(vec![unknown(0)]), []);
}

#[test]
fn the_replay_barrier_stands_only_in_replayed_lists_that_need_it() {
    let needs = vec![node(0, &[read(0, 8)]), node(1, &[write(8, 16)]), node(2, &[write(0, 8)])];
    let reason = |graph: &mut ComputeGraph| {
        graph.place_barriers();
        match graph.nodes().last() {
            Some(CapturedNode::Barrier(reason)) => Some(reason.to_string()),
            _ => None,
        }
    };
    let mut graph = ComputeGraph::from_nodes(needs).unwrap();
    assert_eq!(reason(&mut graph), None);
    graph.set_replayed(true);
    assert!(graph.is_replayed());
    assert_eq!(reason(&mut graph), Some("replay: RAW #2 -> #0 on @7 0..8".to_owned()));

    // The last group shares nothing with the first: the barriers between suffice.
    let free = vec![
        node(0, &[write(0, 8)]),
        node(1, &[read(0, 8), write(8, 16)]),
        node(2, &[read(8, 16), write(16, 24)]),
    ];
    let mut graph = ComputeGraph::from_nodes(free).unwrap();
    graph.set_replayed(true);
    assert_eq!(reason(&mut graph), None);
    assert_eq!(graph.barrier_count(), 2);
}

#[test]
fn at_replay_every_member_of_the_first_group_counts() {
    let nodes = vec![
        node(0, &[write(0, 8)]),
        node(1, &[read(8, 16)]),
        node(2, &[read(0, 8), write(16, 24)]),
        node(3, &[read(16, 24), write(8, 16)]),
    ];
    let mut graph = ComputeGraph::from_nodes(nodes).unwrap();
    graph.set_replayed(true);
    graph.place_barriers();
    let found = barriers(&graph);
    assert_eq!(found.last().unwrap().1, "replay: RAW #3 -> #1 on @7 8..16");
}

#[test]
fn at_replay_a_dispatch_may_conflict_with_itself() {
    let mut graph = ComputeGraph::from_nodes(vec![node(0, &[write(0, 8)])]).unwrap();
    graph.set_replayed(true);
    assert_eq!(graph.place_barriers(), 1);
    assert_eq!(barriers(&graph), [(1, "replay: WAW #0 -> #0 on @7 0..8".to_owned())]);
    let mut graph = ComputeGraph::from_nodes(vec![node(0, &[read(0, 8)])]).unwrap();
    graph.set_replayed(true);
    assert_eq!(graph.place_barriers(), 0);
}

#[test]
fn at_replay_an_unannotated_dispatch_is_fenced_from_its_next_run() {
    for nodes in [
        vec![unknown(0)],
        vec![unknown(0), node(1, &[])],
        vec![node(0, &[]), unknown(1)],
        vec![node(0, &[]), unknown(1), node(2, &[])],
    ] {
        let first_and_last_are_known =
            nodes.len() == 3 && nodes[0].dispatch().unwrap().is_annotated();
        let mut graph = ComputeGraph::from_nodes(nodes).unwrap();
        graph.set_replayed(true);
        graph.place_barriers();
        let ends_in_barrier = matches!(graph.nodes().last(), Some(CapturedNode::Barrier(_)));
        assert_eq!(ends_in_barrier, !first_and_last_are_known, "{}", graph.to_text());
    }
}

#[test]
fn an_empty_list_passes_through_every_stage() {
    let mut graph = ComputeGraph::new();
    graph.set_replayed(true);
    assert_eq!(graph.reorder(), 0);
    assert_eq!(graph.place_barriers(), 0);
    assert_eq!(graph.place_barriers_everywhere(), 0);
    assert_eq!(graph.schedule_report().map(|report| report.longest_chain), Some(0));
}

#[test]
fn reports_stay_with_the_graph() {
    let mut graph = ComputeGraph::from_nodes(vec![node(0, &[])]).unwrap();
    assert!(graph.schedule_report().is_none() && graph.fuse_report().is_none());
    graph.reorder_with(Strategy::LookAhead { window: 64 });
    let strategy = graph.schedule_report().map(|report| report.strategy);
    assert_eq!(strategy, Some(Strategy::LookAhead { window: 64 }));
    graph.reorder();
    assert_eq!(graph.schedule_report().map(|r| r.strategy), Some(Strategy::Levels));
}
