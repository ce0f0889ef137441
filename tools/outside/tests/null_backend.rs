//! A backend of somebody else, made from the public API alone. It computes nothing and counts what it is asked
//! for, so that it shows which calls a backend gets and that nothing it needs is missing from `clearway`.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

use clearway::place::SlabRule;
use clearway::{
    BarrierReason, Bindings, Buffer, CommandEncoder, CompileOptions, DType, Device, DeviceInfo, DeviceMemory,
    Dispatch, Encoder, FusedRequest, GpuError, GraphExecutor, KernelRegistry, Layout, Ops, Program, Recorder,
};

type Result<T> = std::result::Result<T, GpuError>;

/// What the device was asked for.
#[derive(Default)]
struct Calls {
    dispatches: AtomicU32,
    barriers: AtomicU32,
    runs: AtomicU32,
}

struct NullDevice {
    info: DeviceInfo,
    fuses: bool,
    buffers: Mutex<HashMap<usize, Weak<Bytes>>>,
    calls: Arc<Calls>,
}

impl NullDevice {
    fn new(fuses: bool, slab_rule: SlabRule) -> Self {
        let info = DeviceInfo {
            name: "null".into(),
            description: "computes nothing".into(),
            arena_align: 64,
            max_buffer_bytes: 1 << 20,
            slab_rule,
            memory_bytes: 1 << 30,
        };
        Self { info, fuses, buffers: Mutex::default(), calls: Arc::default() }
    }
}

/// Memory of the host.
struct Bytes(Mutex<Vec<u8>>);

impl DeviceMemory for Bytes {
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let start = offset as usize;
        self.0.lock().unwrap()[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let start = offset as usize;
        bytes.copy_from_slice(&self.0.lock().unwrap()[start..start + bytes.len()]);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Device for NullDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer> {
        assert!(bytes <= self.info.max_buffer_bytes, "a buffer larger than the device has");
        let memory = Arc::new(Bytes(Mutex::new(vec![0; bytes as usize])));
        let buffer = Buffer::new(bytes, memory.clone());
        self.buffers.lock().unwrap().insert(buffer.id(), Arc::downgrade(&memory));
        Ok(buffer)
    }

    fn buffer(&self, buf_id: usize) -> Result<Buffer> {
        let memory = self.buffers.lock().unwrap().get(&buf_id).and_then(Weak::upgrade);
        let memory =
            memory.ok_or_else(|| GpuError::ForeignBuffer { buf_id, device: self.info.name.clone() })?;
        let len = memory.0.lock().unwrap().len() as u64;
        Ok(Buffer::with_id(buf_id, len, memory))
    }

    fn has_fused(&self, _: &FusedRequest<'_>) -> bool {
        self.fuses
    }

    fn encoder(&self, kernels: &KernelRegistry) -> Box<dyn Encoder> {
        Box::new(NullEncoder { calls: self.calls.clone(), kernels: kernels.clone() })
    }
}

struct NullEncoder {
    calls: Arc<Calls>,
    kernels: KernelRegistry,
}

impl CommandEncoder for NullEncoder {
    type Error = GpuError;

    fn dispatch(&mut self, dispatch: &Dispatch) -> Result<()> {
        // What it would run must be what was proven.
        self.kernels.checked_contract(dispatch)?;
        self.calls.dispatches.fetch_add(1, Relaxed);
        Ok(())
    }

    fn barrier(&mut self, _: &BarrierReason) -> Result<()> {
        self.calls.barriers.fetch_add(1, Relaxed);
        Ok(())
    }

    fn commit(&mut self) -> Result<()> {
        self.calls.runs.fetch_add(1, Relaxed);
        Ok(())
    }
}

impl Encoder for NullEncoder {
    fn wait(&mut self) -> Result<()> {
        Ok(())
    }

