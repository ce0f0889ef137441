//! Alias classes: values that share their bytes by right.
//!
//! A view needs no class, since it names its value. An output may lie over an input of its dispatch
//! where the kernel says so and the input dies there: then every other access to the input lies in an
//! earlier group. Joined values are placed as one rectangle, from the first life to the last.

use smallvec::SmallVec;

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
    /// Bytes the largest needs.
    pub bytes: u64,
    /// First group.
    pub first: u32,
    /// Last group.
    pub last: u32,
}

/// The classes of all values that need memory.
pub fn alias_classes(graph: &ComputeGraph) -> Vec<AliasClass> {
    let lives = lifetimes(graph);
    let mut by_value: Vec<Option<Lifetime>> = vec![None; graph.values().len()];
    for life in &lives {
        by_value[life.value.index()] = Some(*life);
    }
    let mut next = vec![None; graph.values().len()];
    let mut joined = vec![false; graph.values().len()];
    let touches = last_group_touches(graph, &by_value);
    for dispatch in graph.dispatches() {
        for (input, output) in candidates(dispatch, graph) {
            let (Some(dying), Some(born)) = (by_value[input.index()], by_value[output.index()])
            else {
                continue;
            };
            let kept = &graph.values()[input.index()];
            let dies_here = dying.last == born.first && touches[input.index()] == 1;
            let free = next[input.index()].is_none() && !joined[output.index()];
            let own = !kept.input && !kept.output && !graph.values()[output.index()].input;
            if dies_here && free && own {
                next[input.index()] = Some(output);
                joined[output.index()] = true;
            }
        }
    }
    let heads = lives.iter().filter(|life| !joined[life.value.index()]);
    heads
        .map(|head| {
            let mut class = AliasClass {
                values: SmallVec::from_slice(&[head.value]),
                bytes: head.bytes,
                first: head.first,
                last: head.last,
            };
            let mut tail = head.value;
            while let Some(value) = next[tail.index()] {
                if let Some(life) = by_value[value.index()] {
                    class.bytes = class.bytes.max(life.bytes);
                    class.last = class.last.max(life.last);
                }
                class.values.push(value);
                tail = value;
            }
            class
        })
        .collect()
}

/// Pairs of input and output values that the kernel lets lie over each other: both whole values of
/// one layout, the input bound once.
fn candidates(dispatch: &Dispatch, graph: &ComputeGraph) -> impl Iterator<Item = (NodeId, NodeId)> {
    dispatch.in_place.iter().filter_map(|pair| {
        let input = dispatch.bindings.get(usize::from(pair.input))?;
        let output = dispatch.bindings.get(usize::from(pair.output))?;
        let whole = |view: &TensorView| {
            let value = view.value()?;
            let bytes = graph.values().get(value.index())?.bytes;
            (view.offset == 0 && view.layout.is_dense() && view.layout.span_bytes() == bytes)
                .then_some(value)
        };
        let (a, b) = (whole(input)?, whole(output)?);
        let once = dispatch.values().filter(|&value| value == a).count() == 1;
        let same = input.layout.dtype() == output.layout.dtype()
            && input.layout.elems() == output.layout.elems()
            && input.layout.cols() == output.layout.cols();
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
