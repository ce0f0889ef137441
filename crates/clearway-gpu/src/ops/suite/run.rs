//! Runs one case on a device and holds the result against the reference.

use clearway_graph::fuse::RULES;
use clearway_graph::{
    BarrierReason, BindingRole, CapturedOpKind as Kind, CommandEncoder, DType, Dispatch, Epilogue,
    FusedRequest, PlainInput, PlainShape, Product, Slot, TensorView,
};

use super::heads::{Heads, float_of, largest_angle};
use super::memory::{self, Prepared};
use super::tolerance::{
    OF_HALF_WEIGHTS, OF_HALVES, OF_ROUNDED, ROUNDING_DEVIATIONS, Scale, Tolerance, ULP, Weights,
    smallest_step, storage_error, tolerance,
};
use super::unfused::Plain;
use super::{OpCase, OperandSpec};
use crate::device::{Buffer, Device, Encoder, Upload};
use crate::error::GpuError;
use crate::ops::map::slope;
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
    /// Runs: with weights as files have them, and in the device's order. A fused kernel may read only
    /// the one or the other.
    pub runs: u32,
}

/// Runs a case and compares.
///
/// # Errors
/// What is wrong, in words: an error of the device, a result that is off, a byte that should not have
/// changed.
pub fn run_case(device: &dyn Device, case: &OpCase) -> Result<Outcome, String> {
    run(device, case, false)
}

/// Runs the plain ops that a fused product stands for and compares with what is allowed to the
/// product; any other case as [`run_case`].
///
/// # Errors
/// As [`run_case`].
pub fn run_case_unfused(device: &dyn Device, case: &OpCase) -> Result<Outcome, String> {
    run(device, case, true)
}

fn run(device: &dyn Device, case: &OpCase, unfused: bool) -> Result<Outcome, String> {
    let prepared = Prepared::new(case)?;
    let expected = reference(case.kind, &prepared.operands, &case.params)
        .map_err(|error| format!("the reference refuses it: {error}"))?;
    let mut outcome = Outcome::default();
    let weights = weights(case.kind);
    let whole = !weights.is_empty() && weights.iter().all(|&i| is_dense(&case.operands[i]));
    for uploaded in [&[][..], &weights].into_iter().take(1 + usize::from(whole)) {
        let after = execute(device, case, &prepared.buffers, uploaded, unfused);
        let Some(after) = after.map_err(|error| error.to_string())? else { continue };
        outcome.runs += 1;
        judge(device, case, &prepared, &expected, &after, &mut outcome).map_err(|wrong| {
            let how = if uploaded.is_empty() { "" } else { "weights in the device's order: " };
            format!("{how}{wrong}")
        })?;
    }
    Ok(outcome)
}

/// Whether a case comes from the stages alone: a device need not have a kernel for it.
fn is_fused(case: &OpCase) -> bool {
    is_rounded(case) || RULES.iter().any(|rule| rule.fused == case.kind)
}

/// Whether something in it has a form that stages give to values.
fn is_rounded(case: &OpCase) -> bool {
    case.operands.iter().any(|operand| operand.dtype.is_form())
}

/// Holds the buffers after a run against what is expected.
fn judge(
    device: &dyn Device,
    case: &OpCase,
    prepared: &Prepared,
    expected: &[RefTensor],
    after: &[Vec<u8>],
    outcome: &mut Outcome,
) -> Result<(), String> {
    let results = written(case);
    check_surroundings(&results, &prepared.buffers, after)?;
    for (&(index, spec), expected) in results.iter().zip(expected) {
        let found = memory::read(spec, &after[spec.buffer])?;
        let before = &prepared.operands[index].data;
        let allowed = allowed_errors(device, case, &prepared.operands, index, expected)?;
        for elem in 0..expected.data.len() {
            // A number that is written may be what was there; a chunk of them hardly is.
            let unit = if spec.dtype == DType::C8 { 32 } else { 1 };
            let chunk = elem / unit * unit..(elem / unit + 1) * unit;
            let is_kept = before.get(chunk.clone()) == expected.data.get(chunk);
            let kept = before.get(elem).copied().filter(|_| is_kept);
            let share = compare(found[elem], expected.data[elem], kept, allowed[elem], spec.dtype)
                .map_err(|wrong| format!("operand {index}, element {elem}: {wrong}"))?;
            let narrow = spec.dtype.block_bytes() == 2;
            let worst = if narrow { &mut outcome.share_16 } else { &mut outcome.share };
            *worst = worst.max(share);
        }
    }
    Ok(())
}