    fn into_program(self: Box<Self>) -> Result<Box<dyn Program>> {
        Ok(Box::new(NullProgram(self.calls)))
    }
}

struct NullProgram(Arc<Calls>);

impl Program for NullProgram {
    fn run(&mut self) -> Result<()> {
        self.0.runs.fetch_add(1, Relaxed);
        Ok(())
    }
}

/// Compiles a small graph and runs it three times; returns dispatches, barriers, runs and slabs.
fn replay(device: NullDevice) -> [u32; 4] {
    let calls = device.calls.clone();
    let executor = GraphExecutor::new(device);
    let mut pass = executor.begin_recorded().unwrap();
    let x = pass.input(Layout::new(DType::F32, &[4, 64]).unwrap()).unwrap();
    let gate = pass.silu(x).unwrap();
    let gated = pass.mul(gate, x).unwrap();
    let y = pass.rms_norm(gated, 1e-5).unwrap();
    pass.output(y).unwrap();
    let mut graph = pass.compile(&CompileOptions::default()).unwrap();
    graph.write(x, &[1.5_f32; 256]).unwrap();
    for _ in 0..3 {
        graph.run().unwrap();
    }
    assert_eq!(graph.read_f32(x).unwrap(), [1.5; 256]);
    assert_eq!(graph.read_f32(y).unwrap(), [0.0; 256], "nothing was computed");
    let slabs = graph.arena().slabs().len() as u32;
    let count = |count: &AtomicU32| count.load(Relaxed);
    [count(&calls.dispatches), count(&calls.barriers), count(&calls.runs), slabs]
}

#[test]
fn a_list_is_encoded_once_and_run_often() {
    let [dispatches, barriers, runs, slabs] = replay(NullDevice::new(false, SlabRule::Any));
    assert_eq!((dispatches, runs, slabs), (3, 3, 1));
    assert!(barriers >= 2, "{barriers}");
    // A device that says it has fused kernels gets them.
    let [dispatches, _, runs, _] = replay(NullDevice::new(true, SlabRule::Any));
    assert_eq!((dispatches, runs), (2, 3));
}

#[test]
fn the_arena_follows_the_slab_rule_of_the_device() {
    let [.., slabs] = replay(NullDevice::new(false, SlabRule::WritesApart));
    assert!(slabs > 1, "what a dispatch writes lies apart from what it reads");
}

#[test]
fn graphs_recorded_without_a_device_are_bound_by_tensor() {
    let device = NullDevice::new(false, SlabRule::Any);
    let calls = device.calls.clone();
    let executor = GraphExecutor::new(device);
    let mut recorder = Recorder::new();
    let w = recorder.external("w", DType::F32, &[8, 8]).unwrap();
    let x = recorder.external("x", DType::F32, &[1, 8]).unwrap();
    let y = recorder.matmul(x, w).unwrap();
    recorder.mark_output(y).unwrap();
    let mut bindings = Bindings::new();
    bindings.bind(w, &executor.device().alloc(256).unwrap());
    bindings.bind(x, &executor.device().alloc(32).unwrap());
    let options = CompileOptions::default();
    let mut graph = executor.compile(recorder.graph(), &bindings, &options).unwrap();
    graph.run().unwrap();
    assert_eq!(calls.dispatches.load(Relaxed), 1);
    let mut short = Bindings::new();
    short.bind(w, &executor.device().alloc(128).unwrap());
    assert!(executor.compile(recorder.graph(), &short, &options).is_err());
}

#[test]
fn a_direct_pass_says_why_its_barriers_stand() {
    let executor = GraphExecutor::new(NullDevice::new(false, SlabRule::Any));
    let mut pass = executor.begin().unwrap();
    let x = pass.fill(1.0, DType::F32, &[8]).unwrap();
    pass.scale(x, 2.0).unwrap();
    let nodes = pass.graph().nodes();
    let reason = nodes.iter().find_map(|node| match node {
        clearway::CapturedNode::Barrier(reason) => Some(*reason),
        clearway::CapturedNode::Dispatch(_) => None,
    });
    assert!(matches!(reason, Some(BarrierReason::Hazard(_))), "{reason:?}");
}
