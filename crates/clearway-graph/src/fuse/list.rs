//! The list while it is being fused.
//!
//! A dispatch is named by its index in the list at the start, and a fused dispatch by that of its
//! consumer. What stands where is kept apart from that, as a slot per dispatch, so moving one
//! dispatch renumbers nothing. The slots are at all times an order that keeps every hazard.
//!
//! Whether something stands in the way between two dispatches is asked of the hazard graph of the
//! list at the start, seen through who has absorbed whom: fusing takes accesses away and changes
//! none. Any conflict is a path in that graph, and the first step of a path between two slots is
//! itself a conflict between them, so looking at direct neighbours is enough.
//!
//! Nearly always nobody between conflicts with what would move, which the users of each value tell; the
//! hazard graph is built only where that is not enough.
//!
//! What many questions need lies in tables, so that a dispatch, which is ten times as large, is
//! fetched only where a fusion is likely.
//!
//! A dispatch that was repeated is carried out by several others. Its accesses are then reads only,
//! and each stands at every place where a copy stands.

use std::cell::OnceCell;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::matcher::Pair;
use super::order::{KindSet, Order};
use super::owners::Owners;
use super::report::{Place, Refusal};
use super::rules::{FOLLOWED, RULES};
use crate::graph::{ComputeGraph, Value};
use crate::ids::{DispatchId, NodeId};
use crate::layout::TensorView;
use crate::node::{Access, Dispatch, Hazard, HazardKind};
use crate::op::CapturedOpKind;
use crate::range::MemRangeRole;
use crate::schedule::HazardGraph;

/// The list while it is being fused.
pub(super) struct List<'a> {
    graph: &'a ComputeGraph,
    start: Vec<&'a Dispatch>,
    /// What stands for a dispatch of the start that has absorbed others.
    fused: Vec<Option<Arc<Dispatch>>>,
    briefs: Vec<Brief>,
    slots: Vec<u32>,
    /// Who carries each dispatch of the start out: one, or several if it was repeated.
    owners: Owners,
    /// The dispatches of the start each one carries out, itself included.
    members: Vec<SmallVec<[u32; 4]>>,
    uses: Vec<Uses>,
    /// Real buffers that somebody writes.
    written: FxHashSet<usize>,
    indices: OnceCell<FxHashMap<DispatchId, u32>>,
    /// Slots of dispatches that nothing may cross, in order.
    walls: Vec<u32>,
    /// Whether an op that some rule starts with writes a real buffer.
    real_results: bool,
    /// With the length of its longest edge.
    hazards: OnceCell<(HazardGraph, u32)>,
    pub(super) order: Order,
    /// Neighbours looked at, so that a test sees what the search costs.
    #[cfg(test)]
    pub(super) looked_at: std::cell::Cell<u64>,
}

/// A rule and a consumer it may apply to. They are tried rule by rule ([`Order`]) and in the order of
/// recording, wherever the consumers stand by now: of two norms that could take in one sum, a list that
/// was reordered lets the same one have it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Candidate {
    /// As the order says.
    round: u32,
    /// Index of the rule.
    pub(super) rule: u32,
    recorded: DispatchId,
    /// Index of the consumer in the list.
    pub(super) consumer: u32,
}

/// What a rule asks of a dispatch first, side by side in memory: most questions end here, before the
/// dispatch itself is fetched.
#[derive(Clone, Copy)]
struct Brief {
    id: DispatchId,
    /// `None` once it is absorbed.
    kind: Option<CapturedOpKind>,
    /// The values behind the operands through which rules follow, or [`NO_VALUE`].
    operands: [u32; FOLLOWED],
    /// The value it writes last, or [`NO_VALUE`].
    result: u32,
}

/// Stands for a tensor in a real buffer. No list has a value of this number.
const NO_VALUE: u32 = u32::MAX;

impl Brief {
    fn of(dispatch: &Dispatch) -> Self {
        let value = |view: Option<&TensorView>| {
            view.and_then(TensorView::value).map_or(NO_VALUE, |value| value.0)
        };
        Self {
            id: dispatch.id,
            kind: Some(dispatch.kind),
            operands: std::array::from_fn(|operand| value(dispatch.bindings.get(operand))),
            result: value(dispatch.bindings.last()),
        }
    }
}

/// Who uses a value, by index in the list at the start, once per access.
#[derive(Clone, Default)]
struct Uses {
    writers: SmallVec<[u32; 4]>,
    readers: SmallVec<[u32; 4]>,
    /// A dispatch that binds it and whose access is unknown.
    unknown: Option<u32>,
}

