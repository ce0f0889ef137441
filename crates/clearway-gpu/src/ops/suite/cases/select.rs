//! Routers, the largest element, the largest few.

use clearway_graph::{CapturedOpKind as Kind, DType};

use super::{ACTIVATIONS, Fill, List, Place, input, output};

/// What is not finite must show: a model that computes it is broken.
const SPOILED: Fill = Fill::Spoiled { infinite: true };

pub(super) fn add(list: &mut List) {
    router(list);
    arg_max(list);
    top_k(list);
}

fn router(list: &mut List) {
    // Tokens, experts, experts used.
    let sizes = [
        (1, 1, 1),
        (1, 8, 2),
        (2, 7, 7),
        (3, 64, 8),
        (7, 33, 4),
        (33, 128, 8),
        (2, 60, 4),
        (3, 257, 16),
    ];
    for dtype in ACTIVATIONS {
        for (index, &(t, experts, used)) in sizes.iter().enumerate() {
            for mode in 0..3 {
                for renorm in [0, 1] {
                    let fill = match (index + mode as usize) % 4 {
                        3 => Fill::Ties,
                        2 => Fill::Spoiled { infinite: false },
                        _ => Fill::Distinct { step: 0.03125 },
                    };
                    let scale = [1.0_f32, 2.5][renorm as usize];
                    let operands = [
                        input(dtype, &[t, experts], fill),
                        output(DType::U32, &[t, used]),
                        output(DType::F32, &[t, used]),
                    ];
                    let params = [mode, renorm, scale.to_bits()];
                    let place = Place::cycle(index + mode as usize + 2 * renorm as usize);
                    list.push(Kind::RouterTopK, &operands, &params, place);
                }
            }
        }
    }
}

/// Tokens, experts, experts used, groups, groups used.
const GROUPS: [[usize; 5]; 8] = [
    [1, 8, 2, 4, 2],
    [3, 6, 2, 3, 1],
    [2, 64, 6, 1, 1],
    [7, 160, 6, 8, 3],
    [33, 256, 8, 8, 4],
    [2, 12, 12, 4, 4],
    [5, 9, 2, 9, 3],
    [2, 1024, 8, 32, 5],
];

/// Experts that are chosen by groups: with and without a bias, by the best of a group and by the best two.
pub(super) fn add_groups(list: &mut List) {
    for dtype in ACTIVATIONS {
        for (index, &[t, experts, used, groups, groups_used]) in GROUPS.iter().enumerate() {
            let size = experts / groups;
            for (turn, (mode, best, biased)) in
                [(0, 1, false), (2, 1, false), (2, 2, false), (2, 1, true), (2, 2, true)]
                    .into_iter()
                    .enumerate()
            {
                let fill = match (index + turn) % 4 {
                    3 => Fill::Ties,
                    2 => Fill::Spoiled { infinite: false },
                    _ => Fill::Distinct { step: 0.03125 / (experts as f32 / 64.0).max(1.0) },
                };
                let logits = input(dtype, &[t, experts], fill);
                let bias =
                    input(DType::F32, &[experts], Fill::Normal { mean: 0.0, deviation: 0.5 });
                let results = [output(DType::U32, &[t, used]), output(DType::F32, &[t, used])];
                let operands = match biased {
                    true => [&[logits, bias], &results[..]].concat(),
                    false => [&[logits], &results[..]].concat(),
                };
                let best = if size == 1 { 1 } else { best };
                let scale = [1.0_f32, 2.5][turn % 2].to_bits();
                let numbers = [groups as u32, groups_used as u32, best];
                let params = [&[mode, (index % 2) as u32, scale], &numbers[..]].concat();
                list.push(Kind::RouterGroups, &operands, &params, Place::cycle(index + turn));
            }
        }
    }
}

fn arg_max(list: &mut List) {
    let sizes = [(1, 1), (1, 7), (2, 33), (3, 64), (7, 65), (33, 127), (2, 576), (1, 49152)];
    for dtype in ACTIVATIONS {
        for (rows, cols) in sizes {
            for fill in [Fill::NORMAL, Fill::Ties, SPOILED] {
                let operands = [input(dtype, &[rows, cols], fill), output(DType::U32, &[rows])];
                list.push_everywhere(Kind::ArgMax, &operands, &[]);
            }
        }
    }
}

fn top_k(list: &mut List) {
    let sizes = [
        (1, 1, 1),
        (1, 7, 7),
        (2, 33, 1),
        (3, 64, 5),
        (7, 65, 8),
        (33, 127, 33),
        (2, 576, 40),
        (1, 9000, 64),
        (2, 40000, 40),
        (1, 40000, 160),
    ];
    for dtype in ACTIVATIONS {
        for (rows, cols, k) in sizes {
            for fill in [Fill::NORMAL, Fill::Ties, SPOILED] {
                let operands = [
                    input(dtype, &[rows, cols], fill),
                    output(dtype, &[rows, k]),
                    output(DType::U32, &[rows, k]),
                ];
                list.push_everywhere(Kind::TopK, &operands, &[]);
            }
        }
    }
}
