//! Quantised block formats of GGUF files: scalar decoding and encoding.
//!
//! A row is a whole number of blocks; a block is a few scales and the packed quants of 32 or 256
//! weights ([`blocks`] holds the layouts, byte for byte those of ggml). Decoding gives the bits of
//! ggml's reference and is the oracle for SIMD and GPU kernels. Every product in it fits the 24 bits
//! of an f32 (11 of the f16 scale, at most 12 of sub-block scale and quant), so only the addition of
//! an offset rounds: another order of the factors, or a fused multiply-add, gives the same bits.
//! Encoding of Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 gives the reference's bytes; for the others scales are
//! searched for the least squared error.
//!
//! [`DType::A8`] is no format of files: activations between two products, a row of them to a call. Nor is
//! [`DType::C8`]: keys or values of a cache, a tensor to a call.
//!
//! Invariant: what [`encode`] writes for a block format is finite when decoded. Input that no block
//! can hold is an error, never an infinite scale.

pub mod blocks;
pub mod codes;

mod activations;
pub(crate) mod cache;
mod fit;
mod fit_affine;
mod fit_signed;
mod iq4;
mod kquant;
mod legacy;
mod mxfp4;
mod plain;

use bytemuck::Pod;
use clearway_graph::DType;
use half::f16;

use blocks::{
    BlockIq4Nl, BlockIq4Xs, BlockMxfp4, BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K,
    BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K, BlockQ8_0,
};
use plain::{PlainBf16, PlainF16, PlainF32};

/// Why bytes or numbers were refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// The type holds integers, which have no floating-point coding.
    #[error("{dtype} is not a floating-point type")]
    NotFloat {
        /// The type asked for.
        dtype: DType,
    },
    /// A row must be a whole number of blocks.
    #[error("{elems} elements are not a multiple of the {block_elems} of a {dtype} block")]
    PartialBlock {
        /// The block format.
        dtype: DType,
        /// Elements given.
        elems: usize,
        /// Elements of one block.
        block_elems: usize,
    },
    /// The byte slice has not the length that the elements need.
    #[error("{elems} elements of {dtype} take {expected} bytes, but the slice has {actual}")]
    ByteLength {
        /// The element type.
        dtype: DType,
        /// Elements given.
        elems: usize,
        /// Bytes these elements take.
        expected: usize,
        /// Bytes given.
        actual: usize,
    },
    /// The byte length does not fit in the address space.
    #[error("the byte length of {elems} elements of {dtype} overflows")]
    Overflow {
        /// The element type.
        dtype: DType,
        /// Elements given.
        elems: usize,
    },
    /// A NaN or an infinity, which would spoil all weights of its block.
    #[error("element {index} is {value}, which {dtype} cannot hold")]
    NotFinite {
        /// The block format.
        dtype: DType,
        /// Position in the input.
        index: usize,
        /// The offending value.
        value: f32,
    },
    /// A block whose scale or offset exceeds the largest f16.
    #[error("element {index} is {value}: the f16 scale of its {dtype} block would be infinite")]
    ScaleOverflow {
        /// The block format.
        dtype: DType,
        /// Position in the input of the largest magnitude of the block.
        index: usize,
        /// That value.
        value: f32,
    },
}

/// Decodes every whole block that both slices hold and leaves the rest alone; see
/// [`block_decoder`].
pub type BlockDecoder = fn(&[u8], &mut [f32]);

/// Bytes of a row of `elems` elements.
///
/// ```
/// use clearway_gpu::quant::row_bytes;
/// use clearway_graph::DType;
///
/// assert_eq!(row_bytes(DType::Q4_K, 512), Ok(288));
/// assert!(row_bytes(DType::Q4_K, 500).is_err());
/// ```
pub fn row_bytes(dtype: DType, elems: usize) -> Result<usize, QuantError> {
    let block_elems = dtype.block_elems();
    if !elems.is_multiple_of(block_elems) {
        return Err(QuantError::PartialBlock { dtype, elems, block_elems });
    }
    (elems / block_elems)
        .checked_mul(dtype.block_bytes())
        .ok_or(QuantError::Overflow { dtype, elems })
}

