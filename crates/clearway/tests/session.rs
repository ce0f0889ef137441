//! What a session promises: the same calls in both kinds, errors before anything runs, a drop that
//! runs nothing, several at once.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use clearway::cpu::{CpuDevice, CpuKernel, Grid};
use clearway::{
    BarrierReason, BindingContract, BindingRole, CapturedNode, CapturedOpKind, CompileOptions,
    CustomKernel, DType, Error, GpuError, GraphExecutor, HazardKind, KernelContract, Layout, Ops,
    Upload,
};

fn executor() -> GraphExecutor {
    GraphExecutor::new(CpuDevice::with_threads(2))
}

#[test]
fn both_kinds_of_session_take_the_same_calls_and_give_the_same_bits() {
    let executor = executor();
    let data: Vec<f32> = (0..48).map(|i| (i as f32 - 20.0) / 7.0).collect();
    let buffer = executor.device().upload(&data).unwrap();
    let mut results = Vec::new();
    for recorded in [false, true] {
        let mut pass = if recorded { executor.begin_recorded() } else { executor.begin() }.unwrap();
        let x = buffer.tensor(DType::F32, &[3, 16]).unwrap();
        let normed = pass.rms_norm(x, 1e-6).unwrap();
        let gated = pass.silu_mul(normed, x).unwrap();
        pass.output(gated).unwrap();
        let result = pass.finish().unwrap();
        assert_eq!(result.stats().compile.dispatches, 2);
        results.push(result.read_f32(gated).unwrap());
    }
    assert_eq!(results[0], results[1]);
    assert!(results[0].iter().any(|&v| v != 0.0));
}

#[test]
fn the_optimising_finish_returns_what_it_did() {
    let executor = executor();
    let weight = executor.device().upload(&[2.0_f32; 64]).unwrap();
    let mut pass = executor.begin_recorded().unwrap();
    let w = weight.tensor(DType::F32, &[64]).unwrap();
    let x = pass.fill(3.0, DType::F32, &[4, 64]).unwrap();
    let a = pass.rms_norm(x, 0.0).unwrap();
    let a = pass.mul(a, w).unwrap();
    let b = pass.silu(x).unwrap();
    let y = pass.add(a, b).unwrap();
    pass.output(y).unwrap();
    let result = pass.finish_optimized().unwrap();
    let stats = result.stats().compile;
    assert_eq!((stats.recorded, stats.dispatches, stats.fusions), (5, 3, 2));
    assert_eq!((stats.groups, stats.barriers, stats.longest_chain), (3, 2, 3));
    let expected = 2.0 + 3.0 / (1.0 + (-3.0_f32).exp());
    assert!(result.read_f32(y).unwrap().iter().all(|v| (v - expected).abs() < 1e-5));
}

#[test]
fn dropping_a_session_runs_nothing() {
    let executor = executor();
    for recorded in [false, true] {
        let buffer = executor.device().upload(&[1.0_f32; 8]).unwrap();
        let mut pass = if recorded { executor.begin_recorded() } else { executor.begin() }.unwrap();
        let x = buffer.tensor(DType::F32, &[8]).unwrap();
        pass.push(CapturedOpKind::Fill, &[x], &[9.0_f32.to_bits()]).unwrap();
        drop(pass);
        assert_eq!(buffer.read_vec::<f32>(0, 8).unwrap(), [1.0; 8]);
    }
}

#[test]
fn a_wrong_op_is_a_typed_error_and_the_session_goes_on() {
    let executor = executor();
    for recorded in [false, true] {
        let mut pass = if recorded { executor.begin_recorded() } else { executor.begin() }.unwrap();
        let x = pass.fill(1.0, DType::F32, &[2, 8]).unwrap();
        let odd = pass.fill(1.0, DType::F32, &[2, 7]).unwrap();
        let half = pass.fill(1.0, DType::F16, &[2, 8]).unwrap();
        let before = pass.graph().dispatch_count();
        let shape = pass.add(x, odd).unwrap_err();
        assert!(matches!(shape, GpuError::Shape { op: "add", binding: "b", .. }), "{shape}");
        let dtype = pass.silu_mul(x, half).unwrap_err();
        assert!(matches!(dtype, GpuError::DType { op: "silu_mul", binding: "up", .. }), "{dtype}");
        let param = pass.soft_cap(x, -1.0).unwrap_err();
        assert!(matches!(param, GpuError::Param { op: "soft_cap", param: "cap", .. }), "{param}");
        assert_eq!(pass.graph().dispatch_count(), before);
        let y = pass.scale(x, 5.0).unwrap();
        pass.output(y).unwrap();
        assert_eq!(pass.finish().unwrap().read_f32(y).unwrap(), [5.0; 16]);
    }
}

