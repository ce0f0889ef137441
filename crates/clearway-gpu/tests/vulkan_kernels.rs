//! Kernels on Vulkan beyond the op suite: fused ones against the plain ones they stand for, results in
//! the place of inputs, long rows, far positions, what is no number.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use std::sync::LazyLock;

use clearway_gpu::ops::NO_INDEX;
use clearway_gpu::ops::suite::{Fill, OpCase, OperandSpec, run_case};
use clearway_gpu::vulkan::{VulkanDevice, VulkanOptions};
use clearway_gpu::{Buffer, Device, Encoder, GpuError, KernelRegistry, Upload, ops, quant};
use clearway_graph::testkit::kind;
use clearway_graph::{
    BarrierReason, CapturedOpKind as Kind, CommandEncoder, ComputeGraph, DType, Dispatch, Layout,
    Map, TensorView,
};

mod vulkan;

/// Tests share a device, and with it the kernels that are compiled.
#[track_caller]
fn device() -> Option<&'static VulkanDevice> {
    static DEVICE: LazyLock<Result<VulkanDevice, String>> = LazyLock::new(|| {
        vulkan::try_open(VulkanOptions { disk_cache: false, ..VulkanOptions::default() })
    });
    vulkan::available(DEVICE.as_ref())
}

/// A tensor on the device.
struct Tensor {
    buffer: Buffer,
    view: TensorView,
}

impl Tensor {
    fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Self {
        let buffer = device().unwrap().upload(bytes).unwrap();
        let view = buffer.view(0, Layout::new(dtype, shape).unwrap()).unwrap();
        Self { buffer, view }
    }

    fn floats(dtype: DType, shape: &[usize], values: &[f32]) -> Self {
        let layout = Layout::new(dtype, shape).unwrap();
        let mut bytes = vec![0; layout.span_bytes() as usize];
        quant::encode(dtype, values, &mut bytes).unwrap();
        Self::from_bytes(dtype, shape, &bytes)
    }

    fn random(dtype: DType, shape: &[usize], seed: u32) -> Self {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        let count = shape.iter().product();
        Self::floats(
            dtype,
            shape,
            &std::iter::repeat_with(&mut next).take(count).collect::<Vec<_>>(),
        )
    }

    fn empty(dtype: DType, shape: &[usize]) -> Self {
        let bytes = Layout::new(dtype, shape).unwrap().span_bytes() as usize;
        Self::from_bytes(dtype, shape, &vec![0xff; bytes])
    }

    fn ids(values: &[u32]) -> Self {
        Self::from_bytes(DType::U32, &[values.len()], bytemuck::cast_slice(values))
    }

    fn bytes(&self) -> Vec<u8> {
        self.buffer.read_vec(0, self.view.layout.span_bytes() as usize).unwrap()
    }

    fn values<T: bytemuck::Pod>(&self) -> Vec<T> {
        self.buffer.read_vec(0, self.view.layout.elems()).unwrap()
    }

