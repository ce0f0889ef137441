//! Block weights in planes: what products on a GPU read.
//!
//! Blocks of files are 18, 34 or 210 bytes long, so that wide loads never align. Here a tensor is a
//! few planes, each starting at a multiple of 16 bytes: quants, high bits, scales. Everything counts
//! in *chunks* of 32 weights, row after row, whatever the block of the file was:
//!
//! | plane | bytes | order |
//! |---|---|---|
//! | nibbles | 16 a chunk | byte `j`: weight `j` below, weight `16 + j` above |
//! | bytes | 32 a chunk | weight after weight |
//! | pairs | 8 a chunk | two words, one for each half; bits `8b + 2w` of a word: weight `4w + b` of the half |
//! | ones | 4 a chunk | bit `8b + w`: weight `4w + b` |
//! | scales | 2 or 4 a chunk, or for 8 chunks | as the type says; a byte of scale and one of minimum to a chunk of Q4_K and Q5_K |
//!
//! Values and their number of bits are those of the file: nothing is rounded.

use clearway_graph::{DType, Layout};

use crate::quant::codes::{Codes, codes};

/// Weights of a chunk.
pub const CHUNK: usize = 32;
/// Planes at most.
const PLANES: usize = 4;

/// One plane: bytes for so many chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plane {
    bytes: u64,
    chunks: u64,
}

const fn plane(bytes: u64, chunks: u64) -> Plane {
    Plane { bytes, chunks }
}

/// The planes of a type; `None` if it has no such form.
fn planes(dtype: DType) -> Option<&'static [Plane]> {
    const NIBBLES: Plane = plane(16, 1);
    const PAIRS: Plane = plane(8, 1);
    const ONES: Plane = plane(4, 1);
    const HALF: Plane = plane(2, 1);
    const TWO_HALVES: Plane = plane(4, 1);
    const BYTES: Plane = plane(32, 1);
    const HALF_OF_8: Plane = plane(2, 8);
    const TWO_HALVES_OF_8: Plane = plane(4, 8);
    Some(match dtype {
        DType::Q4_0 => &[NIBBLES, HALF],
        DType::Q4_1 => &[NIBBLES, TWO_HALVES],
        DType::Q5_0 => &[NIBBLES, ONES, HALF],
        DType::Q5_1 => &[NIBBLES, ONES, TWO_HALVES],
        DType::Q8_0 => &[BYTES, HALF],
        DType::Q2_K => &[PAIRS, HALF, TWO_HALVES_OF_8],
        DType::Q3_K => &[PAIRS, ONES, HALF, HALF_OF_8],
        DType::Q4_K => &[NIBBLES, HALF, TWO_HALVES_OF_8],
        DType::Q5_K => &[NIBBLES, ONES, HALF, TWO_HALVES_OF_8],
        DType::Q6_K => &[NIBBLES, PAIRS, HALF, HALF_OF_8],
        _ => return None,
    })
}

/// Whether weights of this type and shape can lie in planes.
pub fn supports(layout: &Layout) -> bool {
    planes(layout.dtype()).is_some() && layout.is_dense()
}

/// Bytes between planes. Tensors often have sizes that are powers of two; without this the parts of one
/// chunk would lie in the same channel of the memory, in all planes.
const SKEW: u64 = 4096 + 256;

/// Where each plane of so many chunks starts, in bytes, and where the last ends.
pub fn offsets(dtype: DType, chunks: u64) -> ([u64; PLANES], u64) {
    let (mut starts, mut end) = ([0; PLANES], 0);
    for (index, start) in starts.iter_mut().enumerate().take(count(dtype)) {
        *start = end + if index > 0 { SKEW } else { 0 };
        end = *start + plane_bytes(dtype, index, chunks).next_multiple_of(16);
    }
    (starts, end)
}

/// Number of planes of a type.
pub fn count(dtype: DType) -> usize {
    planes(dtype).map_or(0, <[_]>::len)
}

