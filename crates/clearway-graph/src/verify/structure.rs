//! The structure proof: the final list is the recorded one, regrouped.
//!
//! Every recorded dispatch is carried out exactly once. One that stands alone is what was recorded:
//! the same kernel with the same constants on the same tensors, at the addresses of the plan. One
//! that is fused carries out accesses of its members where they were recorded; which of the others
//! it may keep to itself is for the value-flow proof to say. Nothing crosses a dispatch that is
//! unannotated or pinned.
//!
//! A value may lie rounded where it was recorded as floats, if it is the list's own business and all who
//! touch it find it so.
//!
//! Several fused dispatches may each carry out the same member if none of them writes what it wrote:
//! then each copy computes a value for the dispatch it is part of, and nobody else can tell how many
//! there are. Every copy is held against the record on its own.

use std::cell::OnceCell;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::Placement;
use super::fault::{Fault, Problem, Proof};
use crate::dtype::DType;
use crate::graph::{ComputeGraph, Value};
use crate::ids::{DispatchId, NodeId};
use crate::layout::TensorView;
use crate::node::{Access, Dispatch, Origin};
use crate::range::{BufferRange, MemRangeRole};

/// The recorded list by position. What is known of a dispatch beyond that is [noted](Self::note_next)
/// one by one, so that both lists can be walked side by side.
pub(super) struct Recorded<'a> {
    pub(super) dispatches: Vec<&'a Dispatch>,
    /// How many of those that are noted have ids that count up from zero, as mostly all have.
    counted: u32,
    /// Made when they do not.
    positions: OnceCell<FxHashMap<DispatchId, u32>>,
    /// Number of the first access of each dispatch that is noted, and one past the last of all.
    first_access: Vec<u32>,
    /// Positions of those that are noted and that nothing may cross.
    fixed: Vec<u32>,
}

impl<'a> Recorded<'a> {
    /// The list with room for what is noted of its dispatches.
    pub(super) fn new(graph: &'a ComputeGraph) -> Self {
        let dispatches = graph.dispatch_table();
        let mut first_access = Vec::with_capacity(dispatches.len() + 1);
        first_access.push(0);
        let positions = OnceCell::new();
        Self { dispatches, counted: 0, positions, first_access, fixed: Vec::new() }
    }

    /// How many dispatches are noted.
    pub(super) fn noted(&self) -> usize {
        self.first_access.len() - 1
    }

    /// Notes the next dispatch of the list, which must be one that origins can name and that leaves
    /// the slabs alone, and gives it with its position; `None` if all are noted.
    pub(super) fn note_next(
        &mut self,
        places: &Places<'_>,
    ) -> Result<Option<(u32, &'a Dispatch)>, Fault> {
        let position = self.noted() as u32;
        let Some(&dispatch) = self.dispatches.get(position as usize) else {
            return Ok(None);
        };
        let accesses = dispatch.accesses().len();
        if accesses > usize::from(u16::MAX) {
            return Err(fault(Problem::Altered { what: "number of accesses" }, dispatch));
        }
        let bindings = if places.has_slabs() { &dispatch.bindings[..] } else { &[] };
        if let Some(view) = bindings.iter().find(|v| places.is_slab(v.buf_id)) {
            let end = view.offset.saturating_add(view.layout.span_bytes());
            return Err(fault(Problem::SlabInUse, dispatch).on(view.buf_id, view.offset, end));
        }
        if let Some(access) = dispatch.accesses().iter().find(|a| overwrites_gaps(dispatch, a)) {
            return Err(fault_at(Problem::GapsOverwritten, dispatch, access));
        }
        if (self.counted, dispatch.id.0) == (position, position) {
            self.counted += 1;
        }
        if !dispatch.is_movable() {
            self.fixed.push(position);
        }
        self.first_access.push((self.access_count() + accesses) as u32);
        Ok(Some((position, dispatch)))
    }

