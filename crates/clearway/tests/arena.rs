//! Arenas on a device: several slabs, the f16 shadow, typed transfers, budgets.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use clearway::cpu::CpuDevice;
use clearway::place::{SlabRule, Slot};
use clearway::testkit::{Outcome, PassShape, RandomPass};
use clearway::{
    Arena, CompileError, CompileOptions, DType, Device, Error, Executable, GpuError, GraphError,
    GraphExecutor, Layout, MemoryPlan, NodeId, Ops, TensorView, Upload,
};
use clearway_graph::testkit::Run;
use half::f16;

fn executor() -> GraphExecutor {
    GraphExecutor::new(CpuDevice::with_threads(2))
}

fn read(graph: &Executable, view: TensorView) -> clearway::Result<Vec<u32>> {
    match view.layout.dtype() {
        DType::U32 => graph.read(view),
        _ => Ok(graph.read_f32(view)?.into_iter().map(f32::to_bits).collect()),
    }
}

fn outcome(
    executor: &GraphExecutor,
    pass: &RandomPass,
    options: &CompileOptions,
) -> (Outcome, usize) {
    let mut session = executor.begin_recorded().unwrap();
    let outputs = pass.record(&mut session).unwrap();
    let mut graph = session.compile(options).unwrap();
    let mut found = None;
    for _ in 0..3 {
        pass.reset().unwrap();
        graph.run().unwrap();
        found = Some(pass.outcome(&outputs, |view| read(&graph, view)).unwrap());
    }
    (found.unwrap(), graph.arena().slabs().len())
}

#[test]
fn several_slabs_give_the_bits_of_one() {
    let executor = executor();
    let shape = PassShape::ANY;
    let (mut several, mut runs) = (0, 0);
    for seed in Run::from_env("slabs", 25).seeds() {
        let pass = RandomPass::new(&**executor.device(), seed, shape).unwrap();
        let plain = CompileOptions { reuse: false, ..CompileOptions::default() };
        let (expected, _) = outcome(&executor, &pass, &plain);
        for (max_slab_bytes, slab_rule, reuse) in [
            (2048, SlabRule::Any, true),
            (2048, SlabRule::Any, false),
            (u64::MAX, SlabRule::WritesApart, true),
            (2048, SlabRule::WritesApart, true),
        ] {
            let options = CompileOptions { max_slab_bytes, slab_rule, reuse, ..plain };
            let (found, slabs) = outcome(&executor, &pass, &options);
            assert!(found == expected, "seed {seed}: {options:?} changed the result");
            several += u32::from(slabs > 1);
            runs += 1;
        }
    }
    assert!(2 * several > runs, "{several} of {runs} arenas had several slabs");
}

#[test]
fn a_value_above_the_largest_buffer_is_an_error_that_names_both() {
    let executor = executor();
    let source = executor.device().upload(&[1.0f32; 64]).unwrap();
    let mut session = executor.begin_recorded().unwrap();
    let y = session.scale(source.tensor(DType::F32, &[64]).unwrap(), 2.0).unwrap();
    session.output(y).unwrap();
    let options = CompileOptions { max_slab_bytes: 128, ..CompileOptions::default() };
    let Err(Error::Compile(CompileError::Graph(error))) = session.compile(&options) else {
        unreachable!("256 bytes do not fit 128")
    };
    let value = y.value().unwrap();
    assert_eq!(error, GraphError::ValueAboveSlab { value, bytes: 256, largest: 128 });
}

#[test]
fn the_shadow_follows_its_value_from_run_to_run() {
    let executor = executor();
    let mut session = executor.begin_recorded().unwrap();
    let layout = Layout::new(DType::F32, &[2, 40]).unwrap();
    let input = session.input(layout).unwrap();
    let x = session.scale(input, 3.0).unwrap();
    let half = session.half(x).unwrap();
    assert_eq!(session.half(x).unwrap(), half, "fresh: asked for twice, written once");
    let copies = session.graph().dispatch_count();
    assert_eq!(copies, 2, "the scale and one copy");
    let activated = session.silu(half).unwrap();
    let input_half = session.half(input).unwrap();
    let product = session.mul(activated, input_half).unwrap();
    session.output(product).unwrap();
    let mut graph = session.compile(&CompileOptions::default()).unwrap();
    let arena = graph.arena();
    let (value, shadowed) = (x.value().unwrap(), input.value().unwrap());
    for id in [value, shadowed] {
        assert_eq!(arena.shadow_offset(id).unwrap(), arena.offset(id).unwrap() / 2);
    }
    assert!(!arena.has_shadow(product.value().unwrap()));
    assert!(matches!(arena.read_shadow(half.value().unwrap()), Err(Error::NotInArena(_))));
    assert_eq!(arena.slabs().len(), 2);
    assert_eq!(arena.slabs()[1].len(), arena.slabs()[0].len().div_ceil(2));
    for run in 1..4 {
        let data: Vec<f32> = (0..80).map(|i| (i as f32 - 40.0) * run as f32 / 64.0).collect();
        graph.write(input, &data).unwrap();
        graph.run().unwrap();
        let halves: Vec<f16> = data.iter().map(|&x| f16::from_f32(x)).collect();
        assert_eq!(graph.arena().read_shadow(shadowed).unwrap(), halves, "run {run}");
        let silu = |x: f32| x / (1.0 + (-x).exp());
        let found = graph.read_f32(product).unwrap();
        for (y, &x) in found.iter().zip(&data) {
            let half = f16::from_f32(x * 3.0).to_f32();
            let wanted = silu(half) * f16::from_f32(x).to_f32();
            assert!((y - wanted).abs() <= 2e-3 * wanted.abs().max(0.1), "{y} for {wanted}");
        }
    }
}

