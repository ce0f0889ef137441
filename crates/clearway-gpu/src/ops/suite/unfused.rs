//! Fused products as the plain ops they stand for, held against the same tolerances: what a fused
//! kernel may differ by must leave room for a device that has none.

use clearway_graph::{
    Activation, CapturedOpKind as Kind, ComputeGraph, DType, Epilogue, Gate, Layout, Slot,
    TensorView,
};

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
        let mut rows = views[0];
        if product.is_normed() {
            let normed = self.op(Kind::RmsNorm, &[rows], &case.params[..1], &rows)?;
            rows = self.op(Kind::Mul, &[normed, view(Slot::NormWeight)], &[], &rows)?;
        }
        let y = views[views.len() - 1];
        let w = view(Slot::Weight);
        let layout = Layout::new(rows.layout.dtype(), &[rows.layout.rows(), w.layout.rows()])?;
        let like = TensorView { layout, ..rows };
        let mut last = Op { kind: Kind::MATMUL, inputs: vec![rows, w], params: vec![], like };
        if let Some(activation) = product.gate().activation() {
            let gate = self.result(&last)?;
            let act = match activation {
                Activation::Silu => Kind::Silu,
                Activation::Gelu => Kind::Gelu,
            };
            let gate = self.op(act, &[gate], &[], &like)?;
            let up = match product.gate() {
                Gate::Weights(_) => {
                    self.op(Kind::MATMUL, &[rows, view(Slot::UpWeight)], &[], &like)?
                }
                _ => view(Slot::Up),
            };
            last = Op { kind: Kind::Mul, inputs: vec![gate, up], params: vec![], like };
        }
        let Epilogue { add, rope, cache, norm: _ } = product.epilogue();
        if add {
            let inputs = vec![self.result(&last)?, view(Slot::Addend)];
            last = Op { kind: Kind::Add, inputs, params: vec![], like };
        }
        if product.epilogue().heads() {
            let heads = &y.layout.dims()[1..];
            let heads = [rows.layout.rows(), heads[0] as usize, heads[1] as usize];
            let layout = Layout::new(rows.layout.dtype(), &heads)?;
            let mut heads = self.result(&last)?.reinterpret(0, layout)?;
            let like = TensorView { layout, ..rows };
            if rope {
                let inputs = vec![heads, view(Slot::Positions), view(Slot::Factors)];
                let params = case.params[product.rope_params()..].to_vec();
                last = Op { kind: Kind::Rope, inputs, params, like };
                heads = if cache { self.result(&last)? } else { heads };
            }
            if cache {
                let inputs = vec![heads, view(Slot::CacheRows)];
                last = Op { kind: Kind::KvWrite, inputs, params: vec![], like };
            }
        }
        let views = [&last.inputs[..], &[y]].concat();
        record(&mut self.graph, last.kind, &views, &last.params, "op suite")?;
        Ok(true)
    }

    /// Records an op with a new result.
    fn result(&mut self, op: &Op) -> Result<TensorView> {
        self.op(op.kind, &op.inputs, &op.params, &op.like)
    }

    /// Records an op with a new result of the type and shape of `like`.
    fn op(
        &mut self,
        kind: Kind,
        inputs: &[TensorView],
        params: &[u32],
        like: &TensorView,
    ) -> Result<TensorView> {
        let dims: Vec<usize> = like.layout.dims().iter().map(|&extent| extent as usize).collect();
        let dtype: DType = like.layout.dtype();
        let layout = Layout::new(dtype, &dims)?;
        let buffer = self.device.alloc(layout.span_bytes())?;
        let result = buffer.view(0, layout)?;
        self.buffers.push(buffer);
        record(&mut self.graph, kind, &[inputs, &[result]].concat(), params, "op suite")?;
        Ok(result)
    }
}

/// An op whose result goes to memory of its own, or to that of the case if it is the last.
struct Op {
    kind: Kind,
    inputs: Vec<TensorView>,
    params: Vec<u32>,
    like: TensorView,
}