    fn copy(&self) -> Self {
        let shape: Vec<usize> = self.view.layout.dims().iter().map(|&d| d as usize).collect();
        Self::from_bytes(self.view.layout.dtype(), &shape, &self.bytes())
    }
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

/// Runs one op. An output that lies over an input is declared so.
fn run(kind: Kind, operands: &[&Tensor], params: &[u32]) {
    let views: Vec<TensorView> = operands.iter().map(|tensor| tensor.view).collect();
    ops::check(kind, &views, params).unwrap();
    let contract = ops::contract(kind, views.len()).unwrap();
    let mut graph = ComputeGraph::new();
    graph.dispatch(kind, contract, &views, params, "test").unwrap();
    let mut encoder = Sink(device().unwrap().encoder(&KernelRegistry::new()));
    graph.encode_sequential(&mut encoder).unwrap();
    encoder.commit().unwrap();
    encoder.0.wait().unwrap();
}

const F32: DType = DType::F32;
const EPS: [u32; 1] = [1e-5_f32.to_bits()];

#[test]
fn fused_kernels_have_the_bits_of_plain_ones() {
    if device().is_none() {
        return;
    }
    for shape in [[7, 100], [3, 2048], [2, 5000]] {
        let [a, b] = [1, 2].map(|seed| Tensor::random(F32, &shape, seed));
        let w = Tensor::random(DType::F16, &shape[1..], 3);
        let [first, second, plain, sum, fused] = [(); 5].map(|()| Tensor::empty(F32, &shape));
        let same = |what: &str| assert_eq!(fused.bytes(), plain.bytes(), "{what} {shape:?}");

        run(Kind::SILU, &[&a, &first], &[]);
        run(Kind::MUL, &[&first, &b, &plain], &[]);
        run(Kind::SILU_MUL, &[&a, &b, &fused], &[]);
        same("silu_mul");
        run(Kind::GELU, &[&a, &first], &[]);
        run(Kind::MUL, &[&first, &b, &plain], &[]);
        run(Kind::GELU_MUL, &[&a, &b, &fused], &[]);
        same("gelu_mul");
        run(Kind::RmsNorm, &[&a, &first], &EPS);
        run(Kind::MUL, &[&first, &w, &plain], &[]);
        run(Kind::RmsNormMul, &[&a, &w, &fused], &EPS);
        same("rms_norm_mul");
        run(Kind::ADD, &[&a, &b, &first], &[]);
        run(Kind::RmsNorm, &[&first, &plain], &EPS);
        run(Kind::AddRmsNorm, &[&a, &b, &sum, &fused], &EPS);
        same("add_rms_norm");
        assert_eq!(sum.bytes(), first.bytes());
        run(Kind::RmsNorm, &[&first, &second], &EPS);
        run(Kind::MUL, &[&second, &w, &plain], &[]);
        run(Kind::AddRmsNormMul, &[&a, &b, &w, &sum, &fused], &EPS);
        same("add_rms_norm_mul");
        assert_eq!(sum.bytes(), first.bytes());
        run(Kind::AddRmsNormMul, &[&a, &b, &w, &fused], &EPS);
        same("add_rms_norm_mul without its sum");
    }
}

#[test]
fn fused_products_and_cache_writes_have_the_bits_of_plain_ones() {
    if device().is_none() {
        return;
    }
    for (rows, weights) in [(3, F32), (3, DType::Q4_K), (40, DType::F16), (40, DType::Q6_K)] {
        let x = Tensor::random(F32, &[rows, 512], 4);
        let w = Tensor::random(weights, &[70, 512], 5);
        let c = Tensor::random(F32, &[rows, 70], 6);
        let [product, plain, fused] = [(); 3].map(|()| Tensor::empty(F32, &[rows, 70]));
        run(Kind::MATMUL, &[&x, &w, &product], &[]);
        run(Kind::ADD, &[&product, &c, &plain], &[]);
        run(kind("matmul_add"), &[&x, &w, &c, &fused], &[]);
        assert_eq!(fused.bytes(), plain.bytes(), "{rows} rows of {weights}");
    }
    let tokens = 9;
    let x = Tensor::random(F32, &[tokens, 3, 80], 7);
    let positions = Tensor::ids(&(100..100 + tokens as u32).collect::<Vec<_>>());
    let rows = Tensor::ids(&[4, 3, 2, 1, 0, 9, 8, 4, 30]);
    let factors = Tensor::floats(F32, &[32], &[1.5; 32]);
    for mode in [0, 1] {
        for cache_type in [F32, DType::F16] {
            let params = [64, mode, 1e4_f32.to_bits(), 1.0_f32.to_bits(), 1.25_f32.to_bits()];
            let plain = Tensor::random(cache_type, &[20, 3, 80], 8);
            let fused = plain.copy();
            let rotated = Tensor::empty(F32, &[tokens, 3, 80]);
            run(Kind::Rope, &[&x, &positions, &factors, &rotated], &params);
            run(Kind::KvWrite, &[&rotated, &rows, &plain], &[]);
            run(Kind::RopeKvWrite, &[&x, &positions, &factors, &rows, &fused], &params);
            assert_eq!(fused.bytes(), plain.bytes(), "mode {mode}, {cache_type}");
        }
    }
}

/// Runs an op apart, then with operand `output` over `input`, and wants the same bits.
#[track_caller]
fn check_in_place(kind: Kind, operands: &[&Tensor], params: &[u32], output: usize, input: usize) {
    run(kind, operands, params);
    let shared = operands[input].copy();
    let mut placed = operands.to_vec();
    (placed[input], placed[output]) = (&shared, &shared);
    run(kind, &placed, params);
    assert_eq!(shared.bytes(), operands[output].bytes(), "{kind:?}: {output} over {input}");
}

#[test]
fn results_may_lie_over_inputs_where_the_contract_says_so() {
    if device().is_none() {
        return;
    }
    for (dtype, shapes) in [(F32, &[[5, 100], [2, 3000]][..]), (DType::F16, &[[3, 100]])] {
        for &shape in shapes {
            let [a, b] = [1, 2].map(|seed| Tensor::random(dtype, &shape, seed));
            let y = Tensor::empty(dtype, &shape);
            let one = 0.7_f32.to_bits();
            let mut checked = 0;
            for &map in Map::ALL {
                let kind = Kind::Map(map);
                let operands = [&[&a, &b][..map.inputs().count()], &[&y]].concat();
                let params = &vec![one; map.spec().params.len()];
                for pair in ops::contract(kind, operands.len()).unwrap().in_place() {
                    let (output, input) = (usize::from(pair.output), usize::from(pair.input));
                    check_in_place(kind, &operands, params, output, input);
                    checked += 1;
                }
            }
            let all = ops::OPS.iter().flat_map(|op| op.operands).map(|operand| operand.over.len());
            assert_eq!(checked, all.sum::<usize>(), "every pair that a contract allows");
        }
    }
}

/// One element or block behind the start of a buffer, so that weights are not a tensor of a file,
/// which a device may keep in another order.
fn dense(dtype: DType, shape: &[usize], buffer: usize, fill: Fill) -> OperandSpec {
    let offset = dtype.block_bytes() as u64;
    let strides = (1..=shape.len()).map(|inner| shape[inner..].iter().product()).collect();
    OperandSpec { dtype, shape: shape.to_vec(), strides, buffer, offset, fill }
}

#[track_caller]
fn check_case(kind: Kind, operands: &[(DType, &[usize], Fill)], params: &[u32]) {
    let operands = operands.iter().enumerate();
    let operands =
        operands.map(|(i, (dtype, shape, fill))| dense(*dtype, shape, i, fill.clone())).collect();
    let case = OpCase { kind, operands, params: params.to_vec(), seed: 11 };
    if let Err(wrong) = run_case(device().unwrap(), &case) {
        panic!("{case}\n{wrong}");
    }
}

#[test]
fn long_rows_agree_with_the_reference() {
    if device().is_none() {
        return;
    }
    let u32s = DType::U32;
    for (dtype, fill) in [(F32, Fill::NORMAL), (F32, Fill::Ties), (DType::F16, Fill::NORMAL)] {
        let out = Fill::Sentinel;
        let shape: &[usize] = &[2, 150_000];
        check_case(Kind::ArgMax, &[(dtype, shape, fill.clone()), (u32s, &[2], out.clone())], &[]);
        // More than are chosen at a time, and all there are.
        for (rows, cols, k) in [(1, 150_000, 300), (2, 3000, 1300), (2, 1100, 1100)] {
            let operands = [
                (dtype, &[rows, cols][..], fill.clone()),
                (dtype, &[rows, k], out.clone()),
                (u32s, &[rows, k], out.clone()),
            ];
            check_case(Kind::TopK, &operands, &[]);
        }
        for mode in 0..3 {
            let operands = [
                (dtype, &[3, 1500][..], Fill::Distinct { step: 0.03125 }),
                (u32s, &[3, 20], out.clone()),
                (F32, &[3, 20], out.clone()),
            ];
            check_case(Kind::RouterTopK, &operands, &[mode, 1, 2.0_f32.to_bits()]);
        }
        let row: &[usize] = &[2, 20_000];
        let masked =
            [(dtype, row, Fill::NORMAL), (dtype, row, Fill::Mask), (dtype, row, out.clone())];
        check_case(Kind::Softmax, &masked, &[1.0_f32.to_bits()]);
        check_case(Kind::RmsNorm, &[(dtype, row, Fill::NORMAL), (dtype, row, out)], &EPS);
    }
}

#[test]
fn large_heads_and_repeated_rows_agree_with_the_reference() {
    if device().is_none() {
        return;
    }
    let u32s = DType::U32;
    let (queries, cache): (&[usize], &[usize]) = (&[21, 6, 320], &[100, 2, 320]);
    let operands = [
        (F32, queries, Fill::NORMAL),
        (DType::F16, cache, Fill::NORMAL),
        (DType::F16, cache, Fill::NORMAL),
        (u32s, &[21], Fill::Positions { start: 70 }),
        (F32, queries, Fill::Sentinel),
    ];
    check_case(Kind::Attention, &operands, &[0.05_f32.to_bits(), 40, 0, 0]);
    // Forty tokens for three rows: the last of each wins.
    let operands = [
        (F32, &[40, 2, 33][..], Fill::NORMAL),
        (u32s, &[40], Fill::Ids { below: 3 }),
        (DType::F16, &[5, 2, 33], Fill::NORMAL),
    ];
    check_case(Kind::KvWrite, &operands, &[]);
    let operands = [
        (F32, &[5, 96][..], Fill::NORMAL),
        (DType::Q5_1, &[256, 20, 96], Fill::NORMAL),
        (u32s, &[5, 8], Fill::Ids { below: 256 }),
        (F32, &[5, 8, 20], Fill::Sentinel),
    ];
    check_case(Kind::MatMulExperts, &operands, &[]);
}

#[test]
fn positions_of_a_million_turn_as_exactly_as_small_ones() {
    if device().is_none() {
        return;
    }
    let (dims, base, pairs) = (64, 5e5_f32, 32);
    let positions = [0, 1, 4095, 4096, 131_071, 1_000_003, u32::MAX];
    let tokens = positions.len();
    let unit: Vec<f32> = (0..tokens * dims).map(|i| if i % 2 == 0 { 1.0 } else { 0.0 }).collect();
    let x = Tensor::floats(F32, &[tokens, 1, dims], &unit);
    let y = Tensor::empty(F32, &[tokens, 1, dims]);
    let factor = 1.25_f32;
    let factors = Tensor::floats(F32, &[pairs], &[factor; 32]);
    let params = [dims as u32, 0, base.to_bits(), 1.0_f32.to_bits(), 1.0_f32.to_bits()];
    run(Kind::Rope, &[&x, &Tensor::ids(&positions), &factors, &y], &params);
    let found: Vec<f32> = y.values();
    for (token, &position) in positions.iter().enumerate() {
        for pair in 0..pairs {
            let frequency = f64::from(base).powf(-2.0 * pair as f64 / dims as f64);
            let angle = f64::from(position) * frequency / f64::from(factor);
            for (half, exact) in [angle.cos(), angle.sin()].into_iter().enumerate() {
                let found = f64::from(found[token * dims + 2 * pair + half]);
                // Four billion turns leave half the digits of two f32.
                let allowed = if position == u32::MAX { 2e-5 } else { 1e-6 };
                let error = (found - exact).abs();
                assert!(error < allowed, "position {position}, pair {pair}: off by {error:e}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_comes_first_and_has_no_largest_element() {
    if device().is_none() {
        return;
    }
    let (nan, low) = (f32::NAN, f32::NEG_INFINITY);
    // The same row short and long, for both ways to choose.
    for padding in [0, 2000] {
        let mut row = vec![nan, 1.0, -nan, 2.0, low, -0.0, 0.0];
        row.resize(row.len() + padding, low);
        let x = Tensor::floats(F32, &[1, row.len()], &row);
        let (values, ids) = (Tensor::empty(F32, &[1, 7]), Tensor::empty(DType::U32, &[1, 7]));
        run(Kind::TopK, &[&x, &values, &ids], &[]);
        assert_eq!(ids.values::<u32>(), [0, 2, 3, 1, 5, 6, 4]);
        let best = Tensor::empty(DType::U32, &[1]);
        run(Kind::ArgMax, &[&x, &best], &[]);
        assert_eq!(best.values::<u32>(), [NO_INDEX]);
        for spoiled in [nan, f32::INFINITY, low] {
            let x = Tensor::floats(F32, &[1, 5 + padding], &vec![spoiled; 5 + padding]);
            run(Kind::ArgMax, &[&x, &best], &[]);
            assert_eq!(best.values::<u32>(), [NO_INDEX], "{spoiled}");
        }
    }
}

#[test]
fn activations_are_safe_at_the_ends_of_the_range() {
    if device().is_none() {
        return;
    }
    let x = [-3e38_f32, -1e20, -200.0, 200.0, 1e20, 3e38];
    let input = Tensor::floats(F32, &[6], &x);
    let y = Tensor::empty(F32, &[6]);
    for kind in [Kind::SILU, Kind::GELU] {
        run(kind, &[&input, &y], &[]);
        assert_eq!(y.values::<f32>(), [0.0, 0.0, 0.0, 200.0, 1e20, 3e38], "{kind:?}");
    }
    run(Kind::SOFT_CAP, &[&input, &y], &[30.0_f32.to_bits()]);
    let found = y.values::<f32>();
    assert!(found.iter().all(|v| (v.abs() - 30.0).abs() < 1e-4), "{found:?}");
}
