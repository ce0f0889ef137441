use half::f16;

use super::packed::{Packed, pack_rows};
use super::*;
use crate::quant;

const BLOCK_TYPES: [DType; 13] = [
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
    DType::IQ4_NL,
    DType::IQ4_XS,
    DType::MXFP4,
];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn float(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 30) as f32 - 1.0
    }

    /// Sixteen rows of any bits a file may hold, but with scales that are small numbers.
    fn rows(&mut self, dtype: DType, cols: usize) -> Vec<u8> {
        let size = dtype.block_bytes();
        let mut bytes: Vec<u8> =
            (0..ROWS * cols / dtype.block_elems() * size).map(|_| self.next() as u8).collect();
        let scales: &[usize] = match dtype {
            DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
            DType::Q2_K => &[80, 82],
            DType::Q3_K => &[108],
            DType::Q6_K => &[208],
            DType::MXFP4 => &[],
            _ => &[0],
        };
        for block in bytes.chunks_exact_mut(size) {
            if dtype == DType::MXFP4 {
                block[0] = 119 + self.next() as u8 % 8;
            }
            for &at in scales {
                block[at..at + 2].copy_from_slice(&f16::from_f32(self.float()).to_le_bytes());
            }
        }
        bytes
    }
}

fn multiply(products: &Products, group: &[u8], tokens: &[Vec<f32>]) -> Vec<[f32; ROWS]> {
    let mut runs = vec![bytemuck::Zeroable::zeroed(); tokens.len() * tokens[0].len() / RUN];
    let mut out = vec![[0.0; ROWS]; tokens.len()];
    for (token, row) in tokens.iter().enumerate() {
        products.round(row, token, tokens.len(), &mut runs);
    }
    products.multiply(group, 1, &runs, &mut out);
    out
}

#[test]
fn groups_together_give_the_bits_of_each_alone() {
    let mut random = Random(11);
    for dtype in BLOCK_TYPES {
        // Whole chunks of runs that are taken apart at a time, and a rest.
        let cols = 11 * dtype.block_elems();
        for (count, tokens) in [(2, 1), (3, 8), (4, 21)] {
            let mut groups = Vec::new();
            for _ in 0..count {
                let plain = random.rows(dtype, cols);
                let mut group = vec![0; plain.len()];
                pack_rows(dtype, &plain, plain.len() / ROWS, &mut group);
                groups.push(group);
            }
            let inputs: Vec<Vec<f32>> =
                (0..tokens).map(|_| (0..cols).map(|_| random.float()).collect()).collect();
            for isa in available() {
                let products = Products::with(isa, dtype).unwrap();
                let alone: Vec<[f32; ROWS]> =
                    groups.iter().flat_map(|group| multiply(&products, group, &inputs)).collect();
                let mut runs = vec![bytemuck::Zeroable::zeroed(); tokens * cols / RUN];
                for (token, row) in inputs.iter().enumerate() {
                    products.round(row, token, tokens, &mut runs);
                }
                let mut together = vec![[0.0; ROWS]; count * tokens];
                products.multiply(&groups.concat(), count, &runs, &mut together);
                assert_eq!(bits(&together), bits(&alone), "{dtype}, {isa:?}, {count} x {tokens}");
                // And each token has the bits of itself alone.
                for (token, input) in inputs.iter().enumerate() {
                    let one = multiply(&products, &groups[0], std::slice::from_ref(input));
                    assert_eq!(bits(&one), bits(&alone[token..=token]), "{dtype}, {isa:?}");
                }
            }
        }
    }
}

fn bits(rows: &[[f32; ROWS]]) -> Vec<u32> {
    rows.as_flattened().iter().map(|x| x.to_bits()).collect()
}

