use std::cell::RefCell;
use std::convert::Infallible;
use std::sync::Arc;

use smallvec::SmallVec;

use super::*;
use crate::ids::DispatchId;
use crate::node::{Access, Accesses, DispatchFields, Origin, Params};
use crate::op::CapturedOpKind;
use crate::range::BufferRange;
use crate::range::MemRangeRole::{self, Dst, Src};

fn dispatch(id: u32, accesses: Accesses) -> CapturedNode {
    let id = DispatchId(id);
    CapturedNode::Dispatch(Arc::new(Dispatch::from_fields(DispatchFields {
        id,
        kind: CapturedOpKind::Custom,
        kernel: "test".into(),
        params: Params::new(),
        bindings: SmallVec::new(),
        accesses,
        in_place: SmallVec::new(),
        origins: SmallVec::from_slice(&[id]),
        label: Arc::from(""),
    })))
}

fn node(id: u32, ranges: &[(u64, u64, MemRangeRole)]) -> CapturedNode {
    let access = |(&(p0, p1, role), access)| {
        let origin = Origin { dispatch: DispatchId(id), access };
        Access { range: BufferRange { buf_id: 0, p0, p1, role }, binding: 0, origin, keeps: false }
    };
    dispatch(id, Accesses::Known(ranges.iter().zip(0..).map(access).collect()))
}

fn unknown(id: u32) -> CapturedNode {
    dispatch(id, Accesses::Unknown)
}

fn requested() -> CapturedNode {
    CapturedNode::Barrier(BarrierReason::Requested)
}

fn graph(nodes: Vec<CapturedNode>) -> ComputeGraph {
    ComputeGraph::from_nodes(nodes).unwrap()
}

/// Dispatches that share nothing, except that each of `readers` reads what the one before wrote.
fn chainless(count: u32, readers: &[u32]) -> ComputeGraph {
    let bytes = |id: u32| (u64::from(id) * 8, u64::from(id) * 8 + 8);
    let nodes = (0..count).map(|id| {
        let (p0, p1) = bytes(id);
        let mut ranges = vec![(p0, p1, Dst)];
        if readers.contains(&id) {
            let (p0, p1) = bytes(id - 1);
            ranges.push((p0, p1, Src));
        }
        node(id, &ranges)
    });
    graph(nodes.collect())
}

