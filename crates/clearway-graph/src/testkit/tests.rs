use super::*;
use crate::{CapturedNode, ComputeGraph};

#[test]
fn a_seed_gives_the_same_list_again() {
    let shape = Shape::default();
    let text = |seed| format!("{:?}", random_graph(seed, &shape).nodes());
    assert_eq!(text(7), text(7));
    assert_ne!(text(7), text(8));
}

#[test]
fn random_lists_hold_everything_a_shape_promises() {
    let (mut unknown, mut pinned, mut empty, mut in_place, mut write_only) = (0, 0, 0, 0, 0);
    let (mut inputs, mut kept, mut outputs, mut replayed) = (0, 0, 0, 0);
    let (mut gapped, mut transposed, mut repeated, mut windows) = (0, 0, 0, 0);
    for seed in 0..200 {
        let graph = random_graph(seed, &Shape::default());
        unknown += graph.unannotated_dispatch_count();
        pinned += graph.dispatches().filter(|d| !d.kind.is_reorderable()).count();
        empty += graph.dispatches().filter(|d| d.ranges().any(|r| r.is_empty())).count();
        write_only += graph.dispatches().filter(|d| d.reads().next().is_none()).count();
        in_place += graph
            .dispatches()
            .filter(|d| d.reads().any(|r| d.writes().any(|w| r.overlap(w).is_some())))
            .count();
        inputs += graph.values().iter().filter(|v| v.input).count();
        kept += graph.values().iter().filter(|v| v.kept).count();
        outputs += graph.values().iter().filter(|v| v.output).count();
        replayed += u32::from(graph.is_replayed());
        assert_eq!(undefined_read(&graph), None, "seed {seed}");
        gapped += graph.dispatches().filter(|d| d.accesses().iter().any(|a| a.keeps)).count();
        for view in graph.dispatches().flat_map(|d| &d.bindings) {
            let ([.., rows, cols], [.., pitch, step]) =
                (view.layout.shape4(), view.layout.strides4());
            let matrix = rows > 1 && cols > 1;
            transposed += usize::from(matrix && pitch == 1 && step >= rows);
            repeated += usize::from(matrix && (pitch == 0 || step == 0));
            windows += usize::from(matrix && step == 1 && (1..cols).contains(&pitch));
        }
    }
    let strided = [gapped, transposed, repeated, windows];
    assert!(strided.iter().all(|&n| n > 20), "{strided:?}");
    let counts = [pinned, empty, in_place, write_only, inputs, kept, outputs];
    assert!(unknown > 0 && replayed > 0 && counts.iter().all(|&n| n > 20), "{counts:?}");
}

#[test]
fn structured_lists_have_their_size() {
    assert_eq!(branches(3, 5).dispatch_count(), 17);
    assert_eq!(decoder_like(123).dispatch_count(), 123);
}

#[test]
fn minimise_leaves_only_what_matters() {
    let graph =
        random_graph(3, &Shape { dispatches: (30, 30), values: 0, runs: 0, ..Shape::default() });
    let ids: Vec<_> = graph.dispatches().map(|d| d.id).collect();
    let wanted = [ids[4], ids[21]];
    let smallest =
        minimise(&graph, |g| wanted.iter().all(|id| g.dispatches().any(|d| d.id == *id)));
    assert_eq!(smallest.dispatches().map(|d| d.id).collect::<Vec<_>>(), wanted);
}

#[test]
fn the_oracle_sees_missing_barriers_and_wrong_order() {
    let recorded = branches(2, 2);
    let oracle = Oracle::new(&recorded);
    assert!(oracle.accepts(&recorded, None).is_err());
    let mut last = recorded.clone();
    last.place_barriers();
    assert_eq!(oracle.accepts(&last, None), Ok(()));
    last.place_barriers_everywhere();
    let mut nodes = last.nodes().to_vec();
    nodes.swap(2, 4);
    let swapped = with_nodes(&recorded, nodes);
    assert!(oracle.accepts(&swapped, None).unwrap_err().contains("instead of"));
}

#[test]
fn lives_count_groups_not_barriers() {
    let recorded = branches(1, 2);
    let mut last: ComputeGraph = recorded.clone();
    last.place_barriers();
    let lives = Lives::of(&last);
    assert_eq!(lives.groups, 4);
    assert_eq!(lives.of[0], Some((0, 1)));
    let doubled = last.nodes().iter().flat_map(|node| match node {
        CapturedNode::Barrier(_) => vec![node.clone(); 2],
        CapturedNode::Dispatch(_) => vec![node.clone()],
    });
    assert_eq!(Lives::of(&with_nodes(&recorded, doubled.collect())).of, lives.of);
}
