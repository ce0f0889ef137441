//! Products with weights of every type: matrices, experts, and rows picked from a table.

use clearway_graph::testkit::kind;
use clearway_graph::{CapturedOpKind as Kind, DType};

use super::{ACTIVATIONS, Fill, List, OperandSpec, Place, input, normal, output};

/// Tokens, inner extent and outer extent of products with plain weights.
const PLAIN: [(usize, usize, usize); 13] = [
    (1, 1, 1),
    (1, 7, 3),
    (2, 33, 7),
    (3, 64, 65),
    (7, 65, 33),
    (1, 127, 127),
    (33, 127, 64),
    (1, 256, 576),
    (2, 576, 64),
    (33, 64, 33),
    (1, 2048, 256),
    (9, 200, 17),
    (8, 31, 40),
];

/// The same for blocks: tokens, blocks of 32 or of 256 to a row, outer extent.
const BLOCKS: [(usize, [usize; 2], usize); 12] = [
    (1, [1, 1], 1),
    (1, [2, 2], 3),
    (2, [1, 1], 7),
    (3, [3, 1], 65),
    (7, [5, 2], 33),
    (1, [9, 3], 127),
    (33, [8, 1], 64),
    (2, [18, 2], 64),
    (33, [2, 1], 33),
    (1, [64, 8], 256),
    (9, [4, 1], 17),
    (8, [7, 2], 40),
];

pub(super) fn add(list: &mut List) {
    matmul(list);
    matmul_add(list);
    experts(list);
    ordered_experts(list);
    expert_order(list);
    expert_sum(list);
    gather(list);
}

/// Every type that holds weights.
fn weight_types() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&dtype| dtype != DType::U32)
}

/// Blocks to a row out of the counts for the two sizes of blocks.
pub(super) fn inner(dtype: DType, blocks: [usize; 2]) -> usize {
    dtype.block_elems() * if dtype.block_elems() == 32 { blocks[0] } else { blocks[1] }
}

fn sizes(dtype: DType) -> Vec<(usize, usize, usize)> {
    if dtype.is_quantised() {
        BLOCKS.iter().map(|&(t, blocks, n)| (t, inner(dtype, blocks), n)).collect()
    } else {
        PLAIN.to_vec()
    }
}

pub(super) fn product(x: DType, w: DType, (t, k, n): (usize, usize, usize)) -> [OperandSpec; 3] {
    [normal(x, &[t, k]), normal(w, &[n, k]), output(x, &[t, n])]
}

fn matmul(list: &mut List) {
    for weight in weight_types() {
        for dtype in ACTIVATIONS {
            for (index, size) in sizes(weight).into_iter().enumerate() {
                let operands = product(dtype, weight, size);
                list.push(Kind::MATMUL, &operands, &[], Place::Dense);
                list.push(Kind::MATMUL, &operands, &[], Place::cycle(1 + index % 3));
            }
        }
        // Enough of everything for tiles with borders on all sides.
        let k = if weight.block_elems() == 256 { 512 } else { 288 };
        let operands = product(DType::F32, weight, (67, k, 130));
        list.push(Kind::MATMUL, &operands, &[], Place::Strided);
    }
    let operands = product(DType::F16, DType::F16, (129, 576, 321));
    list.push(Kind::MATMUL, &operands, &[], Place::Dense);
}

fn matmul_add(list: &mut List) {
    for weight in weight_types() {
        for dtype in ACTIVATIONS {
            for (index, size) in sizes(weight).into_iter().enumerate().skip(1).step_by(2) {
                let [x, w, y] = product(dtype, weight, size);
                let addend = if index % 4 == 1 { dtype } else { DType::F32 };
                let full = [x.clone(), w.clone(), normal(addend, &y.shape), y.clone()];
                list.push_strided_and(kind("matmul_add"), &full, &[], index / 2);
                let row = normal(addend, &y.shape[1..]);
                list.push(kind("matmul_add"), &[x, w, row, y], &[], Place::cycle(index / 2));
            }
        }
    }
}

fn experts(list: &mut List) {
    // Tokens, experts used, experts, inner extent (plain, blocks), outer extent.
    let sizes = [
        (1, 1, 1, 7, [1, 1], 1),
        (1, 2, 4, 64, [2, 2], 7),
        (3, 2, 4, 33, [1, 1], 33),
        (7, 4, 8, 65, [3, 1], 16),
        (2, 8, 16, 127, [1, 1], 5),
        (33, 2, 5, 40, [2, 1], 9),
        (5, 3, 6, 256, [9, 2], 65),
    ];
    for weight in weight_types() {
        for dtype in ACTIVATIONS {
            for (index, &(t, used, experts, plain, blocks, n)) in sizes.iter().enumerate() {
                let k = if weight.is_quantised() { inner(weight, blocks) } else { plain };
                let below = experts as u32;
                let chosen =
                    if index == 5 { Fill::IdsBeyond { below } } else { Fill::Ids { below } };
                for (flip, x) in [&[t, k][..], &[t, used, k]].into_iter().enumerate() {
                    let operands = [
                        normal(dtype, x),
                        normal(weight, &[experts, n, k]),
                        input(DType::U32, &[t, used], chosen.clone()),
                        output(dtype, &[t, used, n]),
                    ];
                    list.push(Kind::MatMulExperts, &operands, &[], Place::cycle(index + flip));
                }
            }
        }
    }
}