/// `3` for a dispatch, `|` for a barrier, `!` for a commit.
fn shown(encoder: &RecordingEncoder) -> String {
    let word = |command: &RecordedCommand| match command {
        RecordedCommand::Dispatch(id) => id.0.to_string(),
        RecordedCommand::Barrier(_) => "|".to_owned(),
        RecordedCommand::Commit => "!".to_owned(),
    };
    encoder.commands.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn dual(graph: &ComputeGraph) -> (RecordingEncoder, RecordingEncoder, (u32, u32)) {
    let mut encoders = (RecordingEncoder::default(), RecordingEncoder::default());
    let counts = graph.encode_dual_buffer(&mut encoders.0, &mut encoders.1).unwrap();
    (encoders.0, encoders.1, counts)
}

fn dispatches_in(encoder: &RecordingEncoder) -> usize {
    let is_dispatch = |c: &&RecordedCommand| matches!(c, RecordedCommand::Dispatch(_));
    encoder.commands.iter().filter(is_dispatch).count()
}

#[test]
fn sequential_replays_dispatches_and_barriers_exactly_as_they_stand() {
    // A barrier too many, one too few, and two in a row: none of that is this call's business.
    let nodes = vec![
        requested(),
        node(0, &[(0, 8, Dst)]),
        node(1, &[(0, 8, Src)]),
        requested(),
        requested(),
        unknown(2),
        node(3, &[]),
    ];
    let mut encoder = RecordingEncoder::default();
    assert_eq!(graph(nodes).encode_sequential(&mut encoder), Ok(3));
    assert_eq!(shown(&encoder), "| 0 1 | | 2 3");
}

#[test]
fn sequential_hands_the_encoder_the_reasons_in_the_list() {
    let mut graph = chainless(3, &[2]);
    assert_eq!(graph.place_barriers(), 1);
    let mut encoder = RecordingEncoder::default();
    assert_eq!(graph.encode_sequential(&mut encoder), Ok(1));
    let as_commands = graph.nodes().iter().map(|node| match node {
        CapturedNode::Dispatch(dispatch) => RecordedCommand::Dispatch(dispatch.id),
        CapturedNode::Barrier(reason) => RecordedCommand::Barrier(*reason),
    });
    assert_eq!(encoder.commands, as_commands.collect::<Vec<_>>());
}

#[test]
fn with_barriers_ignores_barrier_nodes_and_places_its_own() {
    let nodes = vec![
        node(0, &[(0, 8, Dst)]),
        requested(),
        node(1, &[(8, 16, Dst)]),
        node(2, &[(0, 8, Src)]),
        requested(),
    ];
    let graph = graph(nodes);
    let mut encoder = RecordingEncoder::default();
    assert_eq!(graph.encode_with_barriers(&mut encoder), Ok(1));
    assert_eq!(shown(&encoder), "0 1 | 2");
    assert_eq!(graph.barrier_count(), 2, "the list itself is untouched");
}

#[test]
fn with_barriers_puts_them_where_place_barriers_does() {
    for replayed in [false, true] {
        for nodes in [
            vec![node(0, &[(0, 8, Dst)]), node(1, &[(0, 8, Src)]), node(2, &[(0, 8, Dst)])],
            vec![node(0, &[]), unknown(1), unknown(2), node(3, &[(0, 8, Dst)])],
            vec![unknown(0)],
            vec![node(0, &[(0, 8, Src), (8, 16, Dst)]), node(1, &[(16, 24, Dst), (8, 9, Src)])],
            vec![],
        ] {
            let mut graph = graph(nodes);
            graph.set_replayed(replayed);
            let (mut as_it_goes, mut placed) = Default::default();
            let emitted = graph.encode_with_barriers::<RecordingEncoder>(&mut as_it_goes);
            assert_eq!(emitted, Ok(graph.place_barriers()));
            graph.encode_sequential::<RecordingEncoder>(&mut placed).unwrap();
            assert_eq!(as_it_goes.commands, placed.commands, "{}", graph.to_text());
        }
    }
}

#[test]
fn an_unannotated_dispatch_is_fenced_on_both_sides_in_every_encoding() {
    let nodes = vec![node(0, &[(0, 8, Src)]), unknown(1), node(2, &[(0, 8, Src)])];
    let graph = graph(nodes);
    let mut encoder = RecordingEncoder::default();
    assert_eq!(graph.encode_with_barriers(&mut encoder), Ok(2));
    assert_eq!(shown(&encoder), "0 | 1 | 2");
    let (first, second, counts) = dual(&graph);
    assert_eq!((shown(&first).as_str(), shown(&second).as_str()), ("0 | 1 | 2 !", ""));
    assert_eq!(counts, (2, 0));
}

#[test]
fn the_first_encoder_takes_64_dispatches_or_a_tenth() {
    for (count, expected) in
        [(0, 0), (10, 10), (64, 64), (65, 64), (639, 64), (640, 64), (641, 65), (1000, 100)]
    {
        let (first, second, _) = dual(&chainless(count, &[]));
        assert_eq!(dispatches_in(&first), expected, "of {count}");
        assert_eq!(dispatches_in(&second), count as usize - expected, "of {count}");
    }
}

#[test]
fn barrier_nodes_do_not_count_towards_the_split_and_are_ignored() {
    let dispatches = chainless(100, &[]).into_nodes();
    let nodes = dispatches.into_iter().flat_map(|node| [node, requested()]);
    let (first, second, counts) = dual(&graph(nodes.collect()));
    assert_eq!((dispatches_in(&first), dispatches_in(&second)), (64, 36));
    assert_eq!(counts, (0, 0));
}

/// An encoder that writes into a log it shares with another.
struct Logging<'a> {
    name: char,
    log: &'a RefCell<String>,
}

impl CommandEncoder for Logging<'_> {
    type Error = Infallible;

    fn dispatch(&mut self, _: &Dispatch) -> Result<(), Infallible> {
        self.log.borrow_mut().push(self.name);
        Ok(())
    }

    fn barrier(&mut self, _: &BarrierReason) -> Result<(), Infallible> {
        self.log.borrow_mut().push('|');
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Infallible> {
        self.log.borrow_mut().push('!');
        Ok(())
    }
}

#[test]
fn the_first_encoder_is_committed_before_the_second_is_written() {
    let log = RefCell::default();
    let mut first = Logging { name: 'a', log: &log };
    let mut second = Logging { name: 'b', log: &log };
    let graph = chainless(67, &[64]);
    assert_eq!(graph.encode_dual_buffer(&mut first, &mut second), Ok((0, 1)));
    assert_eq!(log.into_inner(), format!("{}!|bbb", "a".repeat(64)));
}

#[test]
fn the_caller_commits_the_second_encoder() {
    let (first, second, _) = dual(&chainless(100, &[]));
    assert_eq!(first.commands.last(), Some(&RecordedCommand::Commit));
    assert!(!second.commands.contains(&RecordedCommand::Commit));
}

