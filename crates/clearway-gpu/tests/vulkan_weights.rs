//! Weights in planes on Vulkan: every type, through every op that takes them.
#![allow(clippy::unwrap_used, clippy::panic)] // shared functions are not tests in clippy's eyes

use clearway_gpu::ops::reference::{RefTensor, reference};
use clearway_gpu::vulkan::{Tuning, VulkanDevice, VulkanOptions};
use clearway_gpu::{Device, KernelRegistry, Upload, quant, record};
use clearway_graph::testkit::kind;
use clearway_graph::testkit::skip;
use clearway_graph::{CapturedOpKind as Kind, ComputeGraph, DType, Layout};

mod vulkan;

const TYPES: [DType; 13] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
];

struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 / (1 << 24) as f32) * 2.0 - 1.0
    }

    fn many(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }
}

fn open() -> Option<VulkanDevice> {
    vulkan::open(VulkanOptions { disk_cache: false, ..VulkanOptions::default() })
}

/// A weight tensor on the device, and its exact values.
fn weights(
    device: &dyn Device,
    dtype: DType,
    shape: &[usize],
    random: &mut Random,
) -> (clearway_graph::TensorView, clearway_gpu::Buffer, RefTensor) {
    let values = random.many(shape.iter().product());
    let layout = Layout::new(dtype, shape).unwrap();
    let mut bytes = vec![0; layout.span_bytes() as usize];
    quant::encode(dtype, &values, &mut bytes).unwrap();
    let mut exact = vec![0.0; values.len()];
    quant::decode(dtype, &bytes, &mut exact).unwrap();
    let buffer = device.upload_weights(&layout, &bytes).unwrap();
    let view = buffer.view(0, layout).unwrap();
    (view, buffer, RefTensor::new(dtype, shape, exact.iter().map(|&v| f64::from(v)).collect()))
}

/// Runs one op whose inputs are given and compares; `slack` says how far each element may be off.
#[track_caller]
fn compare(
    device: &dyn Device,
    kind: Kind,
    inputs: &[(clearway_graph::TensorView, RefTensor)],
    params: &[u32],
    shape: &[usize],
    what: &str,
    slack: impl Fn(usize) -> f64,
) {
    let mut operands: Vec<RefTensor> = inputs.iter().map(|(_, tensor)| tensor.clone()).collect();
    operands.push(RefTensor::output(DType::F32, shape));
    let expected = reference(kind, &operands, params).unwrap().remove(0).data;
    let elems: usize = shape.iter().product();
    let result = device.upload(&vec![f32::NAN; elems]).unwrap();
    let mut views: Vec<_> = inputs.iter().map(|(view, _)| *view).collect();
    views.push(result.tensor(DType::F32, shape).unwrap());
    let mut graph = ComputeGraph::new();
    record(&mut graph, kind, &views, params, "").unwrap();
    let mut encoder = device.encoder(&KernelRegistry::new());
    graph.encode_sequential(&mut *encoder).unwrap();
    encoder.commit().unwrap();
    encoder.wait().unwrap();
    let found: Vec<f32> = result.read_vec(0, elems).unwrap();
    for (i, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(
            error <= slack(i),
            "{what}: element {i} is {found}, not {expected} (±{})",
            slack(i)
        );
    }
}

/// What rounding activations to 8 bits with a scale for each 32 may cost a dot product, and the
/// rounding of sums; `halved` is the relative error of numbers that were rounded to f16.
fn slack(x: &[f64], w: &[f64], rounded: bool, halved: f64) -> f64 {
    let product: f64 = x.iter().zip(w).map(|(x, w)| (x * w).abs()).sum();
    let rounding: f64 = x
        .chunks(32)
        .zip(w.chunks(32))
        .map(|(x, w)| {
            let top = x.iter().fold(0.0_f64, |top, x| top.max(x.abs()));
            w.iter().map(|w| w.abs()).sum::<f64>() * top * 0.5001 / 127.0
        })
        .sum();
    product * (2e-5 + halved) + 1e-6 + if rounded { rounding } else { 0.0 }
}