/// The operands that hold weights, if the op takes any.
fn weights(kind: Kind) -> Vec<usize> {
    kind.spec().map(|spec| spec.matrices().collect()).unwrap_or_default()
}

/// Whether an operand could be a tensor of a model file.
fn is_dense(spec: &OperandSpec) -> bool {
    spec.layout().is_ok_and(|layout| layout.is_dense())
}

/// The operands that are written, with their indices.
fn written(case: &OpCase) -> Vec<(usize, &OperandSpec)> {
    let operands = case.operands.iter().enumerate().zip(case.roles());
    operands.filter(|(_, role)| *role != BindingRole::Read).map(|(operand, _)| operand).collect()
}

/// Records the op, lowers the list and runs it; returns the buffers afterwards, or nothing where the
/// device says that it has no such fused kernel. Operands `weights` are uploaded as the device likes
/// them best, each to a buffer of its own.
fn execute(
    device: &dyn Device,
    case: &OpCase,
    before: &[Vec<u8>],
    weights: &[usize],
    unfused: bool,
) -> Result<Option<Vec<Vec<u8>>>, GpuError> {
    let buffers: Vec<Buffer> =
        before.iter().map(|bytes| device.upload(bytes)).collect::<Result<_, _>>()?;
    let mut views: Vec<TensorView> = case
        .operands
        .iter()
        .map(|spec| buffers[spec.buffer].view(spec.offset, spec.layout()?))
        .collect::<Result<_, _>>()?;
    let mut uploaded = Vec::new();
    for &index in weights {
        let spec = &case.operands[index];
        let (layout, start) = (spec.layout()?, spec.offset as usize);
        let bytes = &before[spec.buffer][start..start + layout.span_bytes() as usize];
        let buffer = device.upload_weights(&layout, bytes)?;
        views[index] = buffer.view(0, layout)?;
        uploaded.push(buffer);
    }
    let request = FusedRequest { kind: case.kind, bindings: &views, params: &case.params };
    // Nobody records something that is rounded.
    let asked = if unfused { is_rounded(case) } else { is_fused(case) };
    if asked && !device.has_fused(&request) {
        return Ok(None);
    }
    let mut list = Plain::new(device);
    if !unfused || is_rounded(case) || !list.record(case, &views)? {
        record(&mut list.graph, case.kind, &views, &case.params, "op suite")?;
    }
    let graph = &mut list.graph;
    graph.place_barriers();
    let mut encoder = Sink(device.encoder(&KernelRegistry::new()));
    graph.encode_sequential(&mut encoder)?;
    encoder.commit()?;
    encoder.0.wait()?;
    let after: Result<_, _> = before
        .iter()
        .zip(&buffers)
        .map(|(bytes, buffer)| buffer.read_vec(0, bytes.len()))
        .collect();
    after.map(Some)
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
    device: &dyn Device,
    case: &OpCase,
    operands: &[RefTensor],
    result: usize,
    expected: &RefTensor,
) -> Result<Vec<f64>, String> {
    if case.kind.product().is_some_and(|product| product.epilogue().norm) {
        return allowed_of_norm(device, case, operands, result, expected);
    }
    let Tolerance { scale, mut limit, on_the_way } = tolerance_of(device, case, result)?;
    limit += Heads::of(case.kind, operands, &case.params).map_or(0.0, |heads| heads.turn_limit());
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
                Kind::Attention | Kind::AttentionSinks => {
                    largest_attention_score(operands, &case.params)
                }
                _ => largest_angle(&operands[1], &operands[2], &case.params),
            };
            rows.iter().map(|row| row * (1.0 + factor)).collect()
        }
        Scale::Magnitude | Scale::Rounded | Scale::Chain | Scale::RoundedChain => {
            magnitudes(case, operands)?
        }
    };
    let rounding = match scale {
        Scale::Rounded | Scale::RoundedChain => roundings(case, operands)?,
        Scale::Magnitude | Scale::Chain if has_half_minimums(case) => minimums(operands)?,
        _ => vec![0.0; rows.len()],
    };
    let on_the_way: Vec<f64> = match scale {
        Scale::Chain | Scale::RoundedChain => scales.iter().map(|s| on_the_way * s).collect(),
        _ => rows.iter().map(|row| on_the_way * row).collect(),
    };
    let elems = expected.data.iter().zip(on_the_way).zip(scales).zip(rounding);
    let mut allowed: Vec<f64> = elems
        .map(|(((v, on_the_way), scale), rounding)| {
            limit * scale + rounding + on_the_way + relative * v.abs() + floor
        })
        .collect();
    match dtype {
        DType::A8 => add_half_steps(&expected.data, &mut allowed),
        DType::C8 => add_half_steps_of_cache(&expected.data, &mut allowed),
        _ => {}
    }
    Ok(allowed)
}

