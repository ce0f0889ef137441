//! Bytes that hold nothing although a write passed over them.
//!
//! The symbolic run lets a write fill its whole range. Where the layout behind it has gaps, and nothing
//! was written there before, the gaps still hold nothing: they are noted here, and only here, so that a
//! list without gaps costs nothing.

use rustc_hash::FxHashMap;

use super::fault::{Fault, Problem, Proof};
use super::intervals::{Intervals, Payload};
use super::memory::{Ground, Memory, Run, Source};
use crate::layout::TensorView;
use crate::node::{Access, Dispatch};

/// Runs of one tensor that are looked at one by one. A write of more counts as one of the whole range,
/// and of a read of more only so many are looked at.
const MAX_RUNS: usize = 1 << 12;

/// Bytes of values that hold nothing although a write passed over them.
#[derive(Default)]
pub(super) struct Holes {
    values: FxHashMap<usize, Intervals<Hole>>,
}

/// Whether nothing is there.
#[derive(Clone, Copy, Debug)]
struct Hole(bool);

impl Payload for Hole {
    fn advance(self, _: u64) -> Self {
        self
    }
}

impl Holes {
    /// Proves that every element a dispatch reads was written; `seen` is what the read saw.
    pub(super) fn prove_read(
        &self,
        dispatch: &Dispatch,
        access: &Access,
        seen: &[Run],
    ) -> Result<(), Fault> {
        if self.values.is_empty() && seen.iter().all(|run| run.source != Source::Undefined) {
            return Ok(());
        }
        let range = &access.range;
        let holes = self.all_of(range.buf_id, range.p0, range.p1, seen);
        if holes.is_empty() {
            return Ok(());
        }
        let view = dispatch.bindings.get(usize::from(access.binding));
        let mut runs = runs_of(view, range.p0, range.p1).take(MAX_RUNS);
        let hole = runs.find_map(|(p0, p1)| {
            let shared = holes.iter().map(|&(h0, h1)| (h0.max(p0), h1.min(p1)));
            shared.into_iter().find(|(p0, p1)| p0 < p1)
        });
        match hole {
            None => Ok(()),
            Some((p0, p1)) => Err(Fault::new(Proof::ValueFlow, Problem::UndefinedRead)
                .at(dispatch.id)
                .on(range.buf_id, p0, p1)),
        }
    }

    /// Notes what a write leaves without contents; `memory` does not know of the write yet.
    pub(super) fn note_write<G: Fn(usize) -> Ground>(
        &mut self,
        dispatch: &Dispatch,
        access: &Access,
        memory: &Memory<G>,
    ) {
        let range = &access.range;
        let view = dispatch.bindings.get(usize::from(access.binding));
        let gapped = view.filter(|view| view.layout.has_gaps());
        let few = gapped.filter(|view| view.layout.runs().size_hint().0 <= MAX_RUNS);
        let mut holes = Vec::new();
        if few.is_some() {
            let mut seen = Vec::new();
            memory.read(range.buf_id, range.p0, range.p1, &mut seen);
            holes = self.all_of(range.buf_id, range.p0, range.p1, &seen);
        }
        if holes.is_empty() {
            if let Some(held) = self.values.get_mut(&range.buf_id) {
                held.assign(range.p0, range.p1, Hole(false));
            }
            return;
        }
        let held = self.values.entry(range.buf_id).or_default();
        for (p0, p1) in holes {
            held.assign(p0, p1, Hole(true));
        }
        for (p0, p1) in runs_of(few, range.p0, range.p1) {
            held.assign(p0, p1, Hole(false));
        }
    }

    /// Forgets about a value, all of which somebody may have written.
    pub(super) fn forget(&mut self, buf_id: usize) {
        self.values.remove(&buf_id);
    }

    /// The first bytes of `p0..p1` that hold nothing; `seen` is what a read of them saw.
    pub(super) fn first_of(
        &self,
        buf_id: usize,
        p0: u64,
        p1: u64,
        seen: &[Run],
    ) -> Option<(u64, u64)> {
        self.all_of(buf_id, p0, p1, seen).into_iter().min()
    }

    fn all_of(&self, buf_id: usize, p0: u64, p1: u64, seen: &[Run]) -> Vec<(u64, u64)> {
        let mut holes = Vec::new();
        let mut at = p0;
        for run in seen {
            if run.source == Source::Undefined {
                holes.push((at, at + run.len));
            }
            at += run.len;
        }
        if let Some(held) = self.values.get(&buf_id) {
            held.visit(p0, p1, |from, to, hole| {
                if hole.is_some_and(|Hole(empty)| empty) {
                    holes.push((from, to));
                }
            });
        }
        holes
    }
}

/// The runs of a view inside `p0..p1`; all of it if there is no view.
fn runs_of(
    view: Option<&TensorView>,
    p0: u64,
    p1: u64,
) -> impl Iterator<Item = (u64, u64)> + use<> {
    let whole = view.is_none().then_some((p0, p1));
    let runs = view.map(|view| (view.offset, view.layout.runs()));
    let runs = runs.into_iter().flat_map(|(offset, runs)| {
        runs.map(move |run| (offset.saturating_add(run.start), offset.saturating_add(run.end)))
    });
    let cut = runs.map(move |(start, end)| (start.max(p0), end.min(p1)));
    whole.into_iter().chain(cut).filter(|(start, end)| start < end)
}
