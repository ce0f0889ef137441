//! Which slab each class lies in, and where in it.
//!
//! One slab is the rule. There are more only where a backend needs some classes in different buffers,
//! or where a slab would be larger than the device's largest buffer; a class is never torn.

use super::arrange::{Arrangement, arrange};
use super::{AliasClass, PlaceOptions, SlabRule};
use crate::error::{GraphError, Result};
use crate::graph::ComputeGraph;
use crate::ids::NodeId;
use crate::node::Dispatch;
use crate::pack::Item;
use crate::range::MemRangeRole;

/// Slabs at most where every class has one of its own.
const MOST_SLABS: usize = 4096;

/// Slab and offset of each class, and bytes of each slab.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Slabs {
    pub at: Vec<(usize, u64)>,
    pub bytes: Vec<u64>,
}

impl Slabs {
    pub fn total_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }
}

/// Places the classes.
///
/// # Errors
/// A class above the largest slab; sizes that do not add up within 64 bits.
pub(super) fn place(
    graph: &ComputeGraph,
    classes: &[AliasClass],
    options: &PlaceOptions,
) -> Result<Slabs> {
    let items: Vec<Item> = (0..).zip(classes).map(|(id, class)| item(id, class)).collect();
    let align = options.align;
    let largest = options.max_slab_bytes / align * align;
    let mut slabs = Slabs { at: vec![(0, 0); items.len()], bytes: Vec::new() };
    for family in families(graph, classes, options) {
        let mut left: Vec<Item> = family.into_iter().map(|class| items[class]).collect();
        while !left.is_empty() {
            let mut arranged = arrange(&left, align)?;
            let mut rest = Vec::new();
            if arranged.height > largest {
                let offsets;
                (left, offsets, rest) = peel(&left, &arranged, largest, align);
                if left.is_empty() {
                    return Err(too_large(&rest, classes, options));
                }
                // What stays has room to sink into the holes the others left.
                let (lower, held) =
                    (arrange(&left, align)?, Arrangement::new(&left, offsets, align));
                arranged = if lower.height <= held.height { lower } else { held };
            }
            let slab = slabs.bytes.len();
            slabs.bytes.push(arranged.height);
            for (item, &offset) in left.iter().zip(&arranged.offsets) {
                slabs.at[item.id as usize] = (slab, offset);
            }
            left = rest;
        }
    }
    if slabs.bytes.is_empty() {
        slabs.bytes.push(0); // an arena without values is still one slab
    }
    Ok(slabs)
}

/// Most bytes live at once: no slabs for these classes are smaller together.
pub(super) fn lower_bound(classes: &[AliasClass], align: u64) -> u64 {
    let groups = classes.iter().map(|class| class.last as usize + 2).max().unwrap_or(1);
    // Differences wrap; the sums they stand for were packed, so they fit 64 bits.
    let mut change = vec![0u64; groups];
    for class in classes {
        let bytes = class.bytes.next_multiple_of(align);
        let (first, end) = (class.first as usize, class.last as usize + 1);
        change[first] = change[first].wrapping_add(bytes);
        change[end] = change[end].wrapping_sub(bytes);
    }
    let mut live = 0u64;
    let loads = change.into_iter().map(|change| {
        live = live.wrapping_add(change);
        live
    });
    loads.max().unwrap_or(0)
}

fn item(id: u32, class: &AliasClass) -> Item {
    let (lower, upper) = (u64::from(class.first), u64::from(class.last) + 1);
    Item { id, lower, upper, size: class.bytes }
}

/// The items that end within `largest` where they lie, with their offsets, and the others.
fn peel(
    items: &[Item],
    arranged: &Arrangement,
    largest: u64,
    align: u64,
) -> (Vec<Item>, Vec<u64>, Vec<Item>) {
    let (mut fit, mut offsets, mut above) = (Vec::new(), Vec::new(), Vec::new());
    for (item, &offset) in items.iter().zip(&arranged.offsets) {
        if offset + item.size.next_multiple_of(align) <= largest {
            fit.push(*item);
            offsets.push(offset);
        } else {
            above.push(*item);
        }
    }
    (fit, offsets, above)
}

fn too_large(left: &[Item], classes: &[AliasClass], options: &PlaceOptions) -> GraphError {
    let largest = left.iter().max_by_key(|item| item.size);
    let class = largest.and_then(|item| classes.get(item.id as usize));
    GraphError::ValueAboveSlab {
        value: class.and_then(|class| class.values.first().copied()).unwrap_or(NodeId(0)),
        bytes: class.map_or(0, |class| class.bytes),
        largest: options.max_slab_bytes,
    }
}

