//! Products whose activations come rounded, and gated ones that round what they give.

use clearway_graph::testkit::kind;
use clearway_graph::{CapturedOpKind as Kind, DType, Product, Slot};

use super::fused::EPS;
use super::positional::{FACTORS, NO_FACTORS, rotation};
use super::products::inner;
use super::{Fill, List, OperandSpec, input, normal, output};

/// Inner extent (blocks of 32 or of 256) and outer extent, in chunks where it is rounded: large cards round
/// only where all of their processors have some.
const SIZES: [([usize; 2], usize); 6] =
    [([1, 1], 1), ([3, 1], 2), ([18, 3], 3), ([33, 2], 5), ([128, 17], 4), ([2, 1], 136)];

/// Rows of activations, which change from case to case.
const ROWS: [usize; 7] = [1, 2, 1, 8, 1, 5, 3];

pub(super) fn add(list: &mut List) {
    let types = DType::ALL.into_iter().filter(|dtype| dtype.is_quantised());
    for (number, weight) in types.enumerate() {
        for (index, &(blocks, n)) in SIZES.iter().enumerate() {
            let k = inner(weight, blocks);
            let rows = ROWS[(number + index) % ROWS.len()];
            read(list, weight, [rows, k, 8 * n + index], number + index);
            write(list, weight, [rows, k, 32 * n], number + index);
            // Half of the sizes for each type, so that all come with every two.
            if (number + index).is_multiple_of(2) {
                let step = (number + index) / 2;
                both(list, weight, [rows, k, 32 * n], step);
                // Each of several rows needs a lane.
                let rows_of_heads = if k < 256 { 1 } else { rows.min(8) };
                turned(list, weight, [rows_of_heads, k, n.min(5)], step);
                norm(list, weight, [rows, k, 32 * n], step);
            }
        }
    }
}

fn read(list: &mut List, weight: DType, [rows, k, n]: [usize; 3], index: usize) {
    let (x, w, y) =
        (normal(DType::A8, &[rows, k]), normal(weight, &[n, k]), output(DType::F32, &[rows, n]));
    let c = normal(DType::F32, &[rows, n]);
    list.push_strided_and(Kind::MATMUL, &[x.clone(), w.clone(), y.clone()], &[], index);
    list.push_strided_and(kind("matmul_add"), &[x, w, c, y], &[], index);
}

/// Products that may quantise what they give, other than those with a norm behind.
fn quantising() -> impl Iterator<Item = Product> {
    let products = Product::all().iter().copied();
    products.filter(|product| product.may_quantise() && !product.epilogue().norm)
}

/// The `index`th of some products, and then from the start.
fn pick(products: impl Iterator<Item = Product>, index: usize) -> Product {
    let products: Vec<_> = products.collect();
    products[index % products.len()]
}

/// Pushes a product of these rows with weights of this type.
fn push(list: &mut List, product: Product, [x, y]: [OperandSpec; 2], weight: DType, index: usize) {
    let ([rows, k], n) = ([x.shape[0], x.shape[1]], y.shape[1]);
    let operand = |&slot: &Slot| match slot {
        Slot::NormWeight => normal(DType::F32, &[k]),
        Slot::Weight | Slot::UpWeight => normal(weight, &[n, k]),
        Slot::Up => normal(DType::F32, &[rows, n]),
        Slot::Result => y.clone(),
        _ => x.clone(),
    };
    let operands: Vec<_> = product.slots().iter().map(operand).collect();
    let params = if product.is_normed() { &[EPS][..] } else { &[] };
    list.push_strided_and(Kind::Product(product), &operands, params, index);
}

fn write(list: &mut List, weight: DType, [rows, k, n]: [usize; 3], index: usize) {
    let ends = || [normal(DType::F32, &[rows, k]), output(DType::A8, &[rows, n])];
    for normed in [false, true] {
        let product = pick(quantising().filter(|p| p.is_normed() == normed), index);
        push(list, product, ends(), weight, index);
    }
}

/// Gated products of rounded rows, rounded or not, and gates of what lies in memory.
fn both(list: &mut List, weight: DType, [rows, k, n]: [usize; 3], index: usize) {
    let ends = |dtype| [normal(DType::A8, &[rows, k]), output(dtype, &[rows, n])];
    let reading = || quantising().filter(|product| product.may_read_quantised());
    push(list, pick(reading(), index), ends(DType::A8), weight, index);
    push(list, pick(reading(), index + 1), ends(DType::F32), weight, index);
    let of_operand =
        |product: &Product| product.slots().contains(&Slot::Up) && !product.is_of_experts();
    let of_operand = Product::all().iter().copied().filter(of_operand);
    push(list, pick(of_operand, index), ends(DType::F32), weight, index);
}

