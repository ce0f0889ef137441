//! Random blocks of every type that synthetic models use, made once and repeated.

use std::{
    io::{self, Write},
    sync::OnceLock,
};

use clearway_graph::DType;
use half::{bf16, f16};

/// Bytes of a tile, roughly. Large enough that rows repeat only far apart, small enough to be made
/// quickly and to be written from memory that is not slower than the disk.
const TILE_BYTES: usize = 8 << 20;

/// Standard deviation of weights: products of normed rows with the widths that models have stay near one.
const DEVIATION: f32 = 0.02;

/// What a tensor is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// Ones, the neutral weight of a norm.
    Ones,
    /// Random weights of a type.
    Random(DType),
}

/// One tile for each fill, made when first used.
pub(super) struct Tiles {
    seed: u64,
    ones: OnceLock<Vec<u8>>,
    random: [OnceLock<Vec<u8>>; DType::ALL.len()],
}

impl Tiles {
    pub fn new(seed: u64) -> Self {
        Self { seed, ones: OnceLock::new(), random: Default::default() }
    }

    /// Writes the data of tensor number `no` in pieces of at most a tile, from a place of the tile that
    /// depends on the number, and around its end as often as needed.
    pub fn write(&self, fill: Fill, no: usize, bytes: u64, out: &mut dyn Write) -> io::Result<()> {
        let tile = self.tile(fill);
        let size = match fill {
            Fill::Ones => 4,
            Fill::Random(dtype) => dtype.block_bytes(),
        };
        let start = Random::new(self.seed ^ no as u64).next() as usize % (tile.len() / size) * size;
        let mut from = start;
        let mut rest = bytes as usize;
        while rest > 0 {
            let piece = rest.min(tile.len() - from);
            out.write_all(&tile[from..from + piece])?;
            rest -= piece;
            from = 0;
        }
        Ok(())
    }

    fn tile(&self, fill: Fill) -> &[u8] {
        match fill {
            Fill::Ones => self.ones.get_or_init(|| 1_f32.to_le_bytes().repeat(1 << 16)),
            Fill::Random(dtype) => self.random[dtype as usize].get_or_init(|| {
                // Odd, so that a tile holds no whole number of the rows that shapes have.
                let blocks = (TILE_BYTES / dtype.block_bytes()) | 1;
                random_blocks(dtype, blocks, &mut Random::new(self.seed ^ (dtype as u64) << 32))
            }),
        }
    }
}

/// Blocks of random but finite weights: normal numbers, or random bits with the scales replaced.
fn random_blocks(dtype: DType, blocks: usize, random: &mut Random) -> Vec<u8> {
    let mut normal = || DEVIATION * random.normal();
    match dtype {
        DType::F32 => return (0..blocks).flat_map(|_| normal().to_le_bytes()).collect(),
        DType::F16 => {
            return (0..blocks).flat_map(|_| f16::from_f32(normal()).to_le_bytes()).collect();
        }
        DType::BF16 => {
            return (0..blocks).flat_map(|_| bf16::from_f32(normal()).to_le_bytes()).collect();
        }
        _ => {}
    }
    let mut out = vec![0; blocks * dtype.block_bytes()];
    random.fill(&mut out);
    if dtype == DType::MXFP4 {
        // Uniform nibbles have a deviation near three, and every exponent here is that of 2^-7.
        out.iter_mut().step_by(dtype.block_bytes()).for_each(|exponent| *exponent = 120);
    }
    let scales = scales(dtype);
    // Quants without a minimum have a mean below zero; blocks of both signs have none.
    let both_signs = scales.len() == 1;
    for block in out.chunks_exact_mut(dtype.block_bytes()) {
        let sign = if both_signs && random.next() & 1 == 1 { -1.0 } else { 1.0 };
        for &(at, scale) in scales {
            let scale = sign * scale;
            block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
    }
    out
}

/// Where 16-bit scales lie in a block, and their values here.
///
/// Quants and the scales of sub-blocks are uniform. The values give a deviation near [`DEVIATION`], and
/// minimums that cancel the mean: without that, every row of a product would be nearly the same number.
fn scales(dtype: DType) -> &'static [(usize, f32)] {
    match dtype {
        DType::Q4_0 => &[(0, 4e-3)],
        DType::Q4_1 => &[(0, 4e-3), (2, -3e-2)],
        DType::Q5_0 => &[(0, 2e-3)],
        DType::Q5_1 => &[(0, 2e-3), (2, -3.1e-2)],
        DType::Q8_0 => &[(0, 4e-4)],
        DType::Q2_K => &[(80, 1.44e-3), (82, 2.16e-3)],
        DType::Q3_K => &[(108, 4.6e-4)],
        DType::Q4_K => &[(0, 7.7e-5), (2, 5.775e-4)],
        DType::Q5_K => &[(0, 3.8e-5), (2, 5.89e-4)],
        DType::Q6_K => &[(208, 1.46e-5)],
        DType::IQ4_NL => &[(0, 2.9e-4)],
        DType::IQ4_XS => &[(0, 1.57e-5)],
        DType::F32 | DType::F16 | DType::BF16 | DType::U32 => &[],
        DType::MXFP4 | DType::A8 | DType::A16 | DType::C8 => &[],
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014): a counter and a mixing function, enough for test data.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }

    /// A normally distributed number (Box and Muller), never infinite.
    fn normal(&mut self) -> f32 {
        let bits = self.next();
        // 24 bits each; one half is added so that the logarithm never sees zero.
        let unit = |bits: u64| ((bits & 0xff_ffff) as f32 + 0.5) / (1 << 24) as f32;
        (-2.0 * unit(bits).ln()).sqrt() * (std::f32::consts::TAU * unit(bits >> 32)).cos()
    }
}