impl Uses {
    /// How far the last user, at `index`, is from the first; nothing as long as nobody writes the
    /// value. Those of unknown access do not count, since nothing ever happens to them.
    fn span_to(&self, index: u32) -> u32 {
        let first = self.readers.first().copied().unwrap_or(index);
        self.writers.first().map_or(0, |&writer| index - writer.min(first))
    }
}

/// Users of a value that are looked at one by one; a value that many use would cost the square.
const FEW_USERS: usize = 4;

impl<'a> List<'a> {
    /// The list of a graph, and the candidates in it: for each rule the consumers that read what
    /// an op of the producer's kind wrote last. They are tried rule by rule over the `whole` list, or
    /// in an order as good as that.
    pub(super) fn new(graph: &'a ComputeGraph, whole: bool) -> (Self, Vec<Candidate>) {
        let start = graph.dispatch_table();
        let count = start.len() as u32;
        let mut uses = vec![Uses::default(); graph.values().len()];
        let mut briefs: Vec<Brief> = Vec::with_capacity(start.len());
        let mut candidates = Vec::with_capacity(start.len());
        let (mut walls, mut real_results) = (Vec::new(), false);
        let mut written = FxHashSet::default();
        let (mut kinds, mut in_order, mut reach) = (KindSet::default(), true, 0);
        for (index, &dispatch) in (0..count).zip(&start) {
            if !dispatch.is_movable() {
                walls.push(index);
            }
            let brief = Brief::of(dispatch);
            kinds.insert(dispatch.kind);
            in_order &= briefs.last().is_none_or(|before| before.id < brief.id);
            let in_buffer = brief.result == NO_VALUE && !dispatch.bindings.is_empty();
            real_results |= in_buffer && is_producer(dispatch.kind);
            let rules = RULES.with_consumer(dispatch.kind).iter();
            candidates.extend(rules.filter_map(|&number| {
                let rule = &RULES[number as usize];
                let written_by = |&operand: &usize| {
                    let uses = uses.get(brief.operands[operand] as usize)?;
                    briefs[*uses.writers.last()? as usize].kind
                };
                let mut kinds = rule.operands.iter().map(written_by);
                let (recorded, consumer) = (dispatch.id, index);
                let candidate = Candidate { round: 0, rule: number, recorded, consumer };
                kinds.any(|kind| kind == Some(rule.producer)).then_some(candidate)
            }));
            briefs.push(brief);
            reach = reach.max(note_uses(&mut uses, &mut written, index, dispatch));
        }
        let order = match whole || !in_order {
            true => Order::whole(),
            false => Order::tiled(count, kinds, reach),
        };
        for candidate in &mut candidates {
            candidate.round = order.round(candidate.rule, candidate.consumer);
        }
        let list = Self {
            graph,
            fused: vec![None; start.len()],
            briefs,
            slots: (0..count).collect(),
            owners: Owners::of_start(count),
            members: (0..count).map(|index| SmallVec::from_slice(&[index])).collect(),
            uses,
            written,
            indices: OnceCell::new(),
            walls,
            real_results,
            hazards: OnceCell::new(),
            order,
            #[cfg(test)]
            looked_at: std::cell::Cell::new(0),
            start,
        };
        (list, candidates)
    }

    /// What stands for a dispatch of the start, unless it is absorbed.
    pub(super) fn at(&self, index: u32) -> Option<&Dispatch> {
        self.kind(index)?;
        Some(self.fused[index as usize].as_deref().unwrap_or(self.start[index as usize]))
    }

    /// The kind of what stands for a dispatch of the start, unless it is absorbed.
    pub(super) fn kind(&self, index: u32) -> Option<CapturedOpKind> {
        self.briefs[index as usize].kind
    }

    /// The value behind an operand of a dispatch through which rules follow.
    pub(super) fn operand(&self, index: u32, operand: usize) -> Option<NodeId> {
        let value = self.briefs[index as usize].operands[operand];
        (value != NO_VALUE).then_some(NodeId(value))
    }

    /// The value a dispatch writes last.
    pub(super) fn result(&self, index: u32) -> Option<NodeId> {
        let value = self.briefs[index as usize].result;
        (value != NO_VALUE).then_some(NodeId(value))
    }

    /// A rule and a consumer, in the order in which they are tried.
    pub(super) fn candidate(&self, rule: usize, consumer: u32) -> Candidate {
        let (rule, recorded) = (rule as u32, self.briefs[consumer as usize].id);
        Candidate { round: self.order.round(rule, consumer), rule, recorded, consumer }
    }

