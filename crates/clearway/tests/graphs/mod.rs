//! Random graphs on a GPU: what the CPU computes, and the same bits whatever the runtime does.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise
#![allow(dead_code)] // not every test uses all of it

use std::time::Instant;

use clearway::schedule::Strategy;
use clearway::testkit::{Blocks, Outcome, PassShape, RandomPass};
use clearway::{
    CapturedOpKind as Kind, CompileOptions, DType, Dispatch, Executable, GraphExecutor, TensorView,
};
use clearway_gpu::ops::suite::tolerance::{ROUNDING_DEVIATIONS, Weights, storage_error, tolerance};
use clearway_graph::testkit::Run;

fn read(graph: &Executable, view: TensorView) -> clearway::Result<Vec<u32>> {
    match view.layout.dtype() {
        DType::U32 => graph.read(view),
        _ => Ok(graph.read_f32(view)?.into_iter().map(f32::to_bits).collect()),
    }
}

/// Ops encoded as they are called, over the buffers as they stand.
fn direct(executor: &GraphExecutor, pass: &RandomPass) -> Outcome {
    let mut session = executor.begin().unwrap();
    let outputs = pass.record(&mut session).unwrap();
    let result = session.finish().unwrap();
    pass.outcome_of(&outputs, &result).unwrap()
}

/// Recorded and run once.
fn once(executor: &GraphExecutor, pass: &RandomPass, options: &CompileOptions) -> Outcome {
    pass.reset().unwrap();
    let mut session = executor.begin_recorded().unwrap();
    let outputs = pass.record(&mut session).unwrap();
    let result = session.finish_with(options).unwrap();
    pass.outcome_of(&outputs, &result).unwrap()
}

/// How far one op may be off, as a part of what its error is measured by.
fn limit(dispatch: &Dispatch) -> f64 {
    let weights = match dispatch.kind {
        Kind::MATMUL => Weights::of(dispatch.bindings[1].layout.dtype(), true),
        _ => Weights::None,
    };
    let result = dispatch.bindings.last().unwrap().layout.dtype();
    // Half a step of activations that are rounded to 8 bits: the largest of a run is 127 steps.
    let rounding = if weights == Weights::Rounded { ROUNDING_DEVIATIONS / 254.0 } else { 0.0 };
    tolerance(dispatch.kind, result, weights).unwrap().limit + storage_error(result) + rounding
}

/// The sum of what the ops of a pass may be off, as the op table has it.
fn limit_of(executor: &GraphExecutor, pass: &RandomPass) -> f64 {
    let mut session = executor.begin_recorded().unwrap();
    pass.record(&mut session).unwrap();
    session.graph().dispatches().map(|dispatch| limit(dispatch)).sum()
}

fn largest(values: impl Iterator<Item = f32>) -> f64 {
    values.fold(0.0, |max: f64, v| if v.is_nan() { f64::NAN } else { max.max(v.abs().into()) })
}

fn furthest(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    largest(a.iter().zip(b).map(|(a, b)| a - b))
}

/// Each op is within its tolerance of the CPU's, so a pass is within the sum of them, as far as the
/// ops after it carry a small change. That is measured: the CPU runs the pass again with all its
/// numbers moved by the sum of the tolerances, twice.
pub fn computes_what_the_cpu_does(gpu: &GraphExecutor, name: &str, cases: u64) {
    let cpu = GraphExecutor::cpu();
    let mut worst = [0.0_f64; 4];
    for (case, seed) in
        Run::from_env_up_to(&format!("{name} against cpu"), cases, 500).seeds().enumerate()
    {
        let halves = case % 2 == 1;
        let blocks = if case % 4 < 2 { Blocks::None } else { Blocks::Packed };
        let shape = PassShape { halves, blocks, choices: false, ..PassShape::FEW_KERNELS };
        let pass = RandomPass::new(&**cpu.device(), seed, shape).unwrap();
        let part = limit_of(&cpu, &pass);
        let expected = pass.numbers(&direct(&cpu, &pass));
        let nudged = [1, 2].map(|nudge| {
            pass.reset_nudged(part, seed ^ nudge).unwrap();
            pass.numbers(&direct(&cpu, &pass))
        });
        let pass = RandomPass::new(&**gpu.device(), seed, shape).unwrap();
        let found = pass.numbers(&once(gpu, &pass, &CompileOptions::default()));
        assert_eq!(found.len(), expected.len());
        for (tensor, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let moved = nudged.iter().map(|n| furthest(&n[tensor], expected)).fold(0.0, f64::max);
            let allowed = moved + part * largest(expected.iter().copied());
            let off = furthest(found, expected);
            assert!(
                off <= allowed,
                "seed {seed}: tensor {tensor} is off by {off:e}, {allowed:e} allowed"
            );
            worst[case % 4] = worst[case % 4].max(if off > 0.0 { off / allowed } else { 0.0 });
        }
    }
    println!(
        "worst error, as a part of what is allowed: {:.3} f32, {:.3} f16, {:.3} and {:.3} with block weights",
        worst[0], worst[1], worst[2], worst[3]
    );
}