/// Half a step of a rounded result, whose scale is off by as much as the largest number of the chunk may be.
fn add_half_steps(expected: &[f64], allowed: &mut [f64]) {
    let largest = |row: &[f64]| row.iter().fold(0.0_f64, |max, v| max.max(v.abs()));
    for (chunk, allowed) in expected.chunks(32).zip(allowed.chunks_mut(32)) {
        let top = largest(chunk) + largest(allowed);
        // What is between two steps may go either way, by the rounding of the number that is rounded.
        allowed.iter_mut().for_each(|allowed| *allowed += top * (1.0 / 254.0 + 4.0 * ULP));
    }
}

/// The same of a cache, whose scales are f16, rounded either way, and no less than the least normal one.
fn add_half_steps_of_cache(expected: &[f64], allowed: &mut [f64]) {
    let largest = |row: &[f64]| row.iter().fold(0.0_f64, |max, v| max.max(v.abs()));
    for (chunk, allowed) in expected.chunks(32).zip(allowed.chunks_mut(32)) {
        let scale = (largest(chunk) + largest(allowed)) / 127.0 * (1.0 + storage_error(DType::F16));
        let step = scale.max(f64::from(half::f16::MIN_POSITIVE));
        allowed.iter_mut().for_each(|allowed| *allowed += step * (0.5 + 256.0 * ULP));
    }
}

/// For each element of a product with a residual, or of the norm of that, how far it may be off.
fn allowed_of_norm(
    device: &dyn Device,
    case: &OpCase,
    operands: &[RefTensor],
    result: usize,
    expected: &RefTensor,
) -> Result<Vec<f64>, String> {
    let last = operands.len() - 1;
    let sum = RefTensor::output(DType::F32, &operands[last].shape);
    let in_front = [&operands[..3], &[sum]].concat();
    let with_add = Product::PLAIN.with_epilogue(Epilogue { add: true, ..Epilogue::NONE });
    let kind = Kind::Product(with_add.unwrap_or(Product::PLAIN));
    let sums = reference(kind, &in_front, &[]).map_err(|error| error.to_string())?;
    let mut specs = case.operands[..3].to_vec();
    specs.push(OperandSpec { dtype: DType::F32, ..case.operands[last].clone() });
    let product = OpCase { kind, operands: specs, params: vec![], seed: 0 };
    let moved = allowed_errors(device, &product, &in_front, 3, &sums[0])?;
    if result < last {
        return Ok(moved);
    }
    // The root of a row is off by as much as its sums together are.
    let cols = expected.cols();
    let mean = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>() / cols as f64;
    let eps = f64::from(f32::from_bits(case.params[0]));
    let mut allowed = Vec::with_capacity(moved.len());
    for (sums, moved) in sums[0].data.chunks(cols).zip(moved.chunks(cols)) {
        let root = (mean(sums) + eps).sqrt();
        let spread = mean(moved).sqrt() / root + 8.0 * ULP;
        let elems = sums.iter().zip(moved).zip(&operands[3].data);
        allowed.extend(
            elems.map(|((sum, moved), weight)| (moved + sum.abs() * spread) * weight.abs() / root),
        );
    }
    add_half_steps(&expected.data, &mut allowed);
    Ok(allowed)
}