    /// Whether a try for one consumer reaches further than the order allows for if it concerns this
    /// pair.
    pub(super) fn is_far(&self, consumer: u32, pair: &Pair<'_>) -> bool {
        let mut members = self.members(pair.producer).chain(self.members(pair.consumer));
        members.any(|member| self.order.is_far(consumer.abs_diff(member as u32)))
    }

    /// Whether a try for one consumer reaches further than the order allows for if it concerns another
    /// dispatch.
    pub(super) fn is_far_from(&self, consumer: u32, other: u32) -> bool {
        self.members(other).any(|member| self.order.is_far(consumer.abs_diff(member as u32)))
    }

    /// Whether the hazard graph was asked for and reaches further than the order allows for.
    pub(super) fn is_order_lost(&self) -> bool {
        self.hazards.get().is_some_and(|(_, longest)| self.order.is_far(*longest))
    }

    /// Who stands for the dispatch of this id; one of them, if it was repeated.
    pub(super) fn index_of(&self, id: DispatchId) -> Option<u32> {
        // Ids mostly count up from zero.
        let index = match self.briefs.get(id.0 as usize) {
            Some(brief) if brief.id == id => id.0,
            _ => {
                let all = self.briefs.iter().zip(0..);
                let indices = self.indices.get_or_init(|| all.map(|(b, i)| (b.id, i)).collect());
                *indices.get(&id)?
            }
        };
        self.owners(index).next()
    }

    /// Where a dispatch stands, for comparison only.
    pub(super) fn slot(&self, index: u32) -> u32 {
        self.slots[index as usize]
    }

    /// The value's entry in the graph's table.
    pub(super) fn value(&self, value: NodeId) -> Option<&Value> {
        self.graph.values().get(value.index())
    }

    /// The last writer of a value before the dispatch `index`.
    pub(super) fn writer_before(&self, value: NodeId, index: u32) -> Option<u32> {
        let owners = self.uses.get(value.index())?.writers.iter().flat_map(|&w| self.owners(w));
        owners.filter(|&w| self.slot(w) < self.slot(index)).max_by_key(|&w| self.slot(w))
    }

    /// A write to a value besides the one of `writer`.
    pub(super) fn other_writer(&self, value: NodeId, writer: u32) -> Option<DispatchId> {
        self.besides(&self.uses.get(value.index())?.writers, writer)
    }

    /// A read of a value besides the one of `reader`.
    pub(super) fn other_reader(&self, value: NodeId, reader: u32) -> Option<DispatchId> {
        self.besides(&self.uses.get(value.index())?.readers, reader)
    }

    /// A dispatch of unknown access that binds a value.
    pub(super) fn unknown_user(&self, value: NodeId) -> Option<DispatchId> {
        let unknown = self.uses.get(value.index())?.unknown?;
        Some(self.start[unknown as usize].id)
    }

    /// Those who read a value, once per read.
    pub(super) fn readers(&self, value: NodeId) -> impl Iterator<Item = u32> {
        let uses = self.uses.get(value.index());
        uses.into_iter().flat_map(|uses| &uses.readers).flat_map(|&reader| self.owners(reader))
    }

    /// Whether an op that some rule starts with wrote a real buffer at the start.
    pub(super) fn has_real_results(&self) -> bool {
        self.real_results
    }

    /// Where one dispatch can take the place of two, if every access in `down` moves from the
    /// producer's place to the consumer's, or every access in `up` the other way.
    pub(super) fn place(
        &self,
        (producer, down): (u32, &[Access]),
        (consumer, up): (u32, &[Access]),
    ) -> Result<Place, Refusal> {
        let (first, last) = (self.slot(producer), self.slot(consumer));
        if last - first <= 1 {
            return Ok(Place::Consumer);
        }
        self.check_walls(first, last)?;
        if self.nobody_conflicts(down, first, last) {
            return Ok(Place::Consumer);
        }
        // Neighbours count up, so the first of many that follow the producer is found at once.
        let mut late = self.followers(producer).filter(|other| self.slot(*other) < last);
        let Some(late) = late.find_map(|other| self.hazard((producer, down), other)) else {
            return Ok(Place::Consumer);
        };
        let hazards = self.hazards();
        let early = self.members(consumer).flat_map(|m| hazards.preds(m).iter().rev());
        let early = self.owners_of(early).find_map(|other| {
            let between = first < self.slot(other) && self.slot(other) < last;
            let other = self.at(other).filter(|_| between)?;
            hazard((other.id, other.accesses()), (self.at(consumer)?.id, up))
        });
        match early {
            Some(early) => Err(Refusal::Crosses { producer: late, consumer: early }),
            None => Ok(Place::Producer),
        }
    }

