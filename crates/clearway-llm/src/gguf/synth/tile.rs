//! Random blocks of every type that synthetic models use, made once and repeated.

use std::{
    io::{self, Write},
    sync::OnceLock,
};

use clearway_graph::DType;
use half::f16;

/// Bytes of a tile, roughly. Large enough that rows repeat only far apart, small enough to be made
/// quickly and to be written from memory that is not slower than the disk.
const TILE_BYTES: usize = 8 << 20;

/// Standard deviation of 16-bit weights.
const DEVIATION: f32 = 0.02;

/// One tile per type, made when first used.
pub(super) struct Tiles {
    seed: u64,
    tiles: [OnceLock<Vec<u8>>; DType::ALL.len()],
}

impl Tiles {
    pub fn new(seed: u64) -> Self {
        Self { seed, tiles: Default::default() }
    }

    /// Writes the data of tensor number `no`: `blocks` blocks, from a place of the tile that depends
    /// on the number, and around its end as often as needed.
    pub fn write(
        &self,
        dtype: DType,
        no: usize,
        blocks: usize,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let tile = self.tile(dtype);
        let size = dtype.block_bytes();
        let start = Random::new(self.seed ^ no as u64).next() as usize % (tile.len() / size) * size;
        let mut rest = blocks * size;
        let mut from = start;
        while rest > 0 {
            let piece = rest.min(tile.len() - from);
            out.write_all(&tile[from..from + piece])?;
            rest -= piece;
            from = 0;
        }
        Ok(())
    }

    fn tile(&self, dtype: DType) -> &[u8] {
        self.tiles[dtype as usize].get_or_init(|| {
            // Odd, so that a tile holds no whole number of the rows that shapes have.
            let blocks = (TILE_BYTES / dtype.block_bytes()) | 1;
            random_blocks(dtype, blocks, &mut Random::new(self.seed ^ (dtype as u64) << 32))
        })
    }
}

/// Blocks of random but finite weights: random bits, with the scales replaced by fixed small ones.
fn random_blocks(dtype: DType, blocks: usize, random: &mut Random) -> Vec<u8> {
    if dtype == DType::F32 {
        // The only plain 32-bit tensors are norms, whose neutral weight is one.
        return 1_f32.to_le_bytes().repeat(blocks);
    }
    if dtype == DType::F16 {
        let weights = (0..blocks).map(|_| f16::from_f32(DEVIATION * random.normal()));
        return weights.flat_map(f16::to_le_bytes).collect();
    }
    let mut out = vec![0; blocks * dtype.block_bytes()];
    random.fill(&mut out);
    for block in out.chunks_exact_mut(dtype.block_bytes()) {
        for &(at, scale) in scales(dtype) {
            block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
    }
    out
}

/// Where 16-bit scales lie in a block, and their values here.
fn scales(dtype: DType) -> &'static [(usize, f32)] {
    match dtype {
        DType::Q4_0 => &[(0, 4e-3)],
        DType::Q4_1 => &[(0, 4e-3), (2, -3e-2)],
        DType::Q5_0 => &[(0, 2e-3)],
        DType::Q8_0 => &[(0, 4e-4)],
        DType::Q4_K => &[(0, 2e-4), (2, 2e-4)],
        DType::Q6_K => &[(208, 1e-5)],
        _ => &[],
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
