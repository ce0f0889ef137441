//! Arenas on wgpu: every type, parts of values, unaligned bytes, plans above the binding limit, the f16 shadow, errors.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use clearway::place::Slot;
use clearway::testkit::open_wgpu;
use clearway::wgpu::{WgpuDevice, WgpuOptions};
use clearway::{
    Arena, CompileOptions, CustomKernel, DType, Device, Error, GpuError, GraphExecutor,
    KernelContract, Layout, MemoryPlan, NodeId, Ops, Upload,
};
use half::{bf16, f16};

#[track_caller]
fn open(options: WgpuOptions) -> Option<WgpuDevice> {
    open_wgpu(WgpuOptions { disk_cache: false, ..options }).unwrap()
}

fn slot(slab: usize, offset: u64, bytes: u64) -> Option<Slot> {
    Some(Slot { slab, offset, bytes })
}

#[test]
fn every_type_comes_back_as_it_was_written() {
    let Some(device) = open(WgpuOptions::default()) else { return };
    let plan =
        MemoryPlan::new(vec![slot(0, 64, 24), slot(0, 256, 10), slot(1, 0, 6)], vec![512, 8]);
    let mut arena = Arena::from_plan(&device, &plan).unwrap();
    let [first, halves, last] = [NodeId(0), NodeId(1), NodeId(2)];
    arena.write_f32(first, &[1.0, -2.5, 3.0, f32::MAX, 0.0, -0.0]).unwrap();
    assert_eq!(arena.read_f32(first).unwrap(), [1.0, -2.5, 3.0, f32::MAX, 0.0, -0.0]);
    arena.write(first, &[1u32, 2, 3, 4, 5, u32::MAX]).unwrap();
    assert_eq!(arena.read::<u32>(first).unwrap(), [1, 2, 3, 4, 5, u32::MAX]);
    // Ten bytes: the last word is half a value's.
    let five = [1.0, -2.0, 0.5, 65504.0, 0.25].map(f16::from_f32);
    arena.write(halves, &five).unwrap();
    assert_eq!(arena.read::<f16>(halves).unwrap(), five);
    let three = [1.0, -2.0, 3.5].map(bf16::from_f32);
    arena.write(last, &three).unwrap();
    assert_eq!(arena.read::<bf16>(last).unwrap(), three);
    arena.write(last, &[7u8, 8, 9, 10, 11, 12]).unwrap();
    assert_eq!(arena.read::<u8>(last).unwrap(), [7, 8, 9, 10, 11, 12]);
    arena.set_actual_len(first, 8).unwrap();
    assert_eq!(arena.read::<u32>(first).unwrap(), [1, 2]);
    assert!(arena.write_f32(first, &[0.0]).is_err(), "a wrong length");
    assert!(matches!(arena.read_f32(NodeId(9)), Err(Error::NotInArena(NodeId(9)))));
    assert!(arena.read_bytes_range(508, 8).is_err(), "across two slabs");
}

#[test]
fn any_bytes_can_be_written_and_their_neighbours_stay() {
    let Some(device) = open(WgpuOptions::default()) else { return };
    let plan = MemoryPlan::new(vec![slot(0, 0, 61)], vec![61]);
    let arena = Arena::from_plan(&device, &plan).unwrap();
    assert_eq!(arena.read_bytes_range(0, 61).unwrap(), [0; 61], "new memory is zero");
    let mut expected = [0xa5; 61];
    arena.write_bytes_range(0, &expected).unwrap();
    let mut byte = 0;
    for start in [0, 1, 2, 3, 5, 30, 55] {
        for len in [1, 2, 3, 4, 5, 6] {
            let bytes: Vec<u8> = (0..len)
                .map(|_| {
                    byte += 1;
                    byte
                })
                .collect();
            arena.write_bytes_range(start as u64, &bytes).unwrap();
            expected[start..start + len].copy_from_slice(&bytes);
            assert_eq!(arena.read_bytes_range(0, 61).unwrap(), expected, "{len} at {start}");
            let part = arena.read_bytes_range(start as u64, len as u64).unwrap();
            assert_eq!(part, bytes, "{len} at {start}");
        }
    }
}

#[test]
fn a_plan_above_the_binding_limit_is_split() {
    let limit = 4096;
    let options = WgpuOptions { max_binding: Some(limit), ..WgpuOptions::default() };
    let Some(device) = open(options) else { return };
    let executor = GraphExecutor::new(device);
    assert_eq!(executor.device().info().max_buffer_bytes, limit);
    let rows: Vec<f32> = (0..512).map(|i| i as f32 / 8.0).collect();
    let source = executor.device().upload(&rows).unwrap();
    let mut session = executor.begin_recorded().unwrap();
    let x = source.tensor(DType::F32, &[512]).unwrap();
    // Eight values of 2 KiB that all live until the end.
    let values: Vec<_> = (1..9).map(|k| session.scale(x, k as f32).unwrap()).collect();
    values.iter().for_each(|&value| session.output(value).unwrap());
    let mut graph = session.compile(&CompileOptions::default()).unwrap();
    assert!(graph.arena().slabs().len() >= 4, "{} slabs", graph.arena().slabs().len());
    assert!(graph.arena().slabs().iter().all(|slab| slab.len() <= limit));
    graph.run().unwrap();
    for (k, &value) in values.iter().enumerate() {
        let wanted: Vec<f32> = rows.iter().map(|x| x * (k + 1) as f32).collect();
        assert_eq!(graph.read_f32(value).unwrap(), wanted);
    }
    // A value that no binding holds is an error and nothing worse.
    let large = executor.device().upload(&vec![1.0_f32; 2048]).unwrap();
    let mut session = executor.begin_recorded().unwrap();
    let y = session.scale(large.tensor(DType::F32, &[2048]).unwrap(), 2.0).unwrap();
    session.output(y).unwrap();
    assert!(session.compile(&CompileOptions::default()).is_err());
}

