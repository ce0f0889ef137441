//! Alias classes: values that share their bytes by right.
//!
//! A view needs no class, since it names its value. An output may lie over an input of its dispatch
//! where the kernel says so and the input dies there: then every other access to the input lies in an
//! earlier group. The parts of a joined row may lie inside it, so that nothing is left to copy. An f16
//! shadow lies where its value says. The values of a class are placed as one rectangle, from the
//! first life to the last.

use smallvec::SmallVec;

use super::PlaceOptions;
use super::lifetimes::{Lifetime, lifetimes};
use crate::graph::ComputeGraph;
use crate::ids::NodeId;
use crate::layout::TensorView;
use crate::node::{CapturedNode, Dispatch};

/// Values that lie at the same place, and the groups in which any of them is live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AliasClass {
    /// The values, in the order they live.
    pub values: SmallVec<[NodeId; 2]>,
    /// Where each starts in the class: 0 but for parts of a joined row.
    pub offsets: SmallVec<[u64; 2]>,
    /// Bytes of the whole class.
    pub bytes: u64,
    /// First group.
    pub first: u32,
    /// Last group.
    pub last: u32,
}

/// Whether parts of a joined row lie inside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joins {
    /// Where that is legal.
    InPlace,
    /// Parts have bytes of their own, and are copied.
    Never,
}

/// The classes of all values that need memory, joined rows apart from their parts.
pub fn alias_classes(graph: &ComputeGraph) -> Vec<AliasClass> {
    classes(graph, &PlaceOptions::default(), Joins::Never)
}

/// The classes of all values that need memory but shadows, which follow their values.
pub(super) fn classes(
    graph: &ComputeGraph,
    options: &PlaceOptions,
    joins: Joins,
) -> Vec<AliasClass> {
    let by_value = lives_with_shadows(graph);
    let mut unions = Unions::new(graph.values().len());
    let touches = last_group_touches(graph, &by_value);
    let dies_in = |input: NodeId, output: NodeId| {
        let (Some(dying), Some(born)) = (by_value[input.index()], by_value[output.index()]) else {
            return false;
        };
        let kept = &graph.values()[input.index()];
        let own = !kept.lasts() && !kept.output && !graph.values()[output.index()].lasts();
        let apart =
            options.apart.contains(&(input, output)) || options.apart.contains(&(output, input));
        own && !apart && dying.last == born.first && touches[input.index()] == 1
    };
    for dispatch in graph.dispatches() {
        for (input, output) in candidates(dispatch, graph) {
            if dies_in(input, output) && unions.is_free(input, output) {
                unions.join(input, output, 0);
            }
        }
        if joins == Joins::InPlace
            && let Some((parts, output)) = joined_values(dispatch, graph)
        {
            let fits = |&(part, at): &(NodeId, u64)| {
                at.is_multiple_of(options.align) && dies_in(part, output)
            };
            if parts.iter().all(fits) && parts.iter().all(|p| unions.is_free(p.0, output)) {
                for (part, at) in parts {
                    unions.join(part, output, at);
                }
            }
        }
    }
    unions.classes(&by_value)
}

/// The life of each value; a value lives as long as its shadow, which has none of its own here.
fn lives_with_shadows(graph: &ComputeGraph) -> Vec<Option<Lifetime>> {
    let mut by_value: Vec<Option<Lifetime>> = vec![None; graph.values().len()];
    for life in lifetimes(graph) {
        by_value[life.value.index()] = Some(life);
    }
    for (index, value) in graph.values().iter().enumerate() {
        let (Some(of), Some(shadow)) = (value.shadow_of, by_value[index]) else {
            continue;
        };
        by_value[index] = None;
        let bytes = graph.values()[of.index()].bytes;
        let life = by_value[of.index()].get_or_insert(Lifetime { value: of, bytes, ..shadow });
        life.first = life.first.min(shadow.first);
        life.last = life.last.max(shadow.last);
    }
    by_value
}

/// Which value lies in which: each in at most one, from where on its own bytes are gone.
struct Unions {
    /// The value it becomes, and where in it it lies.
    into: Vec<Option<(NodeId, u64)>>,
    /// Has values that become it.
    made_of: Vec<bool>,
}

