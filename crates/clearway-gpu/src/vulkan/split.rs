//! Weight tensors larger than one binding: rows in several pieces of memory, one kernel for each.

use std::sync::Arc;

use clearway_graph::Dispatch;

use super::memory::VulkanMemory;

/// Some rows of a weight tensor.
pub(super) struct RowPart {
    /// Its first row in the tensor.
    pub(super) first: u32,
    /// How many rows.
    pub(super) rows: u32,
    pub(super) memory: Arc<VulkanMemory>,
}

/// Whether the op picks rows instead of multiplying with them.
pub(super) fn is_gather(dispatch: &Dispatch) -> bool {
    dispatch.kind == clearway_graph::CapturedOpKind::Gather
}
