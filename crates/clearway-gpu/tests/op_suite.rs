//! Every op on the CPU against the scalar reference, and proof that the suite can fail.
#![allow(clippy::unwrap_used)] // shared functions are not tests in clippy's eyes

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use clearway_gpu::cpu::{CpuDevice, CpuOptions};
use clearway_gpu::ops::suite::{self, DEFAULT_SEED, OpCase, Summary};
use clearway_gpu::ops::{self, OPS, ParamKind};
use clearway_gpu::{Buffer, Device, DeviceInfo, Encoder, KernelRegistry, Program, Result};
use clearway_graph::testkit::kind;
use clearway_graph::testkit::say;
use clearway_graph::{
    BarrierReason, BindingRole, CapturedOpKind as Kind, CommandEncoder, DType, Dispatch,
    FusedRequest, Product, TensorView,
};
use half::{bf16, f16};

/// Cases with a kernel on the CPU: the list less products that hold a norm, a gate or rounded rows.
const FEWEST_PASSED: usize = 2_000;

#[test]
fn every_op_agrees_with_the_reference_on_the_cpu() {
    let seed = std::env::var("CLEARWAY_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or(DEFAULT_SEED);
    let device = CpuDevice::new();
    let start = std::time::Instant::now();
    let cases = suite::cases(seed);
    let summary = suite::run_cases(&device, &cases);
    let seconds = start.elapsed().as_secs_f64();
    println!("CLEARWAY_SEED={seed} on {}: {seconds:.1} s\n{summary}", device.info().name);
    assert!(summary.failed.is_empty(), "{} cases failed", summary.failed.len());
    let (passed, skipped) = (summary.passed, summary.skipped);
    say(&format!(
        "counted: op suite on the CPU: {passed} cases passed, {skipped} without a kernel"
    ));
    assert!(passed >= FEWEST_PASSED, "{passed} cases passed, at least {FEWEST_PASSED} must");
    // What has no kernel is counted as skipped, and nothing else is.
    for (op, count) in OPS.iter().zip(&summary.ops) {
        let (ran, skipped) = (count.passed > 0, count.skipped > 0);
        let formed = cases.iter().any(|case| case.kind == op.kind && is_rounded(case));
        assert_eq!((ran, skipped), (on_cpu(op.kind), !on_cpu(op.kind) || formed), "{}", op.name);
    }
}

#[test]
fn products_with_float_activations_are_exact() {
    let options = CpuOptions { float_activations: true, ..CpuOptions::default() };
    let device = CpuDevice::with_options(options);
    assert!(!device.quantises_activations());
    let blocks = |case: &OpCase| {
        runs_on_cpu(case) && case.operands.iter().any(|operand| operand.dtype.is_quantised())
    };
    let blocks: Vec<OpCase> = suite::cases(DEFAULT_SEED).into_iter().filter(blocks).collect();
    let summary = suite::run_cases(&device, &blocks);
    assert!(summary.failed.is_empty(), "{summary}");
    assert_eq!((summary.passed, summary.skipped), (blocks.len(), 0));
}

/// Whether the CPU has a kernel for a case: of those it has for the op, for all in which nothing is rounded
/// between products.
fn runs_on_cpu(case: &OpCase) -> bool {
    on_cpu(case.kind) && !is_rounded(case)
}

fn is_rounded(case: &OpCase) -> bool {
    case.operands.iter().any(|operand| operand.dtype.is_form())
}

/// Whether the CPU has a kernel for an op: for all but products that hold a norm or a gate.
fn on_cpu(kind: Kind) -> bool {
    kind.product().is_none_or(Product::is_basic)
}

#[test]
fn plain_ops_stay_within_what_fused_products_are_allowed() {
    let device = CpuDevice::new();
    let mut products = suite::cases(DEFAULT_SEED);
    products.retain(|case| !on_cpu(case.kind) && !is_rounded(case));
    let mut worst: BTreeMap<Kind, (f64, f64)> = BTreeMap::new();
    for case in &products {
        let outcome = suite::run_case_unfused(&device, case);
        let outcome = outcome.unwrap_or_else(|wrong| panic!("{case}: {wrong}"));
        assert!(outcome.runs > 0, "{case}");
        let worst = worst.entry(case.kind).or_default();
        *worst = (worst.0.max(outcome.share), worst.1.max(outcome.share_16));
    }
    println!("{} cases, largest error of what is allowed: {worst:?}", products.len());
    let fused = Product::all().iter().filter(|p| !p.is_basic() && !p.epilogue().norm).count();
    assert_eq!(worst.len(), fused);
    // And what is wrong is seen, at least where nothing is stored in 16 bits or rounded to 8 and the
    // sums are short: errors of long ones may hide a small change.
    products.retain(|case| {
        let exact = [DType::F32, DType::U32];
        let plain = case.operands.iter().all(|operand| exact.contains(&operand.dtype));
        plain && case.operands[0].shape[1] <= 32
    });
    let samples = a_few_of_each(products, 4);
    assert_eq!(samples.iter().map(|case| case.kind).collect::<BTreeSet<_>>().len(), fused);
    for sabotage in [Sabotage::FirstElement, Sabotage::LastElement, Sabotage::NoRun] {
        let device = Saboteur { inner: Arc::new(CpuDevice::with_threads(1)), sabotage };
        for case in &samples {
            assert!(suite::run_case_unfused(&device, case).is_err(), "{sabotage:?} in {case}");
        }
    }
}

#[test]
fn pieces_may_run_in_any_order() {
    // Every fifth case is enough: what differs is the order of the pieces, not the arithmetic.
    let some: Vec<OpCase> = suite::cases(DEFAULT_SEED).into_iter().step_by(5).collect();
    for device in [CpuDevice::adversarial(3, 7), CpuDevice::with_threads(1)] {
        let summary = suite::run_cases(&device, &some);
        assert!(summary.failed.is_empty(), "{}\n{summary}", device.info().description);
    }
}

#[test]
fn the_list_covers_ops_types_and_places() {
    let cases = suite::cases(DEFAULT_SEED);
    let of = |kind| cases.iter().filter(move |case| case.kind == kind);
    for op in OPS.iter() {
        let count = of(op.kind).count();
        assert!(count >= 50, "{}: {count} cases", op.name);
        let any = |what: &str, found: bool| assert!(found, "{}: no case {what}", op.name);
        let f16 = of(op.kind).any(|c| c.operands.iter().any(|o| o.dtype == DType::F16));
        any("in f16", f16 || op.kind == Kind::ExpertOrder);
        any("at an offset", of(op.kind).any(|c| c.operands.iter().all(|o| o.offset > 0)));
        any("in one buffer", of(op.kind).any(|c| c.operands.iter().all(|o| o.buffer == 0)));
        for (index, operand) in op.operands.iter().enumerate() {
            let full = |c: &OpCase| c.operands.len() == op.operands.len();
            let strided = |c: &OpCase| {
                full(c) && c.operands[index].layout().is_ok_and(|layout| !layout.is_dense())
            };
            // Single rows, such as ids and weights of a norm, have no outer stride.
            let rows = |c: &OpCase| {
                let shape = &c.operands[index.min(c.operands.len() - 1)].shape;
                full(c) && shape.len() > 1 && shape[0] > 1
            };
            if of(op.kind).any(rows) {
                any(&format!("with `{}` strided", operand.name), of(op.kind).any(strided));
            }
        }
    }
    let weights: BTreeSet<DType> = DType::ALL.into_iter().filter(|&d| d != DType::U32).collect();
    for (kind, operand) in [
        (Kind::MATMUL, 1),
        (kind("matmul_add"), 1),
        (Kind::MatMulExperts, 1),
        (Kind::Gather, 0),
        (Kind::Copy, 0),
    ] {
        let found: BTreeSet<DType> = of(kind).map(|case| case.operands[operand].dtype).collect();
        // Rows are picked from caches, too.
        let cache = (kind == Kind::Gather).then_some(DType::C8);
        let expected: BTreeSet<DType> = weights.iter().copied().chain(cache).collect();
        assert_eq!(found, expected, "{kind:?}");
    }
    let caches = OPS.iter().flat_map(|op| {
        let operands = op.operands.iter().enumerate();
        operands
            .filter(|(_, operand)| ["k", "v", "cache"].contains(&operand.name))
            .map(move |o| (op, o))
    });
    for (op, (index, operand)) in caches {
        let full = of(op.kind).filter(|case| case.operands.len() == op.operands.len());
        let found: BTreeSet<DType> = full.map(|case| case.operands[index].dtype).collect();
        let expected = BTreeSet::from([DType::F32, DType::F16, DType::C8]);
        assert_eq!(found, expected, "`{}` of {}", operand.name, op.name);
    }
    let mut seen = BTreeSet::new();
    let unseeded = |case: &OpCase| format!("{:?}", OpCase { seed: 0, ..case.clone() });
    let twice: Vec<String> =
        cases.iter().filter(|c| !seen.insert(unseeded(c))).map(OpCase::to_string).collect();
    assert!(twice.is_empty(), "twice in the list:\n{}", twice.join("\n"));
    let again = suite::cases(DEFAULT_SEED);
    assert_eq!(cases, again, "the list follows from its seed");
}

#[test]
fn a_wrong_element_is_reported_for_every_op() {
    for sabotage in [Sabotage::FirstElement, Sabotage::LastElement, Sabotage::NoRun] {
        assert_all_reported(sabotage, &samples());
    }
}

#[test]
fn a_byte_written_elsewhere_is_reported_for_every_op() {
    for sabotage in [Sabotage::ByteBefore, Sabotage::ByteBehind] {
        assert_all_reported(sabotage, &samples());
    }
    // An input that changes, of every op that has one.
    let with_inputs: Vec<OpCase> = samples().into_iter().filter(|c| c.kind != Kind::Fill).collect();
    assert_all_reported(Sabotage::Input, &with_inputs);
    let mut strided = suite::cases(DEFAULT_SEED);
    strided.retain(|case| runs_on_cpu(case) && has_gap_behind_first_row(case));
    let strided = a_few_of_each(strided, 3);
    let covered: BTreeSet<Kind> = strided.iter().map(|case| case.kind).collect();
    let most = OPS.iter().filter(|op| on_cpu(op.kind)).count() - 2;
    assert_eq!(covered.len(), most, "all but arg_max and expert_order, whose results are one row");
    assert_all_reported(Sabotage::Gap, &strided);
}

#[test]
fn a_changed_constant_is_reported_for_every_constant() {
    let cases = suite::cases(DEFAULT_SEED);
    for op in OPS.iter().filter(|op| on_cpu(op.kind)) {
        // In f16 the change of an epsilon is lost in rounding.
        let exact = |c: &&OpCase| {
            c.kind == op.kind
                && c.operands.iter().all(|o| o.dtype != DType::F16 && !o.dtype.is_form())
        };
        let some: Vec<OpCase> = cases.iter().filter(exact).take(40).cloned().collect();
        for (index, param) in op.params.iter().enumerate() {
            let summary = run_with(Sabotage::Constant(index), &some);
            // A constant that no longer fits the operands is refused, any other gives wrong results.
            let wrong = summary.failed.len();
            assert!(wrong > 0, "{}: `{}` does not matter", op.name, param.name);
        }
    }
}

#[test]
fn the_list_runs_clean_without_sabotage() {
    let summary = run_with(Sabotage::None, &samples());
    assert!(summary.failed.is_empty(), "{summary}");
}

/// For each op a few cases that leave room on both sides of every operand.
fn samples() -> Vec<OpCase> {
    let mut apart = suite::cases(DEFAULT_SEED);
    apart
        .retain(|case| runs_on_cpu(case) && case.operands.iter().all(|operand| operand.offset > 0));
    let samples = a_few_of_each(apart, 8);
    let kinds: BTreeSet<Kind> = samples.iter().map(|case| case.kind).collect();
    assert_eq!(kinds.len(), OPS.iter().filter(|op| on_cpu(op.kind)).count());
    samples
}

fn a_few_of_each(mut cases: Vec<OpCase>, few: usize) -> Vec<OpCase> {
    let mut counts: BTreeMap<Kind, usize> = BTreeMap::new();
    cases.retain(|case| {
        let count = counts.entry(case.kind).or_default();
        *count += 1;
        *count <= few
    });
    cases
}

#[track_caller]
fn assert_all_reported(sabotage: Sabotage, cases: &[OpCase]) {
    let summary = run_with(sabotage, cases);
    let passed: Vec<String> = summary
        .ops
        .iter()
        .filter(|op| op.passed > 0)
        .map(|op| format!("{} ({} of {})", op.name, op.passed, op.passed + op.failed))
        .collect();
    assert!(passed.is_empty(), "{sabotage:?} was not seen in {}", passed.join(", "));
}

fn run_with(sabotage: Sabotage, cases: &[OpCase]) -> Summary {
    let device = Saboteur { inner: Arc::new(CpuDevice::with_threads(1)), sabotage };
    suite::run_cases(&device, cases)
}

/// What a [`Saboteur`] does after the work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    None,
    /// Nothing runs at all.
    NoRun,
    FirstElement,
    LastElement,
    ByteBefore,
    ByteBehind,
    Gap,
    Input,
    /// The op runs with another constant.
    Constant(usize),
}

