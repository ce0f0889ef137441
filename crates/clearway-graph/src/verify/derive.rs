//! The derivation proof: a dispatch that stands for several recorded ones is what the rules make of them.
//!
//! The other proofs show that the right bytes are read and written. This one shows that the right thing is
//! computed from them: kind, constants, and which tensor goes to which binding. It shares the rule
//! table ([`RULES`]) and the table of products with the stages that apply them, as data, and nothing else.
//!
//! The members of a fused dispatch stand in the order in which the rules took them in: those of a producer
//! before those of its consumer. So a derivation is a tree over that sequence, with a rule at each inner
//! node, and is found from the kind of the dispatch down: few rules make a kind, few places divide the
//! members, and the kinds of the members decide at once. A consumer must have read, in the recorded list,
//! exactly the bytes its producer wrote, seen the same way.
//!
//! A rounded value is written by an op that may round what it gives and read, whole and as it was
//! written, as the activations of a product that may find them so.
//!
//! The verifier knows no kernels. That the kernel of a dispatch is the one of its kind is checked where a
//! list is lowered.

use std::ops::Range;

use smallvec::SmallVec;

use super::fault::{Fault, Members, Problem, Proof, Underived};
use super::history::History;
use super::memory::{Run, Source as Origin};
use super::structure::{Carriers, Places, Recorded};
use crate::dtype::DType;
use crate::fuse::{ALREADY_KEPT_AT, Fit, RULES, Rule, Source, binding_counts};
use crate::layout::{Layout, TensorView};
use crate::node::{Access, Dispatch};
use crate::op::{CapturedOpKind as Kind, Product, Slot as Part};
use crate::quantise::halve::{self, same_elements};
use crate::range::MemRangeRole;

/// Most members of anything the rules make. More need not be looked at.
pub(super) const MOST_MEMBERS: usize = 8;

/// What the proof looks things up in.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) recorded: &'a Recorded<'a>,
    /// What the members saw.
    pub(super) history: &'a History,
    pub(super) places: &'a Places<'a>,
    pub(super) carriers: &'a Carriers,
    /// The final list.
    pub(super) last: &'a [&'a Dispatch],
}

/// Proves a dispatch whose structure is proven. The recorded dispatches it stands for are noted, and
/// nobody behind it carries out anything yet.
pub(super) fn prove(context: Context<'_>, dispatch: &Dispatch) -> Result<(), Fault> {
    let rounded = dispatch.bindings.iter().any(|view| view.layout.dtype().is_form());
    if dispatch.origins.len() == 1 && !rounded {
        return Ok(()); // what was recorded, as the structure proof shows
    }
    let Context { recorded, .. } = context;
    let positions = dispatch.origins.iter().filter_map(|&id| recorded.position(id));
    let members = positions.map(|at| (at, recorded.dispatches[at as usize])).collect();
    let proof = Derivation { context, dispatch, members };
    let slots = match dispatch.origins.len() {
        1 => (0..dispatch.bindings.len()).map(|binding| Slot::new(0, binding)).collect(),
        _ => proof.prove_fused().map_err(|why| proof.fault(why))?,
    };
    if rounded || is_rounded_only(dispatch.kind) {
        proof.prove_rounded(&slots)?;
    }
    Ok(())
}

/// A dispatch and the recorded ones it stands for.
struct Derivation<'a> {
    context: Context<'a>,
    dispatch: &'a Dispatch,
    /// With their positions in the recorded list.
    members: SmallVec<[(u32, &'a Dispatch); MOST_MEMBERS]>,
}

/// A binding of a member, both by index. Small, since a derivation makes and copies many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    member: u8,
    binding: u8,
}

impl Slot {
    const fn new(member: usize, binding: usize) -> Self {
        Self { member: member as u8, binding: binding as u8 }
    }

    /// Whether an access of the member goes through this binding.
    fn is_of(self, access: &Access) -> bool {
        access.binding == u16::from(self.binding)
    }
}

/// The bindings of an op that stands for some of the members, each with the member's it comes from. The
/// last one is the result.
type Slots = SmallVec<[Slot; 8]>;

