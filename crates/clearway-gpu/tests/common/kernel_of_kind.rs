//! Dispatches whose kind, kernel and in-place operands do not belong together.

use std::sync::Arc;

use clearway_gpu::cpu::{CpuKernel, Grid};
use clearway_gpu::{
    Buffer, CustomKernel, Device, GpuError, KernelRegistry, Result, Upload, record,
};
use clearway_graph::testkit::tampered;
use clearway_graph::{
    BindingContract, BindingRole, CapturedNode, CapturedOpKind as Kind, ComputeGraph, DType,
    DispatchFields, InPlace, KernelContract, Layout, TensorView,
};

/// A gate that names another kernel, a norm that is to work in place, and a pinned kernel that is said not to
/// be, on this device: all are refused while they are lowered, and nothing is written.
pub fn check(device: &dyn Device) {
    let gate = op(device, Kind::SILU_MUL, &[]);
    gate.run(device, |_| {}).unwrap();
    assert_ne!(gate.result(), [7.0; 4], "what is refused below does run");

    let gate = op(device, Kind::SILU_MUL, &[]);
    let error = gate.run(device, |d| d.kernel = "gelu_mul".into()).unwrap_err();
    assert!(differs(&error, "kernel and kind"), "{error}");
    // A user's kernel of that name could exist.
    let error = gate.run(device, |d| d.kernel = "own".into()).unwrap_err();
    assert!(differs(&error, "kernel and kind"), "{error}");
    assert_eq!(gate.result(), [7.0; 4]);

    let norm = op(device, Kind::RmsNormMul, &[1e-5_f32.to_bits()]);
    let in_place = |d: &mut DispatchFields| d.in_place.push(InPlace { output: 2, input: 0 });
    let error = norm.run(device, in_place).unwrap_err();
    assert!(differs(&error, "in-place operands"), "{error}");
    assert_eq!(norm.result(), [7.0; 4]);

    let pinned = |d: &mut DispatchFields| {
        (d.kind, d.kernel) = (Kind::Custom, "pinned".into());
        d.params.clear();
    };
    let error = norm.run(device, pinned).unwrap_err();
    assert!(differs(&error, "kernel and kind"), "{error}");
}

fn differs(error: &GpuError, in_what: &str) -> bool {
    matches!(error, GpuError::WrongContract { what, .. } if *what == in_what)
}

/// A recorded op with two operands and a result of four sevens.
struct Recorded {
    graph: ComputeGraph,
    buffers: [Buffer; 3],
}

fn op(device: &dyn Device, kind: Kind, params: &[u32]) -> Recorded {
    let layout = Layout::new(DType::F32, &[1, 4]).unwrap();
    let buffers = [1.0_f32, 2.0, 7.0].map(|x| device.upload(&[x; 4]).unwrap());
    let views = buffers.each_ref().map(|buffer| buffer.view(0, layout).unwrap());
    let mut graph = ComputeGraph::new();
    record(&mut graph, kind, &views, params, "").unwrap();
    Recorded { graph, buffers }
}

impl Recorded {
    /// Lowers and runs it with its dispatch changed.
    fn run(&self, device: &dyn Device, change: impl FnOnce(&mut DispatchFields)) -> Result<()> {
        let dispatch = self.graph.dispatches().next().unwrap();
        let dispatch = tampered(dispatch, |fields, _| change(fields));
        let graph = ComputeGraph::from_nodes(vec![CapturedNode::Dispatch(Arc::new(dispatch))])?;
        let mut encoder = device.encoder(&kernels());
        graph.encode_with_barriers(&mut *encoder)?;
        encoder.into_program()?.run()
    }

    fn result(&self) -> Vec<f32> {
        self.buffers[2].read_vec(0, 4).unwrap()
    }
}

/// Two users' kernels with the operands of a gate, one of them pinned.
fn kernels() -> KernelRegistry {
    let mut kernels = KernelRegistry::new();
    let contract = |name: &'static str| {
        let roles = [BindingRole::Read, BindingRole::Read, BindingRole::Write];
        KernelContract::new(name, roles.map(|role| BindingContract::new("x", role)))
    };
    let body = "@compute @workgroup_size(1) fn main() {}";
    for name in ["own", "pinned"] {
        let kernel = CustomKernel::new(contract(name)).with_wgsl(body, |_, _| [1, 1, 1]);
        let grid = |views: &[TensorView], _: &[u32]| Grid::rows(views[0].layout.rows(), 1);
        let kernel = kernel.with_cpu(CpuKernel::new(grid, |_| {}));
        let kernel = if name == "pinned" { kernel.pinned() } else { kernel };
        kernels.register(kernel).unwrap();
    }
    kernels
}