/// The row of the table for a result. A sum that is kept on the way to a norm is an `add`.
fn tolerance_of(device: &dyn Device, case: &OpCase, result: usize) -> Result<Tolerance, String> {
    let kept_sum = matches!(case.kind, Kind::AddRmsNorm | Kind::AddRmsNormMul)
        && result + 1 < case.operands.len();
    let kind = if kept_sum { Kind::ADD } else { case.kind };
    // Of two weights the one in blocks counts.
    let matrices = weights(case.kind);
    let dtypes = || matrices.iter().map(|&index| case.operands[index].dtype);
    let blocks = dtypes().find(|dtype| dtype.is_quantised());
    // What comes rounded is not rounded again.
    let rounds = device.quantises_activations() && !source(case).dtype.is_form();
    let weights =
        blocks.or(dtypes().next()).map_or(Weights::None, |dtype| Weights::of(dtype, rounds));
    let activations = if kind == Kind::Gather { &case.operands[2] } else { source(case) };
    let mut tolerance = tolerance(kind, activations.dtype, weights)
        .ok_or_else(|| format!("the table of tolerances has no row for {kind:?}"))?;
    if source(case).dtype == DType::A8 {
        tolerance.limit *= OF_ROUNDED;
    }
    // Rows of experts that come in order are multiplied as f16, too.
    let ordered = kind == Kind::MatMulExperts && case.operands.len() == 5;
    if source(case).dtype == DType::A16 || (ordered && device.multiplies_halves()) {
        tolerance.limit = tolerance.limit.max(OF_HALF_WEIGHTS);
    }
    let attends = matches!(kind, Kind::Attention | Kind::AttentionSinks);
    if attends && device.multiplies_halves() {
        tolerance.limit = tolerance.limit.max(OF_HALVES);
    }
    Ok(tolerance)
}

/// The operand whose type is that of the activations.
fn source(case: &OpCase) -> &OperandSpec {
    &case.operands[0]
}

/// What the op gives for the magnitudes of its operands.
fn magnitudes(case: &OpCase, given: &[RefTensor]) -> Result<Vec<f64>, String> {
    let mut operands = given.to_vec();
    for value in operands.iter_mut().flat_map(|operand| &mut operand.data) {
        *value = value.abs();
    }
    if source(case).dtype == DType::A8 {
        weights(case.kind).iter().for_each(|&index| take_largest_of_runs(&mut operands[index]));
    }
    let heads = Heads::of(case.kind, given, &case.params);
    if let Some(heads) = &heads {
        return heads.bounds(heads.product_of(&operands, &case.params)?);
    }
    let results = reference(case.kind, &operands, &case.params);
    let mut results = results.map_err(|error| error.to_string())?;
    Ok(results.pop().map(|result| result.data).unwrap_or_default())
}