/// The CPU, but with one thing wrong.
struct Saboteur {
    inner: Arc<CpuDevice>,
    sabotage: Sabotage,
}

struct SabotagedEncoder {
    device: Arc<CpuDevice>,
    inner: Box<dyn Encoder>,
    sabotage: Sabotage,
    dispatch: Option<Dispatch>,
}

impl Device for Saboteur {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer> {
        self.inner.alloc(bytes)
    }

    fn buffer(&self, buf_id: usize) -> Result<Buffer> {
        self.inner.buffer(buf_id)
    }

    fn has_fused(&self, request: &FusedRequest<'_>) -> bool {
        self.inner.has_fused(request)
    }

    fn encoder(&self, kernels: &KernelRegistry) -> Box<dyn Encoder> {
        Box::new(SabotagedEncoder {
            device: self.inner.clone(),
            inner: self.inner.encoder(kernels),
            sabotage: self.sabotage,
            dispatch: None,
        })
    }
}

impl CommandEncoder for SabotagedEncoder {
    type Error = clearway_gpu::GpuError;

    fn dispatch(&mut self, dispatch: &Dispatch) -> Result<()> {
        let dispatch = match self.sabotage {
            Sabotage::Constant(index) => with_other_constant(dispatch, index)?,
            _ => dispatch.clone(),
        };
        self.inner.dispatch(&dispatch)?;
        self.dispatch = Some(dispatch);
        Ok(())
    }