    /// Position of a recorded dispatch.
    pub(super) fn position(&self, id: DispatchId) -> Option<u32> {
        if id.0 < self.counted {
            return Some(id.0);
        }
        // Those that were not moved are where their id says.
        if self.dispatches.get(id.0 as usize).is_some_and(|dispatch| dispatch.id == id) {
            return Some(id.0);
        }
        let all = self.dispatches.iter().zip(0..);
        let positions = self.positions.get_or_init(|| all.map(|(d, i)| (d.id, i)).collect());
        positions.get(&id).copied()
    }

    /// How many accesses a dispatch that is noted has.
    fn accesses_of(&self, position: u32) -> u32 {
        self.first_access[position as usize + 1] - self.first_access[position as usize]
    }

    /// Whether nothing may cross a dispatch that is noted.
    fn is_fixed(&self, position: u32) -> bool {
        self.fixed.binary_search(&position).is_ok()
    }

    /// Number of an access among all recorded accesses.
    pub(super) fn access_number(&self, position: u32, access: u16) -> usize {
        self.first_access[position as usize] as usize + usize::from(access)
    }

    /// How many accesses those that are noted have.
    pub(super) fn access_count(&self) -> usize {
        self.first_access.last().map_or(0, |&n| n as usize)
    }
}

/// Where the bytes of each recorded buffer lie in the final list.
pub(super) struct Places<'a> {
    placement: Option<Placement<'a>>,
}

impl<'a> Places<'a> {
    pub(super) const fn new(placement: Option<Placement<'a>>) -> Self {
        Self { placement }
    }

    /// Whether any buffer of the final list is used for values.
    const fn has_slabs(&self) -> bool {
        self.placement.is_some()
    }

    /// Whether the final list uses this buffer for values.
    pub(super) fn is_slab(&self, buf_id: usize) -> bool {
        self.placement.is_some_and(|p| p.slab_buf_ids.contains(&buf_id))
    }

    /// Buffer of the final list and first byte in it; `None` for a value without a place.
    pub(super) fn of(&self, buf_id: usize) -> Option<(usize, u64)> {
        let (Some(value), Some(placement)) = (NodeId::from_buf_id(buf_id), self.placement) else {
            return Some((buf_id, 0));
        };
        let slot = placement.plan.slot(value)?;
        Some((*placement.slab_buf_ids.get(slot.slab)?, slot.offset))
    }

    /// One past the last byte of the slab a value is placed in.
    fn slab_end(&self, buf_id: usize) -> Option<u64> {
        let slot = self.placement?.plan.slot(NodeId::from_buf_id(buf_id)?)?;
        self.placement?.plan.slab_bytes().get(slot.slab).copied()
    }

    /// A recorded view at its place.
    pub(super) fn view(&self, view: &TensorView) -> Result<TensorView, Problem> {
        let (buf_id, base) = self.of(view.buf_id).ok_or(Problem::Unplaced)?;
        let offset = base.checked_add(view.offset).ok_or(Problem::OutsideSlab)?;
        let buf_len = match self.slab_end(view.buf_id) {
            Some(slab_bytes) => {
                let end = base.checked_add(view.buf_len);
                end.filter(|&end| end <= slab_bytes).ok_or(Problem::OutsideSlab)?;
                slab_bytes
            }
            None => view.buf_len,
        };
        Ok(TensorView { buf_id, buf_len, offset, layout: view.layout })
    }
}

/// Who carries out what.
pub(super) struct Carriers {
    /// Per recorded dispatch: position in the final list, the last one if it was repeated.
    last: Vec<u32>,
    /// The other positions of those that were repeated.
    before: FxHashMap<u32, SmallVec<[u32; 4]>>,
    /// Per recorded access that is noted: who in the final list carried it out last.
    carried: Vec<u32>,
    /// Per recorded dispatch: whether anybody in the final list writes what it wrote.
    written: Vec<bool>,
    /// Recorded values that somebody in the final list finds rounded, with the form.
    quantised: FxHashMap<usize, DType>,
}

