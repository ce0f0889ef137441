//! The groups proof: what runs side by side shares no byte that one of them writes.
//!
//! A group is what stands between two barriers. Its accesses are sorted by address and swept once,
//! keeping the accesses that reach furthest, so that the cost is that of the sort.

use super::fault::{Fault, Problem, Proof};
use crate::graph::ComputeGraph;
use crate::layout::{Layout, TensorView};
use crate::node::{Access, CapturedNode, Dispatch, HazardKind, InPlace};
use crate::op::CapturedOpKind;
use crate::range::MemRangeRole;

use super::structure::Recorded;

/// Proves the seam of a replayed list: what follows the last barrier runs beside what precedes the
/// first.
pub(super) fn prove_seam(last: &ComputeGraph) -> Result<(), Fault> {
    let mut groups = groups_of(last);
    let (Some(head), tail) = (groups.next(), groups.next_back()) else {
        return Ok(());
    };
    // Without any barrier the list runs beside its own copy.
    let tail = tail.unwrap_or(head);
    if head.is_empty() || tail.is_empty() {
        return Ok(()); // a barrier stands at the seam
    }
    let mut sweep = Sweep::new(Proof::WrapAround);
    let mut seam = tail.iter().chain(head).filter_map(CapturedNode::dispatch);
    seam.try_for_each(|dispatch| sweep.add(dispatch))?;
    sweep.close()
}

/// Proves that the operands of a dispatch share no more bytes than they did when recorded, unless its
/// kernel lets an output lie over an input.
///
/// The other proofs let a dispatch read before it writes, which no kernel promises: one workgroup
/// may write before another reads.
pub(super) fn prove_operands(recorded: &Recorded<'_>, dispatch: &Dispatch) -> Result<(), Fault> {
    let accesses = dispatch.accesses();
    for (index, a) in accesses.iter().enumerate() {
        for b in &accesses[..index] {
            let (p0, p1) = (a.range.p0.max(b.range.p0), a.range.p1.min(b.range.p1));
            let hazard = HazardKind::of(b.range.role, a.range.role);
            let (Some(kind), true) = (hazard, a.range.buf_id == b.range.buf_id && p0 < p1) else {
                continue;
            };
            let by_right = in_place(dispatch, a, b) || joined_in_place(dispatch);
            if !by_right && !shared_when_recorded(recorded, a, b) {
                return Err(Fault::new(Proof::Groups, Problem::OwnOperands(kind))
                    .at(dispatch.id)
                    .with(b.origin.dispatch)
                    .on(a.range.buf_id, p0, p1));
            }
        }
    }
    Ok(())
}

/// Whether two accesses of one recorded dispatch overlapped there as they do here.
fn shared_when_recorded(recorded: &Recorded<'_>, a: &Access, b: &Access) -> bool {
    let Some(position) = recorded.position(a.origin.dispatch) else {
        return false;
    };
    let was = recorded.dispatches[position as usize].accesses();
    let was = (was.get(usize::from(a.origin.access)), was.get(usize::from(b.origin.access)));
    let (Some(was_a), Some(was_b), true) = (was.0, was.1, a.origin.dispatch == b.origin.dispatch)
    else {
        return false;
    };
    was_a.range.buf_id == was_b.range.buf_id
        && was_a.range.p0.wrapping_sub(was_b.range.p0) == a.range.p0.wrapping_sub(b.range.p0)
}

/// Whether the kernel lets the one operand lie over the other, and both are the same elements.
fn in_place(dispatch: &Dispatch, a: &Access, b: &Access) -> bool {
    let (read, write) = match (a.range.role, b.range.role) {
        (MemRangeRole::Src, MemRangeRole::Dst) => (a, b),
        (MemRangeRole::Dst, MemRangeRole::Src) => (b, a),
        _ => return false,
    };
    let allowed = InPlace { output: write.binding, input: read.binding };
    let view = |access: &Access| dispatch.bindings.get(usize::from(access.binding));
    let (Some(from), Some(to)) = (view(read), view(write)) else {
        return false;
    };
    dispatch.in_place.contains(&allowed)
        && (read.range.p0, read.range.p1) == (write.range.p0, write.range.p1)
        && (from.buf_id, from.offset) == (to.buf_id, to.offset)
        && same_elements(&from.layout, &to.layout)
}

/// Whether two dense rows are joined into one and both lie where they belong in it: then nothing has
/// to move.
fn joined_in_place(dispatch: &Dispatch) -> bool {
    let [a, b, row] = dispatch.bindings.as_slice() else {
        return false;
    };
    let is_row = |view: &TensorView| view.layout.is_dense() && view.layout.rows() == 1;
    let ends = |view: &TensorView| view.offset.checked_add(view.layout.span_bytes());
    dispatch.kind == CapturedOpKind::Concat
        && [a, b, row].into_iter().all(is_row)
        && [a, b].into_iter().all(|part| part.layout.dtype() == row.layout.dtype())
        && [a, b].into_iter().all(|part| part.buf_id == row.buf_id)
        && a.offset == row.offset
        && ends(a) == Some(b.offset)
        && ends(b) == ends(row)
}

