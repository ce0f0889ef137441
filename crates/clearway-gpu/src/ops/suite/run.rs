//! Runs one case on a device and holds the result against the reference.

use clearway_graph::{
    BarrierReason, BindingRole, CapturedOpKind as Kind, CommandEncoder, ComputeGraph, DType,
    Dispatch, TensorView,
};

use super::memory::{self, Prepared};
use super::tolerance::{Scale, Tolerance, Weights, smallest_step, storage_error, tolerance};
use super::{OpCase, OperandSpec};
use crate::device::{Buffer, Device, Encoder, Upload};
use crate::error::GpuError;
use crate::ops::reference::{RefTensor, reference};
use crate::record::record;
use crate::registry::KernelRegistry;

/// A case that passed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Largest error in a result of 32 bits, as a part of what the table allows.
    pub share: f64,
    /// Largest error in a result of 16 bits, as a part of what the table allows.
    pub share_16: f64,
}

/// Runs a case and compares.
///
/// # Errors
/// What is wrong, in words: an error of the device, a result that is off, a byte that should not have
/// changed.
pub fn run_case(device: &dyn Device, case: &OpCase) -> Result<Outcome, String> {
    let prepared = Prepared::new(case)?;
    let expected = reference(case.kind, &prepared.operands, &case.params)
        .map_err(|error| format!("the reference refuses it: {error}"))?;
    let after = execute(device, case, &prepared.buffers).map_err(|error| error.to_string())?;
    let results = written(case);
    check_surroundings(&results, &prepared.buffers, &after)?;

    let mut outcome = Outcome::default();
    for (&(index, spec), expected) in results.iter().zip(&expected) {
        let found = memory::read(spec, &after[spec.buffer])?;
        let before = &prepared.operands[index].data;
        let allowed = allowed_errors(case, &prepared.operands, index, expected)?;
        for elem in 0..expected.data.len() {
            let kept = before.get(elem).copied();
            let share = compare(found[elem], expected.data[elem], kept, allowed[elem], spec.dtype)
                .map_err(|wrong| format!("operand {index}, element {elem}: {wrong}"))?;
            let narrow = spec.dtype.block_bytes() == 2;
            let worst = if narrow { &mut outcome.share_16 } else { &mut outcome.share };
            *worst = worst.max(share);
        }
    }
    Ok(outcome)
}

/// The operands that are written, with their indices.
fn written(case: &OpCase) -> Vec<(usize, &OperandSpec)> {
    let operands = case.operands.iter().enumerate().zip(case.roles());
    operands.filter(|(_, role)| *role != BindingRole::Read).map(|(operand, _)| operand).collect()
}

/// Records the op, lowers the list and runs it; returns the buffers afterwards.
fn execute(
    device: &dyn Device,
    case: &OpCase,
    before: &[Vec<u8>],
) -> Result<Vec<Vec<u8>>, GpuError> {
    let buffers: Vec<Buffer> =
        before.iter().map(|bytes| device.upload(bytes)).collect::<Result<_, _>>()?;
    let views: Vec<TensorView> = case
        .operands
        .iter()
        .map(|spec| buffers[spec.buffer].view(spec.offset, spec.layout()?))
        .collect::<Result<_, _>>()?;
    let mut graph = ComputeGraph::new();
    record(&mut graph, case.kind, &views, &case.params, "op suite")?;
    graph.place_barriers();
    let mut encoder = Sink(device.encoder(&KernelRegistry::new()));
    graph.encode_sequential(&mut encoder)?;
    encoder.commit()?;
    encoder.0.wait()?;
    before
        .iter()
        .zip(&buffers)
        .map(|(bytes, buffer)| buffer.read_vec::<u8>(0, bytes.len()))
        .collect()
}

/// Encoding functions take encoders of known size.
struct Sink(Box<dyn Encoder>);

impl CommandEncoder for Sink {
    type Error = GpuError;

    fn dispatch(&mut self, dispatch: &Dispatch) -> Result<(), GpuError> {
        self.0.dispatch(dispatch)
    }

    fn barrier(&mut self, reason: &BarrierReason) -> Result<(), GpuError> {
        self.0.barrier(reason)
    }

    fn commit(&mut self) -> Result<(), GpuError> {
        self.0.commit()
    }

    fn orders_commits(&self) -> bool {
        self.0.orders_commits()
    }
}

/// Every byte that is not an element of a result must be what it was.
fn check_surroundings(
    results: &[(usize, &OperandSpec)],
    before: &[Vec<u8>],
    after: &[Vec<u8>],
) -> Result<(), String> {
    for (buffer, (before, after)) in before.iter().zip(after).enumerate() {
        let mut expected = before.clone();
        for (_, spec) in results.iter().filter(|(_, spec)| spec.buffer == buffer) {
            for (start, end) in memory::runs(spec) {
                expected[start..end].copy_from_slice(&after[start..end]);
            }
        }
        if let Some(byte) = (0..expected.len()).find(|&i| expected[i] != after[i]) {
            let (was, is) = (before[byte], after[byte]);
            return Err(format!(
                "byte {byte} of buffer {buffer} belongs to no result, but {was:#04x} became {is:#04x}"
            ));
        }
    }
    Ok(())
}