const NOBODY: u32 = u32::MAX;

impl Carriers {
    /// Nobody carries out anything yet.
    pub(super) fn none(recorded: &Recorded<'_>) -> Self {
        Self {
            last: vec![NOBODY; recorded.dispatches.len()],
            before: FxHashMap::default(),
            // Most dispatches have two or three operands and a result.
            carried: Vec::with_capacity(4 * recorded.dispatches.len()),
            written: vec![false; recorded.dispatches.len()],
            quantised: FxHashMap::default(),
        }
    }

    /// Proves the next dispatch of the final list, the one at `index`. The recorded dispatches it
    /// stands for are noted.
    pub(super) fn prove(
        &mut self,
        recorded: &Recorded<'_>,
        index: u32,
        last: &[&Dispatch],
        places: &Places<'_>,
    ) -> Result<(), Fault> {
        self.carried.resize(recorded.access_count(), NOBODY);
        self.claim(recorded, index, last)?;
        let dispatch = last[index as usize];
        match *dispatch.origins {
            [only] => prove_alone(recorded, only, dispatch, places)?,
            _ => prove_fused(recorded, dispatch, places)?,
        }
        if dispatch.bindings.iter().any(|view| view.layout.dtype().is_form()) {
            let changed =
                views(recorded, dispatch).filter(|(_, now, was)| now.layout != was.layout);
            for (access, now, was) in changed {
                let form = now.layout.dtype();
                if was.layout.in_form(form) != Some(now.layout) {
                    return Err(fault_at(Problem::Altered { what: "layout" }, dispatch, access));
                }
                // Those who find it in another form are found where the whole list is proven.
                self.quantised.entry(was.buf_id).or_insert(form);
            }
        }
        Ok(())
    }

    /// Proves what can be said only of a whole list, each dispatch of which is proven.
    pub(super) fn prove_all(
        &self,
        recorded: &Recorded<'_>,
        last: &[&Dispatch],
        values: &[Value],
    ) -> Result<(), Fault> {
        if let Some(lost) = self.last.iter().position(|&c| c == NOBODY) {
            return Err(fault(Problem::Lost, recorded.dispatches[lost]));
        }
        self.prove_repeated(recorded, last)?;
        self.prove_rounded(recorded, last, values)?;
        prove_sides(recorded, last, self)
    }

    /// A value that is rounded is a value of the list alone, and rounded for all who touch it.
    fn prove_rounded(
        &self,
        recorded: &Recorded<'_>,
        last: &[&Dispatch],
        values: &[Value],
    ) -> Result<(), Fault> {
        if self.quantised.is_empty() {
            return Ok(());
        }
        const FORM: Problem = Problem::Altered { what: "form of a value" };
        for dispatch in &recorded.dispatches {
            let seen = |view: &&TensorView| {
                let value = NodeId::from_buf_id(view.buf_id).and_then(|id| values.get(id.index()));
                let own = value.is_some_and(|value| !value.lasts() && !value.output);
                self.quantised.contains_key(&view.buf_id) && (!own || !dispatch.is_annotated())
            };
            if let Some(view) = dispatch.bindings.iter().find(seen) {
                let end = view.offset.saturating_add(view.layout.span_bytes());
                return Err(fault(FORM, dispatch).on(view.buf_id, view.offset, end));
            }
        }
        for dispatch in last {
            let mut views = views(recorded, dispatch);
            let differs = |(_, now, was): &(&Access, &TensorView, &TensorView)| {
                self.quantised.get(&was.buf_id).is_some_and(|&form| now.layout.dtype() != form)
            };
            if let Some((access, ..)) = views.find(differs) {
                return Err(fault_at(FORM, dispatch, access));
            }
        }
        Ok(())
    }