    fn barrier(&mut self, reason: &BarrierReason) -> Result<()> {
        self.inner.barrier(reason)
    }

    fn commit(&mut self) -> Result<()> {
        if self.sabotage == Sabotage::NoRun { Ok(()) } else { self.inner.commit() }
    }
}

impl Encoder for SabotagedEncoder {
    fn wait(&mut self) -> Result<()> {
        self.inner.wait()?;
        let dispatch = self.dispatch.take().unwrap();
        let roles: Vec<BindingRole> = ops::contract(dispatch.kind, dispatch.bindings.len())
            .unwrap()
            .bindings
            .as_ref()
            .unwrap()
            .iter()
            .map(|binding| binding.role)
            .collect();
        let result = roles.iter().rposition(|role| *role != BindingRole::Read).unwrap();
        let view = dispatch.bindings[result];
        let buffer = self.device.buffer(view.buf_id)?;
        match self.sabotage {
            Sabotage::None | Sabotage::NoRun | Sabotage::Constant(_) => Ok(()),
            Sabotage::FirstElement => change_element(&buffer, &view, view.offset),
            Sabotage::LastElement => {
                let end = view.offset + view.layout.span_bytes();
                change_element(&buffer, &view, end - view.layout.dtype().block_bytes() as u64)
            }
            Sabotage::ByteBefore => change_byte(&buffer, view.offset - 1),
            Sabotage::ByteBehind => change_byte(&buffer, view.offset + view.layout.span_bytes()),
            Sabotage::Gap => {
                let row = view.layout.cols() * view.layout.dtype().block_bytes();
                change_byte(&buffer, view.offset + row as u64)
            }
            Sabotage::Input => {
                let input = dispatch.bindings[0];
                change_byte(&self.device.buffer(input.buf_id)?, input.offset)
            }
        }
    }

