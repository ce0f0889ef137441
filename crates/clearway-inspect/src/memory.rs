//! The arena over time: where values lie, when they live, and who lies there next.

use std::collections::BTreeMap;

use clearway_graph::{ComputeGraph, MemoryPlan, NodeId};

use crate::logical::Logical;
use crate::report::{Placed, ValueRow};

/// Every value that has a place, by number. Their lives are counted in the groups of `list`.
pub(crate) fn values(
    recorded: &ComputeGraph,
    replayed: bool,
    plan: &MemoryPlan,
    list: &Logical,
) -> Vec<ValueRow> {
    let last_group = list.groups.saturating_sub(1);
    let mut uses = vec![Uses::default(); recorded.values().len()];
    for (place, dispatch) in list.dispatches.iter().enumerate() {
        let group = list.group[place];
        for range in dispatch.ranges() {
            let value = NodeId::from_buf_id(range.buf_id);
            if let Some(uses) = value.and_then(|value| uses.get_mut(value.index())) {
                uses.touch(group);
                let list = if range.is_write() { &mut uses.writers } else { &mut uses.readers };
                list.push(place as u32);
            }
        }
        if !dispatch.is_annotated() {
            let bound =
                dispatch.values().filter_map(|value| uses.get(value.index()).map(|_| value));
            for value in bound.collect::<Vec<_>>() {
                uses[value.index()].touch(group);
            }
        }
    }
    let mut rows = Vec::new();
    for (index, uses) in uses.into_iter().enumerate() {
        let value = &recorded.values()[index];
        let Some(slot) = plan.slot(NodeId(index as u32)) else { continue };
        let (mut first, mut last) = uses.life.unwrap_or((0, 0));
        // As the plan counts: what the host uploads is there from the start, and for the next run; what it
        // reads stays to the end.
        if value.lasts() {
            (first, last) = (0, if replayed { last_group } else { last });
        }
        if value.output {
            last = last_group;
        }
        let writer = uses.writers.first().map(|&place| &list.dispatches[place as usize]);
        rows.push(ValueRow {
            id: index as u32,
            name: writer.map_or_else(String::new, |dispatch| dispatch.label.to_string()),
            bytes: slot.bytes,
            slab: slot.slab as u32,
            offset: slot.offset,
            first,
            last,
            input: value.input,
            output: value.output,
            writers: uses.writers,
            readers: uses.readers,
            reused_by: Vec::new(),
        });
    }
    find_reuse(&mut rows);
    rows
}

/// Place and life alone; `order` gives the dispatches of the values the places they have elsewhere.
pub(crate) fn placed(values: &[ValueRow], order: &[u32]) -> Vec<Placed> {
    let writer = |v: &ValueRow| order.get(*v.writers.first()? as usize).copied();
    values
        .iter()
        .map(|v| Placed(v.id, v.slab, v.offset, v.bytes, v.first, v.last, writer(v)))
        .collect()
}

/// Bytes of the arena in use in each group: bytes that two values share in place count once.
pub(crate) fn live_bytes(values: &[ValueRow], groups: usize) -> Vec<u64> {
    let mut live: Vec<Vec<(u32, u64, u64)>> = vec![Vec::new(); groups];
    for value in values {
        let life = live.get_mut(value.first as usize..=value.last as usize);
        for group in life.into_iter().flatten() {
            group.push((value.slab, value.offset, value.offset + value.bytes));
        }
    }
    let union = |mut spans: Vec<(u32, u64, u64)>| {
        spans.sort_unstable();
        let (mut slab, mut end, mut bytes) = (0, 0, 0);
        for (own, start, stop) in spans {
            if own != slab {
                (slab, end) = (own, 0);
            }
            bytes += stop.saturating_sub(start.max(end));
            end = end.max(stop);
        }
        bytes
    };
    live.into_iter().map(union).collect()
}

#[derive(Clone, Default)]
struct Uses {
    life: Option<(u32, u32)>,
    writers: Vec<u32>,
    readers: Vec<u32>,
}

impl Uses {
    fn touch(&mut self, group: u32) {
        let first = self.life.map_or(group, |(first, _)| first);
        self.life = Some((first, group));
    }
}

/// Fills in who lies in a value's bytes next. Values are laid down in the order they are born; what
/// each covers belonged to those before it.
fn find_reuse(values: &mut [ValueRow]) {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by_key(|&index| (values[index].first, values[index].id));
    // Disjoint segments by slab and start: their end, and the value that lies there.
    let mut owners: BTreeMap<(u32, u64), (u64, usize)> = BTreeMap::new();
    for index in order {
        let (slab, start) = (values[index].slab, values[index].offset);
        let end = start + values[index].bytes;
        let before = owners.range(..(slab, start)).next_back();
        let reaches = before.filter(|((own, _), (stop, _))| *own == slab && *stop > start);
        let mut covered: Vec<_> = reaches.map(|(&at, &to)| (at, to)).into_iter().collect();
        covered.extend(owners.range((slab, start)..(slab, end)).map(|(&at, &to)| (at, to)));
        for ((own, from), (stop, owner)) in covered {
            owners.remove(&(own, from));
            if from < start {
                owners.insert((own, from), (start, owner));
            }
            if stop > end {
                owners.insert((own, end), (stop, owner));
            }
            let id = values[index].id;
            if !values[owner].reused_by.contains(&id) {
                values[owner].reused_by.push(id);
            }
        }
        if start < end {
            owners.insert((slab, start), (end, index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(id: u32, offset: u64, bytes: u64, first: u32, last: u32) -> ValueRow {
        ValueRow {
            id,
            name: String::new(),
            bytes,
            slab: 0,
            offset,
            first,
            last,
            input: false,
            output: false,
            writers: Vec::new(),
            readers: Vec::new(),
            reused_by: Vec::new(),
        }
    }

    #[test]
    fn reuse_names_who_comes_next_byte_by_byte() {
        let mut values = [
            value(0, 0, 100, 0, 1),
            value(1, 0, 40, 2, 3),  // the first 40 bytes of 0
            value(2, 40, 60, 2, 2), // the rest of 0
            value(3, 20, 40, 4, 5), // parts of 1 and 2
        ];
        find_reuse(&mut values);
        let reused: Vec<_> = values.iter().map(|v| v.reused_by.clone()).collect();
        assert_eq!(reused, [vec![1, 2], vec![3], vec![3], vec![]]);
    }

    #[test]
    fn bytes_shared_in_place_are_live_once() {
        let values = [value(0, 0, 64, 0, 1), value(1, 0, 64, 1, 2), value(2, 64, 32, 1, 1)];
        assert_eq!(live_bytes(&values, 3), [64, 96, 64]);
    }
}