    /// Whether the dispatch at `index`, the last that was proven, carries out this recorded access.
    pub(super) fn carries_access(&self, index: u32, access_number: usize) -> bool {
        self.carried[access_number] == index
    }

    /// Position in the final list of who carried out a recorded dispatch last; `None` if nobody has yet.
    pub(super) fn last_of(&self, position: u32) -> Option<u32> {
        Some(self.last[position as usize]).filter(|&carrier| carrier != NOBODY)
    }

    /// Whether the dispatch at `index` of the final list carries out this recorded dispatch.
    pub(super) fn carries(&self, index: u32, position: u32) -> bool {
        self.of(position).any(|carrier| carrier == index)
    }

    /// Positions in the final list of those that carry out a recorded dispatch.
    fn of(&self, position: u32) -> impl Iterator<Item = u32> {
        let before = self.before.get(&position).into_iter().flatten().copied();
        before.chain([self.last[position as usize]])
    }

    /// A recorded dispatch that is carried out several times leaves nothing in memory.
    fn prove_repeated(&self, recorded: &Recorded<'_>, last: &[&Dispatch]) -> Result<(), Fault> {
        // In recorded order, so that of several faults the first is told.
        let written = |position: &u32| self.written[*position as usize];
        let mut positions: Vec<u32> = self.before.keys().copied().filter(written).collect();
        positions.sort_unstable();
        for position in positions {
            let member = recorded.dispatches[position as usize];
            let writes = |access: &Access| {
                access.origin.dispatch == member.id && access.range.role == MemRangeRole::Dst
            };
            let mut copies = self.of(position).map(|index| last[index as usize]);
            if let Some(copy) = copies.find(|copy| copy.accesses().iter().any(writes)) {
                return Err(repeated(member.id, copy));
            }
        }
        Ok(())
    }

    /// Notes which recorded dispatches and accesses a dispatch of the final list carries out.
    fn claim(
        &mut self,
        recorded: &Recorded<'_>,
        index: u32,
        last: &[&Dispatch],
    ) -> Result<(), Fault> {
        let dispatch = last[index as usize];
        if dispatch.origins.is_empty() {
            return Err(fault(Problem::Altered { what: "set of members" }, dispatch));
        }
        for &id in &dispatch.origins {
            let Some(position) = recorded.position(id) else {
                return Err(fault(Problem::NotRecorded, dispatch).with(id));
            };
            let carrier = &mut self.last[position as usize];
            if *carrier == index {
                return Err(fault(Problem::Altered { what: "set of members" }, dispatch));
            }
            if *carrier != NOBODY {
                if [dispatch, last[*carrier as usize]].iter().any(|copy| copy.origins.len() == 1) {
                    return Err(repeated(id, dispatch));
                }
                self.before.entry(position).or_default().push(*carrier);
            }
            *carrier = index;
        }
        for access in dispatch.accesses() {
            let Origin { dispatch: id, access: number } = access.origin;
            let position = recorded.position(id).filter(|&p| {
                self.last[p as usize] == index && u32::from(number) < recorded.accesses_of(p)
            });
            if let Some(position) = position
                && access.range.role == MemRangeRole::Dst
            {
                self.written[position as usize] = true;
            }
            let carried = position.map(|p| &mut self.carried[recorded.access_number(p, number)]);
            match carried {
                Some(carried) if *carried != index => *carried = index,
                _ => return Err(fault_at(Problem::ForeignAccess, dispatch, access)),
            }
        }
        Ok(())
    }
}

/// Whether a view shows what was recorded, or that rounded.
fn is_form_of(view: &TensorView, was: &TensorView) -> bool {
    view.layout == was.layout || was.layout.in_form(view.layout.dtype()) == Some(view.layout)
}