    /// The first slot behind the producer's at which its accesses `down` come too late, and what
    /// stands there.
    pub(super) fn too_late(&self, producer: u32, down: &[Access]) -> Option<(u32, Hazard)> {
        if self.nobody_conflicts(down, self.slot(producer), u32::MAX) {
            return None;
        }
        let hazards = self
            .followers(producer)
            .filter_map(|other| Some((self.slot(other), self.hazard((producer, down), other)?)));
        hazards.min_by_key(|(slot, _)| *slot)
    }

    /// Whether a copy of the producer can stand at a consumer's place: all copies cannot stand at
    /// the producer's. `late` is what [`too_late`](Self::too_late) gives.
    pub(super) fn check_copy(
        &self,
        producer: u32,
        consumer: u32,
        late: Option<(u32, Hazard)>,
    ) -> Result<(), Refusal> {
        self.check_walls(self.slot(producer), self.slot(consumer))?;
        match late {
            Some((slot, hazard)) if slot < self.slot(consumer) => {
                Err(Refusal::CopyTooLate { hazard })
            }
            _ => Ok(()),
        }
    }

    /// Nothing that nobody may cross stands between two slots.
    fn check_walls(&self, first: u32, last: u32) -> Result<(), Refusal> {
        let Some(&wall) = self.walls.get(self.walls.partition_point(|&wall| wall <= first)) else {
            return Ok(());
        };
        let dispatch = &self.start[wall as usize];
        match dispatch.is_annotated() {
            _ if wall >= last => Ok(()),
            true => Err(Refusal::CrossesPinned { dispatch: dispatch.id }),
            false => Err(Refusal::CrossesUnannotated { dispatch: dispatch.id }),
        }
    }

    /// Whether surely nobody between two slots conflicts with these accesses. Said without looking at
    /// any dispatch; `false` may also mean that it is not known.
    fn nobody_conflicts(&self, accesses: &[Access], first: u32, last: u32) -> bool {
        let outside = |user: u32| !(first + 1..last).contains(&self.slot(user));
        let all_outside = |users: &[u32]| {
            users.len() <= FEW_USERS
                && users.iter().flat_map(|&user| self.owners(user)).all(outside)
        };
        accesses.iter().map(|access| &access.range).all(|range| {
            match NodeId::from_buf_id(range.buf_id).map(|value| self.uses.get(value.index())) {
                Some(Some(Uses { writers, readers, .. })) => {
                    all_outside(writers) && (!range.is_write() || all_outside(readers))
                }
                Some(None) => false,
                None => !range.is_write() && !self.written.contains(&range.buf_id),
            }
        })
    }

    /// Those behind a dispatch that conflict with something it carries out.
    fn followers(&self, index: u32) -> impl Iterator<Item = u32> {
        let hazards = self.hazards();
        let after = self.members(index).flat_map(|m| hazards.succs(m));
        self.owners_of(after).filter(move |other| self.slot(index) < self.slot(*other))
    }

