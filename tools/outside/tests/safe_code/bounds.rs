//! Views and transfers that reach where they must not.

use clearway::cpu::CpuDevice;
use clearway::{
    BindingContract, BindingRole, Buffer, CapturedOpKind as Kind, ComputeGraph, DType, Device,
    GpuError, GraphExecutor, KernelContract, KernelRegistry, Layout, Ops, TensorView, Upload,
};

use crate::lowered;

/// Copies one view into another, recorded by hand.
fn copy(device: &dyn Device, from: TensorView, to: TensorView) -> Result<(), GpuError> {
    let operand = |name, role| BindingContract::new(name, role);
    let bindings = [operand("x", BindingRole::Read), operand("y", BindingRole::Write)];
    let mut graph = ComputeGraph::new();
    graph.dispatch(Kind::Copy, &KernelContract::new("copy", bindings), &[from, to], &[], "")?;
    lowered(device, &KernelRegistry::new(), &graph)?.run()
}

pub fn transfers_outside_a_buffer_are_refused(device: &dyn Device) {
    let buffer = device.upload(&[0_u8; 64]).unwrap();
    let mut out = [0; 8];
    for offset in [57, 64, u64::MAX - 7, u64::MAX - 3, u64::MAX] {
        assert!(buffer.write(offset, &[1; 8]).is_err(), "{offset}");
        assert!(buffer.read(offset, &mut out).is_err(), "{offset}");
        assert!(buffer.read_vec::<u64>(offset, 1).is_err(), "{offset}");
        assert!(buffer.peek_vec::<u64>(offset, 1).is_err(), "{offset}");
        // The memory behind it can be had, too.
        assert!(buffer.memory().write(offset, &[1; 8]).is_err(), "{offset}");
        assert!(buffer.memory().read(offset, &mut out).is_err(), "{offset}");
        assert!(buffer.memory().peek(offset, &mut out).is_err(), "{offset}");
        // And put behind a handle that claims more.
        let forged = Buffer::with_id(buffer.id(), u64::MAX, buffer.memory().clone());
        assert!(forged.write(offset, &[1; 8]).is_err(), "{offset}");
        assert!(forged.read_vec::<u64>(offset, 1).is_err(), "{offset}");
    }
    assert!(buffer.read_vec::<u64>(0, usize::MAX).is_err());
    assert!(buffer.read_vec::<u64>(8, usize::MAX / 8).is_err());
    assert_eq!(buffer.read_vec::<u8>(0, 64).unwrap(), [0; 64]);
    assert_eq!(buffer.read_vec::<()>(0, 7).unwrap().len(), 7);
}

#[test]
fn transfers_outside_a_buffer_are_refused_on_the_cpu() {
    transfers_outside_a_buffer_are_refused(&CpuDevice::with_threads(2));
}

pub fn views_that_lie_about_their_buffer_are_refused(device: &dyn Device) {
    let (x, y) = (device.upload(&[1.0_f32; 8]).unwrap(), device.upload(&[0.0_f32; 8]).unwrap());
    let layout = Layout::new(DType::F32, &[8]).unwrap();
    let view = |buffer: &Buffer, buf_len, offset| TensorView {
        buf_id: buffer.id(),
        buf_len,
        offset,
        layout,
    };
    let good = [view(&x, 32, 0), view(&y, 32, 0)];
    for offset in [4, 32, 1 << 20, u64::MAX - 31, u64::MAX] {
        for buf_len in [32, 1 << 30, u64::MAX] {
            assert!(
                copy(device, view(&x, buf_len, offset), good[1]).is_err(),
                "{offset} {buf_len}"
            );
            assert!(
                copy(device, good[0], view(&y, buf_len, offset)).is_err(),
                "{offset} {buf_len}"
            );
        }
    }
    assert!(copy(device, TensorView { buf_id: 12345, ..good[0] }, good[1]).is_err());
    assert_eq!(y.read_vec::<f32>(0, 8).unwrap(), [0.0; 8]);
    copy(device, good[0], good[1]).unwrap();
    assert_eq!(y.read_vec::<f32>(0, 8).unwrap(), [1.0; 8]);
}