#[test]
fn every_set_of_instructions_gives_the_same_bits() {
    let mut random = Random(7);
    for dtype in BLOCK_TYPES {
        let cols = 16 * dtype.block_elems();
        for tokens in [1, 2, 7, 8, 13] {
            let plain = random.rows(dtype, cols);
            let mut group = vec![0; plain.len()];
            pack_rows(dtype, &plain, plain.len() / ROWS, &mut group);
            let mut inputs: Vec<Vec<f32>> =
                (0..tokens).map(|_| (0..cols).map(|_| random.float()).collect()).collect();
            // The ends of the range, all of one sign: sums that may not wrap round.
            inputs[0][..32].fill(1.0);
            inputs[0][32..64].fill(-3.0);
            // Outliers: in the same run of some tokens, and in one of the last token alone.
            for (token, row) in inputs.iter_mut().enumerate().skip(1).step_by(3) {
                row[cols - 7] = -40.0 - token as f32;
            }
            inputs[tokens - 1][cols / 2] = 50.0;
            let exact = Products::with(Isa::Scalar, dtype).unwrap();
            let expected = multiply(&exact, &group, &inputs);
            for isa in available() {
                let found = multiply(&Products::with(isa, dtype).unwrap(), &group, &inputs);
                assert_eq!(found, expected, "{dtype} with {}, {tokens} tokens", isa.name());
            }
        }
    }
}

#[test]
fn products_are_those_of_decoded_weights_with_rounded_inputs() {
    let mut random = Random(3);
    for dtype in BLOCK_TYPES {
        let cols = 2 * dtype.block_elems().max(64);
        let plain = random.rows(dtype, cols);
        let stride = plain.len() / ROWS;
        let mut group = vec![0; plain.len()];
        pack_rows(dtype, &plain, stride, &mut group);
        // Multiples of their scale, so that rounding changes nothing.
        let mut inputs: Vec<f32> =
            (0..cols).map(|_| (random.next() % 255) as f32 - 127.0).collect();
        inputs.iter_mut().step_by(RUN).for_each(|x| *x = 127.0);
        let found = multiply(&Products::of(dtype).unwrap(), &group, &[inputs.clone()]);
        for (row, bytes) in plain.chunks_exact(stride).enumerate() {
            let mut weights = vec![0.0; cols];
            quant::decode(dtype, bytes, &mut weights).unwrap();
            let pairs = weights.iter().zip(&inputs).map(|(&w, &x)| f64::from(w) * f64::from(x));
            let (sum, size) =
                pairs.fold((0.0, 0.0), |(sum, size), p: f64| (sum + p, size + p.abs()));
            let error = (f64::from(found[0][row]) - sum).abs();
            assert!(error <= 1e-6 * size, "{dtype}, row {row}: {} for {sum}", found[0][row]);
        }
    }
}

#[test]
fn an_exponent_that_is_no_number_spoils_its_row_and_no_other() {
    let (cols, bad) = (96, 5);
    let mut plain = Random(4).rows(DType::MXFP4, cols);
    let stride = plain.len() / ROWS;
    // Even where all of the block's weights would be zeros.
    plain[bad * stride + 17..][..17].fill(0);
    plain[bad * stride + 17] = 255;
    let mut group = vec![0; plain.len()];
    pack_rows(DType::MXFP4, &plain, stride, &mut group);
    for isa in available() {
        let products = Products::with(isa, DType::MXFP4).unwrap();
        let found = multiply(&products, &group, &[vec![1.0; cols]]);
        for (row, value) in found[0].iter().enumerate() {
            assert_eq!(value.is_nan(), row == bad, "row {row} with {}: {value}", isa.name());
        }
    }
}