/// The accesses of a dispatch of the final list, each with its view and the recorded one.
fn views<'a>(
    recorded: &'a Recorded<'_>,
    dispatch: &'a Dispatch,
) -> impl Iterator<Item = (&'a Access, &'a TensorView, &'a TensorView)> {
    dispatch.accesses().iter().filter_map(|access| {
        let position = recorded.position(access.origin.dispatch)?;
        let member = recorded.dispatches[position as usize];
        let was = member.accesses().get(usize::from(access.origin.access))?;
        let now = dispatch.bindings.get(usize::from(access.binding))?;
        Some((access, now, member.bindings.get(usize::from(was.binding))?))
    })
}

/// A dispatch that stands for one recorded dispatch is that dispatch.
fn prove_alone(
    recorded: &Recorded<'_>,
    only: DispatchId,
    dispatch: &Dispatch,
    places: &Places<'_>,
) -> Result<(), Fault> {
    let Some(position) = recorded.position(only) else {
        return Err(fault(Problem::NotRecorded, dispatch).with(only));
    };
    let was = recorded.dispatches[position as usize];
    let altered = if dispatch.kind != was.kind {
        Some("kind")
    } else if dispatch.kernel != was.kernel {
        Some("kernel")
    } else if dispatch.params != was.params {
        Some("set of constants")
    } else if dispatch.in_place != was.in_place {
        Some("set of in-place operands")
    } else if dispatch.bindings.len() != was.bindings.len() {
        Some("number of bindings")
    } else if dispatch.bindings.iter().zip(&was.bindings).any(|(a, b)| !is_form_of(a, b)) {
        Some("layout")
    } else if dispatch.is_annotated() != was.is_annotated() {
        Some("knowledge of its accesses")
    } else if dispatch.accesses().len() != was.accesses().len() {
        Some("number of accesses")
    } else {
        None
    };
    if let Some(what) = altered {
        return Err(fault(Problem::Altered { what }, dispatch));
    }
    for (view, was) in dispatch.bindings.iter().zip(&was.bindings) {
        let end = view.offset.saturating_add(view.layout.span_bytes());
        let place = places.view(was).map_err(|problem| fault(problem, dispatch))?;
        let expected = TensorView { layout: view.layout, ..place };
        if *view != expected || end > view.buf_len {
            return Err(fault(Problem::Moved, dispatch).on(view.buf_id, view.offset, end));
        }
    }
    for access in dispatch.accesses() {
        prove_access(recorded, dispatch, access, places)?;
        if access.binding != was.accesses()[usize::from(access.origin.access)].binding {
            return Err(fault_at(Problem::Altered { what: "binding" }, dispatch, access));
        }
    }
    Ok(())
}

/// A fused dispatch knows its accesses, each at the place of the member's it carries out.
fn prove_fused(
    recorded: &Recorded<'_>,
    dispatch: &Dispatch,
    places: &Places<'_>,
) -> Result<(), Fault> {
    let mut members = dispatch.origins.iter().filter_map(|&id| recorded.position(id));
    if !dispatch.is_annotated() || members.any(|position| recorded.is_fixed(position)) {
        return Err(fault(Problem::Altered { what: "set of members" }, dispatch));
    }
    for access in dispatch.accesses() {
        prove_access(recorded, dispatch, access, places)?;
    }
    Ok(())
}