/// Bytes that so many chunks take in a plane.
pub fn plane_bytes(dtype: DType, plane: usize, chunks: u64) -> u64 {
    let plane = planes(dtype).and_then(|planes| planes.get(plane));
    plane.map_or(0, |plane| chunks.div_ceil(plane.chunks) * plane.bytes)
}

/// Packs whole blocks of a file into planes.
pub fn pack(dtype: DType, blocks: &[u8]) -> Option<Vec<u8>> {
    planes(dtype)?;
    let per_block = dtype.block_elems() / CHUNK;
    let count = blocks.len() / dtype.block_bytes();
    let (starts, end) = offsets(dtype, (count * per_block) as u64);
    let mut out = vec![0; end as usize];
    for (index, block) in blocks.chunks_exact(dtype.block_bytes()).enumerate() {
        let Codes { quants, scales } = codes(dtype, block)?;
        for sub in 0..per_block {
            let chunk = index * per_block + sub;
            let quants: &[u8; CHUNK] = quants[sub * CHUNK..].first_chunk()?;
            pack_chunk(dtype, &mut out, &starts, chunk, quants);
        }
        pack_scales(dtype, &mut out, &starts, index, &scales);
    }
    Some(out)
}

fn put(out: &mut [u8], start: u64, index: usize, bytes: &[u8]) {
    let at = start as usize + index * bytes.len();
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

fn pack_chunk(dtype: DType, out: &mut [u8], starts: &[u64], chunk: usize, q: &[u8; CHUNK]) {
    match dtype {
        DType::Q8_0 => put(out, starts[0], chunk, q),
        DType::Q2_K => put(out, starts[0], chunk, &pairs(q, 0)),
        DType::Q3_K => {
            put(out, starts[0], chunk, &pairs(q, 0));
            put(out, starts[1], chunk, &ones(q, 2));
        }
        _ => {
            put(out, starts[0], chunk, &nibbles(q));
            match dtype {
                DType::Q5_0 | DType::Q5_1 | DType::Q5_K => put(out, starts[1], chunk, &ones(q, 4)),
                DType::Q6_K => put(out, starts[1], chunk, &pairs(q, 4)),
                _ => {}
            }
        }
    }
}

/// `scales` are the bytes of one block, in the order [`codes`] gives them.
fn pack_scales(dtype: DType, out: &mut [u8], starts: &[u64], block: usize, scales: &[u8]) {
    match dtype {
        DType::Q4_0 | DType::Q4_1 | DType::Q8_0 => put(out, starts[1], block, scales),
        DType::Q5_0 | DType::Q5_1 => put(out, starts[2], block, scales),
        DType::Q2_K | DType::Q4_K => {
            put(out, starts[1], block, &scales[..16]);
            put(out, starts[2], block, &scales[16..]);
        }
        _ => {
            put(out, starts[2], block, &scales[..16]);
            put(out, starts[3], block, &scales[16..]);
        }
    }
}

/// The lower four bits of each weight.
fn nibbles(q: &[u8; CHUNK]) -> [u8; 16] {
    std::array::from_fn(|j| q[j] & 15 | q[j + 16] << 4)
}

/// Two bits of each weight, from bit `from` on.
fn pairs(q: &[u8; CHUNK], from: u32) -> [u8; 8] {
    std::array::from_fn(|at| {
        let (half, byte) = (at / 4, at % 4);
        let bits = |word: usize| (q[16 * half + 4 * word + byte] >> from & 3) << (2 * word);
        (0..4).fold(0, |all, word| all | bits(word))
    })
}

/// Bit `from` of each weight.
fn ones(q: &[u8; CHUNK], from: u32) -> [u8; 4] {
    std::array::from_fn(|byte| {
        (0..8).fold(0, |all, word| all | (q[4 * word + byte] >> from & 1) << word)
    })
}