/// Replaces each magnitude of block weights by the largest of its run of 32. Quants and minimums are summed apart
/// where activations come as 8 bits: the two sums are as large as the run's range, however small a weight is left
/// of their difference, and a large activation may meet just that weight.
fn take_largest_of_runs(weights: &mut RefTensor) {
    if weights.dtype.is_quantised() {
        for run in weights.data.chunks_mut(32) {
            run.fill(run.iter().copied().fold(0.0, f64::max));
        }
    }
}

/// Whether runs of weights have minimums that kernels may round to f16: the error is a part of the minimum, which may be far
/// larger than a weight.
fn has_half_minimums(case: &OpCase) -> bool {
    source(case).dtype == DType::A16
        && case.kind.product().is_some_and(|product| product.is_basic())
        && matches!(case.operands[1].dtype, DType::Q2_K | DType::Q4_K | DType::Q5_K)
}

/// For each element of a product, how far rounding the minimums of its weights to f16 may move it. A minimum meets the sum
/// of a run's inputs.
fn minimums(operands: &[RefTensor]) -> Result<Vec<f64>, String> {
    let [x, w, .., y] = operands else { return Ok(Vec::new()) };
    let (mut x, mut w) = (x.clone(), w.clone());
    for run in x.data.chunks_mut(16) {
        let mean = run.iter().sum::<f64>().abs() / run.len() as f64;
        run.fill(mean);
    }
    w.data.iter_mut().for_each(|value| *value = value.abs());
    take_largest_of_runs(&mut w);
    let y = RefTensor { dtype: float_of(y.dtype), ..y.clone() };
    let results = reference(Kind::MATMUL, &[x, w, y], &[]);
    let sums = results.map_err(|error| error.to_string())?.pop();
    let sums = sums.map(|sums| sums.data).unwrap_or_default();
    Ok(sums.into_iter().map(|sum| OF_HALF_WEIGHTS * sum).collect())
}

