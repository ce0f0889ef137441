//! Products that hold a norm, a gate or both: few rows, as kernels that fuse them are made for, and
//! some more.

use clearway_graph::{CapturedOpKind as Kind, DType, Product, Slot};

use super::products::{inner, product};
use super::{ACTIVATIONS, Fill, List, input, normal, output};

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
            for step in 0..2 {
                experts(list, dtype, weight, 2 * (2 * number + turn) + step);
            }
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

/// Products of experts: tokens, experts used, experts, inner extent (plain, blocks), outer extent.
const EXPERTS: [(usize, usize, usize, usize, [usize; 2], usize); 6] = [
    (1, 1, 1, 8, [1, 1], 1),
    (1, 8, 16, 576, [18, 3], 65),
    (2, 2, 4, 64, [2, 2], 7),
    (5, 3, 6, 200, [7, 1], 40),
    (8, 4, 8, 256, [8, 1], 33),
    (9, 2, 5, 31, [1, 1], 9),
];

fn experts(list: &mut List, dtype: DType, weight: DType, index: usize) {
    let (t, used, experts, plain, blocks, n) = EXPERTS[index % EXPERTS.len()];
    let k = if weight.is_quantised() { inner(weight, blocks) } else { plain };
    let below = experts as u32;
    let chosen = if index % 4 == 3 { Fill::IdsBeyond { below } } else { Fill::Ids { below } };
    // The two weights of a gated pair may differ in type, and experts may have rows of their own.
    let other = if index % 5 == 4 { DType::F16 } else { weight };
    let x: &[usize] = if index % 7 == 6 { &[t, used, k] } else { &[t, k] };
    for &product in Product::all().iter().filter(|product| product.is_of_experts()) {
        let operand = |&slot: &Slot| match slot {
            Slot::NormWeight => normal(DType::F32, &[k]),
            Slot::Weight => normal(weight, &[experts, n, k]),
            Slot::UpWeight => normal(other, &[experts, n, k]),
            Slot::Ids => input(DType::U32, &[t, used], chosen.clone()),
            Slot::Up => normal(dtype, &[t, used, n]),
            Slot::Result => output(dtype, &[t, used, n]),
            _ => normal(dtype, x),
        };
        let operands: Vec<_> = product.slots().iter().map(operand).collect();
        let params = if product.is_normed() { &[EPS][..] } else { &[] };
        list.push_strided_and(Kind::Product(product), &operands, params, index);
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
        let rows = !product.epilogue().heads() && !product.epilogue().norm;
        !product.is_basic() && !product.is_of_experts() && rows
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