/// Decodes `src`, which holds exactly `dst.len()` elements of `dtype`.
///
/// ```
/// use clearway_gpu::quant::{decode, encode};
/// use clearway_graph::DType;
///
/// let weights: Vec<f32> = (0..32).map(|i| i as f32 - 16.0).collect();
/// let mut bytes = [0; 34];
/// encode(DType::Q8_0, &weights, &mut bytes)?;
/// let mut back = [0.0; 32];
/// decode(DType::Q8_0, &bytes, &mut back)?;
/// assert!(weights.iter().zip(back).all(|(w, b)| (w - b).abs() < 0.07));
/// # Ok::<(), clearway_gpu::quant::QuantError>(())
/// ```
pub fn decode(dtype: DType, src: &[u8], dst: &mut [f32]) -> Result<(), QuantError> {
    let decoder = block_decoder(dtype).ok_or(QuantError::NotFloat { dtype })?;
    check_lengths(dtype, dst.len(), src.len())?;
    decoder(src, dst);
    Ok(())
}

/// Encodes `src` into `dst`, which has exactly [`row_bytes`] of room; [`decode`] has an example.
///
/// Plain F32, F16 and BF16 are rounded to nearest even and keep NaN and infinity. A block format
/// refuses those, as it refuses a block whose scale no f16 can hold. After an error the contents of
/// `dst` are unspecified.
pub fn encode(dtype: DType, src: &[f32], dst: &mut [u8]) -> Result<(), QuantError> {
    let encoder = row_encoder(dtype).ok_or(QuantError::NotFloat { dtype })?;
    check_lengths(dtype, src.len(), dst.len())?;
    if dtype.is_quantised()
        && let Some((index, &value)) = src.iter().enumerate().find(|(_, v)| !v.is_finite())
    {
        return Err(QuantError::NotFinite { dtype, index, value });
    }
    encoder(src, dst).map_err(|block| scale_overflow(dtype, src, block))
}

/// The decoder of a type for hot loops: looked up once, then called with one block or many, with no
/// result to handle. `None` for integers.
///
/// ```
/// use clearway_gpu::quant::block_decoder;
/// use clearway_graph::DType;
///
/// let decode = block_decoder(DType::Q8_0).ok_or("an integer type")?;
/// let mut bytes = [1; 34];
/// bytes[..2].copy_from_slice(&0x3c00_u16.to_le_bytes()); // a scale of one
/// let mut weights = [0.0; 32];
/// decode(&bytes, &mut weights);
/// assert_eq!(weights, [1.0; 32]);
/// # Ok::<(), &str>(())
/// ```
pub fn block_decoder(dtype: DType) -> Option<BlockDecoder> {
    Some(match dtype {
        DType::U32 => return None,
        DType::F32 => decode_row::<PlainF32, _>,
        DType::F16 => decode_row::<PlainF16, _>,
        DType::BF16 => decode_row::<PlainBf16, _>,
        DType::Q4_0 => decode_row::<BlockQ4_0, _>,
        DType::Q4_1 => decode_row::<BlockQ4_1, _>,
        DType::Q5_0 => decode_row::<BlockQ5_0, _>,
        DType::Q5_1 => decode_row::<BlockQ5_1, _>,
        DType::Q8_0 => decode_row::<BlockQ8_0, _>,
        DType::Q2_K => decode_row::<BlockQ2K, _>,
        DType::Q3_K => decode_row::<BlockQ3K, _>,
        DType::Q4_K => decode_row::<BlockQ4K, _>,
        DType::Q5_K => decode_row::<BlockQ5K, _>,
        DType::Q6_K => decode_row::<BlockQ6K, _>,
        DType::IQ4_NL => decode_row::<BlockIq4Nl, _>,
        DType::IQ4_XS => decode_row::<BlockIq4Xs, _>,
        DType::MXFP4 => decode_row::<BlockMxfp4, _>,
        DType::A8 => activations::decode,
        DType::A16 => activations::decode_halves,
        DType::C8 => cache::decode,
    })
}