    fn into_program(self: Box<Self>) -> Result<Box<dyn Program>> {
        self.inner.into_program()
    }
}

/// Changes a float by a few hundredths, an index by one.
fn change_element(buffer: &Buffer, view: &TensorView, at: u64) -> Result<()> {
    // Of what is not finite every other number of that kind is as good.
    let off = |v: f32| if v.is_finite() { v + 0.02 * v.abs() + 0.01 } else { 0.0 };
    match view.layout.dtype() {
        DType::U32 => buffer.write_slice(at, &[buffer.read_vec::<u32>(at, 1)?[0] ^ 1]),
        DType::F32 => buffer.write_slice(at, &[off(buffer.read_vec(at, 1)?[0])]),
        DType::F16 => {
            let old: f16 = buffer.read_vec(at, 1)?[0];
            buffer.write_slice(at, &[f16::from_f32(off(old.to_f32()))])
        }
        _ => {
            let old: bf16 = buffer.read_vec(at, 1)?[0];
            buffer.write_slice(at, &[bf16::from_f32(off(old.to_f32()))])
        }
    }
}

/// The dispatch with another value of a constant, one that the op also takes.
fn with_other_constant(dispatch: &Dispatch, index: usize) -> Result<Dispatch> {
    let spec = ops::spec(dispatch.kind).unwrap().params[index];
    let mut params = dispatch.params.clone();
    let word = &mut params[index];
    *word = match (spec.kind, spec.name) {
        (ParamKind::F32, _) => (f32::from_bits(*word) * 2.0 + 1e-5).to_bits(),
        (ParamKind::U32, "n_dims") => (*word - 2).max(2),
        (ParamKind::U32, "mode" | "renorm") => u32::from(*word == 0),
        (ParamKind::U32, _) => *word + 1,
    };
    let (id, kind) = (dispatch.id, dispatch.kind);
    let contract = ops::contract(kind, dispatch.bindings.len()).unwrap();
    Ok(Dispatch::annotated(id, kind, contract, &dispatch.bindings, &params, &dispatch.label)?)
}

fn change_byte(buffer: &Buffer, at: u64) -> Result<()> {
    let old: u8 = buffer.read_vec(at, 1)?[0];
    buffer.write(at, &[old ^ 0x10])
}

/// Whether the last result has a gap between its first two rows.
fn has_gap_behind_first_row(case: &OpCase) -> bool {
    case.operands.last().is_some_and(|result| match (&result.shape[..], &result.strides[..]) {
        ([.., rows, cols], [.., stride, 1]) => *rows > 1 && stride > cols,
        _ => false,
    })
}