#[test]
fn inputs_are_rounded_to_the_nearest_step() {
    let mut random = Random(5);
    let products = Products::of(DType::Q8_0).unwrap();
    // A matrix of one scale and ones on its diagonal gives the inputs back.
    let mut plain = vec![0; ROWS * 34];
    for (row, block) in plain.chunks_exact_mut(34).enumerate() {
        block[..2].copy_from_slice(&f16::ONE.to_le_bytes());
        block[2 + row] = 1;
    }
    let mut group = vec![0; plain.len()];
    pack_rows(DType::Q8_0, &plain, 34, &mut group);
    for _ in 0..100 {
        let x: Vec<f32> = (0..RUN).map(|_| random.float()).collect();
        let step = x.iter().fold(0.0, |max: f32, x| max.max(x.abs())) / 127.0;
        for (found, x) in multiply(&products, &group, std::slice::from_ref(&x))[0].iter().zip(&x) {
            assert!((found - x).abs() <= 0.5001 * step, "{found} for {x}, step {step}");
        }
    }
    let check = |x: f32, expected: fn(f32) -> bool| {
        let mut inputs = vec![0.5; RUN];
        inputs[3] = x;
        let out = multiply(&products, &group, &[inputs])[0];
        assert!(out.iter().all(|&y| expected(y)), "{x}: {out:?}");
    };
    check(f32::NAN, f32::is_nan);
    check(f32::NEG_INFINITY, f32::is_nan);
    check(1e38, |y| y == 0.0 || (y - 1e38).abs() < 1e32);
    let zeros = multiply(&products, &group, &[vec![1e-40; RUN]])[0];
    assert!(zeros.iter().all(|y| y.abs() <= 1e-39), "{zeros:?}");
}

/// A diagonal matrix: each row gives one input back.
#[test]
fn an_outlier_leaves_the_others_of_its_run_their_precision() {
    let mut random = Random(13);
    for (dtype, scale_at, one) in [(DType::Q8_0, 0, 1), (DType::Q4_0, 0, 9)] {
        let (size, runs) = (dtype.block_bytes(), 16);
        for outlier in [0, 5, 15] {
            let mut x: Vec<f32> = (0..runs * RUN).map(|_| random.float()).collect();
            x[outlier] = 30.0;
            let mut plain = vec![0; ROWS * runs * size];
            for (row, blocks) in plain.chunks_exact_mut(runs * size).enumerate() {
                if dtype == DType::Q4_0 {
                    blocks.chunks_exact_mut(size).for_each(|block| block[2..].fill(0x88));
                }
                blocks[scale_at..scale_at + 2].copy_from_slice(&f16::ONE.to_le_bytes());
                blocks[2 + row] = blocks[2 + row] & 0xf0 | one;
            }
            let mut group = vec![0; plain.len()];
            pack_rows(dtype, &plain, runs * size, &mut group);
            let found =
                multiply(&Products::of(dtype).unwrap(), &group, std::slice::from_ref(&x))[0];
            let next = x[..RUN].iter().map(|x| x.abs()).filter(|&x| x < 30.0).fold(0.0, f32::max);
            for (index, (found, x)) in found.iter().zip(&x).enumerate() {
                assert!(
                    (found - x).abs() <= 0.5001 * next / 127.0,
                    "{dtype}, outlier {outlier}, input {index}: {found} for {x}"
                );
            }
        }
    }
}

#[test]
fn an_input_does_not_depend_on_the_tokens_beside_it() {
    let mut random = Random(17);
    for dtype in BLOCK_TYPES {
        let cols = 16 * dtype.block_elems();
        let plain = random.rows(dtype, cols);
        let mut group = vec![0; plain.len()];
        pack_rows(dtype, &plain, plain.len() / ROWS, &mut group);
        let mut inputs: Vec<Vec<f32>> =
            (0..11).map(|_| (0..cols).map(|_| random.float()).collect()).collect();
        inputs[2][40] = 60.0;
        inputs[7][41] = -60.0;
        inputs[9][42] = 60.0;
        let products = Products::of(dtype).unwrap();
        let together = multiply(&products, &group, &inputs);
        for (input, together) in inputs.iter().zip(together) {
            let alone = multiply(&products, &group, std::slice::from_ref(input))[0];
            assert_eq!(alone.map(f32::to_bits), together.map(f32::to_bits), "{dtype}");
        }
    }
}