    /// Who carries out neighbours in the hazard graph.
    fn owners_of<'b>(
        &'b self,
        neighbours: impl Iterator<Item = &'b u32>,
    ) -> impl Iterator<Item = u32> {
        neighbours.flat_map(|&neighbour| {
            #[cfg(test)]
            self.looked_at.update(|count| count + 1);
            self.owners(neighbour)
        })
    }

    fn members(&self, index: u32) -> impl Iterator<Item = usize> {
        self.members[index as usize].iter().map(|&member| member as usize)
    }

    fn hazards(&self) -> &HazardGraph {
        let (hazards, _) = self.hazards.get_or_init(|| {
            let hazards = HazardGraph::build(&self.start);
            let longest = hazards.longest_edge();
            (hazards, longest)
        });
        hazards
    }

    /// The first hazard between accesses of one dispatch and another behind it.
    fn hazard(&self, (index, accesses): (u32, &[Access]), behind: u32) -> Option<Hazard> {
        let (earlier, later) = (self.at(index)?, self.at(behind)?);
        hazard((earlier.id, accesses), (later.id, later.accesses()))
    }

    /// Lets each of `consumers` take in the producer, or a copy of it; what stands for both goes by
    /// the consumer's index from now on, at the place given.
    pub(super) fn merge(
        &mut self,
        producer: u32,
        consumers: &[u32],
        fused: impl IntoIterator<Item = (Dispatch, Place)>,
    ) {
        let absorbed = std::mem::take(&mut self.members[producer as usize]);
        for &member in &absorbed {
            self.owners.replace(member, producer, consumers);
        }
        let mut room = self.fused[producer as usize].take();
        self.briefs[producer as usize].kind = None;
        for (&consumer, (fused, place)) in consumers.iter().zip(fused) {
            if place == Place::Producer {
                self.slots[consumer as usize] = self.slots[producer as usize];
            }
            self.members[consumer as usize].extend_from_slice(&absorbed);
            self.briefs[consumer as usize] = Brief::of(&fused);
            let stands = &mut self.fused[consumer as usize];
            // Nobody else knows what was made here: it makes room for what takes its place.
            let mut room = stands.take().or_else(|| room.take());
            match room.as_mut().and_then(Arc::get_mut) {
                Some(place) => *place = fused,
                None => room = Some(Arc::new(fused)),
            }
            *stands = room;
        }
    }

    /// Lets dispatches that touch the same bytes stand for those of these indices.
    pub(super) fn replace(&mut self, dispatches: impl IntoIterator<Item = (u32, Dispatch)>) {
        for (index, dispatch) in dispatches {
            self.fused[index as usize] = Some(Arc::new(dispatch));
        }
    }

    /// Forgets a read of a value by `reader`, which another read now serves.
    pub(super) fn forget_read(&mut self, value: NodeId, reader: u32) {
        let owners = &self.owners;
        if let Some(uses) = self.uses.get_mut(value.index()) {
            let by = |&user: &u32| owners.of(user).contains(&reader);
            let read = uses.readers.iter().position(by);
            read.map(|at| uses.readers.remove(at));
        }
    }

    /// The list as it stands.
    pub(super) fn into_dispatches(self) -> Vec<Arc<Dispatch>> {
        let mut by_slot: Vec<Option<Arc<Dispatch>>> = vec![None; self.start.len()];
        let all = self.graph.dispatches().zip(self.fused).zip(self.briefs.iter().zip(self.slots));
        for ((start, fused), (brief, slot)) in all {
            if brief.kind.is_some() {
                by_slot[slot as usize] = Some(fused.unwrap_or_else(|| start.clone()));
            }
        }
        by_slot.into_iter().flatten().collect()
    }

    fn owners(&self, index: u32) -> impl Iterator<Item = u32> {
        self.owners.of(index).iter().copied()
    }

    /// Whoever of `users` is not `one`, or `one` itself if it occurs twice.
    fn besides(&self, users: &[u32], one: u32) -> Option<DispatchId> {
        let mut seen = false;
        let other = users.iter().flat_map(|&user| self.owners(user)).find(|&user| {
            let first = user == one && !seen;
            seen |= first;
            !first
        });
        Some(self.at(other?)?.id)
    }
}

fn is_producer(kind: CapturedOpKind) -> bool {
    !RULES.with_producer(kind).is_empty()
}

/// Notes what a dispatch uses; gives how far it is from others that use the same.
fn note_uses(
    uses: &mut [Uses],
    written: &mut FxHashSet<usize>,
    index: u32,
    dispatch: &Dispatch,
) -> u32 {
    let mut span = 0;
    let mut note = |value: NodeId, add: &dyn Fn(&mut Uses)| {
        if let Some(uses) = uses.get_mut(value.index()) {
            add(uses);
            span = span.max(uses.span_to(index));
        }
    };
    for range in dispatch.ranges() {
        if let Some(value) = NodeId::from_buf_id(range.buf_id) {
            note(value, &|uses| match range.role {
                MemRangeRole::Src => uses.readers.push(index),
                MemRangeRole::Dst => uses.writers.push(index),
            });
        } else if range.is_write() {
            written.insert(range.buf_id);
        }
    }
    for view in &dispatch.bindings {
        let Some(value) = view.value() else { continue };
        if !dispatch.is_annotated() {
            note(value, &|uses| uses.unknown = Some(index));
        } else if dispatch.ranges().all(|range| range.buf_id != view.buf_id) {
            // Bound for no known purpose: whoever wrote it must go on writing it.
            note(value, &|uses| uses.readers.push(index));
        }
    }
    span
}

/// The first hazard between two sets of accesses in execution order.
fn hazard(
    (earlier, first): (DispatchId, &[Access]),
    (later, second): (DispatchId, &[Access]),
) -> Option<Hazard> {
    first.iter().find_map(|a| {
        second.iter().find_map(|b| {
            let kind = HazardKind::of(a.range.role, b.range.role)?;
            let (p0, p1) = a.range.overlap(&b.range)?;
            Some(Hazard { kind, earlier, later, buf_id: a.range.buf_id, p0, p1 })
        })
    })
}
