//! The field's greedy look-ahead, for comparison.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::SectionOrder;
use crate::ids::DispatchId;
use crate::node::Dispatch;
use crate::tracker::ConflictTracker;

/// Orders a section: where the next dispatch would need a barrier, the `window` nodes that start
/// with it are searched for ones that conflict neither with the open group nor with any node they
/// would pass.
pub(super) fn order(dispatches: &[Arc<Dispatch>], window: usize) -> SectionOrder {
    let mut taken = vec![false; dispatches.len()];
    let mut order = Vec::with_capacity(dispatches.len());
    let mut held_by = vec![None; dispatches.len()];
    let mut open = ConflictTracker::new();
    let indices: FxHashMap<DispatchId, u32> =
        dispatches.iter().zip(0..).map(|(dispatch, index)| (dispatch.id, index)).collect();
    let index_of = |id| indices.get(&id).copied();
    for blocked in 0..dispatches.len() {
        if taken[blocked] {
            continue;
        }
        if let Err(hazard) = open.check(dispatches[blocked].id, dispatches[blocked].ranges()) {
            held_by[blocked] = index_of(hazard.earlier);
            let mut passed = ConflictTracker::new();
            passed.add(dispatches[blocked].id, dispatches[blocked].ranges());
            let ahead = (blocked + 1..dispatches.len()).take(window.saturating_sub(1));
            for candidate in ahead {
                if taken[candidate] {
                    continue;
                }
                let dispatch = &dispatches[candidate];
                let fits = open
                    .check(dispatch.id, dispatch.ranges())
                    .and_then(|()| passed.check(dispatch.id, dispatch.ranges()));
                match fits {
                    Ok(()) => {
                        open.add(dispatch.id, dispatch.ranges());
                        taken[candidate] = true;
                        order.push(candidate as u32);
                    }
                    Err(hazard) => {
                        held_by[candidate] = index_of(hazard.earlier);
                        passed.add(dispatch.id, dispatch.ranges());
                    }
                }
            }
            open.reset();
        }
        let dispatch = &dispatches[blocked];
        open.add(dispatch.id, dispatch.ranges());
        taken[blocked] = true;
        order.push(blocked as u32);
    }
    SectionOrder { order, held_by }
}
