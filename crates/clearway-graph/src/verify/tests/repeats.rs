//! Members that several fused dispatches carry out, and reads that serve two members.

use super::*;
use crate::testkit::kind;

/// 0 writes a buffer, 1 reads it and makes a value, 2 and 3 read that and write buffers, 4 overwrites
/// what 1 has read.
fn shared() -> ComputeGraph {
    graph_of(&[
        &[write(0, 0, 64)],
        &[read(0, 0, 64), writes(0)],
        &[reads(0), write(1, 0, 64)],
        &[reads(0), write(2, 0, 64)],
        &[write(0, 0, 64)],
    ])
}

/// The recorded dispatches of these ids as one, which carries out those accesses that `keep` names
/// by dispatch and number.
fn fusion(recorded: &ComputeGraph, id: u32, members: &[u32], keep: &[(u32, u16)]) -> CapturedNode {
    let mut node = dispatch_of(id, kind("norm_matmul"), &[], true);
    let CapturedNode::Dispatch(fused) = &mut node else { panic!("a dispatch") };
    let fused = Arc::make_mut(fused);
    fused.origins = members.iter().map(|&id| DispatchId(id)).collect();
    for member in recorded.dispatches() {
        for access in member.accesses().iter().filter(|a| keep.contains(&origin(a))) {
            let binding = fused.bindings.len() as u16;
            fused.bindings.push(member.bindings[usize::from(access.binding)]);
            accesses(fused).push(Access { binding, ..*access });
        }
    }
    node
}

/// A list with a barrier after each.
fn list(recorded: &ComputeGraph, nodes: Vec<CapturedNode>) -> ComputeGraph {
    let mut last = with_nodes(recorded, nodes);
    last.place_barriers_everywhere();
    last
}

fn alone(recorded: &ComputeGraph, at: usize) -> CapturedNode {
    recorded.nodes()[at].clone()
}

fn copies(recorded: &ComputeGraph) -> [CapturedNode; 2] {
    [2, 3].map(|id| fusion(recorded, 90 + id, &[1, id], &[(1, 0), (id, 1)]))
}

#[test]
fn a_member_may_be_carried_out_in_each_of_its_readers() {
    let recorded = shared();
    let [a, b] = copies(&recorded);
    let nodes = vec![alone(&recorded, 0), a.clone(), b.clone(), alone(&recorded, 4)];
    holds_but_for_its_rule(&recorded, &list(&recorded, nodes));
    // In either order: neither leaves what the other needs.
    let nodes = vec![alone(&recorded, 0), b, a, alone(&recorded, 4)];
    holds_but_for_its_rule(&recorded, &list(&recorded, nodes));
}

#[test]
fn a_copy_that_reads_what_was_overwritten_is_reported() {
    let recorded = shared();
    let [a, b] = copies(&recorded);
    let nodes = vec![alone(&recorded, 0), a, alone(&recorded, 4), b];
    let fault = verify(&recorded, &list(&recorded, nodes), None).unwrap_err();
    let written = |id| Content::Written { dispatch: DispatchId(id), access: 0, byte: 0 };
    let problem = Problem::WrongRead { expected: written(0), found: written(4) };
    assert_eq!((fault.proof, fault.problem), (Proof::ValueFlow, problem), "{fault}");
    assert_eq!((fault.dispatch, fault.other), (Some(DispatchId(93)), Some(DispatchId(4))));

    let [a, b] = copies(&recorded);
    let nodes = vec![b, alone(&recorded, 0), a, alone(&recorded, 4)];
    let fault = verify(&recorded, &list(&recorded, nodes), None).unwrap_err();
    assert!(matches!(fault.problem, Problem::WrongRead { .. }), "{fault}");
    assert_eq!(fault.dispatch, Some(DispatchId(93)));
}

#[test]
fn a_copy_that_does_not_read_is_reported() {
    let recorded = shared();
    let [a, _] = copies(&recorded);
    let b = fusion(&recorded, 93, &[1, 3], &[(3, 1)]);
    let nodes = vec![alone(&recorded, 0), a, b, alone(&recorded, 4)];
    let lost = Problem::AccessLost { access: 0 };
    let fault = fails(&recorded, &list(&recorded, nodes), Proof::Structure, lost);
    assert_eq!((fault.dispatch, fault.other), (Some(DispatchId(93)), Some(DispatchId(1))));
}

#[test]
fn a_reader_without_a_copy_is_reported() {
    let recorded = shared();
    let [a, _] = copies(&recorded);
    // Read from memory, where nobody writes it any more.
    let nodes = vec![alone(&recorded, 0), a.clone(), alone(&recorded, 3), alone(&recorded, 4)];
    let fault = verify(&recorded, &list(&recorded, nodes), None).unwrap_err();
    assert!(matches!(fault.problem, Problem::WrongRead { .. }), "{fault}");
    // Or from nowhere: the copy of another dispatch is not its own.
    let b = fusion(&recorded, 93, &[3, 4], &[(3, 1), (4, 0)]);
    let nodes = vec![alone(&recorded, 0), a, b];
    let lost = Problem::AccessLost { access: 0 };
    let fault = fails(&recorded, &list(&recorded, nodes), Proof::Structure, lost);
    assert_eq!((fault.dispatch, fault.other), (Some(DispatchId(93)), Some(DispatchId(3))));
}