/// Classes that may share slabs, by index. Largest classes choose first, and take the family whose
/// peak they raise least.
fn families(
    graph: &ComputeGraph,
    classes: &[AliasClass],
    options: &PlaceOptions,
) -> Vec<Vec<usize>> {
    if let SlabRule::GroupsApart { spread_bytes } = options.rule {
        let bytes = classes.iter().map(|class| class.bytes.next_multiple_of(options.align));
        let all = bytes.fold(0, u64::saturating_add);
        if all <= spread_bytes && classes.len() <= MOST_SLABS {
            return (0..classes.len()).map(|class| vec![class]).collect();
        }
    }
    let conflicts = conflicts(graph, classes, options);
    if conflicts.iter().all(Vec::is_empty) {
        return vec![(0..classes.len()).collect()];
    }
    let groups = classes.iter().map(|class| class.last as usize + 1).max().unwrap_or(0);
    let mut order: Vec<usize> = (0..classes.len()).collect();
    order.sort_by_key(|&class| (std::cmp::Reverse(classes[class].bytes), class));
    let mut family_of: Vec<Option<usize>> = vec![None; classes.len()];
    let mut loads: Vec<Vec<u64>> = Vec::new();
    for class in order {
        let AliasClass { first, last, bytes, .. } = classes[class];
        let life = first as usize..=last as usize;
        let taken: Vec<usize> =
            conflicts[class].iter().filter_map(|&other| family_of[other]).collect();
        let rise = |family: &usize| {
            let load = &loads[*family];
            let peak = load.iter().copied().max().unwrap_or(0);
            let here = load[life.clone()].iter().copied().max().unwrap_or(0);
            here.saturating_add(bytes).saturating_sub(peak)
        };
        let allowed = (0..loads.len()).filter(|family| !taken.contains(family));
        let family = allowed.min_by_key(rise).unwrap_or_else(|| {
            loads.push(vec![0; groups]);
            loads.len() - 1
        });
        family_of[class] = Some(family);
        loads[family][life].iter_mut().for_each(|load| *load = load.saturating_add(bytes));
    }
    let mut families = vec![Vec::new(); loads.len()];
    for (class, family) in family_of.into_iter().enumerate() {
        families[family.unwrap_or(0)].push(class);
    }
    families
}

/// The dispatches between barriers.
fn groups(graph: &ComputeGraph) -> Vec<Vec<&Dispatch>> {
    let mut groups = vec![Vec::new()];
    for node in graph.nodes() {
        match node.dispatch() {
            Some(dispatch) => {
                groups.last_mut().into_iter().for_each(|group| group.push(&**dispatch))
            }
            None => groups.push(Vec::new()),
        }
    }
    groups
}

/// For each class, those it must not share a slab with.
fn conflicts(
    graph: &ComputeGraph,
    classes: &[AliasClass],
    options: &PlaceOptions,
) -> Vec<Vec<usize>> {
    let mut conflicts = vec![Vec::new(); classes.len()];
    if options.apart.is_empty() && options.rule == SlabRule::Any {
        return conflicts;
    }
    let mut class_of = vec![None; graph.values().len()];
    for (index, class) in classes.iter().enumerate() {
        for value in &class.values {
            class_of[value.index()] = Some(index);
        }
    }
    let mut pairs: Vec<(NodeId, NodeId)> = options.apart.clone();
    let values = |dispatch: &Dispatch, role: MemRangeRole| -> Vec<NodeId> {
        let ranges = dispatch.ranges().filter(move |range| range.role == role);
        ranges.filter_map(|range| NodeId::from_buf_id(range.buf_id)).collect()
    };
    if options.rule != SlabRule::Any {
        for dispatch in graph.dispatches() {
            let read = values(dispatch, MemRangeRole::Src);
            for written in values(dispatch, MemRangeRole::Dst) {
                pairs.extend(read.iter().map(|&read| (written, read)));
            }
        }
    }
    if matches!(options.rule, SlabRule::GroupsApart { .. }) {
        for group in groups(graph) {
            for (index, dispatch) in group.iter().enumerate() {
                for written in values(dispatch, MemRangeRole::Dst) {
                    let others = group.iter().enumerate().filter(|&(other, _)| other != index);
                    let touched = others.flat_map(|(_, other)| {
                        let mut all = values(other, MemRangeRole::Src);
                        all.extend(values(other, MemRangeRole::Dst));
                        all
                    });
                    pairs.extend(touched.map(|other| (written, other)));
                }
            }
        }
    }
    let class = |value: NodeId| class_of.get(value.index()).copied().flatten();
    for (a, b) in pairs {
        if let (Some(a), Some(b)) = (class(a), class(b))
            && a != b
        {
            conflicts[a].push(b);
            conflicts[b].push(a);
        }
    }
    for list in &mut conflicts {
        list.sort_unstable();
        list.dedup();
    }
    conflicts
}