/// Heads of products of rounded rows that write caches of 8 bits.
pub(super) fn add_rounded_caches(list: &mut List) {
    let types = DType::ALL.into_iter().filter(|dtype| dtype.is_quantised());
    for (number, weight) in types.enumerate() {
        for (index, &(blocks, n)) in SIZES.iter().enumerate().skip(number % 2).step_by(2) {
            let k = inner(weight, blocks);
            let rows = if k < 256 { 1 } else { ROWS[(number + index) % ROWS.len()] };
            let head = [64, 128, 32, 96, 256][(number + index) % 5];
            heads_of(list, [weight, DType::C8], [rows, k, n.min(5), head], number + index);
        }
    }
}

/// Heads of products of rounded rows.
fn turned(list: &mut List, weight: DType, [rows, k, heads]: [usize; 3], index: usize) {
    let head = [64, 16, 6, 128][index % 4];
    heads_of(list, [weight, DType::F16], [rows, k, heads, head], index);
}

/// Products of rounded rows whose heads are turned, written to a cache, or both; with a cache of 8 bits only those that write
/// it.
fn heads_of(
    list: &mut List,
    [weight, cache]: [DType; 2],
    [rows, k, heads, head]: [usize; 4],
    index: usize,
) {
    let n_dims = if index.is_multiple_of(3) { head / 2 / 2 * 2 } else { head };
    let (x, w) = (normal(DType::A8, &[rows, k]), normal(weight, &[heads * head, k]));
    let positions = input(DType::U32, &[rows], Fill::Positions { start: 97 });
    let factors = if index.is_multiple_of(2) { NO_FACTORS } else { FACTORS };
    let factors = input(DType::F32, &[n_dims / 2], factors);
    let turn = rotation(index, n_dims as u32, (index % 2) as u32);
    let to = input(DType::U32, &[rows], Fill::Ids { below: 3 });
    let reads = |product: &&Product| {
        let epilogue = product.epilogue();
        let wanted = if cache == DType::C8 { epilogue.cache } else { epilogue.heads() };
        wanted && product.may_read_quantised()
    };
    for &product in Product::all().iter().filter(reads) {
        let operand = |&slot: &Slot| match slot {
            Slot::Weight => w.clone(),
            Slot::Addend => normal(DType::F32, &[heads * head]),
            Slot::HeadNormWeight => normal(DType::F32, &[head]),
            Slot::Positions => positions.clone(),
            Slot::Factors => factors.clone(),
            Slot::CacheRows => to.clone(),
            Slot::Result => output(DType::F32, &[rows, heads, head]),
            Slot::Cache => normal(cache, &[3, heads, head]),
            _ => x.clone(),
        };
        let operands: Vec<_> = product.slots().iter().map(operand).collect();
        let turn = if product.epilogue().rope { &turn[..] } else { &[] };
        let norm = if product.epilogue().head_norm { &[EPS][..] } else { &[] };
        let params = [norm, turn].concat();
        list.push_strided_and(Kind::Product(product), &operands, &params, index);
    }
}

/// The norm of a product and a residual.
fn norm(list: &mut List, weight: DType, [rows, k, n]: [usize; 3], index: usize) {
    let x = if index.is_multiple_of(3) { DType::F32 } else { DType::A8 };
    let (x, w, c) =
        (normal(x, &[rows, k]), normal(weight, &[n, k]), normal(DType::F32, &[rows, n]));
    let next = if index.is_multiple_of(4) { DType::F16 } else { DType::F32 };
    let (next, y) = (normal(next, &[n]), output(DType::A8, &[rows, n]));
    let sum = output(DType::F32, &[rows, n]);
    let operands = [&x, &w, &c, &next, &sum, &y].map(Clone::clone);
    list.push_strided_and(kind("matmul_add_norm"), &operands, &[EPS], index);
    if index.is_multiple_of(2) {
        let operands = [x, w, c, next, y];
        list.push_strided_and(kind("matmul_add_norm"), &operands, &[EPS], index);
    }
}
