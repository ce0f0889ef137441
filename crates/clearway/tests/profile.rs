//! Timed runs: the same results, one span for each part, in order.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use clearway::cpu::CpuDevice;
use clearway::{
    CompileOptions, DType, Executable, GraphExecutor, Layout, Ops, ProfileClock, ProfileMode,
    TensorView,
};

/// A fork and a join: groups of more than one dispatch, and dispatches that must wait.
fn graph(executor: &GraphExecutor) -> (Executable, TensorView, TensorView) {
    let mut pass = executor.begin_recorded().unwrap();
    let x = pass.input(Layout::new(DType::F32, &[64, 256]).unwrap()).unwrap();
    let (a, b) = (pass.silu(x).unwrap(), pass.scale(x, 3.0).unwrap());
    let y = pass.add(a, b).unwrap();
    pass.output(y).unwrap();
    (pass.compile(&CompileOptions::default()).unwrap(), x, y)
}

/// Profiles in both modes; what a barrier cost in each.
fn assert_timed(executor: &GraphExecutor, clock: ProfileClock) -> [u64; 2] {
    let (mut graph, x, y) = graph(executor);
    graph.write(x, &[0.5_f32; 64 * 256]).unwrap();
    graph.run().unwrap();
    let expected = graph.read_f32(y).unwrap();
    let stats = graph.stats().compile;
    assert!(stats.groups < stats.dispatches, "the fork shares a group");
    let modes = [(ProfileMode::Groups, stats.groups), (ProfileMode::Serialised, stats.dispatches)];
    modes.map(|(mode, parts)| {
        graph.write(x, &[0.5_f32; 64 * 256]).unwrap();
        let profile = graph.profile(mode).unwrap();
        assert_eq!((profile.mode, profile.clock), (mode, clock));
        assert_eq!(profile.spans.len(), parts as usize, "{mode:?}");
        assert!(profile.spans.iter().all(|span| span.start_ns <= span.end_ns));
        assert!(profile.spans.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns));
        assert!(profile.total_ns() <= profile.submit_ns + profile.wait_ns);
        assert_eq!(graph.read_f32(y).unwrap(), expected, "{mode:?}");
        profile.barrier_ns.unwrap()
    })
}

#[test]
fn a_timed_run_has_a_span_for_each_group_or_dispatch_and_the_same_result() {
    for threads in [1, 3] {
        let executor = GraphExecutor::new(CpuDevice::with_threads(threads));
        assert_timed(&executor, ProfileClock::Cpu);
    }
}

#[cfg(all(feature = "testkit", feature = "vulkan"))]
#[test]
fn a_timed_run_on_vulkan_knows_what_a_barrier_costs() {
    let options = clearway::vulkan::VulkanOptions { disk_cache: false, ..Default::default() };
    let Some(device) = clearway::testkit::open_vulkan(options).unwrap() else { return };
    let executor = GraphExecutor::new(device);
    assert_nothing(&executor);
    let costs = assert_timed(&executor, ProfileClock::Gpu);
    println!("a barrier costs {costs:?} ns");
    // A driver may find that nothing is there to wait for, but none takes a second.
    assert!(costs.iter().all(|&cost| cost < 1_000_000_000), "{costs:?}");
}

#[test]
fn an_empty_graph_is_timed_as_nothing() {
    assert_nothing(&GraphExecutor::cpu());
}

fn assert_nothing(executor: &GraphExecutor) {
    let mut empty = executor.begin_recorded().unwrap().compile(&CompileOptions::default()).unwrap();
    for mode in [ProfileMode::Groups, ProfileMode::Serialised] {
        let profile = empty.profile(mode).unwrap();
        assert_eq!((profile.spans.len(), profile.total_ns()), (0, 0));
    }
}
