//! Fused products as the plain ops they stand for, held against the same tolerances: what a fused
//! kernel may differ by must leave room for a device that has none.

use clearway_graph::{ComputeGraph, Layout, PlainInput, PlainShape, Slot, TensorView};

use super::OpCase;
use crate::device::{Buffer, Device};
use crate::error::Result;
use crate::record::record;

/// A list of plain ops with room for what lies between them.
pub(super) struct Plain<'a> {
    device: &'a dyn Device,
    pub(super) graph: ComputeGraph,
    /// Kept until the list has run.
    pub(super) buffers: Vec<Buffer>,
}

impl<'a> Plain<'a> {
    pub(super) fn new(device: &'a dyn Device) -> Self {
        Self { device, graph: ComputeGraph::new(), buffers: Vec::new() }
    }

    /// Records what a case of a fused product computes; false if it is no such case.
    pub(super) fn record(&mut self, case: &OpCase, views: &[TensorView]) -> Result<bool> {
        let product = case.kind.product().filter(|p| !p.is_basic() && !p.epilogue().norm);
        let Some(product) = product else {
            return Ok(false);
        };
        // Every part's operands are bound, as the case was checked.
        let view = |slot| product.operand(slot, views.len()).map_or(views[0], |i| views[i]);
        let (x, y) = (views[0], views[views.len() - 1]);
        let (dtype, tokens) = (x.layout.dtype(), x.layout.rows());
        let wide = match product.is_of_experts() {
            true => {
                let dims: Vec<usize> = y.layout.dims().iter().map(|&d| d as usize).collect();
                Layout::new(dtype, &dims)?
            }
            false => Layout::new(dtype, &[tokens, view(Slot::Weight).layout.rows()])?,
        };
        let heads = match y.layout.dims() {
            &[.., heads, head] if product.epilogue().heads() => {
                Layout::new(dtype, &[tokens, heads as usize, head as usize])?
            }
            _ => wide,
        };
        let ops = product.plain_ops();
        let mut given: Vec<TensorView> = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            let on_heads = matches!(op.shape, PlainShape::Heads | PlainShape::Cache);
            let mut operands = Vec::new();
            for input in &op.inputs {
                operands.push(match *input {
                    PlainInput::Slot(slot) => view(slot),
                    PlainInput::Op(earlier) if on_heads => given[earlier].reinterpret(0, heads)?,
                    PlainInput::Op(earlier) => given[earlier],
                });
            }
            let params = &case.params[op.params.clone()];
            let result = match op.shape {
                _ if index + 1 == ops.len() => y,
                PlainShape::Input => self.memory(&x.layout)?,
                PlainShape::Product => self.memory(&wide)?,
                PlainShape::Heads | PlainShape::Cache => self.memory(&heads)?,
            };
            operands.push(result);
            record(&mut self.graph, op.kind, &operands, params, "op suite")?;
            given.push(result);
        }
        Ok(true)
    }

    /// Memory for a result of the type and shape of a layout.
    fn memory(&mut self, like: &Layout) -> Result<TensorView> {
        let dims: Vec<usize> = like.dims().iter().map(|&extent| extent as usize).collect();
        let layout = Layout::new(like.dtype(), &dims)?;
        let buffer = self.device.alloc(layout.span_bytes())?;
        let view = buffer.view(0, layout)?;
        self.buffers.push(buffer);
        Ok(view)
    }
}