#[test]
fn the_shadow_holds_the_halves_after_host_and_device_wrote() {
    for halves in [true, false] {
        let Some(device) = open(WgpuOptions { halves, ..WgpuOptions::default() }) else { return };
        let executor = GraphExecutor::new(device);
        let mut session = executor.begin_recorded().unwrap();
        let input = session.input(Layout::new(DType::F32, &[2, 40]).unwrap()).unwrap();
        let x = session.scale(input, 3.0).unwrap();
        let (of_device, of_host) = (session.half(x).unwrap(), session.half(input).unwrap());
        let product = session.mul(of_device, of_host).unwrap();
        session.output(product).unwrap();
        let mut graph = session.compile(&CompileOptions::default()).unwrap();
        let (device_value, host_value) = (x.value().unwrap(), input.value().unwrap());
        for run in 1..4 {
            let data: Vec<f32> = (0..80).map(|i| (i as f32 - 40.0) * run as f32 / 61.0).collect();
            graph.write(input, &data).unwrap();
            graph.run().unwrap();
            for (value, factor) in [(host_value, 1.0), (device_value, 3.0)] {
                let shadow = graph.arena().read_shadow(value).unwrap();
                for (half, &x) in shadow.iter().zip(&data) {
                    let exact = x * factor;
                    let off = (half.to_f32() - exact).abs();
                    assert!(off <= exact.abs() / 2048.0 + 1e-7, "run {run}: {half} for {exact}");
                }
            }
        }
    }
}

#[test]
fn errors_have_types_and_what_there_was_stays() {
    let Some(device) = open(WgpuOptions::default()) else { return };
    let arena = Arena::from_plan(&device, &MemoryPlan::new(vec![slot(0, 0, 8)], vec![64])).unwrap();
    arena.write(NodeId(0), &[5u32, 6]).unwrap();
    let error = Arena::from_plan(&device, &MemoryPlan::new(Vec::new(), vec![64, 1 << 60]));
    let Err(Error::Gpu(GpuError::OutOfMemory { wanted, .. })) = error else {
        unreachable!("{error:?}")
    };
    assert_eq!(wanted, 1 << 60);
    assert_eq!(arena.read::<u32>(NodeId(0)).unwrap(), [5, 6]);
    let executor = GraphExecutor::new(device);
    let kernel = CustomKernel::new(KernelContract::new(
        "test.broken",
        [clearway::BindingContract::new("y", clearway::BindingRole::Write)],
    ));
    let text = "@compute @workgroup_size(1) fn main() { put_o0(0u, nothing); }";
    executor.register(kernel.with_wgsl(text, |_, _| [1, 1, 1])).unwrap();
    let mut session = executor.begin_recorded().unwrap();
    let y = session.declare(Layout::new(DType::F32, &[4]).unwrap()).unwrap();
    session.call_kernel("test.broken", &[y], &[]).unwrap();
    session.output(y).unwrap();
    let error = session.compile(&CompileOptions::default()).err().unwrap();
    assert!(matches!(error, Error::Gpu(GpuError::KernelCompile { .. })), "{error}");
}

#[test]
fn a_lost_device_is_an_error_everywhere() {
    let Some(device) = open(WgpuOptions::default()) else { return };
    let device = std::sync::Arc::new(device);
    let executor = GraphExecutor::on(device.clone());
    let source = device.upload(&[1.0_f32; 64]).unwrap();
    let mut session = executor.begin_recorded().unwrap();
    let y = session.scale(source.tensor(DType::F32, &[64]).unwrap(), 2.0).unwrap();
    session.output(y).unwrap();
    let mut graph = session.compile(&CompileOptions::default()).unwrap();
    graph.run().unwrap();
    device.lose();
    let lost = |error: Error| {
        assert!(matches!(error, Error::Gpu(GpuError::DeviceLost { .. })), "{error}");
    };
    lost(graph.run().unwrap_err());
    lost(graph.read_f32(y).unwrap_err());
    lost(device.alloc(64).map_err(Error::Gpu).unwrap_err());
    lost(source.write(0, &[0; 4]).map_err(Error::Gpu).unwrap_err());
    let again = open(WgpuOptions::default()).unwrap();
    assert!(again.upload(&[1.0_f32]).is_ok(), "it can be opened again");
}
