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