#[test]
fn a_buffer_of_another_device_is_refused_by_the_op_call() {
    let (one, other) = (executor(), executor());
    let foreign = other.device().upload(&[1.0_f32; 4]).unwrap();
    let x = foreign.tensor(DType::F32, &[4]).unwrap();
    for recorded in [false, true] {
        let mut pass = if recorded { one.begin_recorded() } else { one.begin() }.unwrap();
        assert!(matches!(pass.silu(x), Err(GpuError::ForeignBuffer { .. })));
    }
}

#[test]
fn a_buffer_dropped_after_its_call_stays_alive_for_the_pass() {
    let executor = executor();
    for recorded in [false, true] {
        let mut pass = if recorded { executor.begin_recorded() } else { executor.begin() }.unwrap();
        let buffer = executor.device().upload(&[3.0_f32; 4]).unwrap();
        let y = pass.scale(buffer.tensor(DType::F32, &[4]).unwrap(), 2.0).unwrap();
        drop(buffer);
        pass.output(y).unwrap();
        assert_eq!(pass.finish().unwrap().read_f32(y).unwrap(), [6.0; 4]);
    }
}

#[test]
fn an_unregistered_kernel_is_an_error_before_anything_runs() {
    let executor = executor();
    let mut pass = executor.begin_recorded().unwrap();
    let x = pass.fill(1.0, DType::F32, &[4]).unwrap();
    let error = pass.call_kernel("nobody", &[x], &[]).unwrap_err();
    assert!(matches!(error, Error::Gpu(GpuError::UnknownKernel { kernel }) if kernel == "nobody"));
}

#[test]
fn a_name_can_be_registered_once() {
    let executor = executor();
    let contract = || KernelContract::new("mine", [BindingContract::new("y", BindingRole::Write)]);
    executor.register(CustomKernel::new(contract())).unwrap();
    assert!(executor.register(CustomKernel::new(contract())).is_err());
    let add = KernelContract::new("add", [BindingContract::new("y", BindingRole::Write)]);
    assert!(executor.register(CustomKernel::new(add)).is_err());
}

#[test]
fn a_kernel_without_an_implementation_for_the_device_says_so() {
    let executor = executor();
    let contract = KernelContract::new("paper", [BindingContract::new("y", BindingRole::Write)]);
    executor.register(CustomKernel::new(contract)).unwrap();
    let mut pass = executor.begin_recorded().unwrap();
    let y = pass.declare(Layout::new(DType::F32, &[4]).unwrap()).unwrap();
    pass.call_kernel("paper", &[y], &[]).unwrap();
    pass.output(y).unwrap();
    let error = pass.finish().err().unwrap();
    assert!(matches!(error, Error::Gpu(GpuError::KernelNotForDevice { .. })), "{error}");
}

#[test]
fn a_kernel_that_panics_is_an_error_and_the_device_goes_on() {
    let executor = executor();
    let contract = KernelContract::new("bad", [BindingContract::new("y", BindingRole::Write)]);
    let kernel = CpuKernel::new(
        |views, _| Grid::rows(views[0].layout.rows(), 1),
        |piece| {
            let row = piece.rows().start + 1; // belongs to another piece
            piece.dst_row::<f32>(0, row).fill(0.0);
        },
    );
    executor.register(CustomKernel::new(contract).with_cpu(kernel)).unwrap();
    let mut pass = executor.begin_recorded().unwrap();
    let y = pass.declare(Layout::new(DType::F32, &[4, 4]).unwrap()).unwrap();
    pass.call_kernel("bad", &[y], &[]).unwrap();
    pass.output(y).unwrap();
    let error = pass.finish().err().unwrap();
    assert!(matches!(error, Error::Gpu(GpuError::KernelFailed { kernel, .. }) if kernel == "bad"));

    let mut pass = executor.begin_recorded().unwrap();
    let y = pass.fill(2.0, DType::F32, &[4]).unwrap();
    pass.output(y).unwrap();
    assert_eq!(pass.finish().unwrap().read_f32(y).unwrap(), [2.0; 4]);
}

#[test]
fn an_output_over_an_operand_is_refused() {
    let executor = executor();
    let buffer = executor.device().upload(&[1.0_f32; 12]).unwrap();
    let row = Layout::new(DType::F32, &[8]).unwrap();
    let (x, y) = (buffer.view(0, row).unwrap(), buffer.view(16, row).unwrap());
    let mut pass = executor.begin_recorded().unwrap();
    pass.copy_into(x, y).unwrap();
    let error = pass.finish().err().unwrap();
    assert!(matches!(error, Error::Gpu(GpuError::OperandOverlap { .. })), "{error}");
}

