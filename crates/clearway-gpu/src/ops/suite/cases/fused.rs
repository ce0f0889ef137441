//! Products that hold a norm, a gate or both: few rows, as kernels that fuse them are made for, and
//! some more.

use clearway_graph::{CapturedOpKind as Kind, DType, Product, Slot};

use super::products::{inner, product};
use super::{ACTIVATIONS, List, normal};

/// Rows, inner extent (plain, blocks of 32 or of 256), outer extent.
const SIZES: [(usize, usize, [usize; 2], usize); 9] = [
    (1, 1, [1, 1], 1),
    (1, 576, [18, 3], 65),
    (2, 33, [2, 2], 7),
    (9, 31, [1, 1], 5),
    (4, 127, [5, 2], 40),
    (5, 200, [7, 1], 17),
    (7, 65, [4, 2], 3),
    (8, 256, [8, 1], 64),
    (3, 64, [3, 1], 33),
];

pub(super) const WEIGHTS: [DType; 10] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q8_0,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
];

pub(super) const EPS: u32 = 1e-5_f32.to_bits();

pub(super) fn add(list: &mut List) {
    for (number, weight) in WEIGHTS.into_iter().enumerate() {
        for (turn, dtype) in ACTIVATIONS.into_iter().enumerate() {
            // A third of the sizes for each type, so that all come with every three.
            for (index, &(t, plain, blocks, n)) in SIZES.iter().enumerate() {
                if (index + number + turn).is_multiple_of(3) {
                    let k = if weight.is_quantised() { inner(weight, blocks) } else { plain };
                    add_size(list, dtype, weight, (t, k, n), (index + number + turn) / 3);
                }
            }
        }
    }
}

fn add_size(
    list: &mut List,
    dtype: DType,
    weight: DType,
    (t, k, n): (usize, usize, usize),
    index: usize,
) {
    let [x, w, y] = product(dtype, weight, (t, k, n));
    let g = normal(if index.is_multiple_of(2) { DType::F32 } else { dtype }, &[k]);
    // The two weights of a gated pair may differ in type.
    let other = if index.is_multiple_of(2) { weight } else { DType::F16 };
    let u = normal(other, &[n, k]);
    let up = normal(dtype, &y.shape);
    let c = match index % 3 {
        0 => normal(DType::F32, &y.shape),
        1 => normal(dtype, &y.shape),
        _ => normal(DType::F32, &y.shape[1..]),
    };
    let fused = |product: &&Product| {
        !product.is_basic() && !product.epilogue().heads() && !product.epilogue().norm
    };
    for &product in Product::all().iter().filter(fused) {
        let operand = |&slot: &Slot| match slot {
            Slot::NormWeight => g.clone(),
            Slot::Weight => w.clone(),
            Slot::UpWeight => u.clone(),
            Slot::Up => up.clone(),
            Slot::Addend => c.clone(),
            Slot::Result => y.clone(),
            _ => x.clone(),
        };
        let operands: Vec<_> = product.slots().iter().map(operand).collect();
        let params = if product.is_normed() { &[EPS][..] } else { &[] };
        list.push_strided_and(Kind::Product(product), &operands, params, index);
    }
}
