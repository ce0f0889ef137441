//! The verify stage: proves the final list against the recorded one.
//!
//! It takes both lists and proves, with code of its own that shares nothing with the tracker, the
//! barrier placement, the scheduler or the fuser but the fields of `BufferRange` and the tables of
//! rules:
//!
//! | proof | what it shows | what it catches |
//! |---|---|---|
//! | structure | every recorded dispatch is carried out once, on the same tensors; several times only if nothing of it is left in memory | lost, doubled or altered dispatches, wrong ranges, crossed fixed dispatches |
//! | groups | no two conflicting accesses lie in one group | missing barriers |
//! | value flow | every byte read was last written by the dispatch that wrote it in the recorded list, and there was one | wrong order, premature reuse of memory, wrong fusion, values read before they are written |
//! | wrap-around | both hold for the list followed by itself | replay without the barrier it needs, inputs that do not last |
//! | derivation | a dispatch that stands for several, or finds a value rounded, is what the rules make of the recorded ones | another kind, other constants, tensors at the wrong binding, values rounded that may not be |
//!
//! A write through a layout with gaps counts as read and written, and must be recorded so: what lies
//! between its elements is part of its result.
//!
//! The cost is close to linear in the accesses: sorting within a group, and looking up intervals
//! per buffer.

mod chain;
mod derive;
mod fault;
mod flow;
mod groups;
mod history;
mod holes;
mod intervals;
mod memory;
mod structure;
mod table;

pub use fault::{Content, Fault, FaultBytes, Members, Problem, Proof, Underived};

use serde::Serialize;

use crate::graph::ComputeGraph;
use crate::node::CapturedNode;
use crate::place::MemoryPlan;

/// Where the values of a list lie whose addresses are filled in
/// ([`ComputeGraph::assign_addresses`]).
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    /// Slab and offset of each value.
    pub plan: &'a MemoryPlan,
    /// The buffer of each slab.
    pub slab_buf_ids: &'a [usize],
}

/// What the verifier counted in a list that holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VerifyStats {
    /// Dispatches of the final list.
    pub dispatches: u32,
    /// Groups of dispatches that may run side by side.
    pub groups: u32,
    /// Barriers of the final list.
    pub barriers: u32,
    /// Dispatches of the longest chain of the final list, at its addresses.
    pub longest_chain: u32,
}

/// Proves that `last` computes what was recorded, with the barriers it holds and, if it is
/// [replayed](ComputeGraph::is_replayed), again and again.
///
/// `placement` says where values lie if addresses are filled in; `None` if they are not.
/// Input and output marks are those of `recorded`.
///
/// ```
/// use clearway_graph::verify::{Proof, verify};
/// use clearway_graph::{
///     BindingContract, BindingRole, CapturedOpKind, ComputeGraph, DType, KernelContract, Layout,
/// };
///
/// let copy = KernelContract::new(
///     "copy",
///     [
///         BindingContract::new("x", BindingRole::Read),
///         BindingContract::new("y", BindingRole::Write),
///     ],
/// );
/// let mut recorded = ComputeGraph::new();
/// let layout = Layout::new(DType::F32, &[16])?;
/// let views = [(); 3].map(|()| recorded.declare_value(layout));
/// recorded.mark_input(views[0].value().unwrap())?;
/// recorded.dispatch(CapturedOpKind::Copy, &copy, &views[0..2], &[], "")?;
/// recorded.dispatch(CapturedOpKind::Copy, &copy, &views[1..3], &[], "")?;
///
/// let mut last = recorded.clone();
/// assert_eq!(verify(&recorded, &last, None).unwrap_err().proof, Proof::Groups);
/// last.place_barriers();
/// assert_eq!(verify(&recorded, &last, None).unwrap().groups, 2);
/// # Ok::<(), clearway_graph::GraphError>(())
/// ```
///
/// # Errors
/// The first fault: which proof failed, the dispatches and the bytes.
pub fn verify(
    recorded: &ComputeGraph,
    last: &ComputeGraph,
    placement: Option<Placement<'_>>,
) -> Result<VerifyStats, Fault> {
    let places = structure::Places::new(placement);
    let mut record = structure::Recorded::new(recorded);
    prove(recorded, &mut record, last, &places).or_else(|fault| {
        // What is wrong with the record is told first.
        while record.note_next(&places)?.is_some() {}
        Err(fault)
    })
}

/// Walks the final list once, all proofs side by side, and the recorded one just ahead of it: a long
/// list does not fit the caches, and each walk of its own would fetch it again. The faults are told
/// in the order of the proofs, so one that a later proof finds first has to wait.
fn prove(
    graph: &ComputeGraph,
    record: &mut structure::Recorded<'_>,
    last: &ComputeGraph,
    places: &structure::Places<'_>,
) -> Result<VerifyStats, Fault> {
    let dispatches = last.dispatch_table();
    let mut past = history::RecordedRun::new(graph, record.dispatches.len());
    let mut carriers = structure::Carriers::none(record);
    let mut sweep = groups::Sweep::new(Proof::Groups);
    let mut run = flow::FinalRun::new(graph, places, dispatches.len());
    let mut chain = chain::Chain::for_list(dispatches.len());
    let (mut operands, mut groups, mut flow, mut derivation) = (Ok(()), Ok(()), Ok(()), Ok(()));
    let mut index = 0;
    for node in last.nodes() {
        let CapturedNode::Dispatch(dispatch) = node else {
            groups = groups.and_then(|()| sweep.close());
            continue;
        };
        let behind_members = dispatch.origins.iter().filter_map(|&id| record.position(id)).max();
        while record.noted() <= behind_members.map_or(0, |position| position as usize)
            && let Some((position, recorded)) = record.note_next(places)?
        {
            past.add(position, recorded)?;
        }
        carriers.prove(record, index, &dispatches, places)?;
        operands = operands.and_then(|()| groups::prove_operands(record, dispatch));
        groups = groups.and_then(|()| sweep.add(dispatch));
        flow = flow.and_then(|()| run.prove(index, dispatch, &carriers, record, past.history()));
        derivation = derivation.and_then(|()| {
            let (recorded, history) = (&*record, past.history());
            let (carriers, last) = (&carriers, &dispatches[..]);
            let context = derive::Context { recorded, history, places, carriers, last };
            derive::prove(context, dispatch)
        });
        chain.add(dispatch);
        index += 1;
    }
    while let Some((position, recorded)) = record.note_next(places)? {
        past.add(position, recorded)?;
    }
    let history = past.finish()?;
    carriers.prove_all(record, &dispatches, graph.values())?;
    operands?;
    groups.and_then(|()| sweep.close())?;
    let replayed = last.is_replayed();
    if replayed {
        groups::prove_seam(last)?;
    }
    flow.and_then(|()| run.prove_end(replayed, record, &history))?;
    derivation?;
    Ok(VerifyStats {
        dispatches: dispatches.len() as u32,
        groups: sweep.groups(),
        barriers: (last.nodes().len() - dispatches.len()) as u32,
        longest_chain: chain.longest(),
    })
}

#[cfg(test)]
mod tests;