impl Unions {
    fn new(values: usize) -> Self {
        Self { into: vec![None; values], made_of: vec![false; values] }
    }

    fn is_free(&self, input: NodeId, output: NodeId) -> bool {
        self.into[input.index()].is_none() && !self.made_of[output.index()]
    }

    fn join(&mut self, input: NodeId, output: NodeId, at: u64) {
        self.into[input.index()] = Some((output, at));
        self.made_of[output.index()] = true;
    }

    /// One class for each value that becomes no other.
    fn classes(&self, lives: &[Option<Lifetime>]) -> Vec<AliasClass> {
        let root = |value: usize| {
            let (mut value, mut offset) = (value, 0);
            while let Some((next, at)) = self.into[value] {
                (value, offset) = (next.index(), offset + at);
            }
            (value, offset)
        };
        let mut class_of: Vec<Option<usize>> = vec![None; lives.len()];
        let mut classes: Vec<AliasClass> = Vec::with_capacity(lives.len());
        for life in lives.iter().flatten() {
            let (root, offset) = root(life.value.index());
            let index = *class_of[root].get_or_insert(classes.len());
            if index == classes.len() {
                classes.push(AliasClass {
                    values: SmallVec::new(),
                    offsets: SmallVec::new(),
                    bytes: 0,
                    first: life.first,
                    last: life.last,
                });
            }
            let class = &mut classes[index];
            class.values.push(life.value);
            class.offsets.push(offset);
            class.bytes = class.bytes.max(offset + life.bytes);
            class.first = class.first.min(life.first);
            class.last = class.last.max(life.last);
        }
        classes
    }
}

/// The values a dispatch joins into one row, with the byte each starts at, and the row.
fn joined_values(
    dispatch: &Dispatch,
    graph: &ComputeGraph,
) -> Option<([(NodeId, u64); 2], NodeId)> {
    let [a, b, row] = dispatch.joined_row()?;
    let whole = |view: &TensorView| whole_value(view, graph);
    let (a_value, b_value, row_value) = (whole(a)?, whole(b)?, whole(row)?);
    let distinct = a_value != b_value && a_value != row_value && b_value != row_value;
    let parts = [(a_value, 0), (b_value, a.layout.span_bytes())];
    distinct.then_some((parts, row_value))
}

/// The value a view shows all of, in its own order.
fn whole_value(view: &TensorView, graph: &ComputeGraph) -> Option<NodeId> {
    let value = view.value()?;
    let bytes = graph.values().get(value.index())?.bytes;
    (view.offset == 0 && view.layout.is_dense() && view.layout.span_bytes() == bytes)
        .then_some(value)
}

/// Pairs of input and output values that the kernel lets lie over each other: both whole values of
/// one layout, the input bound once.
fn candidates(dispatch: &Dispatch, graph: &ComputeGraph) -> impl Iterator<Item = (NodeId, NodeId)> {
    dispatch.in_place.iter().filter_map(|pair| {
        let input = dispatch.bindings.get(usize::from(pair.input))?;
        let output = dispatch.bindings.get(usize::from(pair.output))?;
        let (a, b) = (whole_value(input, graph)?, whole_value(output, graph)?);
        let once = dispatch.values().filter(|&value| value == a).count() == 1;
        let same = input.layout == output.layout;
        (once && same && a != b).then_some((a, b))
    })
}

/// How many dispatches touch each value in the last group of its life.
fn last_group_touches(graph: &ComputeGraph, lives: &[Option<Lifetime>]) -> Vec<u32> {
    let mut touches = vec![0; lives.len()];
    let (mut group, mut occupied) = (0, false);
    for node in graph.nodes() {
        match node {
            CapturedNode::Barrier(_) => {
                group += u32::from(occupied);
                occupied = false;
            }
            CapturedNode::Dispatch(dispatch) => {
                occupied = true;
                let mut seen: SmallVec<[NodeId; 4]> = SmallVec::new();
                for value in dispatch.values() {
                    let life = lives.get(value.index()).copied().flatten();
                    if life.is_some_and(|life| life.last == group) && !seen.contains(&value) {
                        touches[value.index()] += 1;
                        seen.push(value);
                    }
                }
            }
        }
    }
    touches
}
