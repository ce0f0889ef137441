//! What a backend that follows whole buffers makes of the list: its barriers, and the price of having fewer, beside one arena
//! with barriers of our own.

use clearway_graph::pipeline::{CompileError, CompileOptions, Compiled, compile};
use clearway_graph::place::SlabRule;
use clearway_graph::{ComputeGraph, KernelCatalog, MemoryPlan, TrackedBarriers, tracked_barriers};
use serde::Serialize;

use crate::compare::FIRST_SLAB;
use crate::error::{InspectError, Result};

/// The list with its values spread over buffers in one way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrackedRow {
    /// How values are spread: `own_barriers` for one arena with barriers of our own, else one of the ways of a backend that
    /// follows whole buffers.
    pub key: &'static str,
    /// Concurrent groups of the list: what barriers of our own keep apart.
    pub groups: u32,
    /// Buffers of the arena.
    pub slabs: u32,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Barriers, and what they do to the list.
    #[serde(flatten)]
    pub counts: TrackedBarriers,
}

/// One arena with barriers of our own, as on Vulkan.
pub(crate) const OWN: &str = "own_barriers";

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

    /// The same list with barriers of our own, none of which is inside a group.
    pub(crate) fn own(compiled: &Compiled) -> Self {
        let mut row = Self::of(OWN, compiled);
        row.counts.barriers = compiled.stats().barriers;
        row.counts.inside_groups = 0;
        row
    }
}

/// A list with barriers of our own and one arena, then the same on a device that follows whole buffers and spreads values by
/// the rule of `options`. Nothing is allocated on a device.
///
/// # Errors
/// [`InspectError::Compile`] if the list is malformed or not proven.
pub fn tracked_price<C: KernelCatalog>(
    recorded: &ComputeGraph,
    catalog: &mut C,
    device: &C::Device,
    options: &CompileOptions,
) -> Result<[TrackedRow; 2]> {
    let mut compiled = |slab_rule: SlabRule| {
        let options = CompileOptions { slab_rule, ..*options };
        let slabs = |plan: &MemoryPlan| {
            Ok::<_, CompileError>((FIRST_SLAB..).take(plan.slab_bytes().len()).collect())
        };
        compile(recorded, catalog, device, &options, slabs).map_err(InspectError::Compile)
    };
    let own = TrackedRow::own(&compiled(SlabRule::Any)?);
    Ok([own, TrackedRow::of("tracked", &compiled(options.slab_rule)?)])
}
