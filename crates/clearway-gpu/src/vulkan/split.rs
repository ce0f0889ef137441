//! Weight tensors larger than one binding: rows in several pieces of memory, one kernel for each.

use std::sync::Arc;

use clearway_graph::{Dispatch, Layout, Slot, TensorView};

use super::memory::VulkanMemory;
use crate::error::Result;

/// Some rows of a weight tensor.
pub(super) struct RowPart {
    /// Its first row in the tensor.
    pub(super) first: u32,
    /// How many rows.
    pub(super) rows: u32,
    pub(super) memory: Arc<VulkanMemory>,
}

/// What the kernel of one part binds: some rows of the weights, and of results and addends the
/// columns that belong to them. An embedding table's results stay whole.
pub(super) fn cut(dispatch: &Dispatch, part: &RowPart) -> Result<Vec<TensorView>> {
    let count = dispatch.bindings.len();
    let slot = |index| dispatch.kind.product().and_then(|product| product.slot(index, count));
    let views = dispatch.bindings.iter().enumerate().map(|(index, view)| {
        let operand = dispatch.kind.spec().and_then(|spec| spec.operand(count, index));
        if operand.is_some_and(|operand| operand.matrix) {
            return rows(view, part.rows);
        }
        match slot(index) {
            Some(Slot::Result | Slot::Addend | Slot::Up) => columns(view, part.first, part.rows),
            _ => Ok(*view),
        }
    });
    views.collect()
}

/// Whether the op picks rows instead of multiplying with them.
pub(super) fn is_gather(dispatch: &Dispatch) -> bool {
    dispatch.kind == clearway_graph::CapturedOpKind::Gather
}

fn rows(view: &TensorView, rows: u32) -> Result<TensorView> {
    let layout = Layout::new(view.layout.dtype(), &[rows as usize, view.layout.cols()])?;
    Ok(TensorView { buf_len: layout.span_bytes(), layout, ..*view })
}

fn columns(view: &TensorView, first: u32, count: u32) -> Result<TensorView> {
    let layout = &view.layout;
    let mut dims: Vec<usize> = layout.dims().iter().map(|&extent| extent as usize).collect();
    if let Some(cols) = dims.last_mut() {
        *cols = count as usize;
    }
    let strides: Vec<usize> =
        layout.strides4()[4 - dims.len()..].iter().map(|&stride| stride as usize).collect();
    let offset = view.offset + u64::from(first) * layout.dtype().block_bytes() as u64;
    let layout = Layout::new(layout.dtype(), &dims)?.with_strides(&strides)?;
    Ok(TensorView { offset, layout, ..*view })
}
