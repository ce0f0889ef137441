//! Pairs that a rule names and that meet in a real buffer.
//!
//! They are never fused, since whoever else holds the buffer may look at it, but a recorder that
//! writes intermediates into buffers of its own should see what that costs.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::report::{Refusal, RefusedPair};
use super::rules::RULES;
use crate::ids::{DispatchId, NodeId};
use crate::node::Dispatch;
use crate::tracker::ConflictTracker;

/// Every pair joined by bytes of a real buffer.
pub(super) fn in_real_buffers(dispatches: &[Arc<Dispatch>]) -> Vec<RefusedPair> {
    let mut pairs = Vec::new();
    // Last writers, by byte: only writes are ever added, and a later one replaces what it covers.
    let mut writes = ConflictTracker::new();
    let mut producers: FxHashMap<DispatchId, &Dispatch> = FxHashMap::default();
    for dispatch in dispatches {
        for &rule in RULES.with_consumer(dispatch.kind) {
            let rule = &RULES[rule as usize];
            if rule.quantises {
                continue; // what is quantised is a value in any case
            }
            let operands = dispatch.accesses().iter().filter(|access| {
                !access.range.is_write() && rule.operands.contains(&usize::from(access.binding))
            });
            let found = pairs.len();
            for access in operands {
                let Err(hazard) = writes.check(dispatch.id, [&access.range]) else { continue };
                let Some(producer) = producers.get(&hazard.earlier) else { continue };
                let result = producer.bindings.last().map(|view| view.buf_id);
                let twice = pairs[found..].iter().any(|p: &RefusedPair| p.producer == producer.id);
                if producer.kind == rule.producer && result == Some(hazard.buf_id) && !twice {
                    pairs.push(RefusedPair {
                        rule: rule.name,
                        producer: producer.id,
                        consumer: dispatch.id,
                        buf_id: hazard.buf_id,
                        reason: Refusal::NotAValue,
                    });
                }
            }
        }
        if !dispatch.is_annotated() {
            writes.reset(); // it may have written anything
        }
        let real = |buf_id| NodeId::from_buf_id(buf_id).is_none();
        writes.add(dispatch.id, dispatch.writes().filter(|range| real(range.buf_id)));
        let is_producer = !RULES.with_producer(dispatch.kind).is_empty();
        if is_producer && dispatch.writes().any(|range| real(range.buf_id)) {
            producers.insert(dispatch.id, dispatch);
        }
    }
    pairs
}