/// For each element of a product, how far rounding its inputs to 8 bits may move it.
fn roundings(case: &OpCase, operands: &[RefTensor]) -> Result<Vec<f64>, String> {
    let compute = |kind: Kind, operands: &[RefTensor]| {
        let result = reference(kind, operands, &[]).map_err(|error| error.to_string());
        result.map(|mut results| results.pop().map(|result| result.data).unwrap_or_default())
    };
    let Some(y) = operands.last() else { return Ok(Vec::new()) };
    let heads = Heads::of(case.kind, operands, &case.params);
    // Products on the way are floats.
    let y = RefTensor { dtype: float_of(y.dtype), ..y.clone() };
    let y = &heads.as_ref().map_or(y, Heads::product);
    match (case.kind, operands) {
        (Kind::MatMulExperts, [x, w, ids, ..]) => {
            rounded(x, w, |x, w| compute(case.kind, &[x, w, ids.clone(), y.clone()]))
        }
        (Kind::Product(parts), _) => {
            let get = |slot| parts.operand(slot, operands.len()).map(|index| &operands[index]);
            let x = &operands[0];
            // What is rounded: the rows themselves, or those of the norm in front.
            let rows = match get(Slot::NormWeight) {
                None => x.clone(),
                Some(g) => {
                    let operands =
                        [x.clone(), g.clone(), RefTensor { data: Vec::new(), ..x.clone() }];
                    let mut normed = reference(Kind::RmsNormMul, &operands, &case.params[..1])
                        .map_err(|error| error.to_string())?;
                    normed.remove(0)
                }
            };
            let product = |x: RefTensor, w: RefTensor| match get(Slot::Ids) {
                Some(ids) => compute(Kind::MatMulExperts, &[x, w, ids.clone(), y.clone()]),
                None => compute(Kind::MATMUL, &[x, w, y.clone()]),
            };
            let tensor = |data: Vec<f64>| RefTensor { data, ..y.clone() };
            // What each plain op gives, and how far that may have moved.
            let mut given: Vec<(Vec<f64>, Vec<f64>)> = Vec::new();
            for op in parts.plain_ops() {
                let input = |index: usize| match op.inputs[index] {
                    PlainInput::Op(earlier) => given[earlier].clone(),
                    PlainInput::Slot(slot) => {
                        let values = get(slot).map(|operand| operand.data.clone());
                        let values = values.unwrap_or_default();
                        let still = vec![0.0; values.len()];
                        (values, still)
                    }
                };
                given.push(match (op.shape, op.kind) {
                    (PlainShape::Input, _) => (rows.data.clone(), vec![0.0; rows.data.len()]),
                    (_, Kind::MATMUL | Kind::MatMulExperts) => {
                        let PlainInput::Slot(slot) = op.inputs[1] else { continue };
                        let w = get(slot).ok_or("a product without weights")?;
                        let values = product(rows.clone(), w.clone())?;
                        let moved = match w.dtype.is_quantised() {
                            true => rounded(&rows, w, product)?,
                            false => vec![0.0; values.len()],
                        };
                        (values, moved)
                    }
                    (_, Kind::ADD) => {
                        let ((a, moved), (b, _)) = (input(0), input(1));
                        let values = compute(op.kind, &[tensor(a), row_or_full(b, y), y.clone()])?;
                        (values, moved)
                    }
                    (_, Kind::MUL) => {
                        let ((a, by_a), (b, by_b)) = (input(0), input(1));
                        let moved = (0..a.len())
                            .map(|i| by_a[i] * (b[i].abs() + by_b[i]) + a[i].abs() * by_b[i]);
                        let moved = moved.collect();
                        (a.iter().zip(&b).map(|(a, b)| a * b).collect(), moved)
                    }
                    (_, Kind::Map(map)) => {
                        let (x, by) = input(0);
                        let values = compute(op.kind, &[tensor(x.clone()), y.clone()])?;
                        let moved = x.iter().zip(&by).map(|(x, by)| {
                            slope(map, x.abs() + by).map_or(f64::INFINITY, |slope| slope * by)
                        });
                        let moved = moved.collect();
                        (values, moved)
                    }
                    // Heads are turned and stored as a whole.
                    (PlainShape::Heads | PlainShape::Cache, _) => break,
                    (PlainShape::Product, _) => return Ok(Vec::new()),
                });
            }
            let moved = given.pop().map(|(_, moved)| moved).unwrap_or_default();
            heads.map_or(Ok(moved.clone()), |heads| heads.bounds(moved))
        }
        _ => Ok(Vec::new()),
    }
}

/// A tensor of the shape of `y`, or one row of it.
fn row_or_full(data: Vec<f64>, y: &RefTensor) -> RefTensor {
    let full = data.len() == y.shape.iter().product::<usize>();
    let shape = if full { y.shape.clone() } else { vec![data.len()] };
    RefTensor { data, ..RefTensor::output(y.dtype, &shape) }
}

/// How far a product moves when its inputs are rounded to 8 bits by runs of 32.
fn rounded(
    x: &RefTensor,
    w: &RefTensor,
    product: impl Fn(RefTensor, RefTensor) -> Result<Vec<f64>, String>,
) -> Result<Vec<f64>, String> {
    let sums = |power: i32| {
        let (mut x, mut w) = (x.clone(), w.clone());
        for run in x.data.chunks_mut(32) {
            // Half a step: the largest magnitude is 127 steps.
            let half = run.iter().fold(0.0, |max: f64, v| max.max(v.abs())) / 254.0;
            run.fill(half.powi(power));
        }
        w.data.iter_mut().for_each(|w| *w = w.abs().powi(power));
        product(x, w)
    };
    // The variance of an even spread is a third of its half width squared.
    let deviations = sums(2)?.into_iter().map(|sum| (sum / 3.0).sqrt());
    let worst = sums(1)?;
    Ok(deviations.zip(worst).map(|(d, worst)| worst.min(ROUNDING_DEVIATIONS * d)).collect())
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