/// Products whose rows come with their order: whole tiles, tiles with borders, experts without rows.
fn ordered_experts(list: &mut List) {
    // Tokens, experts used, experts, blocks of 32 or of 256 to a row, outer extent.
    let sizes = [
        (1, 2, 4, [1, 1], 64),
        (9, 2, 4, [2, 1], 64),
        (33, 4, 3, [3, 1], 130),
        (40, 3, 40, [1, 1], 72),
        (70, 2, 1, [9, 2], 200),
    ];
    for (number, weight) in weight_types().enumerate() {
        for (index, &(t, used, experts, blocks, n)) in sizes.iter().enumerate() {
            let k = if weight.is_quantised() { inner(weight, blocks) } else { 32 * blocks[0] };
            let dtype = ACTIVATIONS[usize::from((number + index) % 3 == 0)];
            let count = experts as u32;
            let x: &[usize] = if index % 2 == 0 { &[t, k] } else { &[t, used, k] };
            let order = &[experts + 2 + t * used];
            let operands = [
                normal(dtype, x),
                normal(weight, &[experts, n, k]),
                input(DType::U32, &[t, used], Fill::Experts { experts: count }),
                input(DType::U32, order, Fill::OrderOfExperts { experts: count }),
                output(dtype, &[t, used, n]),
            ];
            list.push(Kind::MatMulExperts, &operands, &[], Place::cycle(number + index));
        }
    }
}

fn expert_order(list: &mut List) {
    let sizes =
        [(1, 1, 1), (1, 8, 16), (3, 2, 4), (33, 4, 5), (70, 8, 128), (200, 8, 60), (5, 3, 300)];
    for (t, used, experts) in sizes {
        let below = experts as u32;
        for fill in [Fill::Ids { below }, Fill::IdsBeyond { below }] {
            let operands = [
                input(DType::U32, &[t, used], fill),
                output(DType::U32, &[experts + 2 + t * used]),
            ];
            list.push_everywhere(Kind::ExpertOrder, &operands, &[below]);
        }
    }
}

fn expert_sum(list: &mut List) {
    let sizes = [
        (1, 1, 1),
        (1, 2, 7),
        (2, 8, 33),
        (3, 4, 64),
        (7, 2, 65),
        (33, 8, 127),
        (1, 8, 2048),
        (2, 6, 576),
        (33, 4, 256),
    ];
    for dtype in ACTIVATIONS {
        for (t, used, n) in sizes {
            let weights = Fill::Uniform { low: 0.0, high: 1.0 };
            let operands = [
                normal(dtype, &[t, used, n]),
                input(DType::F32, &[t, used], weights),
                output(dtype, &[t, n]),
            ];
            list.push_everywhere(Kind::ExpertSum, &operands, &[]);
            let [x, weights, y] = operands;
            let c = if used % 4 == 2 { &[n][..] } else { &[t, n] };
            let operands = [x, weights, normal(if n % 2 == 0 { DType::F32 } else { dtype }, c), y];
            list.push_everywhere(Kind::ExpertSumAdd, &operands, &[]);
        }
    }
}

fn gather(list: &mut List) {
    // Rows of the table, columns (plain, blocks), tokens.
    let sizes = [
        (1, 1, [1, 1], 1),
        (7, 33, [2, 2], 3),
        (33, 64, [3, 1], 7),
        (256, 127, [1, 1], 33),
        (5, 576, [18, 3], 2),
        (70, 2048, [64, 8], 5),
    ];
    for table in weight_types() {
        for dtype in ACTIVATIONS {
            for (index, &(rows, plain, blocks, t)) in sizes.iter().enumerate() {
                let cols = if table.is_quantised() { inner(table, blocks) } else { plain };
                let below = rows as u32;
                let (ids, scale) = if index % 3 == 1 {
                    (Fill::IdsBeyond { below }, 5.75_f32)
                } else {
                    (Fill::Ids { below }, 1.0)
                };
                let operands = [
                    normal(table, &[rows, cols]),
                    input(DType::U32, &[t], ids),
                    output(dtype, &[t, cols]),
                ];
                let params = [scale.to_bits()];
                list.push_strided_and(Kind::Gather, &operands, &params, index);
            }
        }
    }
}