/// What the first byte of a tensor is a multiple of, from the start of its buffer on.
pub(crate) const fn alignment(dtype: DType) -> u64 {
    match dtype {
        // Read in wide pieces.
        DType::C8 => 16,
        _ if dtype.is_quantised() => 1,
        _ => dtype.block_bytes() as u64,
    }
}

/// One format: `N` weights in `size_of::<Self>()` bytes. Alignment is 1, so any bytes will do.
trait Block<const N: usize>: Pod {
    fn decode(&self, out: &mut [f32; N]);

    /// `None` when a scale of these finite weights is beyond f16.
    fn encode(x: &[f32; N]) -> Option<Self>;
}

/// Encodes whole blocks; the error is the index of a block whose scale overflows.
type RowEncoder = fn(&[f32], &mut [u8]) -> Result<(), usize>;

fn row_encoder(dtype: DType) -> Option<RowEncoder> {
    Some(match dtype {
        DType::U32 => return None,
        DType::F32 => encode_row::<PlainF32, _>,
        DType::F16 => encode_row::<PlainF16, _>,
        DType::BF16 => encode_row::<PlainBf16, _>,
        DType::Q4_0 => encode_row::<BlockQ4_0, _>,
        DType::Q4_1 => encode_row::<BlockQ4_1, _>,
        DType::Q5_0 => encode_row::<BlockQ5_0, _>,
        DType::Q5_1 => encode_row::<BlockQ5_1, _>,
        DType::Q8_0 => encode_row::<BlockQ8_0, _>,
        DType::Q2_K => encode_row::<BlockQ2K, _>,
        DType::Q3_K => encode_row::<BlockQ3K, _>,
        DType::Q4_K => encode_row::<BlockQ4K, _>,
        DType::Q5_K => encode_row::<BlockQ5K, _>,
        DType::Q6_K => encode_row::<BlockQ6K, _>,
        DType::IQ4_NL => encode_row::<BlockIq4Nl, _>,
        DType::IQ4_XS => encode_row::<BlockIq4Xs, _>,
        DType::MXFP4 => encode_row::<BlockMxfp4, _>,
        DType::A8 => activations::encode,
        DType::A16 => activations::encode_halves,
        DType::C8 => cache::encode,
    })
}

fn decode_row<B: Block<N>, const N: usize>(src: &[u8], dst: &mut [f32]) {
    let (out, _) = dst.as_chunks_mut::<N>();
    for (bytes, out) in src.chunks_exact(size_of::<B>()).zip(out) {
        // Exact size and alignment 1: the cast cannot fail.
        bytemuck::from_bytes::<B>(bytes).decode(out);
    }
}

fn encode_row<B: Block<N>, const N: usize>(src: &[f32], dst: &mut [u8]) -> Result<(), usize> {
    let (rows, _) = src.as_chunks::<N>();
    for (i, (x, bytes)) in rows.iter().zip(dst.chunks_exact_mut(size_of::<B>())).enumerate() {
        bytes.copy_from_slice(bytemuck::bytes_of(&B::encode(x).ok_or(i)?));
    }
    Ok(())
}

fn check_lengths(dtype: DType, elems: usize, actual: usize) -> Result<(), QuantError> {
    let expected = row_bytes(dtype, elems)?;
    if expected == actual {
        Ok(())
    } else {
        Err(QuantError::ByteLength { dtype, elems, expected, actual })
    }
}

/// The error for block number `block` of `src`, with the element that is to blame.
fn scale_overflow(dtype: DType, src: &[f32], block: usize) -> QuantError {
    let first = block * dtype.block_elems();
    let mut worst = (first, 0.0_f32);
    for (index, &value) in src.iter().enumerate().skip(first).take(dtype.block_elems()) {
        if value.abs() > worst.1.abs() {
            worst = (index, value);
        }
    }
    QuantError::ScaleOverflow { dtype, index: worst.0, value: worst.1 }
}

/// The f32 of a stored f16.
fn f16_value(bytes: [u8; 2]) -> f32 {
    f16::from_le_bytes(bytes).to_f32()
}

/// Rounds a scale to f16, unless that would be infinite.
fn finite_f16(value: f32) -> Option<f16> {
    let rounded = f16::from_f32(value);
    rounded.is_finite().then_some(rounded)
}
