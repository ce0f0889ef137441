//! Fused products as the plain ops they stand for, held against the same tolerances: what a fused
//! kernel may differ by must leave room for a device that has none.

use clearway_graph::{CapturedOpKind as Kind, ComputeGraph, DType, Layout, TensorView};

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
        let Some((norm, end)) = parts(case.kind) else {
            return Ok(false);
        };
        let (mut rows, mut rest) = (views[0], &views[1..]);
        if norm {
            let normed = self.op(Kind::RmsNorm, &[rows], &case.params[..1], &rows)?;
            rows = self.op(Kind::Mul, &[normed, rest[0]], &[], &rows)?;
            rest = &rest[1..];
        }
        let y = rest[rest.len() - 1];
        match end {
            End::Product => self.into(Kind::MatMul, &[rows, rest[0], y])?,
            End::Sum => {
                let product = self.op(Kind::MatMul, &[rows, rest[0]], &[], &y)?;
                self.into(Kind::Add, &[product, rest[1], y])?;
            }
            End::Gate(act) | End::Gated(act) => {
                let gate = self.op(Kind::MatMul, &[rows, rest[0]], &[], &y)?;
                let gate = self.op(act, &[gate], &[], &y)?;
                let up = match end {
                    End::Gated(_) => self.op(Kind::MatMul, &[rows, rest[1]], &[], &y)?,
                    _ => rest[1],
                };
                self.into(Kind::Mul, &[gate, up, y])?;
            }
            End::Turned | End::TurnedInto | End::Into => {
                let (tokens, heads) = (rows.layout.rows(), &y.layout.dims()[1..]);
                let heads = [tokens, heads[0] as usize, heads[1] as usize];
                let heads = Layout::new(rows.layout.dtype(), &heads)?;
                let like = TensorView { layout: heads, ..rows };
                let product = self.product(rows, rest[0], heads)?;
                let params = &case.params[usize::from(norm)..];
                match (end, rest) {
                    (End::Turned, [_, positions, factors, _]) => {
                        let views = [product, *positions, *factors, y];
                        record(&mut self.graph, Kind::Rope, &views, params, "op suite")?;
                    }
                    (End::TurnedInto, [_, positions, factors, to, _]) => {
                        let views = [product, *positions, *factors];
                        let turned = self.op(Kind::Rope, &views, params, &like)?;
                        self.into(Kind::KvWrite, &[turned, *to, y])?;
                    }
                    _ => self.into(Kind::KvWrite, &[product, rest[1], y])?,
                }
            }
        }
        Ok(true)
    }

    /// Records a product, whose rows are then read as rows of heads.
    fn product(&mut self, x: TensorView, w: TensorView, heads: Layout) -> Result<TensorView> {
        let layout = Layout::new(heads.dtype(), &[x.layout.rows(), w.layout.rows()])?;
        let product = self.op(Kind::MatMul, &[x, w], &[], &TensorView { layout, ..x })?;
        Ok(product.reinterpret(0, heads)?)
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

    fn into(&mut self, kind: Kind, views: &[TensorView]) -> Result<()> {
        record(&mut self.graph, kind, views, &[], "op suite").map(drop)
    }
}

/// What follows the norm, if there is one.
#[derive(Clone, Copy)]
enum End {
    Product,
    Sum,
    /// A product through this activation, times an operand.
    Gate(Kind),
    /// The same, times another product.
    Gated(Kind),
    /// A product, turned.
    Turned,
    /// A product, turned and written to a cache.
    TurnedInto,
    /// A product, written to a cache.
    Into,
}

/// Whether a fused product starts with a norm, and what follows.
fn parts(kind: Kind) -> Option<(bool, End)> {
    Some(match kind {
        Kind::MatMulSiluMul => (false, End::Gate(Kind::Silu)),
        Kind::MatMulGeluMul => (false, End::Gate(Kind::Gelu)),
        Kind::MatMulSiluGated => (false, End::Gated(Kind::Silu)),
        Kind::MatMulGeluGated => (false, End::Gated(Kind::Gelu)),
        Kind::NormMatMul => (true, End::Product),
        Kind::NormMatMulAdd => (true, End::Sum),
        Kind::NormMatMulSiluGated => (true, End::Gated(Kind::Silu)),
        Kind::NormMatMulGeluGated => (true, End::Gated(Kind::Gelu)),
        Kind::NormMatMulRope => (true, End::Turned),
        Kind::NormMatMulRopeKv => (true, End::TurnedInto),
        Kind::NormMatMulKv => (true, End::Into),
        Kind::MatMulRope => (false, End::Turned),
        Kind::MatMulRopeKv => (false, End::TurnedInto),
        Kind::MatMulKv => (false, End::Into),
        _ => return None,
    })
}
