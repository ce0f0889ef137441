//! What a backend that follows whole buffers makes of the list: its barriers, and the price of having fewer.

use clearway_graph::pipeline::Compiled;
use clearway_graph::place::SlabRule;
use clearway_graph::{TrackedBarriers, tracked_barriers};
use serde::Serialize;

/// The list with its values spread over buffers in one way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrackedRow {
    /// How values are spread.
    pub key: &'static str,
    /// Concurrent groups of the list: what barriers of our own would keep apart.
    pub groups: u32,
    /// Buffers of the arena.
    pub slabs: u32,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// What the backend does with it.
    #[serde(flatten)]
    pub counts: TrackedBarriers,
}

/// Ways to spread values over buffers, from the fewest bytes to the fewest barriers.
pub(crate) const WAYS: [(&str, SlabRule); 4] = [
    ("one_buffer", SlabRule::Any),
    ("writes_apart", SlabRule::WritesApart),
    ("groups_apart", SlabRule::GroupsApart { spread_bytes: 0 }),
    ("values_apart", SlabRule::GroupsApart { spread_bytes: u64::MAX }),
];

impl TrackedRow {
    pub(crate) fn of(key: &'static str, compiled: &Compiled) -> Self {
        Self {
            key,
            groups: compiled.stats().groups,
            slabs: compiled.plan().slab_bytes().len() as u32,
            arena_bytes: compiled.stats().arena_bytes,
            counts: tracked_barriers(compiled.graph()),
        }
    }
}