/// Whether two layouts at one address put the same elements into the same bytes. Leading extents of
/// one do not count.
fn same_elements(a: &Layout, b: &Layout) -> bool {
    let kind = |layout: &Layout| (layout.dtype(), layout.elems(), layout.cols());
    a == b || (a.is_dense() && b.is_dense() && kind(a) == kind(b))
}

/// What stands between barriers, the empty groups at the ends included.
fn groups_of(graph: &ComputeGraph) -> impl DoubleEndedIterator<Item = &[CapturedNode]> {
    graph.nodes().split(|node| matches!(node, CapturedNode::Barrier(_)))
}

/// The open group, and one sorted pass over its accesses when it closes. Kept between groups for its
/// memory.
pub(super) struct Sweep<'a> {
    proof: Proof,
    marks: Vec<Mark<'a>>,
    members: u32,
    /// The last member.
    last: Option<&'a Dispatch>,
    groups: u32,
}

/// An access in a group.
#[derive(Clone, Copy)]
struct Mark<'a> {
    buf_id: usize,
    p0: u64,
    p1: u64,
    role: MemRangeRole,
    /// Position in the group: two copies of a dispatch differ.
    member: u32,
    dispatch: &'a Dispatch,
}

impl<'a> Sweep<'a> {
    pub(super) fn new(proof: Proof) -> Self {
        Self { proof, marks: Vec::new(), members: 0, last: None, groups: 0 }
    }

    /// Adds the next dispatch of the list to the open group.
    pub(super) fn add(&mut self, dispatch: &'a Dispatch) -> Result<(), Fault> {
        if let Some(last) = self.last {
            let (unknown, other) =
                if dispatch.is_annotated() { (last, dispatch) } else { (dispatch, last) };
            if !unknown.is_annotated() {
                let fault = Fault::new(self.proof, Problem::NotAlone);
                return Err(fault.at(unknown.id).with(other.id));
            }
        }
        let member = self.members;
        self.marks.extend(dispatch.ranges().filter(|r| r.p0 < r.p1).map(|r| Mark {
            buf_id: r.buf_id,
            p0: r.p0,
            p1: r.p1,
            role: r.role,
            member,
            dispatch,
        }));
        self.last = Some(dispatch);
        self.members += 1;
        Ok(())
    }

    /// Proves the open group, at a barrier or the end.
    pub(super) fn close(&mut self) -> Result<(), Fault> {
        self.groups += u32::from(self.members > 0);
        (self.members, self.last) = (0, None);
        self.marks.sort_unstable_by_key(|m| (m.buf_id, m.p0));
        let mut buffers = self.marks.chunk_by(|a, b| a.buf_id == b.buf_id);
        let proven = buffers.try_for_each(|buffer| prove_buffer(buffer, self.proof));
        self.marks.clear();
        proven
    }

    /// Groups closed so far, without empty ones.
    pub(super) const fn groups(&self) -> u32 {
        self.groups
    }
}

/// Proves the accesses to one buffer, sorted by their first byte.
fn prove_buffer(marks: &[Mark<'_>], proof: Proof) -> Result<(), Fault> {
    let mut any = Reach::default();
    let mut writes = Reach::default();
    for mark in marks {
        let is_write = mark.role == MemRangeRole::Dst;
        let against = if is_write { &any } else { &writes };
        if let Some(other) = against.beyond(mark)
            && let Some(fault) = conflict(mark, other, proof)
        {
            return Err(fault);
        }
        any.extend(mark);
        if is_write {
            writes.extend(mark);
        }
    }
    Ok(())
}

/// The two accesses of different members that reach furthest.
#[derive(Default)]
struct Reach<'m, 'a> {
    furthest: Option<&'m Mark<'a>>,
    /// Furthest of all members but that of `furthest`.
    second: Option<&'m Mark<'a>>,
}

impl<'m, 'a> Reach<'m, 'a> {
    /// An access of another member that reaches beyond the start of `mark`.
    fn beyond(&self, mark: &Mark<'a>) -> Option<&'m Mark<'a>> {
        let others = [self.furthest, self.second].into_iter().flatten();
        others.filter(|o| o.member != mark.member).find(|o| o.p1 > mark.p0)
    }

    fn extend(&mut self, mark: &'m Mark<'a>) {
        match self.furthest {
            Some(held) if held.p1 >= mark.p1 => {
                if held.member != mark.member && self.second.is_none_or(|s| s.p1 < mark.p1) {
                    self.second = Some(mark);
                }
            }
            held => {
                if held.is_some_and(|held| held.member != mark.member) {
                    self.second = held;
                }
                self.furthest = Some(mark);
            }
        }
    }
}

fn conflict(a: &Mark<'_>, b: &Mark<'_>, proof: Proof) -> Option<Fault> {
    let (earlier, later) = if a.member < b.member { (a, b) } else { (b, a) };
    let kind = HazardKind::of(earlier.role, later.role)?;
    let fault = Fault::new(proof, Problem::Conflict(kind));
    let (p0, p1) = (a.p0.max(b.p0), a.p1.min(b.p1));
    Some(fault.at(later.dispatch.id).with(earlier.dispatch.id).on(a.buf_id, p0, p1))
}