/// The error of one element as a part of what is allowed, or what is wrong with it.
fn compare(
    found: f64,
    expected: f64,
    kept: Option<f64>,
    allowed: f64,
    dtype: DType,
) -> Result<f64, String> {
    // Beyond the largest number of the type, rounding either way is right.
    let expected = if dtype == DType::F16 && expected.abs() > 65504.0 && found.is_infinite() {
        f64::INFINITY.copysign(expected)
    } else {
        expected
    };
    if found == expected || (found.is_nan() && expected.is_nan()) {
        return Ok(0.0);
    }
    let error = (found - expected).abs();
    // What the reference leaves alone must keep its bits.
    let allowed = if kept == Some(expected) { 0.0 } else { allowed };
    if error <= allowed {
        return Ok(error / allowed);
    }
    Err(format!("{found:e} instead of {expected:e}, off by {error:.3e}, {allowed:.3e} allowed"))
}

/// For each element of a result, how far it may be off.
fn allowed_errors(
    case: &OpCase,
    operands: &[RefTensor],
    result: usize,
    expected: &RefTensor,
) -> Result<Vec<f64>, String> {
    let Tolerance { scale, limit, on_the_way } = tolerance_of(case, result)?;
    let dtype = expected.dtype;
    let moved = scale == Scale::Moved && source(case).dtype == dtype;
    let (relative, floor) =
        if moved { (0.0, 0.0) } else { (storage_error(dtype), smallest_step(dtype)) };
    if dtype == DType::U32 {
        return Ok(vec![0.0; expected.data.len()]);
    }
    let largest = |row: &[f64]| row.iter().fold(0.0_f64, |max, v| max.max(v.abs()));
    let rows: Vec<f64> = expected
        .data
        .chunks(expected.cols())
        .flat_map(|row| std::iter::repeat_n(largest(row), row.len()))
        .collect();
    let scales: Vec<f64> = match scale {
        Scale::Moved => vec![0.0; rows.len()],
        Scale::Element => expected.data.iter().map(|v| v.abs()).collect(),
        Scale::Row => rows.clone(),
        Scale::Score | Scale::Angle => {
            let factor = match case.kind {
                Kind::Softmax => largest_score(operands, &case.params),
                Kind::Attention => largest_attention_score(operands, &case.params),
                _ => largest_angle(operands, &case.params),
            };
            rows.iter().map(|row| row * (1.0 + factor)).collect()
        }
        Scale::Magnitude => magnitudes(case, operands)?,
    };
    let elems = expected.data.iter().zip(rows).zip(scales);
    Ok(elems
        .map(|((v, row), scale)| limit * scale + on_the_way * row + relative * v.abs() + floor)
        .collect())
}

/// The row of the table for a result. A sum that is kept on the way to a norm is an `add`.
fn tolerance_of(case: &OpCase, result: usize) -> Result<Tolerance, String> {
    let kept_sum = matches!(case.kind, Kind::AddRmsNorm | Kind::AddRmsNormMul)
        && result + 1 < case.operands.len();
    let kind = if kept_sum { Kind::Add } else { case.kind };
    let weights = match kind {
        Kind::Gather => Weights::of(case.operands[0].dtype),
        Kind::MatMul | Kind::MatMulAdd | Kind::MatMulExperts => Weights::of(case.operands[1].dtype),
        _ => Weights::None,
    };
    let activations = if kind == Kind::Gather { &case.operands[2] } else { source(case) };
    tolerance(kind, activations.dtype, weights)
        .ok_or_else(|| format!("the table of tolerances has no row for {kind:?}"))
}

/// The operand whose type is that of the activations.
fn source(case: &OpCase) -> &OperandSpec {
    &case.operands[0]
}

/// What the op gives for the magnitudes of its operands.
fn magnitudes(case: &OpCase, operands: &[RefTensor]) -> Result<Vec<f64>, String> {
    let mut operands = operands.to_vec();
    for value in operands.iter_mut().flat_map(|operand| &mut operand.data) {
        *value = value.abs();
    }
    let mut results =
        reference(case.kind, &operands, &case.params).map_err(|error| error.to_string())?;
    Ok(results.pop().map(|result| result.data).unwrap_or_default())
}

/// Largest finite score of a softmax.
fn largest_score(operands: &[RefTensor], params: &[u32]) -> f64 {
    let scale = f64::from(f32::from_bits(params[0]));
    let largest = |values: &[f64]| {
        values.iter().filter(|v| v.is_finite()).fold(0.0, |max: f64, v| max.max(v.abs()))
    };
    largest(&operands[0].data) * scale.abs() + largest(&operands[1].data)
}

/// A bound of the scores of attention: the longest query times the longest key.
fn largest_attention_score(operands: &[RefTensor], params: &[u32]) -> f64 {
    let scale = f64::from(f32::from_bits(params[0]));
    let longest = |rows: &RefTensor| {
        let squares = rows.data.chunks(rows.cols()).map(|row| row.iter().map(|v| v * v).sum());
        squares.fold(0.0, f64::max).sqrt()
    };
    longest(&operands[0]) * longest(&operands[1]) * scale.abs()
}

/// Largest angle a rotary op turns a pair by.
fn largest_angle(operands: &[RefTensor], params: &[u32]) -> f64 {
    let (positions, factors) = (&operands[1].data, &operands[2].data);
    let base = f64::from(f32::from_bits(params[2]));
    let scale = f64::from(f32::from_bits(params[3]));
    let position = positions.iter().copied().fold(0.0, f64::max);
    let frequency = factors
        .iter()
        .enumerate()
        .map(|(pair, factor)| (base.powf(-2.0 * pair as f64 / f64::from(params[0])) / factor).abs())
        .fold(0.0, f64::max);
    (position * scale * frequency).abs()
}
