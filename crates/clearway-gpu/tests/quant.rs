//! Block formats against an independent oracle, and the quality of the encoders.
//!
//! `data/quant_vectors.bin` comes from `data/make_quant_vectors.py`, which describes its layout.

// The functions that the tests share are not tests in clippy's eyes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use clearway_gpu::quant::{QuantError, block_decoder, blocks, decode, encode, row_bytes};
use clearway_graph::DType;
use half::f16;

/// The types whose encoder must give ggml's bytes.
const LEGACY: [DType; 5] = [DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0];

/// Weights per set of [`weights`]: 64 super-blocks.
const COUNT: usize = 64 * 256;

const SETS: [Set; 8] = [
    Set::Gaussian,
    Set::Uniform,
    Set::Constant,
    Set::NegativeConstant,
    Set::Positive,
    Set::Outlier,
    Set::Small,
    Set::Tiny,
];

/// The sets without the constants, where every encoder is at the rounding of an f16.
const RANDOM_SETS: [Set; 6] =
    [Set::Gaussian, Set::Uniform, Set::Positive, Set::Outlier, Set::Small, Set::Tiny];

/// Largest relative RMS error per type, in the order of [`SETS`]: one per cent above what is
/// measured. A constant is only as good as an f16 scale, or as the steps of a 4-bit float. Tiny
/// weights have subnormal scales, too coarse for 8-bit quants: there ggml's rounding, which is ours,
/// loses everything.
#[rustfmt::skip]
const LIMITS: [(DType, [f64; 8]); 16] = [
    (DType::F32,    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    (DType::F16,    [0.0002109, 0.0001863, 0.0003199, 0.0003199, 0.0002106, 0.00006379, 0.0002367, 0.01749]),
    (DType::BF16,   [0.001672, 0.001489, 0.002346, 0.002346, 0.001696, 0.0005103, 0.001671, 0.001680]),
    (DType::Q4_0,   [0.08737, 0.06581, 0.0003199, 0.0003199, 0.08535, 0.1113, 0.08618, 0.1070]),
    (DType::Q4_1,   [0.07916, 0.06143, 0.0003199, 0.0003199, 0.04413, 0.1141, 0.07920, 0.1675]),
    (DType::Q5_0,   [0.04334, 0.03161, 0.0003199, 0.0003199, 0.04302, 0.09011, 0.04296, 0.1236]),
    (DType::Q5_1,   [0.03837, 0.02982, 0.0003199, 0.0003199, 0.02140, 0.05278, 0.03831, 0.2871]),
    (DType::Q8_0,   [0.005445, 0.003815, 0.0002998, 0.0002998, 0.005440, 0.01236, 0.01104, 1.0]),
    (DType::Q2_K,   [0.2656, 0.2196, 0.0002783, 0.0002783, 0.1741, 0.1565, 0.2650, 0.2683]),
    (DType::Q3_K,   [0.1450, 0.1193, 0.0003199, 0.0003199, 0.1378, 0.09429, 0.1453, 0.1482]),
    (DType::Q4_K,   [0.07102, 0.05427, 0.0001318, 0.0002783, 0.04100, 0.09457, 0.07031, 0.07996]),
    (DType::Q5_K,   [0.03505, 0.02681, 0.0001523, 0.0002783, 0.01979, 0.04840, 0.03501, 0.04370]),
    (DType::Q6_K,   [0.01698, 0.01277, 0.0003199, 0.0003199, 0.01701, 0.03382, 0.01739, 0.02796]),
    (DType::IQ4_NL, [0.07455, 0.06224, 0.0001383, 0.0001383, 0.07338, 0.1077, 0.07460, 0.2078]),
    (DType::IQ4_XS, [0.07533, 0.06288, 0.0001383, 0.0001383, 0.07411, 0.1094, 0.07566, 0.2001]),
    (DType::MXFP4,  [0.1122, 0.09941, 0.01366, 0.01366, 0.1133, 0.1131, 0.1145, 0.1121]),
];

/// What ggml's own encoder (`quantize_row_*_ref`) leaves on the same weights, for the types whose
/// encoder here is a different one, in the order of [`RANDOM_SETS`].
#[rustfmt::skip]
const GGML: [(DType, [f64; 6]); 8] = [
    (DType::Q2_K,   [0.29581, 0.23155, 0.18732, 0.21058, 0.29749, 0.36286]),
    (DType::Q3_K,   [0.15062, 0.12593, 0.14464, 0.09499, 0.15170, 0.97551]),
    (DType::Q4_K,   [0.07167, 0.05445, 0.04224, 0.09885, 0.07963, 2.93445]),
    (DType::Q5_K,   [0.03634, 0.02774, 0.02071, 0.05016, 0.05358, 2.93589]),
    (DType::Q6_K,   [0.01770, 0.01325, 0.01761, 0.03417, 0.11734, 1.00000]),
    (DType::IQ4_NL, [0.07935, 0.06731, 0.07807, 0.11154, 0.07941, 0.99948]),
    (DType::IQ4_XS, [0.07722, 0.06445, 0.07575, 0.11123, 0.21640, 1.00000]),
    (DType::MXFP4,  [0.11376, 0.14420, 0.11547, 0.11223, 0.11905, 0.11348]),
];

#[test]
fn decode_matches_the_oracle_bit_for_bit() {
    let mut seen = Vec::new();
    for section in sections().iter().filter(|s| s.kind == Kind::Decode) {
        let mut out = vec![f32::NAN; section.floats.len()];
        decode(section.dtype, section.bytes, &mut out).unwrap();
        assert_same_bits(section.dtype, &out, &section.floats);
        seen.push(section.dtype);
    }
    let all: Vec<_> = float_types().collect();
    seen.sort();
    assert_eq!(seen, all, "one section per type");
}

#[test]
fn encode_matches_the_oracle_byte_for_byte() {
    let mut seen = Vec::new();
    for section in sections().iter().filter(|s| s.kind == Kind::Encode) {
        let mut bytes = vec![0xa5; section.bytes.len()];
        encode(section.dtype, &section.floats, &mut bytes).unwrap();
        let block = section.dtype.block_bytes();
        for (i, (ours, theirs)) in bytes.chunks(block).zip(section.bytes.chunks(block)).enumerate()
        {
            assert_eq!(ours, theirs, "{} block {i}", section.dtype);
        }
        seen.push(section.dtype);
    }
    seen.sort();
    let plain = [DType::F32, DType::F16, DType::BF16];
    assert_eq!(seen, [&plain[..], &LEGACY].concat());
}

#[test]
fn error_of_a_round_trip_is_within_the_table() {
    let mut failures = Vec::new();
    for (dtype, limits) in LIMITS {
        for (set, limit) in SETS.into_iter().zip(limits) {
            let error = relative_error(dtype, &weights(set));
            if error > limit {
                failures.push(format!("{dtype} {set:?}: {error:.6} > {limit}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    let types: Vec<_> = LIMITS.iter().map(|(dtype, _)| *dtype).collect();
    assert_eq!(types, float_types().collect::<Vec<_>>());
}

#[test]
fn searched_scales_are_no_worse_than_those_of_ggml() {
    let mut failures = Vec::new();
    for (dtype, theirs) in GGML {
        for (set, theirs) in RANDOM_SETS.into_iter().zip(theirs) {
            let error = relative_error(dtype, &weights(set));
            if error > theirs {
                failures.push(format!("{dtype} {set:?}: {error:.6} > {theirs}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    let searched: Vec<_> = GGML.iter().map(|(dtype, _)| *dtype).collect();
    let expected: Vec<_> =
        float_types().filter(|t| t.is_quantised() && !LEGACY.contains(t)).collect();
    assert_eq!(searched, expected);
}

#[test]
fn zeros_stay_zeros() {
    for dtype in float_types() {
        let back = round_trip(dtype, &vec![0.0; COUNT]);
        assert!(back.iter().all(|&v| v == 0.0), "{dtype}");
    }
}

#[test]
fn representable_weights_come_back_exactly() {
    for dtype in float_types() {
        for seed in 0..200 {
            let x = representable(dtype, &mut Rng(seed));
            let back = round_trip(dtype, &x);
            assert_eq!(back, x, "{dtype} seed {seed}");
        }
    }
}

#[test]
fn encoding_what_was_decoded_changes_nothing() {
    for dtype in LEGACY {
        for set in SETS {
            let once = round_trip(dtype, &weights(set));
            let twice = round_trip(dtype, &once);
            assert_eq!(once, twice, "{dtype} {set:?}");
        }
    }
}

/// Weights of any magnitude, subnormals and beyond f16 included, give finite blocks or an error that
/// names the largest weight of the block; and searched scales never do worse than a block of zeros.
#[test]
fn wild_magnitudes_are_encoded_finitely_or_refused() {
    let (mut encoded, mut refused) = (0, 0);
    for dtype in float_types().filter(|t| t.is_quantised()) {
        for seed in 0..400 {
            let mut rng = Rng(seed);
            let (base, spread) = (rng.unit() * 250.0 - 150.0, rng.unit() * 20.0);
            let x: Vec<f32> = (0..256)
                .map(|_| (rng.gaussian() * (base + spread * rng.unit()).exp2()) as f32)
                .collect();
            let mut bytes = vec![0; row_bytes(dtype, x.len()).unwrap()];
            match encode(dtype, &x, &mut bytes) {
                Ok(()) => {
                    encoded += 1;
                    let mut back = vec![0.0; x.len()];
                    decode(dtype, &bytes, &mut back).unwrap();
                    assert!(back.iter().all(|v| v.is_finite()), "{dtype} seed {seed}");
                    // The widest range of an f16 scale is that of Q6_K; an exponent has that of f32.
                    let held = dtype == DType::MXFP4
                        || x.iter().all(|v| v.abs() <= 65504.0 * 128.0 * 32.0);
                    assert!(held, "{dtype} seed {seed}");
                    let error = rms_difference(&x, &back) / rms(&x).max(f64::MIN_POSITIVE);
                    let searched = !LEGACY.contains(&dtype);
                    assert!(!searched || error <= 1.0001, "{dtype} seed {seed}: {error}");
                }
                Err(QuantError::ScaleOverflow { dtype: named, index, value }) => {
                    refused += 1;
                    assert_eq!((named, value), (dtype, x[index]), "seed {seed}");
                    let first = index / dtype.block_elems() * dtype.block_elems();
                    let block = &x[first..first + dtype.block_elems()];
                    assert!(block.iter().all(|v| v.abs() <= value.abs()), "{dtype} seed {seed}");
                    assert!(value.abs() > 65504.0, "{dtype} seed {seed}: {value}");
                }
                Err(other) => panic!("{dtype} seed {seed}: {other}"),
            }
        }
    }
    assert!(encoded > 1000 && refused > 200, "{encoded} encoded, {refused} refused");
}

#[test]
fn row_bytes_counts_whole_blocks() {
    assert_eq!(row_bytes(DType::U32, 3), Ok(12));
    assert_eq!(row_bytes(DType::Q4_0, 0), Ok(0));
    for dtype in DType::ALL {
        let (elems, bytes) = (dtype.block_elems(), dtype.block_bytes());
        assert_eq!(row_bytes(dtype, 3 * elems), Ok(3 * bytes));
        if elems > 1 {
            let partial = QuantError::PartialBlock { dtype, elems: elems + 1, block_elems: elems };
            assert_eq!(row_bytes(dtype, elems + 1), Err(partial));
        }
    }
    let elems = usize::MAX;
    let overflow = QuantError::Overflow { dtype: DType::F32, elems };
    assert_eq!(row_bytes(DType::F32, elems), Err(overflow));
}

#[test]
fn bad_input_is_an_error_with_its_facts() {
    let not_float = QuantError::NotFloat { dtype: DType::U32 };
    assert_eq!(decode(DType::U32, &[0; 4], &mut [0.0]), Err(not_float.clone()));
    assert_eq!(encode(DType::U32, &[0.0], &mut [0; 4]), Err(not_float));

    for dtype in float_types() {
        let (elems, expected) = (dtype.block_elems(), dtype.block_bytes());
        for actual in [expected - 1, expected + 1, 2 * expected] {
            let wrong = QuantError::ByteLength { dtype, elems, expected, actual };
            let mut floats = vec![0.0; elems];
            assert_eq!(encode(dtype, &floats, &mut vec![0; actual]), Err(wrong.clone()));
            assert_eq!(decode(dtype, &vec![0; actual], &mut floats), Err(wrong));
        }
    }
    let error = decode(DType::Q6_K, &[0; 210], &mut [0.0; 255]).unwrap_err();
    assert_eq!(error.to_string(), "255 elements are not a multiple of the 256 of a q6_k block");
}

#[test]
fn block_formats_refuse_what_is_not_finite() {
    for dtype in float_types() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![1.0; 512];
            x[300] = value;
            let mut bytes = vec![0; row_bytes(dtype, x.len()).unwrap()];
            let result = encode(dtype, &x, &mut bytes);
            if dtype.is_quantised() {
                let text = format!("element 300 is {value}, which {dtype} cannot hold");
                assert_eq!(result.unwrap_err().to_string(), text);
            } else {
                result.unwrap();
                let mut back = vec![0.0; x.len()];
                decode(dtype, &bytes, &mut back).unwrap();
                assert_eq!(back[300].to_string(), value.to_string(), "{dtype}");
            }
        }
    }
}

/// Rows longer than one block, any alignment, and the leftovers on either side.
#[test]
fn block_decoder_takes_whole_blocks_at_any_address() {
    assert!(block_decoder(DType::U32).is_none());
    for dtype in float_types() {
        let decoder = block_decoder(dtype).unwrap();
        let x = &weights(Set::Gaussian)[..1024];
        let mut bytes = vec![0; row_bytes(dtype, x.len()).unwrap()];
        encode(dtype, x, &mut bytes).unwrap();
        let mut whole = vec![0.0; x.len()];
        decode(dtype, &bytes, &mut whole).unwrap();

        let (elems, size) = (dtype.block_elems(), dtype.block_bytes());
        for (i, block) in bytes.chunks(size).enumerate() {
            let mut out = vec![0.0; elems];
            decoder(block, &mut out);
            assert_eq!(out, whole[i * elems..][..elems], "{dtype} block {i}");
        }
        for offset in 1..4 {
            let shifted: Vec<u8> = std::iter::repeat_n(0xff, offset).chain(bytes.clone()).collect();
            let mut out = vec![7.0; x.len() + elems];
            decoder(&shifted[offset..], &mut out);
            assert_eq!(out[..x.len()], whole, "{dtype} offset {offset}");
            assert!(out[x.len()..].iter().all(|&v| v == 7.0), "{dtype} offset {offset}");
        }
        let mut out = vec![7.0; 2 * elems];
        decoder(&bytes[..2 * size - 1], &mut out);
        assert_eq!(out[..elems], whole[..elems], "{dtype}");
        assert!(out[elems..].iter().all(|&v| v == 7.0), "{dtype}: half a block is not decoded");
    }
}

/// The values of the format's definition: a sign, an exponent of two bits with a bias of one, one bit of
/// mantissa without a leading one where the exponent is zero, all times a power of two.
#[test]
fn every_nibble_under_every_exponent_has_the_value_of_its_bits() {
    for e in 0..=255 {
        for code in 0..16_u8 {
            let mut out = [7.0; 32];
            decode(DType::MXFP4, &[&[e][..], &[code | code << 4; 16]].concat(), &mut out).unwrap();
            let (exponent, mantissa) = (i32::from(code >> 1 & 3), f64::from(code & 1));
            let size = match exponent {
                0 => mantissa / 2.0,
                _ => (1.0 + mantissa / 2.0) * f64::from(exponent - 1).exp2(),
            };
            let sign = if code < 8 { 1.0 } else { -1.0 };
            let exact = sign * size * (f64::from(e) - 127.0).exp2();
            for value in out {
                // What no f32 holds is infinite, and the last exponent is not a number.
                let right = if e == 255 { value.is_nan() } else { value == exact as f32 };
                assert!(right, "exponent {e}, nibble {code}: {value:e} instead of {exact:e}");
            }
        }
    }
}

#[test]
fn the_largest_and_the_smallest_weights_have_a_block_of_floats() {
    let top = 1.5 * 127_f32.exp2();
    for (x, expected) in [
        (f32::MAX, top),
        (f32::MIN, -top),
        (f32::MIN_POSITIVE, f32::MIN_POSITIVE),
        (f32::from_bits(1 << 20), 0.0), // halfway to the smallest level
        (f32::from_bits(1), 0.0),
    ] {
        let mut row = [0.0; 32];
        row[9] = x;
        let back = round_trip(DType::MXFP4, &row);
        row[9] = expected;
        assert_eq!(back, row, "{x:e}");
    }
}

#[test]
fn packed_scales_unpack_to_themselves() {
    let mut rng = Rng(11);
    for _ in 0..200 {
        let scales: [u8; 8] = std::array::from_fn(|_| rng.below(64) as u8);
        let mins: [u8; 8] = std::array::from_fn(|_| rng.below(64) as u8);
        let packed = blocks::pack_scale_mins(&scales, &mins);
        assert_eq!(blocks::unpack_scale_mins(&packed), (scales, mins));

        let scales: [u8; 16] = std::array::from_fn(|_| rng.below(64) as u8);
        let mut block: blocks::BlockQ3K = bytemuck::Zeroable::zeroed();
        block.scales = blocks::BlockQ3K::pack_scales(scales);
        assert_eq!(block.scales(), scales);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Set {
    /// Deviation 0.02, as the weights of a language model have.
    Gaussian,
    /// From -1 to 1.
    Uniform,
    Constant,
    NegativeConstant,
    /// The magnitudes of a Gaussian of deviation 1: no minimum below zero.
    Positive,
    /// Gaussian, with a weight of fifty deviations in every 256.
    Outlier,
    /// Gaussian of deviation 1e-4: scales are subnormal for the finer types.
    Small,
    /// Gaussian of deviation 1e-6: every scale is subnormal.
    Tiny,
}

fn weights(set: Set) -> Vec<f32> {
    let mut rng = Rng(set as u64);
    let mut gaussian = |deviation| {
        let next = |_| (rng.gaussian() * deviation) as f32;
        (0..COUNT).map(next).collect::<Vec<_>>()
    };
    match set {
        Set::Gaussian => gaussian(0.02),
        Set::Uniform => (0..COUNT).map(|_| (2.0 * rng.unit() - 1.0) as f32).collect(),
        Set::Constant => vec![0.37; COUNT],
        Set::NegativeConstant => vec![-0.37; COUNT],
        Set::Positive => gaussian(1.0).into_iter().map(f32::abs).collect(),
        Set::Outlier => {
            let mut x = gaussian(0.02);
            x.iter_mut().step_by(257).for_each(|v| *v = 1.0);
            x
        }
        Set::Small => gaussian(1e-4),
        Set::Tiny => gaussian(1e-6),
    }
}

/// A block's worth of weights that its format holds exactly, with the outermost quants and scales in
/// use, so that an encoder can find them.
fn representable(dtype: DType, rng: &mut Rng) -> Vec<f32> {
    let unit = |rng: &mut Rng| f16::from_f64((rng.unit() + 0.5) / 64.0).to_f32();
    let (d, dmin) = (unit(rng), unit(rng));
    let sign = if rng.below(2) == 0 { 1.0 } else { -1.0 };
    match dtype {
        DType::Q4_0 => signed(rng, 32, sign * d, |q| q - 8.0, 16),
        DType::Q5_0 => signed(rng, 32, sign * d, |q| q - 16.0, 32),
        DType::Q8_0 => signed(rng, 32, d, |q| q - 127.0, 255),
        DType::IQ4_NL => signed(rng, 32, sign * d, iq4_level, 16),
        DType::MXFP4 => {
            let d = (rng.below(200) as f32 - 100.0).exp2();
            signed(rng, 32, d, |q| f32::from(blocks::MXFP4_LEVELS[15 - q as usize]), 16)
        }
        DType::Q4_1 => affine(rng, 32, d, sign * dmin, 15),
        DType::Q5_1 => affine(rng, 32, d, sign * dmin, 31),
        DType::Q2_K => affine_subs(rng, 16, d, dmin, 3, 15),
        DType::Q4_K => affine_subs(rng, 8, d, dmin, 15, 63),
        DType::Q5_K => affine_subs(rng, 8, d, dmin, 31, 63),
        DType::Q3_K => signed_subs(rng, 16, sign * d, |q| q - 4.0, 8, 32),
        DType::Q6_K => signed_subs(rng, 16, sign * d, |q| q - 32.0, 64, 128),
        DType::IQ4_XS => signed_subs(rng, 8, sign * d, iq4_level, 16, 32),
        DType::F32 | DType::F16 | DType::BF16 | DType::U32 | DType::A8 | DType::A16 | DType::C8 => {
            vec![0.5, -1.25, 0.0, 96.0]
        }
    }
}

fn iq4_level(q: f32) -> f32 {
    f32::from(blocks::IQ4_LEVELS[q as usize])
}

/// `d * level(q)`; the first quant is 0, the level of largest magnitude.
fn signed(rng: &mut Rng, n: usize, d: f32, level: fn(f32) -> f32, quants: u64) -> Vec<f32> {
    let mut q = |i: usize| if i == 0 { 0.0 } else { rng.below(quants) as f32 };
    (0..n).map(|i| d * level(q(i))).collect()
}

/// `d * q - m`; the first two quants are the outermost.
fn affine(rng: &mut Rng, n: usize, d: f32, m: f32, last: u64) -> Vec<f32> {
    let mut q = |i: usize| match i {
        0 => 0.0,
        1 => last as f32,
        _ => rng.below(last + 1) as f32,
    };
    (0..n).map(|i| d * q(i) - m).collect()
}

/// Sub-blocks of [`signed`]; the first scale is the lowest, the last one zero.
fn signed_subs(
    rng: &mut Rng,
    subs: usize,
    d: f32,
    level: fn(f32) -> f32,
    quants: u64,
    zero: u64,
) -> Vec<f32> {
    let mut x = Vec::new();
    for i in 0..subs {
        let scale = match i {
            0 => -(zero as f32),
            i if i + 1 == subs => 0.0,
            _ => rng.below(2 * zero) as f32 - zero as f32,
        };
        x.extend(signed(rng, 256 / subs, d * scale, level, quants));
    }
    x
}

/// Sub-blocks of [`affine`]; the first has the largest scale and no minimum, the second the largest
/// minimum, the last a scale of zero.
fn affine_subs(rng: &mut Rng, subs: usize, d: f32, dmin: f32, last: u64, steps: u64) -> Vec<f32> {
    let mut x = Vec::new();
    for i in 0..subs {
        let (scale, min) = match i {
            0 => (steps, 0),
            1 => (1 + rng.below(steps), steps),
            i if i + 1 == subs => (0, rng.below(steps + 1)),
            _ => (1 + rng.below(steps), rng.below(steps + 1)),
        };
        x.extend(affine(rng, 256 / subs, d * scale as f32, dmin * min as f32, last));
    }
    x
}

fn float_types() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&t| t != DType::U32)
}

fn round_trip(dtype: DType, x: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; row_bytes(dtype, x.len()).unwrap()];
    encode(dtype, x, &mut bytes).unwrap();
    let mut back = vec![f32::NAN; x.len()];
    decode(dtype, &bytes, &mut back).unwrap();
    back
}

fn relative_error(dtype: DType, x: &[f32]) -> f64 {
    rms_difference(x, &round_trip(dtype, x)) / rms(x)
}

fn rms(x: &[f32]) -> f64 {
    (x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / x.len() as f64).sqrt()
}

fn rms_difference(x: &[f32], y: &[f32]) -> f64 {
    let squares = x.iter().zip(y).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2));
    (squares.sum::<f64>() / x.len() as f64).sqrt()
}

fn assert_same_bits(dtype: DType, ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len(), "{dtype}");
    for (i, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let same = ours.to_bits() == theirs.to_bits();
        assert!(same, "{dtype} element {i}: {ours:e} instead of {theirs:e}");
    }
}

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// In `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Box-Muller.
    fn gaussian(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Decode,
    Encode,
}

struct Section {
    dtype: DType,
    kind: Kind,
    bytes: &'static [u8],
    floats: Vec<f32>,
}

fn sections() -> Vec<Section> {
    let file: &[u8] = include_bytes!("data/quant_vectors.bin");
    let mut rest = file.strip_prefix(b"CWQUANT1").expect("magic");
    let mut take = |n: usize| {
        let (head, tail) = rest.split_at(n);
        rest = tail;
        head
    };
    let word = |b: &[u8]| u32::from_le_bytes(b.try_into().unwrap()) as usize;
    let count = word(take(4));
    let sections: Vec<_> = (0..count)
        .map(|_| {
            let name = std::str::from_utf8(take(8)).unwrap().trim_end_matches('\0');
            let kind = [Kind::Decode, Kind::Encode][word(take(4))];
            let (floats, bytes) = (word(take(4)), word(take(4)));
            let bytes = take(bytes);
            let floats = take(4 * floats).chunks(4);
            Section {
                dtype: DType::ALL.into_iter().find(|t| t.name() == name).expect("a known type"),
                kind,
                bytes,
                floats: floats.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
            }
        })
        .collect();
    assert!(rest.is_empty(), "bytes after the last section");
    sections
}