#[test]
fn products_agree_for_every_type() {
    let Some(device) = open() else { return };
    let shapes = [(1, 33, 256), (1, 7, 1536), (3, 20, 512), (9, 70, 256), (67, 131, 256)];
    check_products(&device, &TYPES, &shapes);
}

#[test]
fn an_exponent_that_is_no_number_is_seen_in_products() {
    let Some(device) = open() else { return };
    let (rows, cols, bad) = (20, 96, 5);
    let mut random = Random(9);
    let layout = Layout::new(DType::MXFP4, &[rows, cols]).unwrap();
    let mut bytes = vec![0; layout.span_bytes() as usize];
    quant::encode(DType::MXFP4, &random.many(rows * cols), &mut bytes).unwrap();
    bytes[(3 * bad + 1) * 17] = 255;
    let weights = device.upload_weights(&layout, &bytes).unwrap();
    for tokens in [1, 9] {
        let x = device.upload(&random.many(tokens * cols)).unwrap();
        let y = device.upload(&vec![0.0_f32; tokens * rows]).unwrap();
        let views = [
            x.tensor(DType::F32, &[tokens, cols]).unwrap(),
            weights.view(0, layout).unwrap(),
            y.tensor(DType::F32, &[tokens, rows]).unwrap(),
        ];
        let mut graph = ComputeGraph::new();
        record(&mut graph, Kind::MATMUL, &views, &[], "").unwrap();
        let mut encoder = device.encoder(&KernelRegistry::new());
        graph.encode_sequential(&mut *encoder).unwrap();
        encoder.commit().unwrap();
        encoder.wait().unwrap();
        for (i, found) in y.read_vec::<f32>(0, tokens * rows).unwrap().into_iter().enumerate() {
            assert_eq!(found.is_nan(), i % rows == bad, "element {i}: {found}");
        }
    }
}

#[test]
fn products_of_many_tiles_agree() {
    let Some(device) = open() else { return };
    // Enough for the largest tiles of large cards; a software driver cuts no other tiles for it.
    let outer = if device.is_software() { 300 } else { 7500 };
    let types = [DType::F16, DType::BF16, DType::Q8_0, DType::Q4_K, DType::Q6_K];
    check_products(&device, &types, &[(400, outer, 256)]);
}

#[test]
fn products_agree_in_every_way() {
    for way in 1..=3 {
        let tuning = Tuning::Variant(way);
        let options = VulkanOptions { disk_cache: false, tuning, ..VulkanOptions::default() };
        let Some(device) = vulkan::open(options) else { return };
        // Few rows of weights, and more than a device has processors for.
        check_products(&device, &TYPES, &[(1, 37, 512), (1, 700, 256)]);
    }
}

#[test]
fn a_product_is_timed_once_and_stays_right() {
    let options =
        VulkanOptions { disk_cache: false, tuning: Tuning::Always, ..VulkanOptions::default() };
    let Some(device) = vulkan::open(options) else { return };
    let mut random = Random(11);
    let (outer, inner) = (2100, 1024);
    let (w, _keep, w_ref) = weights(&device, DType::F16, &[outer, inner], &mut random);
    let x = random.many(inner);
    let x_ref = RefTensor::new(DType::F32, &[1, inner], x.iter().map(|&v| v.into()).collect());
    let x_buffer = device.upload(&x).unwrap();
    let x_view = x_buffer.tensor(DType::F32, &[1, inner]).unwrap();
    let allowed = |i: usize| slack(&x_ref.data, &w_ref.data[i * inner..][..inner], false, 0.0);
    for _ in 0..2 {
        let inputs = [(x_view, x_ref.clone()), (w, w_ref.clone())];
        compare(&device, Kind::MATMUL, &inputs, &[], &[1, outer], "tuned", allowed);
        assert_eq!(device.tuned(), 1);
    }
}