#[test]
fn a_copy_that_leaves_its_result_in_memory_is_reported() {
    let recorded = shared();
    let [_, b] = copies(&recorded);
    let a = fusion(&recorded, 92, &[1, 2], &[(1, 0), (1, 1), (2, 1)]);
    let nodes = vec![alone(&recorded, 0), a, b.clone(), alone(&recorded, 4)];
    let fault = fails(&recorded, &list(&recorded, nodes), Proof::Structure, Problem::Repeated);
    assert_eq!((fault.dispatch, fault.other), (Some(DispatchId(1)), Some(DispatchId(92))));
    // The recorded dispatch itself is such a copy, before or after.
    for swapped in [false, true] {
        let mut pair = vec![alone(&recorded, 1), b.clone()];
        if swapped {
            pair.reverse();
        }
        let mut nodes = vec![alone(&recorded, 0)];
        nodes.extend(pair);
        nodes.extend([alone(&recorded, 2), alone(&recorded, 4)]);
        let fault = fails(&recorded, &list(&recorded, nodes), Proof::Structure, Problem::Repeated);
        assert_eq!(fault.dispatch, Some(DispatchId(1)));
    }
}

#[test]
fn a_member_named_twice_by_one_dispatch_is_reported() {
    let recorded = shared();
    let [a, _] = copies(&recorded);
    let b = fusion(&recorded, 93, &[1, 1, 3], &[(1, 0), (3, 1)]);
    let nodes = vec![alone(&recorded, 0), a, b, alone(&recorded, 4)];
    let altered = Problem::Altered { what: "set of members" };
    fails(&recorded, &list(&recorded, nodes), Proof::Structure, altered);
}

#[test]
fn a_copy_beyond_what_nobody_may_cross_is_reported() {
    let custom = CapturedOpKind::Custom;
    let recorded = ComputeGraph::from_nodes(vec![
        dispatch_of(0, custom, &[read(0, 0, 64), writes(0)], true),
        dispatch_of(1, custom, &[reads(0), write(1, 0, 64)], true),
        dispatch_of(2, CapturedOpKind::Pinned, &[], true),
        dispatch_of(3, custom, &[reads(0), write(2, 0, 64)], true),
    ]);
    let recorded = recorded.unwrap();
    let [a, b] = [1, 3].map(|id| fusion(&recorded, 90 + id, &[0, id], &[(0, 0), (id, 1)]));
    let nodes = vec![a, alone(&recorded, 2), b];
    let fault = fails(&recorded, &list(&recorded, nodes), Proof::Structure, Problem::Crossed);
    assert_eq!((fault.dispatch, fault.other), (Some(DispatchId(93)), Some(DispatchId(2))));
}

/// 0 reads what 1 reads, and 1 reads what 0 makes.
fn pair(first: Touch, between: Option<Touch>) -> ComputeGraph {
    let own = [first, writes(0)];
    let rest = [read(0, 0, 64), reads(0), write(1, 0, 64)];
    match &between {
        None => graph_of(&[&own, &rest]),
        Some(touch) => graph_of(&[&own, std::slice::from_ref(touch), &rest]),
    }
}

#[test]
fn one_read_may_serve_two_members_that_saw_the_same() {
    let recorded = pair(read(0, 0, 64), None);
    let both = fusion(&recorded, 90, &[0, 1], &[(1, 0), (1, 2)]);
    holds_but_for_its_rule(&recorded, &list(&recorded, vec![both]));

    // Neither of them is read.
    let none = fusion(&recorded, 90, &[0, 1], &[(1, 2)]);
    let lost = Problem::AccessLost { access: 0 };
    fails(&recorded, &list(&recorded, vec![none]), Proof::Structure, lost);

    // Other bytes, the same bytes of another buffer, another view of the same bytes.
    for first in [read(0, 0, 62), read(2, 0, 64)] {
        let recorded = pair(first, None);
        let both = fusion(&recorded, 90, &[0, 1], &[(1, 0), (1, 2)]);
        fails(&recorded, &list(&recorded, vec![both]), Proof::Structure, lost);
    }
    let flat = recorded.dispatches().next().unwrap().bindings[0];
    let square = Layout::new(DType::F16, &[4, 8]).unwrap();
    let reshaped = changed(&recorded, 0, |d| d.bindings[0] = flat.reinterpret(0, square).unwrap());
    let both = fusion(&recorded, 90, &[0, 1], &[(1, 0), (1, 2)]);
    fails(&reshaped, &list(&reshaped, vec![both]), Proof::Structure, lost);

    // Overwritten in between, so that the two saw different bytes.
    let recorded = pair(read(0, 0, 64), Some(write(0, 8, 16)));
    for first in [true, false] {
        let both = fusion(&recorded, 90, &[0, 2], &[(2, 0), (2, 2)]);
        let mut nodes = vec![alone(&recorded, 1), both];
        if first {
            nodes.reverse();
        }
        fails(&recorded, &list(&recorded, nodes), Proof::Structure, lost);
    }
}
