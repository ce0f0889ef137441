//! Backends hold a dispatch against the contract of the kernel that would run. Fields of a dispatch
//! cannot be changed from outside; the test kit can, so backends must not rely on that alone.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use clearway_gpu::cpu::CpuDevice;
use clearway_gpu::{Device, GpuError, KernelRegistry, Recorder, Result, Upload, record};
use clearway_graph::testkit::tampered;
use clearway_graph::{
    Accesses, CapturedOpKind as Kind, DType, Dispatch, DispatchFields, GraphError, InPlace,
    MemRangeRole,
};

/// What a test changes about a dispatch.
type Change = fn(&mut DispatchFields, &mut Accesses);

/// `silu` of 64 floats of one buffer, into another.
fn silu(device: &dyn Device, recorder: &mut Recorder) -> (Dispatch, [clearway_gpu::Buffer; 2]) {
    let [x, y] = [1.0_f32, 0.0].map(|value| device.upload(&[value; 64]).unwrap());
    let views = [&x, &y].map(|buffer| buffer.tensor(DType::F32, &[8, 8]).unwrap());
    record(recorder.graph_mut(), Kind::SILU, &views, &[], "").unwrap();
    let dispatch = recorder.graph().dispatches().next_back().unwrap();
    ((**dispatch).clone(), [x, y])
}

/// Encodes and runs one dispatch.
fn run(device: &dyn Device, dispatch: &Dispatch) -> Result<()> {
    let mut encoder = device.encoder(&KernelRegistry::new());
    encoder.dispatch(dispatch)?;
    encoder.into_program()?.run()
}

const CHANGES: [(&str, Change); 10] = [
    ("no accesses", |_, accesses| *accesses = Accesses::Known(Default::default())),
    ("unknown accesses", |_, accesses| *accesses = Accesses::Unknown),
    ("a shorter read", |_, accesses| known(accesses)[0].range.p1 -= 4),
    ("a shorter write", |_, accesses| known(accesses)[1].range.p0 += 4),
    ("a longer read", |_, accesses| known(accesses)[0].range.p1 += 4),
    ("a write as a read", |_, accesses| known(accesses)[1].range.role = MemRangeRole::Src),
    ("an access more", |_, accesses| {
        let first = known(accesses)[0];
        known(accesses).push(first);
    }),
    ("another buffer", |fields, _| fields.bindings[1].buf_id = fields.bindings[0].buf_id),
    ("an output in place", |fields, _| fields.in_place.push(InPlace { output: 0, input: 1 })),
    ("another kernel", |fields, _| fields.kernel = "gelu".into()),
];

fn known(accesses: &mut Accesses) -> &mut smallvec::SmallVec<[clearway_graph::Access; 4]> {
    match accesses {
        Accesses::Known(list) => list,
        Accesses::Unknown => panic!("an annotated dispatch"),
    }
}

fn altered_dispatches_are_refused(device: &dyn Device) {
    let mut recorder = Recorder::new();
    let (honest, [_x, y]) = silu(device, &mut recorder);
    for (what, change) in CHANGES {
        let outcome = run(device, &tampered(&honest, change));
        let refused = matches!(outcome, Err(GpuError::WrongContract { .. }));
        assert!(refused, "{what}: {outcome:?}");
    }
    assert_eq!(y.read_vec::<f32>(0, 64).unwrap(), [0.0; 64]);
    run(device, &honest).unwrap();
    assert_ne!(y.read_vec::<f32>(0, 64).unwrap(), [0.0; 64]);
}

#[test]
fn altered_dispatches_are_refused_on_the_cpu() {
    altered_dispatches_are_refused(&CpuDevice::with_threads(2));
}

#[cfg(feature = "vulkan")]
mod vulkan;

#[cfg(feature = "vulkan")]
#[test]
fn altered_dispatches_are_refused_on_vulkan() {
    let options = clearway_gpu::vulkan::VulkanOptions { disk_cache: false, ..Default::default() };
    let Some(device) = vulkan::open(options) else { return };
    altered_dispatches_are_refused(&device);
}

/// The same dispatch with other constants is another one: it is annotated anew, and nothing else.
#[test]
fn a_dispatch_is_made_by_its_contract() {
    let device = CpuDevice::with_threads(2);
    let mut recorder = Recorder::new();
    let (honest, _buffers) = silu(&device, &mut recorder);
    let contract = clearway_gpu::ops::contract(Kind::SILU, 2).unwrap();
    let again =
        Dispatch::annotated(honest.id, Kind::SILU, contract, &honest.bindings, &[], "").unwrap();
    assert_eq!(again, honest);
    let missing =
        Dispatch::annotated(honest.id, Kind::SILU, contract, &honest.bindings[..1], &[], "");
    assert!(matches!(missing, Err(GraphError::MissingBinding { .. })));
}
