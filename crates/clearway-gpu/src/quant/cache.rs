//! Keys and values of a cache, rounded to 8 bits: the quants of all chunks of a tensor, then the scales of all.
//!
//! A scale is at least the least normal f16. So devices that take smaller numbers for zero read the same values, and
//! rounding what was read gives the same bytes: the largest quant of a chunk is 127, or its scale is the least.

use half::f16;

/// Numbers that share a scale.
pub(crate) const CHUNK: usize = 32;
/// Bytes of a scale.
const SCALE: usize = 2;
/// The least scale, a normal f16.
const LEAST: f32 = 6.103_515_6e-5;
/// The largest magnitude: 127 times the largest f16.
const LARGEST: f32 = 127.0 * 65504.0;

/// Rounds a chunk and gives its scale, which is NaN where a number is not finite or too large for it.
#[inline(always)]
pub(crate) fn round_chunk(values: &[f32; CHUNK], quants: &mut [i8; CHUNK]) -> f16 {
    // As integers, magnitudes have the same order, with infinity and NaN above all.
    let most = values.iter().fold(0, |most, value| most.max(value.to_bits() & 0x7fff_ffff));
    if most > LARGEST.to_bits() {
        quants.fill(0);
        return f16::NAN;
    }
    let scale = f16::from_f32((f32::from_bits(most) / 127.0).max(LEAST));
    let inverse = 1.0 / scale.to_f32();
    for (quant, value) in quants.iter_mut().zip(values) {
        *quant = (value * inverse).round_ties_even() as i8;
    }
    scale
}

/// The value of a scale, which is not negative. Conversions of the standard library ask for the machine first.
#[inline(always)]
pub(crate) fn value(scale: f16) -> f32 {
    // Exponents of f16 are 112 less; multiplied by that, numbers that are not normal come right, too.
    const MORE: f32 = f32::from_bits((127 + 112) << 23);
    let bits = u32::from(scale.to_bits());
    let value = f32::from_bits(bits << 13) * MORE;
    if bits < 0x7c00 { value } else { f32::NAN }
}

/// Decodes a tensor.
pub(super) fn decode(src: &[u8], dst: &mut [f32]) {
    let (quants, scales) = src.split_at(src.len() / (CHUNK + SCALE) * CHUNK);
    let chunks = quants.chunks_exact(CHUNK).zip(scales.chunks_exact(SCALE));
    for (out, (quants, scale)) in dst.chunks_exact_mut(CHUNK).zip(chunks) {
        let scale = f16::from_le_bytes([scale[0], scale[1]]).to_f32();
        for (out, &quant) in out.iter_mut().zip(quants) {
            *out = scale * f32::from(quant as i8);
        }
    }
}

/// Encodes a tensor. The error is the chunk whose scale is beyond f16.
pub(super) fn encode(src: &[f32], dst: &mut [u8]) -> Result<(), usize> {
    let (quants, scales) = dst.split_at_mut(src.len());
    let chunks = quants.as_chunks_mut::<CHUNK>().0.iter_mut().zip(scales.as_chunks_mut().0);
    for (chunk, (values, (quants, scale))) in src.as_chunks().0.iter().zip(chunks).enumerate() {
        let rounded = round_chunk(values, bytemuck::cast_mut(quants));
        if !rounded.is_finite() {
            return Err(chunk);
        }
        *scale = rounded.to_le_bytes();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clearway_graph::DType;

    use super::super::{decode, encode, row_bytes};
    use super::*;

    /// Chunks of all magnitudes that a cache may hold, zeros among them.
    fn numbers() -> Vec<f32> {
        let factors = [1.0, 3e-7, 0.0, 2e-3, 7e-3, 5e5, 40.0, 1e-12];
        (0..256).map(|i| (i as f32 * 1.7).sin() * factors[i / 32]).collect()
    }

    #[test]
    fn quants_come_first_and_scales_behind() {
        let numbers = numbers();
        let mut bytes = vec![0xee; row_bytes(DType::C8, numbers.len()).unwrap()];
        encode(DType::C8, &numbers, &mut bytes).unwrap();
        assert_eq!(bytes.len(), 256 + 8 * 2);
        for (chunk, values) in numbers.chunks(32).enumerate() {
            let scale = f16::from_le_bytes([bytes[256 + 2 * chunk], bytes[257 + 2 * chunk]]);
            let top = values.iter().fold(0.0_f32, |top, v| top.max(v.abs()));
            let expected = (top / 127.0).max(LEAST);
            assert!((scale.to_f32() - expected).abs() <= expected / 2048.0, "{scale} {expected}");
            for (i, &value) in values.iter().enumerate() {
                let quant = bytes[32 * chunk + i] as i8;
                let read = f32::from(quant) * scale.to_f32();
                assert!((read - value).abs() <= scale.to_f32() * 0.5001, "{read} for {value}");
            }
        }
    }

    #[test]
    fn scales_have_their_values() {
        for bits in 0..0x7c00 {
            let scale = f16::from_bits(bits);
            assert_eq!(value(scale), scale.to_f32(), "{bits:#x}");
        }
        assert!(value(f16::NAN).is_nan());
    }

    #[test]
    fn what_was_read_rounds_to_the_same_bytes() {
        let mut bytes = vec![0; row_bytes(DType::C8, 256).unwrap()];
        encode(DType::C8, &numbers(), &mut bytes).unwrap();
        let mut read = vec![0.0; 256];
        decode(DType::C8, &bytes, &mut read).unwrap();
        let mut again = vec![0; bytes.len()];
        encode(DType::C8, &read, &mut again).unwrap();
        assert_eq!(again, bytes);
    }

    #[test]
    fn a_chunk_with_a_number_that_is_not_finite_is_none() {
        for spoiled in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30] {
            let mut values = [1.0; CHUNK];
            values[7] = spoiled;
            assert!(round_chunk(&values, &mut [0; CHUNK]).is_nan(), "{spoiled}");
            let mut bytes = [0; 34];
            assert!(encode(DType::C8, &values, &mut bytes).is_err());
        }
    }
}