#[test]
fn views_that_lie_about_their_buffer_are_refused_on_the_cpu() {
    views_that_lie_about_their_buffer_are_refused(&CpuDevice::with_threads(2));
}

pub fn views_that_lie_about_weights_are_refused(device: &dyn Device) {
    for dtype in [DType::Q8_0, DType::Q4_0, DType::F16] {
        let layout = Layout::new(dtype, &[64, 64]).unwrap();
        let bytes = vec![0; layout.span_bytes() as usize];
        let weights = device.upload_weights(&layout, &bytes).unwrap();
        let x = device.upload(&[1.0_f32; 64]).unwrap();
        let x = x.tensor(DType::F32, &[1, 64]).unwrap();
        let larger = Layout::new(dtype, &[1 << 14, 64]).unwrap();
        let buf_len = larger.span_bytes();
        let forged = TensorView { buf_id: weights.id(), buf_len, offset: 0, layout: larger };
        let y = device.upload(&vec![0.0_f32; 1 << 14]).unwrap();
        let y = y.tensor(DType::F32, &[1, 1 << 14]).unwrap();
        let operand = |name, role| BindingContract::new(name, role);
        let bindings = [
            operand("x", BindingRole::Read),
            operand("w", BindingRole::Read),
            operand("y", BindingRole::Write),
        ];
        let contract = KernelContract::new("matmul", bindings);
        let mut graph = ComputeGraph::new();
        graph.dispatch(Kind::MATMUL, &contract, &[x, forged, y], &[], "").unwrap();
        let outcome = lowered(device, &KernelRegistry::new(), &graph).map(|_| ());
        let refused = matches!(
            outcome,
            Err(GpuError::PackedWeights { .. } | GpuError::TransferOutOfBounds { .. })
        );
        assert!(refused, "{dtype}: {outcome:?}");
    }
}

#[test]
fn views_that_lie_about_weights_are_refused_on_the_cpu() {
    views_that_lie_about_weights_are_refused(&CpuDevice::with_threads(2));
}

pub fn misaligned_and_overlapping_operands_are_refused(device: &dyn Device) {
    let buffer = device.upload(&[0.0_f32; 64]).unwrap();
    let layout = Layout::new(DType::F32, &[8]).unwrap();
    let at = |offset| buffer.view(offset, layout).unwrap();
    for offset in [1, 2, 3] {
        let outcome = copy(device, at(offset), at(128));
        assert!(matches!(outcome, Err(GpuError::Misaligned { .. })), "{offset}: {outcome:?}");
    }
    for offset in [0, 4, 28] {
        let outcome = copy(device, at(0), at(offset));
        assert!(matches!(outcome, Err(GpuError::OperandOverlap { .. })), "{offset}: {outcome:?}");
    }
    copy(device, at(0), at(32)).unwrap();
}

#[test]
fn misaligned_and_overlapping_operands_are_refused_on_the_cpu() {
    misaligned_and_overlapping_operands_are_refused(&CpuDevice::with_threads(2));
}

/// A direct session stays usable after what it refused.
pub fn a_session_goes_on_after_a_refusal(executor: &GraphExecutor) {
    let device = executor.device();
    let buffer = device.upload(&[3.0_f32; 16]).unwrap();
    let layout = Layout::new(DType::F32, &[8]).unwrap();
    let (x, behind) = (buffer.view(0, layout).unwrap(), buffer.view(4, layout).unwrap());
    let mut pass = executor.begin().unwrap();
    assert!(matches!(pass.copy_into(x, behind), Err(GpuError::OperandOverlap { .. })));
    let y = pass.scale(x, 2.0).unwrap();
    let result = pass.finish().unwrap();
    assert_eq!(result.read_f32(y).unwrap(), [6.0; 8]);
    assert_eq!(buffer.read_vec::<f32>(0, 16).unwrap(), [3.0; 16]);
}

#[test]
fn a_session_goes_on_after_a_refusal_on_the_cpu() {
    a_session_goes_on_after_a_refusal(&GraphExecutor::cpu());
}