impl Derivation<'_> {
    /// Where the bindings of a fused dispatch come from, which is where the rules say.
    fn prove_fused(&self) -> Result<Slots, Underived> {
        let Self { dispatch, members, .. } = self;
        let slots = match members.len() <= MOST_MEMBERS {
            true => self.derive(dispatch.kind, 0..members.len()).map_err(|why| self.told(why))?,
            false => return Err(Underived::NoRule { instead: None }),
        };
        let constants = members.iter().flat_map(|(_, member)| &member.params);
        if !dispatch.params.iter().eq(constants) {
            return Err(Underived::Constants);
        }
        if dispatch.bindings.len() != slots.len() {
            return Err(Underived::Bindings);
        }
        for (binding, (view, &slot)) in (0..).zip(dispatch.bindings.iter().zip(&slots)) {
            let was = self.view(slot);
            let form = was.layout.in_form(view.layout.dtype());
            let same = view.layout == was.layout || form == Some(view.layout);
            let place = self.context.places.view(was).ok();
            if !same
                || place.map(|place| TensorView { layout: view.layout, ..place }) != Some(*view)
            {
                return Err(Underived::Binding { binding });
            }
        }
        self.prove_accesses(&slots)?;
        Ok(slots)
    }

    /// Every access goes through the binding its recorded one became, and none of these is missing. No
    /// recorded access is carried out twice, as the structure proof shows.
    fn prove_accesses(&self, slots: &Slots) -> Result<(), Underived> {
        let accesses = self.dispatch.accesses();
        for access in accesses {
            let was = slots.get(usize::from(access.binding)).and_then(|slot| {
                let (_, member) = self.member(*slot);
                let was = member.accesses().get(usize::from(access.origin.access))?;
                let own = access.origin.dispatch == member.id;
                (own && slot.is_of(was)).then_some(was)
            });
            if was.is_none() {
                return Err(Underived::Access { binding: access.binding });
            }
        }
        for (binding, &slot) in (0..).zip(slots) {
            let carried = accesses.iter().filter(|access| access.binding == binding).count();
            if carried != self.accesses(slot).count() {
                return Err(Underived::Access { binding });
            }
        }
        Ok(())
    }

    /// The bindings of an op of this kind that stands for these members; or why there is none. Of
    /// several reasons the first is told that is more than kinds that do not fit.
    fn derive(&self, kind: Kind, span: Range<usize>) -> Result<Slots, Underived> {
        let mut why = Underived::NoRule { instead: None };
        if span.len() == 1 {
            let (_, member) = self.members[span.start];
            let (fewest, most) = binding_counts(kind);
            let bound = member.bindings.len();
            let fits = member.kind == kind && (fewest..=most).contains(&bound);
            let slot = |binding| Slot::new(span.start, binding);
            return if fits { Ok((0..bound).map(slot).collect()) } else { Err(why) };
        }
        let mut note = |reason: Underived| {
            if matches!(why, Underived::NoRule { .. }) {
                why = reason;
            }
        };
        for rule in RULES.making(kind) {
            for middle in span.start + 1..span.end {
                let first = self.derive(rule.producer, span.start..middle);
                let both = first
                    .and_then(|first| Ok((first, self.derive(rule.consumer, middle..span.end)?)));
                match both.and_then(|(first, second)| self.apply(rule, &first, &second)) {
                    Ok(slots) => return Ok(slots),
                    Err(reason) => note(reason),
                }
            }
        }
        Err(why)
    }

    /// The bindings of what a rule makes of two ops.
    fn apply(&self, rule: &Rule, first: &Slots, second: &Slots) -> Result<Slots, Underived> {
        let unknown = Underived::NoRule { instead: None };
        let apart = Underived::Apart { rule: rule.name };
        let shapes = Underived::Shapes { rule: rule.name };
        let (Some(&written), Some(&result)) = (first.last(), second.last()) else {
            return Err(unknown);
        };
        let reads = |operand: &usize| {
            let read = second.get(*operand);
            read.is_some_and(|&read| self.flows(written, read, rule.reshaped))
        };
        let operand = rule.operands.iter().copied().find(reads).ok_or(apart)?;
        let value = self.view(second[operand]).layout;
        let result_layout = self.view(result).layout;
        if !fits(rule.fit, &value, &result_layout, &value) {
            return Err(shapes);
        }
        for same in &rule.same {
            let read = |slots: &Slots, binding| slots.get(binding).map(|&slot| *self.view(slot));
            let reads = [read(first, same.producer), read(second, same.consumer)];
            if reads[0].is_none() || reads[0] != reads[1] {
                return Err(Underived::NotSame { rule: rule.name });
            }
        }
        let mut slots = Slots::new();
        for bind in &rule.bindings {
            let slot = match bind.source {
                Source::Producer(binding) => Some(*first.get(binding).ok_or(unknown)?),
                Source::Consumer(binding) => Some(*second.get(binding).ok_or(unknown)?),
                Source::Other => {
                    let other = 1usize.checked_sub(operand).and_then(|other| second.get(other));
                    Some(*other.ok_or(unknown)?)
                }
                Source::Kept => self.is_carried(written).then_some(written),
                Source::AlreadyKept => {
                    first.get(ALREADY_KEPT_AT).copied().filter(|&slot| slot != written)
                }
                Source::Result => Some(result),
            };
            let Some(slot) = slot else { continue };
            if !fits(bind.fit, &self.view(slot).layout, &result_layout, &value) {
                return Err(shapes);
            }
            slots.push(slot);
        }
        Ok(slots)
    }

    /// Whether one member read, when recorded, exactly what another wrote, dense and seen the same way; or
    /// each row of it as one matrix where it may be `reshaped`.
    fn flows(&self, written: Slot, read: Slot, reshaped: bool) -> bool {
        let (from, to) = (self.view(written), self.view(read));
        let (a, b) = (&from.layout, &to.layout);
        let same_shape = match reshaped {
            true => {
                let [outer, matrices, rows, cols] = b.shape4().map(u64::from);
                b.rank() > a.rank()
                    && (outer * matrices, rows * cols) == (a.rows() as u64, a.cols() as u64)
            }
            false => a.shape4() == b.shape4(),
        };
        let same_view = (from.buf_id, from.offset) == (to.buf_id, to.offset)
            && a.dtype() == b.dtype()
            && same_shape
            && a.is_dense()
            && b.is_dense();
        let (Some((number, write)), Some((_, seen))) =
            (self.only(written, MemRangeRole::Dst), self.only(read, MemRangeRole::Src))
        else {
            return false;
        };
        let (position, _) = self.member(written);
        let source = Origin::Written { position, access: number };
        let (len, at) = (seen.range.p1 - seen.range.p0, seen.range.p0.checked_sub(write.range.p0));
        same_view && at.is_some_and(|at| self.saw(read) == Some(Run { len, source, at }))
    }

    /// What the only access through a member's binding saw, if that is in one piece.
    fn saw(&self, slot: Slot) -> Option<Run> {
        let (position, _) = self.member(slot);
        let (number, read) = self.only(slot, MemRangeRole::Src)?;
        let number = self.context.recorded.access_number(position, number);
        let runs = self.context.history.reads_of(number, read.range.p1 - read.range.p0);
        match runs.as_slice() {
            [run] => Some(*run),
            _ => None,
        }
    }

    /// Rounded is what may be: a result, by an op that may round it, and activations that such an op gave.
    fn prove_rounded(&self, slots: &Slots) -> Result<(), Fault> {
        let Self { dispatch, .. } = self;
        let result = dispatch.bindings.len().saturating_sub(1);
        let mut gives = false;
        for (binding, (view, &slot)) in dispatch.bindings.iter().zip(slots).enumerate() {
            let form = view.layout.dtype();
            if !form.is_form() || self.view(slot).layout.dtype() == form {
                continue;
            }
            let writes = binding == result && self.only(slot, MemRangeRole::Dst).is_some();
            gives |= writes;
            let allowed = match writes {
                true => may_give(dispatch.kind, form),
                false => self.may_read_rounded(slot, form),
            };
            if !allowed {
                let problem = Problem::Rounded { kind: dispatch.kind, binding: binding as u16 };
                return Err(self.at(problem));
            }
        }
        // Only a rounded result can carry what its rows are still to be divided by.
        if self.members.len() > 1 && is_rounded_only(dispatch.kind) && !gives {
            let kind = dispatch.kind;
            return Err(self.at(Problem::NotRounded { kind, binding: result as u16 }));
        }
        Ok(())
    }

    /// Whether a member's binding is that of activations that may come in this form from whoever writes them in
    /// the final list, and saw all of what it wrote through the same view; as f16 in any shape, and written by several,
    /// one part behind another.
    fn may_read_rounded(&self, slot: Slot, form: DType) -> bool {
        let (position, member) = self.member(slot);
        let activations = match member.kind.product() {
            Some(product) => product.operand(Part::Input, member.bindings.len()),
            None => (member.kind == Kind::MatMulExperts).then_some(0),
        };
        let Some((number, read)) = self.only(slot, MemRangeRole::Src) else { return false };
        let number = self.context.recorded.access_number(position, number);
        let runs = self.context.history.reads_of(number, read.range.p1 - read.range.p0);
        let view = self.view(slot);
        let alike = match runs.as_slice() {
            [run] => self.given_by(run, form).is_some_and(|written| match form {
                DType::A16 => same_elements(written, view),
                _ => written == view,
            }),
            parts => form == DType::A16 && self.given_in_parts(parts, view),
        };
        activations == Some(usize::from(slot.binding))
            && alike
            && may_take(self.dispatch.kind, form)
    }

    /// What a run is all of, if whoever writes it in the final list may give it in this form.
    fn given_by(&self, run: &Run, form: DType) -> Option<&TensorView> {
        let Context { recorded, carriers, last, .. } = self.context;
        let Run { source: Origin::Written { position, access }, at: 0, len } = *run else {
            return None;
        };
        let writer = recorded.dispatches[position as usize];
        let write = &writer.accesses()[usize::from(access)];
        let carrier = carriers.last_of(position)?;
        let whole = write.range.p1 - write.range.p0 == len;
        let gives = whole && may_give(last[carrier as usize].kind, form);
        writer.bindings.get(usize::from(write.binding)).filter(|_| gives)
    }

    /// Whether runs are whole results as f16 that lie one behind another and are the elements of a view: parts of whole chunks, in
    /// which every element has the place that it has in the whole.
    fn given_in_parts(&self, runs: &[Run], view: &TensorView) -> bool {
        let (mut at, mut elems) = (view.offset, 0);
        for run in runs {
            let Some(written) = self.given_by(run, DType::A16) else { return false };
            let layout = &written.layout;
            let fits = (written.buf_id, written.offset) == (view.buf_id, at)
                && layout.dtype() == view.layout.dtype()
                && layout.in_form(DType::A16).is_some();
            if !fits {
                return false;
            }
            at += layout.span_bytes();
            elems += layout.elems();
        }
        view.layout.is_dense() && elems == view.layout.elems()
    }

    /// Whether the dispatch carries out a member's write through this binding.
    fn is_carried(&self, slot: Slot) -> bool {
        let (_, member) = self.member(slot);
        let Some((access, _)) = self.only(slot, MemRangeRole::Dst) else { return false };
        let origin = crate::node::Origin { dispatch: member.id, access };
        self.dispatch.accesses().iter().any(|carried| carried.origin == origin)
    }

    /// The recorded access through a member's binding, with its number, if it is the only one and has
    /// this role.
    fn only(&self, slot: Slot, role: MemRangeRole) -> Option<(u16, &Access)> {
        let mut accesses = self.accesses(slot);
        let only = accesses.next().filter(|(_, access)| access.range.role == role)?;
        accesses.next().is_none().then_some(only)
    }

    /// The recorded accesses through a member's binding, with their numbers.
    fn accesses(&self, slot: Slot) -> impl Iterator<Item = (u16, &Access)> {
        let (_, member) = self.member(slot);
        let all = (0..).zip(member.accesses());
        all.filter(move |(_, access)| slot.is_of(access))
    }

    /// The member of a slot, with its position in the recorded list.
    fn member(&self, slot: Slot) -> (u32, &Dispatch) {
        self.members[usize::from(slot.member)]
    }

    /// A member's binding as it was recorded.
    fn view(&self, slot: Slot) -> &TensorView {
        &self.member(slot).1.bindings[usize::from(slot.binding)]
    }

    /// The reason, with what the members do make.
    fn told(&self, why: Underived) -> Underived {
        let Underived::NoRule { .. } = why else { return why };
        let mut kinds = RULES.iter().map(|rule| rule.fused);
        let instead = kinds.find(|&kind| self.derive(kind, 0..self.members.len()).is_ok());
        Underived::NoRule { instead }
    }

    fn fault(&self, why: Underived) -> Fault {
        let members = Members::of(self.members.iter().map(|(_, member)| (member.id, member.kind)));
        self.at(Problem::Underived { kind: self.dispatch.kind, members, why })
    }

    fn at(&self, problem: Problem) -> Fault {
        Fault::new(Proof::Derivation, problem).at(self.dispatch.id)
    }
}

/// Whether an op may give its result in a form.
fn may_give(kind: Kind, form: DType) -> bool {
    match form {
        DType::A16 => halve::may_write(kind),
        _ => kind.product().is_some_and(Product::may_quantise),
    }
}

/// Whether an op may find its activations in a form.
fn may_take(kind: Kind, form: DType) -> bool {
    match form {
        DType::A16 => halve::may_read(kind),
        _ => kind.product().is_some_and(Product::may_read_quantised),
    }
}

/// Whether what an op gives exists only rounded: it carries what its rows are still to be divided by.
fn is_rounded_only(kind: Kind) -> bool {
    kind.product().is_some_and(|product| product.epilogue().norm)
}

/// Whether an operand has the shape a rule asks for, given those of the result and of what goes away.
fn fits(fit: Fit, operand: &Layout, result: &Layout, gone: &Layout) -> bool {
    let is_row_of = |other: &Layout| operand.rows() == 1 && operand.cols() == other.cols();
    match fit {
        Fit::Any => true,
        Fit::Full => operand.shape4() == result.shape4(),
        Fit::Row => operand.shape4() == result.shape4() || is_row_of(result),
        Fit::Weight => is_row_of(gone),
    }
}