/// Products of activations and weights of these rows, outer and inner extents, without and with a row to add.
fn check_products(device: &VulkanDevice, types: &[DType], shapes: &[(usize, usize, usize)]) {
    let mut random = Random(7);
    for &dtype in types {
        for &shape in shapes {
            check_product(device, dtype, shape, &[0, 1], &mut random);
        }
    }
}

/// A product, each time with so many rows to add.
fn check_product(
    device: &VulkanDevice,
    dtype: DType,
    (rows, outer, inner): (usize, usize, usize),
    addends: &[usize],
    random: &mut Random,
) {
    let (w, _keep, w_ref) = weights(device, dtype, &[outer, inner], random);
    let x = random.many(rows * inner);
    let x_buffer = device.upload(&x).unwrap();
    let x_ref =
        RefTensor::new(DType::F32, &[rows, inner], x.iter().map(|&v| f64::from(v)).collect());
    let x_view = x_buffer.tensor(DType::F32, &[rows, inner]).unwrap();
    // Few rows: activations in 8 bits for block weights. From five on in 16 where the device
    // has cooperative matrices, and weights too.
    let rounded = dtype.is_quantised() && rows <= 8;
    let halved = if rows > 4 && dtype != DType::F32 { 2.0_f64.powi(-10) } else { 0.0 };
    let allowed = |i: usize| {
        let (t, n) = (i / outer, i % outer);
        let (x, w) = (&x_ref.data[t * inner..][..inner], &w_ref.data[n * inner..][..inner]);
        slack(x, w, rounded, halved)
    };
    for &added in addends {
        let what = format!("{dtype} {rows}x{outer}x{inner} with {added} rows added");
        let mut inputs = vec![(x_view, x_ref.clone()), (w, w_ref.clone())];
        let c = random.many(added * outer);
        let c_buffer = (added > 0).then(|| device.upload(&c).unwrap());
        let whole = [added, outer];
        let shape = if added == 1 { &whole[1..] } else { &whole };
        if let Some(buffer) = &c_buffer {
            let c_ref = c.iter().map(|&v| f64::from(v)).collect();
            let c_view = buffer.tensor(DType::F32, shape).unwrap();
            inputs.push((c_view, RefTensor::new(DType::F32, shape, c_ref)));
        }
        let kind = if added > 0 { kind("matmul_add") } else { Kind::MATMUL };
        compare(device, kind, &inputs, &[], &[rows, outer], &what, allowed);
    }
}

/// A device that runs kernels on cooperative matrices: a card that has them, or with `CLEARWAY_EMULATE` a software
/// driver on which they are emulated, which takes minutes to compile one. Work is cut for so many processors:
/// few get the large tiles, many the small ones.
fn open_with_matrices(processors: u32) -> Option<VulkanDevice> {
    let processors = Some(processors);
    let options = VulkanOptions { disk_cache: false, processors, ..VulkanOptions::default() };
    let device = vulkan::open(options)?;
    if device.info().description.contains("cooperative matrix yes") {
        return Some(device);
    }
    if std::env::var_os("CLEARWAY_EMULATE").is_none() {
        skip(
            "matrices",
            "the device has no cooperative matrices; CLEARWAY_EMULATE=1 emulates them",
        );
        return None;
    }
    vulkan::opened(VulkanDevice::open_emulating_matrices(options))
}

/// Processors and the tiles that they get.
const TILES: [(u32, &str); 2] = [(1, "const TILE_T = 128u;"), (4096, "const TILE_T = 64u;")];
/// What texts with cooperative matrices have in them.
const MATRICES: &str = "coopMultiplyAdd";

