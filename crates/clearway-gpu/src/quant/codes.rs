//! The integers of a block, before scales make numbers of them: what a backend packs its own way.

use bytemuck::Pod;
use clearway_graph::DType;
use smallvec::SmallVec;

use super::blocks::{
    BlockQ2K, BlockQ3K, BlockQ4_0, BlockQ4_1, BlockQ4K, BlockQ5_0, BlockQ5_1, BlockQ5K, BlockQ6K,
    BlockQ8_0, unpack_scale_mins,
};
use super::kquant::{
    unpack_five_runs, unpack_nibble_runs, unpack_pairs, unpack_sixes, unpack_threes,
};
use super::legacy::{unpack_fives, unpack_nibbles};

/// One block taken apart.
pub struct Codes {
    /// A code for each weight, without sign; those of Q8_0 by their bits.
    pub quants: SmallVec<[u8; 256]>,
    /// The bytes that make scales, f16 numbers by their bits:
    ///
    /// | type | bytes |
    /// |---|---|
    /// | Q4_0, Q5_0, Q8_0 | scale |
    /// | Q4_1, Q5_1 | scale, minimum |
    /// | Q4_K, Q5_K | a byte of scale and one of minimum for each of 8 runs; then scale, minimum |
    /// | Q2_K | for each of 16 runs scale below, minimum above; then scale, minimum |
    /// | Q3_K, Q6_K | a byte for each of 16 runs, that of Q3_K 32 too large; then scale |
    pub scales: SmallVec<[u8; 24]>,
}

/// Takes a block apart; `None` for a type that has no such form or bytes that are no block of it.
pub fn codes(dtype: DType, block: &[u8]) -> Option<Codes> {
    let new = |quants: &[u8], scales: &[&[u8]]| Codes {
        quants: SmallVec::from_slice(quants),
        scales: scales.iter().flat_map(|part| part.iter().copied()).collect(),
    };
    Some(match dtype {
        DType::Q4_0 => {
            let b: BlockQ4_0 = read(block)?;
            new(&unpack_nibbles(&b.qs), &[&b.d])
        }
        DType::Q4_1 => {
            let b: BlockQ4_1 = read(block)?;
            new(&unpack_nibbles(&b.qs), &[&b.d, &b.m])
        }
        DType::Q5_0 => {
            let b: BlockQ5_0 = read(block)?;
            new(&unpack_fives(&b.qs, b.qh), &[&b.d])
        }
        DType::Q5_1 => {
            let b: BlockQ5_1 = read(block)?;
            new(&unpack_fives(&b.qs, b.qh), &[&b.d, &b.m])
        }
        DType::Q8_0 => {
            let b: BlockQ8_0 = read(block)?;
            new(bytemuck::cast_slice(&b.qs), &[&b.d])
        }
        DType::Q2_K => {
            let b: BlockQ2K = read(block)?;
            new(&unpack_pairs(&b.qs), &[&b.scales, &b.d, &b.dmin])
        }
        DType::Q3_K => {
            let b: BlockQ3K = read(block)?;
            new(&unpack_threes(&b), &[&b.scales(), &b.d])
        }
        DType::Q4_K => {
            let b: BlockQ4K = read(block)?;
            new(&unpack_nibble_runs(&b.qs), &[&runs(&b.scales), &b.d, &b.dmin])
        }
        DType::Q5_K => {
            let b: BlockQ5K = read(block)?;
            new(&unpack_five_runs(&b), &[&runs(&b.scales), &b.d, &b.dmin])
        }
        DType::Q6_K => {
            let b: BlockQ6K = read(block)?;
            new(&unpack_sixes(&b), &[bytemuck::cast_slice(&b.scales), &b.d])
        }
        _ => return None,
    })
}

fn read<T: Pod>(block: &[u8]) -> Option<T> {
    bytemuck::try_pod_read_unaligned(block).ok()
}

/// Scale and minimum of eight runs, a byte each.
fn runs(packed: &[u8; 12]) -> [u8; 16] {
    let (scales, mins) = unpack_scale_mins(packed);
    std::array::from_fn(|at| if at % 2 == 0 { scales[at / 2] } else { mins[at / 2] })
}
