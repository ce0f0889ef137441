//! Whatever the runtime does to a pass, its bits stay those of the naive run.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use clearway::cpu::CpuDevice;
use clearway::schedule::Strategy;
use clearway::testkit::{Outcome, PassShape, RandomPass};
use clearway::{CompileOptions, DType, Executable, GraphExecutor, TensorView};
use clearway_graph::testkit::Run;

const F32_ONLY: PassShape = PassShape::ANY;
const WITH_F16: PassShape = PassShape { halves: true, ..PassShape::ANY };

fn read(graph: &Executable, view: TensorView) -> clearway::Result<Vec<u32>> {
    match view.layout.dtype() {
        DType::U32 => graph.read(view),
        _ => Ok(graph.read_f32(view)?.into_iter().map(f32::to_bits).collect()),
    }
}

/// The naive direct run: ops encoded as they are called.
fn direct(executor: &GraphExecutor, pass: &RandomPass) -> Outcome {
    pass.reset().unwrap();
    let mut session = executor.begin().unwrap();
    let outputs = pass.record(&mut session).unwrap();
    let result = session.finish().unwrap();
    pass.outcome_of(&outputs, &result).unwrap()
}

fn recorded(executor: &GraphExecutor, pass: &RandomPass, options: &CompileOptions) -> Outcome {
    pass.reset().unwrap();
    let mut session = executor.begin_recorded().unwrap();
    let outputs = pass.record(&mut session).unwrap();
    let result = session.finish_with(options).unwrap();
    pass.outcome_of(&outputs, &result).unwrap()
}

/// Every combination of the switches that must not change a bit.
fn switches(fuse: bool) -> impl Iterator<Item = (String, CompileOptions)> {
    let reorders = [None, Some(Strategy::Levels), Some(Strategy::LookAhead { window: 64 })];
    reorders.into_iter().flat_map(move |reorder| {
        [(true, true), (true, false), (false, true)].map(|(elide, reuse)| {
            let options =
                CompileOptions { fuse, reorder, elide, reuse, ..CompileOptions::default() };
            (format!("fuse {fuse}, {reorder:?}, elide {elide}, reuse {reuse}"), options)
        })
    })
}

#[test]
fn reordered_elided_and_reused_runs_give_the_bits_of_the_direct_run() {
    let executor = GraphExecutor::new(CpuDevice::with_threads(2));
    let mut fused = 0;
    for (case, seed) in Run::from_env("switches", 1).seeds().enumerate() {
        let shape = if case % 2 == 0 { F32_ONLY } else { WITH_F16 };
        let pass = RandomPass::new(&**executor.device(), seed, shape).unwrap();
        let expected = direct(&executor, &pass);
        // One combination of each kind per case; over the cases all are met.
        let options: Vec<_> = switches(false).chain(switches(true)).collect();
        for pick in [case % 9, 9 + case % 9] {
            let (name, options) = &options[pick];
            if options.fuse && shape.halves {
                continue; // a fused f16 intermediate is rounded less often
            }
            let found = recorded(&executor, &pass, options);
            assert!(found == expected, "seed {seed}: {name} changed the result");
            fused += u64::from(options.fuse);
        }
    }
    assert!(fused > 0);
}

#[test]
fn fused_runs_with_f16_stay_close() {
    let executor = GraphExecutor::new(CpuDevice::with_threads(2));
    for seed in Run::from_env("f16", 1).seeds() {
        let pass = RandomPass::new(&**executor.device(), seed, WITH_F16).unwrap();
        let expected = direct(&executor, &pass);
        let found = recorded(&executor, &pass, &CompileOptions::default());
        for (a, b) in expected.outputs.iter().zip(&found.outputs) {
            let floats = a.iter().zip(b).map(|(&a, &b)| (f32::from_bits(a), f32::from_bits(b)));
            let scale = a.iter().map(|&a| f32::from_bits(a).abs()).fold(1.0, f32::max);
            let worst = floats.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // Ids read as floats are denormal; equal ids differ by 0. A near tie may swap two.
            assert!(worst <= 2e-2 * scale, "seed {seed}: {worst} off at scale {scale}");
        }
    }
}