/// An access has the role and length it was recorded with, and lies in its view where it lay in
/// the recorded view.
fn prove_access(
    recorded: &Recorded<'_>,
    dispatch: &Dispatch,
    access: &Access,
    places: &Places<'_>,
) -> Result<(), Fault> {
    let Origin { dispatch: id, access: number } = access.origin;
    let Some(position) = recorded.position(id) else {
        return Err(fault_at(Problem::ForeignAccess, dispatch, access));
    };
    let member = recorded.dispatches[position as usize];
    let was = &member.accesses()[usize::from(number)];
    if (access.range.role, access.keeps) != (was.range.role, was.keeps) {
        return Err(fault_at(Problem::Altered { what: "role of an access" }, dispatch, access));
    }
    if length(access) != length(was) {
        return Err(fault_at(Problem::Altered { what: "length of an access" }, dispatch, access));
    }
    let (Some(view), Some(was_view)) = (
        dispatch.bindings.get(usize::from(access.binding)),
        member.bindings.get(usize::from(was.binding)),
    ) else {
        return Err(fault_at(Problem::Altered { what: "binding" }, dispatch, access));
    };
    let place = places.view(was_view).map_err(|p| fault_at(p, dispatch, access))?;
    let (Some(shift), Some(was_shift)) = (shift_in(access, view), shift_in(was, was_view)) else {
        return Err(fault_at(Problem::Moved, dispatch, access));
    };
    if shift != was_shift || (view.buf_id, view.offset) != (place.buf_id, place.offset) {
        return Err(fault_at(Problem::Moved, dispatch, access));
    }
    Ok(())
}

/// Nothing changes sides with a dispatch that is unannotated or pinned.
fn prove_sides(
    recorded: &Recorded<'_>,
    last: &[&Dispatch],
    carriers: &Carriers,
) -> Result<(), Fault> {
    if recorded.fixed.is_empty() {
        return Ok(());
    }
    // Walked in recorded order, the carriers between two fixed dispatches must lie between the
    // carriers of those two.
    let mut fixed = recorded.fixed.iter().map(|&position| position as usize).peekable();
    let mut before: Option<usize> = None;
    for position in 0..recorded.dispatches.len() {
        let is_wall = fixed.peek() == Some(&position);
        for carrier in carriers.of(position as u32) {
            let crossed = |wall: &usize| -> Fault {
                let wall = recorded.dispatches[*wall].id;
                fault(Problem::Crossed, last[carrier as usize]).with(wall)
            };
            if let Some(wall) = &before
                && carrier <= carriers.last[*wall]
            {
                return Err(crossed(wall));
            }
            if let Some(wall) = fixed.peek()
                && !is_wall
                && carrier >= carriers.last[*wall]
            {
                return Err(crossed(wall));
            }
        }
        if is_wall {
            before = fixed.next();
        }
    }
    Ok(())
}

/// Whether a write through a layout with gaps is recorded without the read of what it keeps.
fn overwrites_gaps(dispatch: &Dispatch, write: &Access) -> bool {
    let layout = dispatch.bindings.get(usize::from(write.binding)).map(|view| view.layout);
    let same = |read: &Access| {
        let BufferRange { buf_id, p0, p1, role } = read.range;
        (read.binding, role) == (write.binding, MemRangeRole::Src)
            && (buf_id, p0, p1) == (write.range.buf_id, write.range.p0, write.range.p1)
    };
    write.range.role == MemRangeRole::Dst
        && layout.is_some_and(|layout| layout.has_gaps())
        && !dispatch.accesses().iter().any(same)
}

const fn length(access: &Access) -> u64 {
    access.range.p1.saturating_sub(access.range.p0)
}

/// Where an access starts in its view; `None` if it does not lie in it.
fn shift_in(access: &Access, view: &TensorView) -> Option<u64> {
    let range = &access.range;
    let end = view.offset.checked_add(view.layout.span_bytes())?;
    let inside = range.buf_id == view.buf_id && range.p1 <= end && end <= view.buf_len;
    range.p0.checked_sub(view.offset).filter(|_| inside)
}

fn fault(problem: Problem, dispatch: &Dispatch) -> Fault {
    Fault::new(Proof::Structure, problem).at(dispatch.id)
}

fn repeated(member: DispatchId, copy: &Dispatch) -> Fault {
    Fault::new(Proof::Structure, Problem::Repeated).at(member).with(copy.id)
}

fn fault_at(problem: Problem, dispatch: &Dispatch, access: &Access) -> Fault {
    let range = &access.range;
    fault(problem, dispatch).with(access.origin.dispatch).on(range.buf_id, range.p0, range.p1)
}