#[test]
fn a_direct_session_has_halves_of_its_own() {
    let executor = executor();
    let source = executor.device().upload(&[0.5f32, -2.0]).unwrap();
    let mut session = executor.begin().unwrap();
    let half = session.half(source.tensor(DType::F32, &[2]).unwrap()).unwrap();
    let result = session.finish().unwrap();
    assert_eq!(result.read::<f16>(half).unwrap(), [0.5, -2.0].map(f16::from_f32));
}

#[test]
fn typed_transfers_check_lengths_and_slabs_follow_each_other() {
    let device = CpuDevice::with_threads(1);
    let slot = |slab, offset, bytes| Some(Slot { slab, offset, bytes });
    let plan = MemoryPlan::new(vec![slot(0, 64, 16), None, slot(1, 0, 8)], vec![128, 64]);
    let mut arena = Arena::from_plan(&device, &plan).unwrap();
    let (first, last) = (NodeId(0), NodeId(2));
    arena.write(first, &[1u32, 2, 3, 4]).unwrap();
    arena.write(last, &[f16::ONE; 4]).unwrap();
    assert_eq!(arena.read::<u32>(first).unwrap(), [1, 2, 3, 4]);
    assert_eq!(arena.read::<f16>(last).unwrap(), [f16::ONE; 4]);
    assert_eq!(arena.read_bytes_range(128, 2).unwrap(), f16::ONE.to_le_bytes());
    arena.write_bytes_range(64, &7u32.to_le_bytes()).unwrap();
    assert_eq!(arena.read::<u32>(first).unwrap()[0], 7);
    assert!(arena.read_bytes_range(120, 16).is_err(), "across two slabs");
    assert!(arena.read_bytes_range(192, 1).is_err() && arena.write_f32(first, &[0.0]).is_err());
    assert!(matches!(arena.read_f32(NodeId(1)), Err(Error::NotInArena(NodeId(1)))));
    arena.set_actual_len(first, 8).unwrap();
    assert_eq!((arena.len_of(first).unwrap(), arena.read::<u32>(first).unwrap()), (8, vec![7, 2]));
    assert!(arena.set_actual_len(first, 17).is_err());
}

#[test]
fn out_of_memory_says_how_much_and_leaves_what_there_was() {
    let device = CpuDevice::with_threads(1);
    let small = MemoryPlan::new(vec![Some(Slot { slab: 0, offset: 0, bytes: 8 })], vec![64]);
    let arena = Arena::from_plan(&device, &small).unwrap();
    arena.write(NodeId(0), &[5u32, 6]).unwrap();
    let huge = MemoryPlan::new(Vec::new(), vec![64, 1 << 60]);
    let error = Arena::from_plan(&device, &huge).unwrap_err();
    let Error::Gpu(GpuError::OutOfMemory { wanted, available, .. }) = error else {
        unreachable!("{error}")
    };
    assert!(wanted == 1 << 60 && available < wanted);
    assert_eq!(arena.read::<u32>(NodeId(0)).unwrap(), [5, 6]);
    assert!(device.alloc(64).is_ok());
}

#[test]
fn a_budget_is_a_compile_option() {
    let executor = executor();
    let source = executor.device().upload(&[1.0f32; 256]).unwrap();
    let record = || {
        let mut session = executor.begin_recorded().unwrap();
        let x = source.tensor(DType::F32, &[1, 256]).unwrap();
        // Branches that each make two large values: side by side they need all of them.
        let ids: Vec<TensorView> = (0..4)
            .map(|k| {
                let y = session.rms_norm(x, 1e-5 * k as f32).unwrap();
                let z = session.rms_norm(y, 1e-3).unwrap();
                session.arg_max(z).unwrap()
            })
            .collect();
        ids.iter().for_each(|&id| session.output(id).unwrap());
        session
    };
    let free = record().compile(&CompileOptions::default()).unwrap();
    let stats = free.stats().compile;
    assert_eq!(stats.groups, 3);
    let budget = stats.arena_bytes - 1024;
    let tight = record()
        .compile(&CompileOptions { budget: Some(budget), ..CompileOptions::default() })
        .unwrap();
    assert!(tight.stats().compile.arena_bytes <= budget);
    assert!(tight.stats().compile.groups > 3);
    let none = record().compile(&CompileOptions { budget: Some(64), ..CompileOptions::default() });
    let Err(Error::Compile(CompileError::Graph(error))) = none else { unreachable!("too small") };
    assert!(matches!(error, GraphError::BudgetTooSmall { budget: 64, .. }), "{error}");
}
