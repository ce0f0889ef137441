//! Activations in the forms that products read: rounded to 8 bits, which is no block but a row in three planes;
//! and as f16 in the first half of the bytes of their floats.

use half::f16;

/// Numbers that share a scale.
const CHUNK: usize = 32;
/// Bytes of a chunk in each plane: half of the quants, the other half, four floats.
const PART: usize = 16;

/// Decodes a row.
pub(super) fn decode(src: &[u8], dst: &mut [f32]) {
    let chunks = dst.len() / CHUNK;
    let plane = |number: usize| &src[number * PART * chunks..(number + 1) * PART * chunks];
    let quants = plane(0).chunks_exact(PART).zip(plane(1).chunks_exact(PART));
    let float = |bytes: &[u8], at: usize| {
        f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    };
    // The row is divided by the root of the mean of what its chunks say.
    let squares: f64 = plane(2).chunks_exact(PART).map(|s| f64::from(float(s, 12))).sum();
    let factor = (chunks as f64 / squares).sqrt();
    let scales = plane(2).chunks_exact(PART);
    for (out, ((first, second), scales)) in dst.chunks_exact_mut(CHUNK).zip(quants.zip(scales)) {
        let scale = f64::from(float(scales, 0)) * factor;
        for (out, &quant) in out.iter_mut().zip(first.iter().chain(second)) {
            *out = (scale * f64::from(quant as i8)) as f32;
        }
    }
}

/// Encodes a row that is to be divided by nothing; any finite numbers will do. What lies behind the planes
/// stays as it is.
pub(super) fn encode(src: &[f32], dst: &mut [u8]) -> Result<(), usize> {
    let chunks = src.len() / CHUNK;
    for (chunk, values) in src.chunks_exact(CHUNK).enumerate() {
        let top = values.iter().fold(0.0_f32, |top, v| top.max(v.abs()));
        let (scale, inverse) = (top / 127.0, if top > 0.0 { 127.0 / top } else { 0.0 });
        let mut scales = [scale, 0.0, 0.0, 1.0];
        for (half, values) in values.chunks_exact(CHUNK / 2).enumerate() {
            let at = (half * chunks + chunk) * PART;
            let mut sum = 0;
            for (byte, value) in dst[at..at + PART].iter_mut().zip(values) {
                let quant = (value * inverse).round_ties_even() as i8;
                sum += i32::from(quant);
                *byte = quant as u8;
            }
            scales[1 + half] = scale * sum as f32;
        }
        let at = (2 * chunks + chunk) * PART;
        for (bytes, value) in dst[at..at + PART].chunks_exact_mut(4).zip(scales) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
    }
    Ok(())
}

/// Decodes f16 in the bytes of floats.
pub(super) fn decode_halves(src: &[u8], dst: &mut [f32]) {
    for (out, bytes) in dst.chunks_exact_mut(CHUNK).zip(src.chunks_exact(4 * CHUNK)) {
        for (out, half) in out.iter_mut().zip(bytes.chunks_exact(2)) {
            *out = f16::from_le_bytes([half[0], half[1]]).to_f32();
        }
    }
}

/// Encodes numbers as f16 in the bytes of floats; the other half of the bytes stays as it is. The error is the chunk
/// with a number beyond f16.
pub(super) fn encode_halves(src: &[f32], dst: &mut [u8]) -> Result<(), usize> {
    let chunks = src.chunks_exact(CHUNK).zip(dst.chunks_exact_mut(4 * CHUNK));
    for (chunk, (values, bytes)) in chunks.enumerate() {
        for (value, half) in values.iter().zip(bytes.chunks_exact_mut(2)) {
            let rounded = f16::from_f32(*value);
            if !rounded.is_finite() {
                return Err(chunk);
            }
            half.copy_from_slice(&rounded.to_le_bytes());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn halves_lie_in_the_first_half_of_their_floats() {
        let row: Vec<f32> = (0..64).map(|i| i as f32 * 0.37 - 9.0).collect();
        let mut bytes = vec![0xee; row_bytes(DType::A16, row.len()).unwrap()];
        encode(DType::A16, &row, &mut bytes).unwrap();
        assert!(bytes[64..128].iter().chain(&bytes[192..]).all(|&byte| byte == 0xee));
        let mut back = vec![0.0; row.len()];
        decode(DType::A16, &bytes, &mut back).unwrap();
        for (a, b) in row.iter().zip(back) {
            assert!((a - b).abs() <= a.abs() / 2048.0, "{a} {b}");
        }
        assert!(encode(DType::A16, &[1e6; 64], &mut bytes).is_err());
    }

    use clearway_graph::DType;

    use super::super::{decode, encode, row_bytes};

    #[test]
    fn a_row_comes_back_within_half_a_step() {
        let row: Vec<f32> = (0..96).map(|i| (i as f32 * 0.7).sin() * (1 + i / 32) as f32).collect();
        let mut bytes = vec![0; row_bytes(DType::A8, row.len()).unwrap()];
        assert_eq!(bytes.len(), 4 * row.len(), "as many bytes as the floats");
        encode(DType::A8, &row, &mut bytes).unwrap();
        let mut back = vec![0.0; row.len()];
        decode(DType::A8, &bytes, &mut back).unwrap();
        for (chunk, (row, back)) in row.chunks(32).zip(back.chunks(32)).enumerate() {
            let top = row.iter().fold(0.0_f32, |top, v| top.max(v.abs()));
            let worst = row.iter().zip(back).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst <= top / 253.0, "chunk {chunk}: {worst} of {top}");
            // Sums of both halves, as kernels need them for weights with a minimum.
            let float = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            for half in [0, 1] {
                let sum: f32 = back[16 * half..][..16].iter().sum();
                let stored = float((2 * 3 + chunk) * 16 + 4 + 4 * half);
                assert!((sum - stored).abs() < 1e-4, "{sum} {stored}");
            }
        }
    }

    #[test]
    fn a_row_is_divided_by_the_root_of_the_mean_of_its_parts() {
        let row: Vec<f32> = (0..64).map(|i| i as f32 - 31.5).collect();
        let mut bytes = vec![0; 256];
        encode(DType::A8, &row, &mut bytes).unwrap();
        let mut plain = vec![0.0; 64];
        decode(DType::A8, &bytes, &mut plain).unwrap();
        for (chunk, part) in [3.0_f32, 5.0].into_iter().enumerate() {
            bytes[(4 + chunk) * 16 + 12..][..4].copy_from_slice(&part.to_le_bytes());
        }
        let mut divided = vec![0.0; 64];
        decode(DType::A8, &bytes, &mut divided).unwrap();
        assert!(plain.iter().zip(divided).all(|(plain, divided)| divided == plain / 2.0));
    }

    #[test]
    fn zeros_have_no_scale_and_nothing_else_does_not_end() {
        let mut bytes = vec![0xff; 128];
        encode(DType::A8, &[0.0; 32], &mut bytes).unwrap();
        assert_eq!((&bytes[..44], &bytes[44..48]), (&[0; 44][..], &1.0_f32.to_le_bytes()[..]));
        assert_eq!(bytes[48..], [0xff; 80], "what lies behind stays");
        assert!(encode(DType::A8, &[f32::NAN; 32], &mut bytes).is_err());
    }
}
