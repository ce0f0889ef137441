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

/// Products that wait for each other by counters, as long as the list needs to set them to zero again.
#[cfg(all(feature = "testkit", feature = "vulkan"))]
fn counted_chain(executor: &GraphExecutor) -> (Executable, TensorView) {
    let layout = Layout::new(DType::F16, &[64, 64]).unwrap();
    let weights: Vec<u8> =
        (0..64 * 64).flat_map(|i| [(i % 7) as u8, 0x20 + (i % 3) as u8]).collect();
    let device = executor.device();
    let weights = device.upload_weights(&layout, &weights).unwrap();
    let x = device.alloc(4 * 64).unwrap();
    x.write_slice(0, &[0.5_f32; 64]).unwrap();
    let mut pass = executor.begin_recorded().unwrap();
    let mut row = x.tensor(DType::F32, &[1, 64]).unwrap();
    for _ in 0..6 {
        let y = pass.matmul(row, weights.view(0, layout).unwrap()).unwrap();
        row = pass.add(row, y).unwrap();
    }
    pass.output(row).unwrap();
    let options = CompileOptions { counters: true, ..CompileOptions::default() };
    (pass.compile(&options).unwrap(), row)
}

#[cfg(all(feature = "testkit", feature = "vulkan"))]
#[test]
fn waits_are_measured_and_leave_the_list_as_it_was() {
    use clearway::vulkan::{Counting, VulkanOptions};
    let options = |counting| VulkanOptions { disk_cache: false, counting, ..Default::default() };
    let Some(device) = clearway::testkit::open_vulkan(options(Counting::Always)).unwrap() else {
        return;
    };
    let executor = GraphExecutor::new(device);
    let (mut graph, y) = counted_chain(&executor);
    graph.run().unwrap();
    let expected = graph.read_f32(y).unwrap();
    let waiting = graph.waiting_groups();
    assert!(waiting >= 3, "{waiting} groups wait");
    for _ in 0..3 {
        let waits = graph.profile_waits().unwrap();
        assert_eq!(waits.dispatches.len(), graph.stats().compile.dispatches as usize);
        let waits_for = waits.dispatches.iter().map(|d| d.counted.unwrap().waits_for);
        let waits_for: Vec<Option<usize>> = waits_for.collect();
        assert_eq!(waits_for.iter().flatten().count(), waiting, "{waits_for:?}");
        for (at, dispatch) in waits.dispatches.iter().enumerate() {
            let (span, counted) = (dispatch.span, dispatch.counted.unwrap());
            assert!(span.start_ns <= counted.last_start_ns, "{at}: {dispatch:?}");
            assert!(counted.last_start_ns <= span.end_ns, "{at}: {dispatch:?}");
            // A clock that goes at another pace, or from elsewhere, would leave the run.
            assert!(span.end_ns <= waits.total_ns * 2, "{at}: {dispatch:?} of {}", waits.total_ns);
            assert!(counted.waited <= counted.workgroups);
            assert!(counted.polls >= u64::from(counted.waited));
            if let Some(before) = counted.waits_for {
                assert_eq!(before + 1, at, "each waits for the one before it");
                // Nobody is done before those he waits for.
                let before = waits.dispatches[before].span;
                assert!(before.end_ns <= span.end_ns, "{before:?} {span:?}");
            }
        }
        assert!(waits.clock_step_ns > 0.0);
        assert_eq!(graph.read_f32(y).unwrap(), expected);
        graph.run().unwrap();
        assert_eq!(graph.read_f32(y).unwrap(), expected, "kernels and counters are as they were");
    }
    // The same kernels behind barriers.
    graph.use_barriers().unwrap();
    assert_eq!(graph.waiting_groups(), 0);
    graph.run_many(9).unwrap();
    assert_eq!(graph.read_f32(y).unwrap(), expected);
    let error = graph.profile_waits().unwrap_err().to_string();
    assert!(error.contains("no counters"), "{error}");

    // A measured wait in vain fails as any other.
    let device = clearway::testkit::open_vulkan(options(Counting::Stalling)).unwrap().unwrap();
    let executor = GraphExecutor::new(device);
    let (mut graph, y) = counted_chain(&executor);
    let error = graph.profile_waits().unwrap_err().to_string();
    assert!(error.contains("in order"), "{error}");
    graph.run().unwrap();
    assert_eq!(graph.read_f32(y).unwrap(), expected);
    assert!(executor.device().without_counters().unwrap().contains("in vain"));
}
