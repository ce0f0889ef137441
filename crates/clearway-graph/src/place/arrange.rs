//! Offsets in one slab: the repeating layers once where there are any, everything at once otherwise.

use super::tile;
use crate::error::{GraphError, Result};
use crate::pack::{Effort, Item, PackOptions, pack};

/// Nodes the exact search may visit when the heuristics miss the bound: a few milliseconds.
const SEARCH_NODES: u64 = 20_000;

/// Offsets of items in one slab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrangement {
    /// One for each item, in their order.
    pub offsets: Vec<u64>,
    /// Bytes the slab needs.
    pub height: u64,
}

impl Arrangement {
    pub fn new(items: &[Item], offsets: Vec<u64>, align: u64) -> Self {
        let ends = items.iter().zip(&offsets);
        let height = ends.map(|(item, offset)| offset + item.size.next_multiple_of(align)).max();
        Self { offsets, height: height.unwrap_or(0) }
    }
}

/// Places the items as low as the heuristics and a short search get them.
///
/// # Errors
/// [`GraphError::TooLarge`] if the sizes do not add up within 64 bits.
pub(super) fn arrange(items: &[Item], align: u64) -> Result<Arrangement> {
    let too_large = |reason: String| GraphError::TooLarge { reason };
    let mut sizes = items.iter().map(|item| item.size.checked_next_multiple_of(align));
    let sum = sizes.try_fold(0u64, |sum, size| sum.checked_add(size?));
    if sum.is_none() {
        return Err(too_large("their sizes add up to more than 64 bits".into()));
    }
    let tiled = tile::tile(items, align);
    if let Some(tiled) = &tiled
        && tiled.is_lowest
    {
        return Ok(Arrangement::new(items, tiled.offsets.clone(), align));
    }
    let options = PackOptions {
        effort: Effort::Exact { node_budget: SEARCH_NODES },
        threads: 1,
        alignment: align,
        ..PackOptions::default()
    };
    let packing = pack(items, &options).map_err(|error| too_large(error.to_string()))?;
    let packed = Arrangement::new(items, packing.offsets, align);
    let tiled = tiled.map(|tiled| Arrangement::new(items, tiled.offsets, align));
    Ok(tiled.filter(|tiled| tiled.height < packed.height).unwrap_or(packed))
}
