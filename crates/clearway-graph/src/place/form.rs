//! Two forms of a plan: text for people and snapshots, JSON for programs. Both are stable.

use std::fmt::Write;

use serde_json::{Value as Json, json};

use super::MemoryPlan;
use crate::form::JSON_VERSION;
use crate::ids::NodeId;

impl MemoryPlan {
    /// The plan as text: slabs, then one line for each value that has memory.
    ///
    /// ```
    /// # use clearway_graph::{MemoryPlan, place::Slot};
    /// let slot = Slot { slab: 0, offset: 256, bytes: 64 };
    /// let plan = MemoryPlan::new(vec![None, Some(slot)], vec![512]);
    /// assert_eq!(plan.to_text(), "slab 0: 512 bytes\nlower bound 0 bytes\n%1 slab 0 at 256..320\n");
    /// ```
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        for (slab, bytes) in self.slab_bytes().iter().enumerate() {
            let _ = writeln!(out, "slab {slab}: {bytes} bytes");
        }
        let _ = writeln!(out, "lower bound {} bytes", self.lower_bound());
        for (value, slot) in self.placed() {
            let end = slot.offset + slot.bytes;
            let _ = write!(out, "{value} slab {} at {}..{end}", slot.slab, slot.offset);
            match self.shadows().iter().find(|(_, shadow)| *shadow == value) {
                Some((of, _)) => _ = writeln!(out, ", shadow of {of}"),
                None => out.push('\n'),
            }
        }
        out
    }

    /// The plan as JSON.
    ///
    /// | key | what it holds |
    /// |---|---|
    /// | `version` | that of the JSON form of graphs |
    /// | `slabs` | bytes of each slab |
    /// | `arena_bytes` | bytes of all slabs |
    /// | `arena_lower_bound` | most bytes live in any group |
    /// | `values` | in the order of their ids: `id`, `slab`, `offset`, `bytes`, `shadow_of` (`null` for all but shadows) |
    pub fn to_json(&self) -> Json {
        let values = self.placed().map(|(value, slot)| {
            let of = self.shadows().iter().find(|(_, shadow)| *shadow == value).map(|(of, _)| of.0);
            json!({
                "id": value.0,
                "slab": slot.slab,
                "offset": slot.offset,
                "bytes": slot.bytes,
                "shadow_of": of,
            })
        });
        json!({
            "version": JSON_VERSION,
            "slabs": self.slab_bytes(),
            "arena_bytes": self.total_bytes(),
            "arena_lower_bound": self.lower_bound(),
            "values": values.collect::<Vec<_>>(),
        })
    }

    fn placed(&self) -> impl Iterator<Item = (NodeId, super::Slot)> {
        (0..).map(NodeId).zip(self.slots()).filter_map(|(value, slot)| Some((value, (*slot)?)))
    }
}