/// Every combination of the switches that must not change a bit.
fn switches(fuse: bool) -> impl Iterator<Item = (String, CompileOptions)> {
    let reorders = [Some(Strategy::Levels), None, Some(Strategy::LookAhead { window: 64 })];
    reorders.into_iter().flat_map(move |reorder| {
        [(true, true), (true, false), (false, true), (false, false)].map(|(elide, reuse)| {
            let options =
                CompileOptions { fuse, reorder, elide, reuse, ..CompileOptions::default() };
            (format!("fuse {fuse}, {reorder:?}, elide {elide}, reuse {reuse}"), options)
        })
    })
}

pub fn switches_do_not_change_a_bit(executor: &GraphExecutor, name: &str, cases: u64) {
    let start = Instant::now();
    let (mut runs, mut graphs) = (0, 0);
    let [plain_switches, fused_switches] = [false, true].map(|fuse| Vec::from_iter(switches(fuse)));
    for (case, seed) in
        Run::from_env_up_to(&format!("{name} switches"), cases, 500).seeds().enumerate()
    {
        let shape = PassShape { halves: case % 2 == 1, ..PassShape::FEW_KERNELS };
        let pass = RandomPass::new(&**executor.device(), seed, shape).unwrap();
        // Without replay and without anything else: encoded as it is called.
        let plain = direct(executor, &pass);
        // Two combinations of each kind per case; over the cases all are met.
        let picks = [0, 5].map(|more| (case + more) % plain_switches.len());
        for pick in picks {
            let (name, options) = &plain_switches[pick];
            let found = once(executor, &pass, options);
            assert!(found == plain, "seed {seed}: {name} changed the result");
            runs += 1;
        }
        // Fused products round otherwise, so fused runs are held against each other.
        let [first, second] = picks.map(|pick| {
            let (name, options) = &fused_switches[pick];
            runs += 1;
            (name, once(executor, &pass, options))
        });
        assert!(first.1 == second.1, "seed {seed}: {} and {} differ", first.0, second.0);
        graphs += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{runs} runs of {graphs} graphs, with and without fusion ({seconds:.1} s)");
}

pub fn replays_give_the_same_bits_every_time(executor: &GraphExecutor, name: &str, cases: u64) {
    let start = Instant::now();
    let run = Run::from_env_up_to(&format!("{name} replays"), cases, 500);
    let mut all = 0;
    for (case, seed) in run.seeds().enumerate() {
        // One list in fifty for long.
        let replays = if case % 50 == 0 { 100 } else { 6 };
        all += replays;
        let shape = PassShape { halves: case % 2 == 1, ..PassShape::FEW_KERNELS };
        let pass = RandomPass::new(&**executor.device(), seed, shape).unwrap();
        let expected = once(executor, &pass, &CompileOptions::default());
        let mut session = executor.begin_recorded().unwrap();
        let outputs = pass.record(&mut session).unwrap();
        let mut graph = session.compile(&CompileOptions::default()).unwrap();
        for replay in 0..replays {
            pass.reset().unwrap();
            graph.run().unwrap();
            if replay % 25 == 0 || replay + 1 == replays {
                let found = pass.outcome(&outputs, |view| read(&graph, view)).unwrap();
                assert!(found == expected, "seed {seed}: replay {replay} differs");
            }
        }
    }
    println!("{all} replays of {} graphs ({:.1} s)", run.cases, start.elapsed().as_secs_f64());
}