#[test]
fn missing_rows_are_zeros() {
    let mut random = Random(11);
    for dtype in BLOCK_TYPES {
        let plain = random.rows(dtype, dtype.block_elems());
        let stride = dtype.block_bytes();
        let (mut all, mut some) = (vec![0; plain.len()], vec![1; plain.len()]);
        pack_rows(dtype, &plain, stride, &mut all);
        pack_rows(dtype, &plain[..5 * stride], stride, &mut some);
        let inputs: Vec<f32> = (0..dtype.block_elems()).map(|_| random.float()).collect();
        let products = Products::of(dtype).unwrap();
        let expected = multiply(&products, &all, std::slice::from_ref(&inputs))[0];
        let found = multiply(&products, &some, &[inputs])[0];
        assert_eq!(found[..5], expected[..5], "{dtype}");
        assert_eq!(found[5..], [0.0; 11], "{dtype}");
    }
    assert!(Packed::of(&clearway_graph::Layout::new(DType::U32, &[32, 32]).unwrap()).is_none());
}

#[test]
fn every_set_of_instructions_transposes_a_square() {
    struct Transpose([[f32; 16]; 16]);
    impl Vectorised for Transpose {
        type Output = [[f32; 16]; 16];

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> Self::Output {
            let mut square = [l.float(0.0); 16];
            for (vector, numbers) in square.iter_mut().zip(&self.0) {
                *vector = l.floats(numbers);
            }
            l.transpose(square).map(|vector| l.store(vector))
        }
    }
    let square = std::array::from_fn(|j| std::array::from_fn(|i| (100 * j + i) as f32));
    let expected = std::array::from_fn(|i| std::array::from_fn(|j| (100 * j + i) as f32));
    for isa in available() {
        assert_eq!(vectorise_as(isa, Transpose(square)), expected, "{}", isa.name());
    }
}

/// Lengths around the block of columns, and numbers of groups and inputs that do not fill a tile.
#[test]
fn plain_products_are_sums_in_the_order_of_the_columns() {
    const BLOCK: usize = 256;
    let mut random = Random(23);
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for (cols, count, tokens) in [(1, 1, 1), (255, 2, 7), (256, 3, 8), (700, 4, 13)] {
            let mut weights: Vec<f32> = (0..count * ROWS * cols).map(|_| random.float()).collect();
            let mut plain = vec![0; count * ROWS * cols * dtype.block_bytes()];
            quant::encode(dtype, &weights, &mut plain).unwrap();
            quant::decode(dtype, &plain, &mut weights).unwrap();
            let row_bytes = cols * dtype.block_bytes();
            let mut packed = vec![0_u64; plain.len().div_ceil(8)];
            let packed = &mut bytemuck::cast_slice_mut(&mut packed)[..plain.len()];
            for (plain, packed) in
                plain.chunks(ROWS * row_bytes).zip(packed.chunks_mut(ROWS * row_bytes))
            {
                pack_rows(dtype, plain, row_bytes, packed);
            }
            let inputs: Vec<Vec<f32>> =
                (0..tokens).map(|_| (0..cols).map(|_| random.float()).collect()).collect();
            let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
            let mut expected = vec![[0.0; ROWS]; count * tokens];
            for (index, expected) in expected.iter_mut().enumerate() {
                let (group, input) = (index / tokens, inputs[index % tokens]);
                for (row, expected) in expected.iter_mut().enumerate() {
                    let weights = &weights[(group * ROWS + row) * cols..][..cols];
                    for (weights, input) in weights.chunks(BLOCK).zip(input.chunks(BLOCK)) {
                        let pairs = weights.iter().zip(input);
                        *expected += pairs.fold(0.0, |sum: f32, (w, x)| w.mul_add(*x, sum));
                    }
                }
            }
            for isa in available() {
                let mut found = vec![[f32::NAN; ROWS]; count * tokens];
                plain::products(isa, dtype, packed, count, &inputs, &mut found);
                assert_eq!(
                    bits(&found),
                    bits(&expected),
                    "{dtype} with {}, {count} x {tokens}",
                    isa.name()
                );
            }
        }
    }
}