#[test]
fn the_open_group_survives_the_split() {
    // 70 reads what 69 wrote: both after the split. 64 reads what 63 wrote: across it.
    let (_, second, counts) = dual(&chainless(80, &[70]));
    assert_eq!(counts, (0, 1));
    assert!(matches!(second.commands[0], RecordedCommand::Dispatch(_)));
    let (_, second, counts) = dual(&chainless(80, &[64]));
    assert_eq!(counts, (0, 1));
    assert!(matches!(second.commands[0], RecordedCommand::Barrier(BarrierReason::Hazard(_))));
    // Not only the neighbours of the split: 70 conflicts with the open group's 63.
    let mut nodes = chainless(80, &[]).into_nodes();
    nodes[70] = node(70, &[(63 * 8, 64 * 8, Src)]);
    let (_, second, counts) = dual(&graph(nodes));
    assert_eq!(counts, (0, 1));
    assert!(matches!(second.commands[6], RecordedCommand::Barrier(BarrierReason::Hazard(_))));
}

#[test]
fn an_unannotated_dispatch_at_the_split_is_still_fenced() {
    let mut nodes = chainless(80, &[]).into_nodes();
    nodes[63] = unknown(63);
    let (first, second, counts) = dual(&graph(nodes));
    assert_eq!(counts, (1, 1));
    let reason = RecordedCommand::Barrier(BarrierReason::Unannotated(DispatchId(63)));
    assert_eq!(first.commands[63], reason);
    assert_eq!(second.commands[0], reason);
}

#[test]
fn a_backend_that_orders_commits_needs_no_barrier_at_the_split() {
    let encoder = || RecordingEncoder { orders_commits: true, ..Default::default() };
    let (mut first, mut second) = (encoder(), encoder());
    let graph = chainless(80, &[64, 70]);
    let counts = graph.encode_dual_buffer(&mut first, &mut second).unwrap();
    assert_eq!(counts, (0, 1), "only 70, which reads what 69 wrote in the same encoder");
    assert!(matches!(second.commands[0], RecordedCommand::Dispatch(_)));
    assert!(matches!(second.commands[6], RecordedCommand::Barrier(BarrierReason::Hazard(_))));
}

#[test]
fn both_parts_together_are_the_single_encoding() {
    for replayed in [false, true] {
        let mut graph = chainless(200, &[3, 64, 65, 130, 199]);
        graph.set_replayed(replayed);
        let mut whole = RecordingEncoder::default();
        let barriers = graph.encode_with_barriers(&mut whole).unwrap();
        let (first, second, counts) = dual(&graph);
        let mut parts = first.commands;
        assert_eq!(parts.pop(), Some(RecordedCommand::Commit));
        parts.extend(second.commands);
        assert_eq!(parts, whole.commands);
        assert_eq!(counts.0 + counts.1, barriers);
    }
}

#[test]
fn the_replay_barrier_ends_the_second_encoder_only_when_needed() {
    let mut graph = chainless(80, &[]);
    let (_, second, counts) = dual(&graph);
    assert_eq!(counts, (0, 0));
    assert!(matches!(second.commands.last(), Some(RecordedCommand::Dispatch(_))));
    graph.set_replayed(true);
    let (_, second, counts) = dual(&graph);
    assert_eq!(counts, (0, 1), "without any barrier each dispatch would race its next run");
    assert!(matches!(
        second.commands.last(),
        Some(RecordedCommand::Barrier(BarrierReason::Replay(_)))
    ));
}

/// An encoder that refuses one dispatch.
struct Refusing(DispatchId, RecordingEncoder);

impl CommandEncoder for Refusing {
    type Error = DispatchId;

    fn dispatch(&mut self, dispatch: &Dispatch) -> Result<(), DispatchId> {
        if dispatch.id == self.0 {
            return Err(dispatch.id);
        }
        let Ok(()) = self.1.dispatch(dispatch);
        Ok(())
    }

    fn barrier(&mut self, reason: &BarrierReason) -> Result<(), DispatchId> {
        let Ok(()) = self.1.barrier(reason);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), DispatchId> {
        let Ok(()) = self.1.commit();
        Ok(())
    }
}

#[test]
fn the_first_error_of_an_encoder_stops_and_comes_back() {
    let graph = chainless(80, &[]);
    let refusing = |id| Refusing(DispatchId(id), RecordingEncoder::default());
    let mut encoder = refusing(2);
    assert_eq!(graph.encode_sequential(&mut encoder), Err(DispatchId(2)));
    assert_eq!(shown(&encoder.1), "0 1");
    let mut encoder = refusing(2);
    assert_eq!(graph.encode_with_barriers(&mut encoder), Err(DispatchId(2)));
    let (mut first, mut second) = (refusing(2), refusing(2));
    assert_eq!(graph.encode_dual_buffer(&mut first, &mut second), Err(DispatchId(2)));
    assert!(!first.1.commands.contains(&RecordedCommand::Commit), "nothing half-written runs");
    assert_eq!(second.1.commands, []);
}