#[test]
fn products_on_matrices_agree_for_every_type() {
    // A software driver takes seconds to compile one: all types in one size of tile, two in the other.
    for ((processors, tile), types) in
        TILES.into_iter().zip([&TYPES[1..], &[DType::F16, DType::Q4_K]])
    {
        let Some(device) = open_with_matrices(processors) else { return };
        let mut random = Random(12);
        // Halves and blocks: one row and some columns more than whole tiles.
        for &dtype in types {
            check_product(&device, dtype, (385, 131, 256), &[385], &mut random);
        }
        assert_eq!(device.kernels_with(MATRICES), types.len(), "a kernel for each type");
        assert_eq!(device.kernels_with(tile), device.kernels_with(MATRICES), "{tile}");
    }
}

#[test]
fn products_on_matrices_agree_at_their_edges() {
    const SHAPES: [(usize, usize, usize); 4] =
        [(385, 64, 32), (386, 65, 64), (400, 200, 160), (513, 130, 64)];
    for (processors, _) in TILES {
        let Some(device) = open_with_matrices(processors) else { return };
        let mut random = Random(13);
        let types = [DType::F16, DType::Q8_0];
        for dtype in types {
            for shape in SHAPES {
                check_product(&device, dtype, shape, &[0, 1, shape.0], &mut random);
            }
        }
        // Without, with one and with all rows to add.
        assert_eq!(device.kernels_with(MATRICES), 3 * types.len() * SHAPES.len());
    }
}

#[test]
fn products_of_few_rows_on_matrices_agree() {
    // What texts of kernels for few rows have in them.
    const FEW: &str = "fn finish_quad";
    // With one processor nothing is shared, with many all columns are.
    for processors in [1, 4096] {
        let Some(device) = open_with_matrices(processors) else { return };
        if !device.info().description.contains("subgroup 32") {
            return skip("matrices", "kernels of few rows are for subgroups of 32");
        }
        let mut random = Random(14);
        let mut kernels = 0;
        // Whole tiles and not, one matrix of rows and more, an odd number of chunks.
        for &dtype in &TYPES[1..] {
            for shape in [(16, 256, 512), (33, 131, 256), (70, 300, 768)] {
                check_product(&device, dtype, shape, &[shape.0], &mut random);
                kernels += 1;
            }
        }
        for dtype in [DType::F16, DType::Q8_0] {
            // The last two have several tiles of rows, the last one is not whole.
            let shapes = [
                (5, 64, 32),
                (20, 65, 160),
                (48, 200, 672),
                (96, 130, 64),
                (97, 64, 64),
                (190, 130, 96),
            ];
            for shape in shapes {
                check_product(&device, dtype, shape, &[0, 1, shape.0], &mut random);
                kernels += 3;
            }
        }
        assert_eq!(device.kernels_with(FEW), kernels);
        assert_eq!(device.kernels_with("b_tickets") > 0, processors > 1);
    }
}

#[test]
fn experts_agree_for_every_type() {
    let Some(device) = open() else { return };
    let mut random = Random(8);
    let (experts, outer, inner, rows, used) = (4, 20, 256, 3, 2);
    let ids: [u32; 6] = [1, 3, 0, 2, 7, 1]; // one of them is no expert
    for dtype in TYPES {
        for own in [false, true] {
            let (w, _keep, w_ref) = weights(&device, dtype, &[experts, outer, inner], &mut random);
            let shape: &[usize] = if own { &[rows, used, inner] } else { &[rows, inner] };
            let x = random.many(shape.iter().product());
            let x_buffer = device.upload(&x).unwrap();
            let x_ref =
                RefTensor::new(DType::F32, shape, x.iter().map(|&v| f64::from(v)).collect());
            let ids_buffer = device.upload(&ids).unwrap();
            let ids_ref = RefTensor::new(DType::U32, &[rows, used], ids.map(f64::from).to_vec());
            let inputs = [
                (x_buffer.tensor(DType::F32, shape).unwrap(), x_ref.clone()),
                (w, w_ref.clone()),
                (ids_buffer.tensor(DType::U32, &[rows, used]).unwrap(), ids_ref),
            ];
            let allowed = |i: usize| {
                let (pair, n) = (i / outer, i % outer);
                let id = ids[pair] as usize;
                if id >= experts {
                    return 0.0;
                }
                let x = &x_ref.data[if own { pair } else { pair / used } * inner..][..inner];
                let w = &w_ref.data[(id * outer + n) * inner..][..inner];
                slack(x, w, dtype.is_quantised(), 0.0)
            };
            let what = format!("{dtype}, rows of their own: {own}");
            let shape = [rows, used, outer];
            compare(&device, Kind::MatMulExperts, &inputs, &[], &shape, &what, allowed);
        }
    }
}

