//! Products, most with a norm in front, whose heads are turned, written to a cache, or both: every number of
//! rows that kernels of few rows are made for, and one more.

use clearway_graph::{CapturedOpKind as Kind, DType, Product, Slot};

use super::fused::{EPS, WEIGHTS};
use super::positional::{FACTORS, NO_FACTORS, cache_rows, rotation};
use super::products::inner;
use super::{ACTIVATIONS, Fill, List, input, normal, output};

/// Sizes of a case.
#[derive(Clone, Copy)]
struct Size {
    tokens: usize,
    /// Inner extent: plain, blocks of 32 or of 256.
    inner: (usize, [usize; 2]),
    heads: usize,
    head: usize,
    /// Elements of a head that turn.
    n_dims: u32,
    /// First position.
    start: u32,
}

#[rustfmt::skip] // a table reads by columns
const SIZES: [Size; 14] = [
    Size { tokens: 1, inner: (1, [1, 1]),    heads: 1, head: 2,   n_dims: 2,   start: 0 },
    Size { tokens: 1, inner: (576, [18, 3]), heads: 3, head: 64,  n_dims: 64,  start: 17 },
    Size { tokens: 2, inner: (32, [2, 2]),   heads: 2, head: 8,   n_dims: 4,   start: 3 },
    Size { tokens: 3, inner: (31, [1, 1]),   heads: 1, head: 7,   n_dims: 4,   start: 40 },
    Size { tokens: 4, inner: (128, [4, 1]),  heads: 2, head: 32,  n_dims: 32,  start: 100 },
    Size { tokens: 5, inner: (200, [7, 1]),  heads: 1, head: 80,  n_dims: 20,  start: 5 },
    Size { tokens: 6, inner: (64, [4, 2]),   heads: 2, head: 16,  n_dims: 16,  start: 1023 },
    Size { tokens: 7, inner: (24, [3, 1]),   heads: 3, head: 6,   n_dims: 2,   start: 2 },
    Size { tokens: 8, inner: (256, [8, 1]),  heads: 4, head: 64,  n_dims: 32,  start: 0 },
    Size { tokens: 9, inner: (33, [2, 1]),   heads: 1, head: 16,  n_dims: 16,  start: 7 },
    Size { tokens: 2, inner: (16, [1, 1]),   heads: 5, head: 4,   n_dims: 4,   start: 0 },
    Size { tokens: 1, inner: (64, [2, 1]),   heads: 1, head: 128, n_dims: 128, start: 4000 },
    // Heads that take more than one workgroup.
    Size { tokens: 8, inner: (256, [8, 1]),  heads: 2, head: 320, n_dims: 64,  start: 9 },
    Size { tokens: 1, inner: (256, [8, 1]),  heads: 2, head: 640, n_dims: 640, start: 30 },
];

pub(super) fn add(list: &mut List) {
    for (number, weight) in WEIGHTS.into_iter().enumerate() {
        for (turn, dtype) in ACTIVATIONS.into_iter().enumerate() {
            // A third of the sizes for each type, so that all come with every three; what else varies
            // goes on with each time a size comes.
            for (index, size) in SIZES.iter().enumerate() {
                let step = index + number + turn;
                if step.is_multiple_of(3) {
                    let cache = ACTIVATIONS[step / 3 / 2 % 2];
                    add_size(list, [dtype, weight, cache], size, step / 3, |_| true);
                }
            }
        }
    }
}

#[rustfmt::skip] // a table reads by columns
const ROUNDED_CACHES: [Size; 6] = [
    Size { tokens: 1, inner: (576, [18, 3]),   heads: 3, head: 64,  n_dims: 64,  start: 17 },
    Size { tokens: 2, inner: (256, [9, 2]),    heads: 2, head: 96,  n_dims: 96,  start: 3 },
    Size { tokens: 1, inner: (1024, [64, 8]),  heads: 4, head: 128, n_dims: 128, start: 4000 },
    Size { tokens: 5, inner: (256, [8, 1]),    heads: 2, head: 64,  n_dims: 32,  start: 0 },
    Size { tokens: 8, inner: (512, [16, 2]),   heads: 1, head: 256, n_dims: 256, start: 100 },
    Size { tokens: 3, inner: (256, [8, 1]),    heads: 5, head: 32,  n_dims: 32,  start: 9 },
];

/// Products that write caches of 8 bits.
pub(super) fn add_rounded_caches(list: &mut List) {
    for (number, weight) in WEIGHTS.into_iter().enumerate() {
        for (turn, dtype) in ACTIVATIONS.into_iter().enumerate() {
            for (index, size) in ROUNDED_CACHES.iter().enumerate() {
                let step = index + number + turn;
                if step.is_multiple_of(2) {
                    let types = [dtype, weight, DType::C8];
                    add_size(list, types, size, step / 2, |product| product.epilogue().cache);
                }
            }
        }
    }
}

fn add_size(
    list: &mut List,
    [dtype, weight, cache]: [DType; 3],
    size: &Size,
    index: usize,
    wanted: impl Fn(&Product) -> bool,
) {
    let &Size { tokens, inner: (plain, blocks), heads, head, n_dims, start } = size;
    let k = if weight.is_quantised() { inner(weight, blocks) } else { plain };
    let even = index.is_multiple_of(2);
    let x = normal(dtype, &[tokens, k]);
    let g = normal(if even { DType::F32 } else { dtype }, &[k]);
    let w = normal(weight, &[heads * head, k]);
    let positions = input(DType::U32, &[tokens], Fill::Positions { start });
    let factors = if index.is_multiple_of(3) { NO_FACTORS } else { FACTORS };
    let factors = input(DType::F32, &[n_dims as usize / 2], factors);
    let turn = rotation(index, n_dims, u32::from(even));

    let y = output(dtype, &[tokens, heads, head]);
    let rows = tokens + 5;
    let with_heads =
        Product::all().iter().filter(|product| product.epilogue().heads() && wanted(product));
    for (&product, place) in with_heads.zip(index..) {
        // Half of the sizes with a bias or residual, which alternate.
        let epilogue = product.epilogue();
        if epilogue.add && place.is_multiple_of(2) {
            continue;
        }
        let addend: &[usize] =
            if place % 4 == 1 { &[heads * head] } else { &[tokens, heads * head] };
        let cache = normal(cache, &[rows, heads, head]);
        // Now and then two tokens go to one row.
        let to = match place % 4 {
            3 => Fill::Ids { below: tokens.div_ceil(2) as u32 },
            other => cache_rows(other, rows),
        };
        let operand = |&slot: &Slot| match slot {
            Slot::NormWeight => g.clone(),
            Slot::Weight => w.clone(),
            Slot::Addend => normal(if even { DType::F32 } else { dtype }, addend),
            Slot::HeadNormWeight => normal(if even { DType::F32 } else { dtype }, &[head]),
            Slot::Positions => positions.clone(),
            Slot::Factors => factors.clone(),
            Slot::CacheRows => input(DType::U32, &[tokens], to.clone()),
            Slot::Result => y.clone(),
            Slot::Cache => cache.clone(),
            _ => x.clone(),
        };
        let operands: Vec<_> = product.slots().iter().map(operand).collect();
        let norms = usize::from(product.is_normed()) + usize::from(epilogue.head_norm);
        let turn = if epilogue.rope { &turn[..] } else { &[] };
        let params = [&[EPS; 2][..norms], turn].concat();
        list.push_strided_and(Kind::Product(product), &operands, &params, place);
    }
}
