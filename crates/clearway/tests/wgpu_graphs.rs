//! Random graphs through wgpu: what the CPU computes, and the same bits whatever the runtime does.
//!
//! The test command runs 50 graphs of each kind and 20 without subgroups and f16, soak 500 and 200.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::sync::{Arc, Mutex, PoisonError};

use clearway::testkit::open_wgpu;
use clearway::wgpu::{WgpuDevice, WgpuOptions};
use clearway::{CompileOptions, DType, GraphExecutor, Layout, Ops, Upload, tracked_barriers};

mod graphs;

/// One graph for so many of `CLEARWAY_CASES`, which are 2,000 in the test command and 20,000 in soak.
const ONE_OF: u64 = 40;
const ONE_OF_FEWER: u64 = 100;

/// Tests share a device, and with it the kernels that are compiled.
#[track_caller]
fn executor() -> Option<GraphExecutor> {
    static DEVICE: Mutex<Option<Arc<WgpuDevice>>> = Mutex::new(None);
    let options = WgpuOptions { disk_cache: false, ..WgpuOptions::default() };
    let mut device = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    if device.is_none() {
        *device = open_wgpu(options).unwrap().map(Arc::new);
    }
    Some(GraphExecutor::on(device.clone()?))
}

#[test]
fn wgpu_computes_what_the_cpu_does() {
    let Some(wgpu) = executor() else { return };
    graphs::computes_what_the_cpu_does(&wgpu, "wgpu", ONE_OF);
}

#[test]
fn switches_do_not_change_a_bit() {
    let Some(wgpu) = executor() else { return };
    graphs::switches_do_not_change_a_bit(&wgpu, "wgpu", ONE_OF);
}

#[test]
fn replays_give_the_same_bits_every_time() {
    let Some(wgpu) = executor() else { return };
    graphs::replays_give_the_same_bits_every_time(&wgpu, "wgpu", ONE_OF);
}

#[test]
fn it_holds_without_subgroups_and_f16() {
    let options = WgpuOptions {
        disk_cache: false,
        subgroups: false,
        halves: false,
        tickets: false,
        ..WgpuOptions::default()
    };
    let Some(device) = open_wgpu(options).unwrap() else { return };
    let wgpu = GraphExecutor::new(device);
    graphs::computes_what_the_cpu_does(&wgpu, "wgpu without subgroups", ONE_OF_FEWER);
    graphs::switches_do_not_change_a_bit(&wgpu, "wgpu without subgroups", ONE_OF_FEWER);
}

/// Members of a group write buffers of their own, and nothing is bound both ways.
#[test]
fn side_by_side_dispatches_get_no_barrier_between_them() {
    let Some(wgpu) = executor() else { return };
    let source = wgpu.device().upload(&[1.5_f32; 256]).unwrap();
    let mut session = wgpu.begin_recorded().unwrap();
    let x = source.tensor(DType::F32, &[1, 256]).unwrap();
    let start = session.scale(x, 2.0).unwrap();
    let branches: Vec<_> = (0..3).map(|k| session.rms_norm(start, k as f32).unwrap()).collect();
    let sum = session.add(branches[0], branches[1]).unwrap();
    let sum = session.add(sum, branches[2]).unwrap();
    session.output(sum).unwrap();
    let mut graph =
        session.compile(&CompileOptions { fuse: false, ..CompileOptions::default() }).unwrap();
    let counts = tracked_barriers(graph.graph());
    assert_eq!((counts.inside_groups, counts.both_ways), (0, 0), "{counts:?}");
    assert_eq!(counts.barriers + 1, graph.stats().compile.groups, "{counts:?}");
    graph.run().unwrap();
    assert!(graph.read_f32(sum).unwrap().iter().all(|y| y.is_finite()));
}

/// A step that is run again makes no bind group and no buffer; its commands are encoded anew.
#[test]
fn a_replayed_step_only_encodes_and_submits() {
    let options = WgpuOptions { disk_cache: false, ..WgpuOptions::default() };
    let Some(device) = open_wgpu(options).unwrap() else { return };
    let device = Arc::new(device);
    let executor = GraphExecutor::on(device.clone());
    let mut session = executor.begin_recorded().unwrap();
    let input = session.input(Layout::new(DType::F32, &[2, 64]).unwrap()).unwrap();
    let normed = session.rms_norm(input, 1e-5).unwrap();
    let y = session.silu(normed).unwrap();
    session.output(y).unwrap();
    let mut graph = session.compile(&CompileOptions::default()).unwrap();
    graph.write(input, &[0.5_f32; 128]).unwrap();
    graph.run().unwrap();
    let before = device.counts();
    graph.run_many(20).unwrap();
    let after = device.counts();
    assert_eq!(after.encodings - before.encodings, 20);
    assert!(after.submissions - before.submissions <= 3, "several runs to a submission");
    assert_eq!((after.allocations, after.bind_groups), (before.allocations, before.bind_groups));
}
