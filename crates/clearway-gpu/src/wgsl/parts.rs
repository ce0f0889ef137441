//! Weight tensors larger than one binding: how many rows a part has, and what the kernel of a part binds.

use clearway_graph::{Dispatch, Layout, Slot, TensorView};

use super::planes;
use crate::error::Result;

/// Rows of each part of a weight tensor that is larger than `limit`; `None` where it is one piece.
pub(crate) fn rows_of_part(layout: &Layout, planes: bool, limit: u64) -> Option<usize> {
    if physical(layout, layout.rows(), planes) <= limit || layout.rank() != 2 {
        return None;
    }
    // As many as fit with the room between planes; a multiple of 8 keeps every part whole words.
    let row_bytes = layout.span_bytes() / layout.rows() as u64;
    let mut rows = (limit / row_bytes) as usize / 8 * 8;
    while rows > 8 && physical(layout, rows, planes) > limit {
        rows -= 8;
    }
    Some(rows.max(1))
}

/// Bytes that so many rows take on the device.
fn physical(layout: &Layout, rows: usize, planes: bool) -> u64 {
    if planes {
        planes::offsets(layout.dtype(), (rows * layout.cols() / planes::CHUNK) as u64).1
    } else {
        layout.span_bytes() / layout.rows() as u64 * rows as u64
    }
}

/// What the kernel of the part with `count` rows from row `first` on binds: these rows of the weights, and of
/// results and addends the columns that belong to them. An embedding table's results stay whole.
pub(crate) fn cut(dispatch: &Dispatch, first: u32, count: u32) -> Result<Vec<TensorView>> {
    let bound = dispatch.bindings.len();
    let slot = |index| dispatch.kind.product().and_then(|product| product.slot(index, bound));
    let views = dispatch.bindings.iter().enumerate().map(|(index, view)| {
        let operand = dispatch.kind.spec().and_then(|spec| spec.operand(bound, index));
        if operand.is_some_and(|operand| operand.matrix) {
            return rows(view, count);
        }
        match slot(index) {
            Some(Slot::Result | Slot::Addend | Slot::Up) => columns(view, first, count),
            _ => Ok(*view),
        }
    });
    views.collect()
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
