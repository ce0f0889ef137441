//! Graphs the tests share.
#![allow(dead_code)] // each test binary uses a part

use clearway::cpu::CpuDevice;
use clearway::{ComputeGraph, DType, KernelRegistry, Ops, Recorder};
use clearway_inspect::{InspectOptions, Report, inspect};
use serde_json::Value;

/// Two layers: a fork that shares a group, a fusion, and a value whose bytes are used again.
pub fn graph() -> ComputeGraph {
    let mut pass = Recorder::default();
    let weight = pass.external("weight", DType::F32, &[64, 64]).unwrap();
    let scale = pass.external("scale", DType::F32, &[64]).unwrap();
    let mut x = pass.external("x", DType::F32, &[8, 64]).unwrap();
    for layer in 0..2 {
        pass.set_label(&format!("blk.{layer}.norm"));
        let normed = pass.rms_norm(x, 1e-5).unwrap();
        let normed = pass.mul(normed, scale).unwrap();
        pass.set_label(&format!("blk.{layer}.gate"));
        let gate = pass.matmul(normed, weight).unwrap();
        pass.set_label(&format!("blk.{layer}.up"));
        let up = pass.matmul(normed, weight).unwrap();
        pass.set_label(&format!("blk.{layer}.act"));
        x = pass.silu_mul(gate, up).unwrap();
    }
    pass.mark_output(x).unwrap();
    pass.into_parts().0
}

pub fn report_with(graph: &ComputeGraph, options: &InspectOptions) -> Report {
    let device = CpuDevice::with_threads(1);
    let device: &(dyn clearway::Device + 'static) = &device;
    let mut report = inspect(graph, &mut KernelRegistry::new(), device, options).unwrap();
    "two layers".clone_into(&mut report.name);
    report
}

pub fn report(graph: &ComputeGraph) -> Report {
    report_with(graph, &InspectOptions::default())
}

pub fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}