#[test]
fn replays_give_the_same_bits_every_time() {
    let executor = GraphExecutor::new(CpuDevice::with_threads(2));
    for (case, seed) in Run::from_env("replays", 1).seeds().enumerate() {
        // One list in a hundred for long.
        let replays = if case % 100 == 0 { 1000 } else { 10 };
        let pass = RandomPass::new(&**executor.device(), seed, F32_ONLY).unwrap();
        let expected = direct(&executor, &pass);
        let mut session = executor.begin_recorded().unwrap();
        let outputs = pass.record(&mut session).unwrap();
        let mut graph = session.compile(&CompileOptions::default()).unwrap();
        for replay in 0..replays {
            pass.reset().unwrap();
            graph.run().unwrap();
            if replay % 50 == 0 || replay + 1 == replays {
                let found = pass.outcome(&outputs, |view| read(&graph, view)).unwrap();
                assert!(found == expected, "seed {seed}: replay {replay} differs");
            }
        }
    }
}

#[test]
fn any_legal_interleaving_gives_the_same_bits() {
    let plain = GraphExecutor::new(CpuDevice::with_threads(2));
    let run = Run::from_env("interleavings", 1);
    let adversarial = GraphExecutor::new(CpuDevice::adversarial(3, run.seed));
    for seed in run.seeds() {
        assert_same_bits(&plain, &adversarial, seed);
    }
}

/// Four runs of one pass on a device that draws the order, against a plain one.
fn assert_same_bits(plain: &GraphExecutor, adversarial: &GraphExecutor, seed: u64) {
    let pass = RandomPass::new(&**plain.device(), seed, F32_ONLY).unwrap();
    let expected = direct(plain, &pass);
    let pass = RandomPass::new(&**adversarial.device(), seed, F32_ONLY).unwrap();
    let mut session = adversarial.begin_recorded().unwrap();
    let outputs = pass.record(&mut session).unwrap();
    let mut graph = session.compile(&CompileOptions::default()).unwrap();
    for order in 0..4 {
        pass.reset().unwrap();
        graph.run().unwrap();
        let found = pass.outcome(&outputs, |view| read(&graph, view)).unwrap();
        assert!(found == expected, "seed {seed}: order {order} differs");
    }
}

/// Four runs of each list, since counters are left as they are between runs.
#[test]
fn any_order_that_counters_allow_gives_the_same_bits() {
    let plain = GraphExecutor::new(CpuDevice::with_threads(2));
    let run = Run::from_env("orders of counters", 1);
    let adversarial = GraphExecutor::new(CpuDevice::adversarial_with_counters(run.seed));
    for seed in run.seeds() {
        assert_same_bits(&plain, &adversarial, seed);
    }
}

/// Outputs, and the memory in which scratch and caches lie over each other.
fn aliased(
    executor: &GraphExecutor,
    pass: &RandomPass,
    options: &CompileOptions,
) -> (Vec<Vec<u32>>, Vec<u8>) {
    let memory = pass.aliased(&**executor.device()).unwrap();
    let mut session = executor.begin_recorded().unwrap();
    let outputs = pass.record(&mut session).unwrap();
    let mut graph = executor.compile(session.graph(), &memory.places, options).unwrap();
    let mut found = None;
    for run in 0..2 {
        memory.reset().unwrap();
        graph.run().unwrap();
        let outputs = outputs.iter().map(|&view| read(&graph, view).unwrap()).collect();
        let seen = (outputs, memory.bytes().unwrap());
        assert!(run == 0 || found.as_ref() == Some(&seen), "the second run differs");
        found = Some(seen);
    }
    found.unwrap()
}

#[test]
fn buffers_that_lie_over_each_other_give_the_bits_of_the_naive_run() {
    let executor = GraphExecutor::new(CpuDevice::with_threads(2));
    let options: Vec<_> = switches(false).chain(switches(true)).collect();
    for (case, seed) in Run::from_env("aliased buffers", 1).seeds().enumerate() {
        let pass = RandomPass::new(&**executor.device(), seed, F32_ONLY).unwrap();
        let expected = aliased(&executor, &pass, &CompileOptions::naive());
        let (name, options) = &options[case % options.len()];
        let found = aliased(&executor, &pass, options);
        assert!(found == expected, "seed {seed}: {name} changed the result");
    }
}