#[test]
fn only_outputs_can_be_read() {
    let executor = executor();
    let mut pass = executor.begin_recorded().unwrap();
    let x = pass.fill(2.0, DType::F32, &[4]).unwrap();
    let y = pass.silu(x).unwrap();
    pass.output(y).unwrap();
    let result = pass.finish().unwrap();
    assert!(result.read_f32(y).is_ok());
    assert!(matches!(result.read_f32(x), Err(Error::NotInArena(_))));
    assert!(result.read::<u32>(y).is_err(), "a wrong type is an error");
}

#[test]
fn several_sessions_run_at_once_from_several_threads() {
    let executor = executor();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let executor = &executor;
            scope.spawn(move || {
                for round in 0..50 {
                    let value = (thread * 100 + round) as f32;
                    let mut pass = match round % 2 {
                        0 => executor.begin().unwrap(),
                        _ => executor.begin_recorded().unwrap(),
                    };
                    let x = pass.fill(value, DType::F32, &[33]).unwrap();
                    let y = pass.add(x, x).unwrap();
                    pass.output(y).unwrap();
                    let result = pass.finish_optimized().unwrap();
                    assert_eq!(result.read_f32(y).unwrap(), vec![2.0 * value; 33]);
                }
            });
        }
    });
}

#[test]
fn a_kernel_of_unknown_access_is_ordered_against_everything() {
    let executor = executor();
    let kernel = CpuKernel::new(
        |views, _| Grid::rows(views[0].layout.rows(), 1),
        |piece| {
            for row in piece.rows() {
                piece.dst_row::<f32>(0, row).iter_mut().for_each(|v| *v += 1.0);
            }
        },
    );
    executor.register(CustomKernel::new(KernelContract::unknown("blob")).with_cpu(kernel)).unwrap();
    let buffer = executor.device().upload(&[1.0_f32; 4]).unwrap();
    let x = buffer.tensor(DType::F32, &[4]).unwrap();
    let mut pass = executor.begin_recorded().unwrap();
    let before = pass.scale(x, 1.0).unwrap();
    pass.call_kernel("blob", &[x], &[]).unwrap();
    let after = pass.scale(x, 1.0).unwrap();
    pass.output(before).unwrap();
    pass.output(after).unwrap();
    let graph = pass.compile(&CompileOptions::default());
    let mut graph = graph.unwrap();
    assert_eq!(graph.stats().compile.groups, 3);
    graph.run().unwrap();
    assert_eq!(graph.read_f32(before).unwrap(), [1.0; 4]);
    assert_eq!(graph.read_f32(after).unwrap(), [2.0; 4]);
}

#[test]
fn out_of_memory_is_an_error_with_the_facts() {
    let executor = executor();
    let error = executor.device().alloc(1 << 60).unwrap_err();
    assert!(matches!(error, GpuError::OutOfMemory { wanted, .. } if wanted == 1 << 60), "{error}");
}

#[test]
fn barriers_of_a_direct_session_stand_for_the_hazard_they_order() {
    let executor = executor();
    let mut pass = executor.begin().unwrap();
    let x = pass.fill(1.0, DType::F32, &[8]).unwrap();
    let y = pass.scale(x, 2.0).unwrap();
    pass.output(y).unwrap();
    let text = pass.graph().to_text();
    let reasons: Vec<_> = pass.graph().nodes().iter().filter_map(CapturedNode::barrier).collect();
    let [BarrierReason::Hazard(hazard)] = reasons[..] else { panic!("{text}") };
    assert_eq!((hazard.kind, hazard.earlier.0, hazard.later.0), (HazardKind::ReadAfterWrite, 0, 1));
    assert_eq!(pass.finish().unwrap().read_f32(y).unwrap(), [2.0; 8]);
}

#[test]
fn executors_are_opened_without_naming_a_device() {
    assert_eq!(GraphExecutor::cpu().device().info().name, "cpu");
    let auto = GraphExecutor::auto();
    let mut pass = auto.begin().unwrap();
    let y = pass.fill(3.0, DType::F32, &[4]).unwrap();
    pass.output(y).unwrap();
    assert_eq!(pass.finish().unwrap().read_f32(y).unwrap(), [3.0; 4]);
    #[cfg(feature = "vulkan")]
    assert!(GraphExecutor::vulkan(usize::MAX).is_err());
}