#[test]
fn gathered_rows_are_exact_for_every_type() {
    let Some(device) = open() else { return };
    let mut random = Random(9);
    let ids: [u32; 5] = [3, 0, 9, 3, 1]; // one of them is beyond the table
    for dtype in TYPES {
        let (table, _keep, table_ref) = weights(&device, dtype, &[5, 512], &mut random);
        let ids_buffer = device.upload(&ids).unwrap();
        let ids_ref = RefTensor::new(DType::U32, &[5], ids.map(f64::from).to_vec());
        let inputs =
            [(table, table_ref.clone()), (ids_buffer.tensor(DType::U32, &[5]).unwrap(), ids_ref)];
        let params = [2.0_f32.to_bits()];
        // One rounding of the sum of scale and minimum.
        compare(&device, Kind::Gather, &inputs, &params, &[5, 512], dtype.name(), |_| 2e-6);
    }
}

#[test]
fn tensors_larger_than_a_binding_are_split_by_rows() {
    let options = VulkanOptions {
        disk_cache: false,
        max_binding: Some(32 << 10),
        ..VulkanOptions::default()
    };
    let Some(device) = vulkan::open(options) else { return };
    let mut random = Random(10);
    let (outer, inner) = (200, 256);
    for dtype in [DType::F16, DType::Q4_1, DType::Q6_K] {
        let (w, _keep, w_ref) = weights(&device, dtype, &[outer, inner], &mut random);
        for rows in [1, 9] {
            let x = random.many(rows * inner);
            let x_buffer = device.upload(&x).unwrap();
            let exact = x.iter().map(|&v| f64::from(v)).collect();
            let x_ref = RefTensor::new(DType::F32, &[rows, inner], exact);
            let c = random.many(rows * outer);
            let c_buffer = device.upload(&c).unwrap();
            let exact = c.iter().map(|&v| f64::from(v)).collect();
            let c_ref = RefTensor::new(DType::F32, &[rows, outer], exact);
            let allowed = |i: usize| {
                let (t, n) = (i / outer, i % outer);
                let (x, w) = (&x_ref.data[t * inner..][..inner], &w_ref.data[n * inner..][..inner]);
                let halved = if rows > 8 { 2.0_f64.powi(-10) } else { 0.0 };
                slack(x, w, dtype.is_quantised() && rows <= 8, halved)
            };
            let inputs = [
                (x_buffer.tensor(DType::F32, &[rows, inner]).unwrap(), x_ref.clone()),
                (w, w_ref.clone()),
                (c_buffer.tensor(DType::F32, &[rows, outer]).unwrap(), c_ref),
            ];
            let what = format!("{dtype} in parts, {rows} rows");
            compare(&device, kind("matmul_add"), &inputs, &[], &[rows, outer], &what, allowed);
        }
        let ids: [u32; 6] = [199, 0, 31, 500, 77, 150]; // one of them is beyond the table
        let ids_buffer = device.upload(&ids).unwrap();
        let ids_ref = RefTensor::new(DType::U32, &[6], ids.map(f64::from).to_vec());
        let inputs = [(w, w_ref.clone()), (ids_buffer.tensor(DType::U32, &[6]).unwrap(), ids_ref)];
        let params = [2.0_f32.to_bits()];
        compare(&device, Kind::Gather, &inputs, &params, &[6, inner], dtype.name(), |_| 2e-6);
    }
}
