//! Meanings that a comparison within a tolerance would not catch: ties, masks, windows, indices out
//! of range, and bits that must not depend on fusion or on the cut.

mod attention;
mod fused;
mod products;
mod select;
mod shape;

use clearway_graph::{CapturedOpKind as Kind, ComputeGraph, DType, Layout, TensorView};
use half::f16;

use super::builtin;
use crate::cpu::CpuDevice;
use crate::device::{Buffer, Device, Upload};
use crate::registry::KernelRegistry;
use crate::{quant, record};

#[test]
fn every_op_has_a_kernel_but_products_that_hold_a_norm_or_a_gate() {
    for op in crate::ops::OPS.iter() {
        // Here they would save no phase: a product of few rows is bound by its weights.
        let none = op.kind.product().is_some_and(|product| !product.is_basic());
        assert_eq!(builtin(op.kind, false).is_none(), none, "{}", op.name);
    }
}

/// A device with some tensors on it, and a list of ops on them.
struct Rig {
    device: CpuDevice,
    buffers: Vec<Buffer>,
    graph: ComputeGraph,
    random: u64,
}

impl Rig {
    fn new(threads: usize) -> Self {
        let device = CpuDevice::with_threads(threads);
        Self { device, buffers: Vec::new(), graph: ComputeGraph::new(), random: 1 }
    }

    fn keep(&mut self, buffer: Buffer, dtype: DType, shape: &[usize]) -> TensorView {
        let view = buffer.tensor(dtype, shape).unwrap();
        self.buffers.push(buffer);
        view
    }

    fn u32(&mut self, elems: &[u32], shape: &[usize]) -> TensorView {
        let buffer = self.device.upload(elems).unwrap();
        self.keep(buffer, DType::U32, shape)
    }

    /// A tensor of any float or block type.
    fn tensor(&mut self, dtype: DType, elems: &[f32], shape: &[usize]) -> TensorView {
        let mut bytes = vec![0u8; quant::row_bytes(dtype, elems.len()).unwrap()];
        quant::encode(dtype, elems, &mut bytes).unwrap();
        let buffer = self.device.upload(&bytes).unwrap();
        self.keep(buffer, dtype, shape)
    }

    fn f32(&mut self, elems: &[f32], shape: &[usize]) -> TensorView {
        self.tensor(DType::F32, elems, shape)
    }

    /// Numbers around 0, the same ones in every run.
    fn random(&mut self, dtype: DType, shape: &[usize]) -> TensorView {
        let elems: Vec<f32> = (0..shape.iter().product())
            .map(|_| {
                self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (self.random >> 40) as f32 / (1u64 << 23) as f32 - 1.0
            })
            .collect();
        self.tensor(dtype, &elems, shape)
    }

    /// The same tensor, in the order of weights.
    fn packed(&mut self, view: TensorView) -> TensorView {
        let bytes: Vec<u8> = self.elems(view);
        let buffer = self.device.upload_weights(&view.layout, &bytes).unwrap();
        let packed = buffer.view(0, view.layout).unwrap();
        self.buffers.push(buffer);
        packed
    }

    /// An output, full of a number no kernel writes.
    fn output(&mut self, dtype: DType, shape: &[usize]) -> TensorView {
        self.tensor(dtype, &vec![-77.0; shape.iter().product()], shape)
    }

    fn ids(&mut self, shape: &[usize]) -> TensorView {
        self.u32(&vec![u32::MAX; shape.iter().product()], shape)
    }

    fn op(&mut self, kind: Kind, views: &[TensorView], params: &[u32]) -> &mut Self {
        record(&mut self.graph, kind, views, params, "").unwrap();
        self
    }

    fn run(&mut self) {
        self.graph.place_barriers();
        let mut encoder = self.device.encoder(&KernelRegistry::new());
        for node in self.graph.nodes() {
            match node {
                clearway_graph::CapturedNode::Dispatch(dispatch) => encoder.dispatch(dispatch),
                clearway_graph::CapturedNode::Barrier(reason) => encoder.barrier(reason),
            }
            .unwrap();
        }
        encoder.commit().unwrap();
        encoder.wait().unwrap();
        self.graph = ComputeGraph::new();
    }

    fn elems<T: bytemuck::Pod>(&self, view: TensorView) -> Vec<T> {
        let buffer = self.device.buffer(view.buf_id).unwrap();
        buffer.read_vec(0, buffer.len() as usize / size_of::<T>()).unwrap()
    }

    /// All elements of the buffer behind an f32 or f16 tensor.
    fn floats(&self, view: TensorView) -> Vec<f32> {
        match view.layout.dtype() {
            DType::F32 => self.elems(view),
            _ => self.elems::<f16>(view).into_iter().map(f16::to_f32).collect(),
        }
    }

    fn bits(&self, view: TensorView) -> Vec<u32> {
        self.floats(view).into_iter().map(f32::to_bits).collect()
    }
}

/// The same memory with other strides.
fn strided(view: TensorView, shape: &[usize], strides: &[usize]) -> TensorView {
    let layout = Layout::new(view.layout.dtype(), shape).unwrap().with_strides(strides).unwrap();
    view.reinterpret(0, layout).unwrap()
}

fn bits(params: &[f32]) -> Vec<u32> {
    params.iter().map(|p| p.to_bits()).collect()
}
