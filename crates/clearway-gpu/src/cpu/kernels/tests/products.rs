use super::*;
use crate::cpu::kernels::matmul::blocks_of;

const WEIGHTS: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_K];

#[test]
fn rows_give_the_same_bits_alone_and_together() {
    // More rows than a block, more columns than a piece, an odd number of both.
    let (rows, inner, outer) = (67, 256, 403);
    for weights in WEIGHTS {
        for (inputs, packed) in
            [(DType::F32, false), (DType::F16, false), (DType::F32, true), (DType::F16, true)]
        {
            let mut rig = Rig::new(2);
            let (x, w) = (rig.random(inputs, &[rows, inner]), rig.random(weights, &[outer, inner]));
            let w = if packed { rig.packed(w) } else { w };
            let together = rig.output(inputs, &[rows, outer]);
            let alone = rig.output(inputs, &[rows, outer]);
            rig.op(Kind::MATMUL, &[x, w, together], &[]);
            let row = |view: TensorView, row: usize| {
                let cols = view.layout.cols();
                let layout = Layout::new(inputs, &[1, cols]).unwrap();
                view.reinterpret((row * cols * inputs.block_bytes()) as u64, layout).unwrap()
            };
            for i in 0..rows {
                rig.op(Kind::MATMUL, &[row(x, i), w, row(alone, i)], &[]);
            }
            rig.run();
            assert_eq!(rig.bits(together), rig.bits(alone), "{weights} {inputs} {packed}");
        }
    }
}

#[test]
fn experts_give_the_bits_of_a_product_with_their_own_matrix() {
    // One expert has more rows than a block, one has none, and one does not exist.
    let (tokens, used, inner, outer, experts) = (50, 2, 256, 19, 4);
    for weights in WEIGHTS {
        for (inputs, own_rows) in [(DType::F32, false), (DType::F16, false), (DType::F16, true)] {
            let mut rig = Rig::new(2);
            let shape = if own_rows { vec![tokens, used, inner] } else { vec![tokens, inner] };
            let x = rig.random(inputs, &shape);
            let w = rig.random(weights, &[experts, outer, inner]);
            let chosen: Vec<u32> =
                (0..tokens * used).map(|i| if i % 5 == 0 { i as u32 % 3 * 3 } else { 1 }).collect();
            let chosen: Vec<u32> =
                chosen.iter().enumerate().map(|(i, &e)| if i == 7 { 4 } else { e }).collect();
            let ids = rig.u32(&chosen, &[tokens, used]);
            let y = rig.output(inputs, &[tokens, used, outer]);
            rig.op(Kind::MatMulExperts, &[x, w, ids, y], &[]);
            let expected = rig.output(inputs, &[tokens * used, outer]);
            let zeros = Layout::new(inputs, &[outer]).unwrap();
            for (i, &expert) in chosen.iter().enumerate() {
                let size = inputs.block_bytes();
                let to = expected.reinterpret((i * outer * size) as u64, zeros).unwrap();
                if expert as usize >= experts {
                    rig.op(Kind::Fill, &[to], &[0]);
                    continue;
                }
                let from = if own_rows { i } else { i / used };
                let layout = Layout::new(inputs, &[1, inner]).unwrap();
                let x = x.reinterpret((from * inner * size) as u64, layout).unwrap();
                let layout = Layout::new(weights, &[outer, inner]).unwrap();
                let w = w.reinterpret(expert as u64 * layout.span_bytes(), layout).unwrap();
                let layout = Layout::new(inputs, &[1, outer]).unwrap();
                let to = to.reinterpret(0, layout).unwrap();
                rig.op(Kind::MATMUL, &[x, w, to], &[]);
            }
            rig.run();
            assert_eq!(rig.bits(y), rig.bits(expected), "{weights} {inputs} {own_rows}");
        }
    }
}

#[test]
fn odd_lengths_are_summed_to_the_end() {
    for inner in [1, 31, 32, 33, 95] {
        let mut rig = Rig::new(1);
        let ones = vec![1.0; inner];
        let (x, w) = (rig.f32(&ones, &[1, inner]), rig.f32(&ones, &[1, inner]));
        let y = rig.output(DType::F32, &[1, 1]);
        rig.op(Kind::MATMUL, &[x, w, y], &[]).run();
        assert_eq!(rig.floats(y), [inner as f32]);
    }
}

#[test]
fn experts_are_summed_by_weight() {
    let mut rig = Rig::new(2);
    let x = rig.f32(&[1.0, 2.0, 10.0, 20.0, 3.0, 4.0, 30.0, 40.0], &[2, 2, 2]);
    let weights = rig.f32(&[1.0, 0.5, 0.0, 2.0], &[2, 2]);
    let y = rig.output(DType::F32, &[2, 2]);
    rig.op(Kind::ExpertSum, &[x, weights, y], &[]).run();
    assert_eq!(rig.floats(y), [6.0, 12.0, 60.0, 80.0]);
}

/// Rows are rounded anew for every piece, so wide pieces round less; narrow ones keep more workers busy.
#[test]
fn pieces_with_rounded_inputs_are_as_wide_as_workers_allow() {
    // For up to four cores, and for 16 of them.
    for ((rows, outer, inner), few, many) in [
        ((8, 8192, 2048), (8, 512), (8, 512)),
        // More rows share what is taken apart, unless pieces become narrow by it or inputs are too long.
        ((128, 8192, 2048), (64, 1024), (32, 1024)),
        ((512, 8192, 2048), (64, 4096), (64, 2048)),
        ((512, 2048, 8192), (32, 2048), (32, 1024)),
        // A small matrix, whose rows alone make 32.
        ((512, 1536, 576), (16, 1536), (16, 1536)),
    ] {
        for (pieces, expected) in [(16, few), (32, many)] {
            let found = blocks_of(pieces, rows, outer, inner, true);
            assert_eq!(found, expected, "{rows} x {outer} x {inner}, {pieces} pieces");
        }
    }
}
