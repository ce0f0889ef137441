//! Values of the inputs: distributions, all from a seed.

use std::sync::LazyLock;

use clearway_graph::DType;
use rustc_hash::FxHashMap;

use super::OperandSpec;
use crate::quant;
use crate::random::Rng;

/// What an operand holds before the op runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Fill {
    /// Sentinels: an operand that is only written.
    Sentinel,
    /// A bell curve.
    Normal {
        /// Middle.
        mean: f32,
        /// Standard deviation.
        deviation: f32,
    },
    /// Evenly spread.
    Uniform {
        /// Least value.
        low: f32,
        /// Largest value.
        high: f32,
    },
    /// Multiples of `step` around zero, shuffled in each row: no two are near each other, so that
    /// rounding cannot change which is larger.
    Distinct {
        /// Distance of neighbours; exact in every type.
        step: f32,
    },
    /// A handful of values, both zeros among them: many are equal.
    Ties,
    /// A bell curve in rows that hold NaN of both signs or, where asked for, infinities; some rows hold nothing else, some
    /// none of it.
    Spoiled {
        /// Whether there are infinities.
        infinite: bool,
    },
    /// Zero up to the diagonal that ends in the last corner, minus infinity behind it.
    Causal,
    /// Small numbers and minus infinities; the first row is all infinite.
    Mask,
    /// Indices.
    Ids {
        /// One past the largest.
        below: u32,
    },
    /// Indices, every third of which is out of range.
    IdsBeyond {
        /// One past the largest that is in range.
        below: u32,
    },
    /// Indices in runs: the first `run` are 0, the next 1, and so on.
    Runs {
        /// Length of a run.
        run: u32,
    },
    /// Indices, no two of which are equal; as many as there are elements must be below `below`.
    DistinctIds {
        /// One past the largest.
        below: u32,
    },
    /// Experts, every seventh of which does not exist; always the same ones for a number of them.
    Experts {
        /// How many there are.
        experts: u32,
    },
    /// The order by expert of as many pairs as are filled with [`Experts`](Self::Experts).
    OrderOfExperts {
        /// How many experts there are.
        experts: u32,
    },
    /// `start`, `start + 1`, ...
    Positions {
        /// The first.
        start: u32,
    },
}

impl Fill {
    /// A bell curve around zero.
    pub const NORMAL: Self = Self::Normal { mean: 0.0, deviation: 1.0 };
    /// Values at which exponentials overflow unless care is taken.
    pub const WIDE: Self = Self::Uniform { low: -120.0, high: 120.0 };
}

impl Rng {
    /// From 0 to 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Twelve even ones make a bell curve that ends at six deviations.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }
}

/// The dense bytes of an operand, row after row; `None` where it is not filled.
///
/// # Errors
/// Values that the type cannot hold: such a case would compare sentinels with sentinels.
pub(super) fn dense_bytes(spec: &OperandSpec, rng: &mut Rng) -> Result<Option<Vec<u8>>, String> {
    let (rows, cols) = (spec.rows(), spec.cols());
    match spec.fill {
        Fill::Sentinel => Ok(None),
        Fill::Ids { .. }
        | Fill::IdsBeyond { .. }
        | Fill::DistinctIds { .. }
        | Fill::Runs { .. }
        | Fill::Experts { .. }
        | Fill::OrderOfExperts { .. }
        | Fill::Positions { .. } => {
            let words = indices(&spec.fill, rows * cols, rng);
            Ok(Some(words.iter().flat_map(|word| word.to_ne_bytes()).collect()))
        }
        _ if DType::ALL.contains(&spec.dtype) && spec.dtype.is_quantised() => {
            Ok(Some(blocks(spec.dtype, rows * cols, rng)))
        }
        _ => {
            let values = values(&spec.fill, rows, cols, rng);
            let blocks = values.len() / spec.dtype.block_elems();
            let mut bytes = vec![0; blocks * spec.dtype.block_bytes()];
            // A row of a form is more than its blocks.
            let whole = values.len().max(1);
            let row = if spec.dtype == DType::A8 { cols } else { whole };
            let row_bytes = bytes.len() / (whole / row);
            for (values, bytes) in values.chunks(row).zip(bytes.chunks_mut(row_bytes.max(1))) {
                quant::encode(spec.dtype, values, bytes).map_err(|e| e.to_string())?;
                if spec.dtype == DType::A8 {
                    divide(bytes, cols / 32, rng);
                }
            }
            Ok(Some(bytes))
        }
    }
}

/// Gives the chunks of a rounded row parts of what it is to be divided by; every third row stays as it is.
fn divide(bytes: &mut [u8], chunks: usize, rng: &mut Rng) {
    if rng.below(3) > 0 {
        for chunk in 2 * chunks..3 * chunks {
            let part = 0.25 + 4.0 * rng.unit();
            bytes[chunk * 16 + 12..][..4].copy_from_slice(&part.to_le_bytes());
        }
    }
}

/// The expert of a pair: a few have most of the pairs.
fn expert(pair: usize, experts: u32) -> u32 {
    let mut rng = Rng(pair as u64);
    match pair % 7 {
        3 => experts + rng.below(3) as u32 * 1000,
        _ => rng.below(experts as usize).min(rng.below(experts as usize)) as u32,
    }
}

fn indices(fill: &Fill, count: usize, rng: &mut Rng) -> Vec<u32> {
    match *fill {
        Fill::Positions { start } => (start..).take(count).collect(),
        Fill::Runs { run } => (0..count as u32).map(|i| i / run).collect(),
        Fill::Experts { experts } => (0..count).map(|pair| expert(pair, experts)).collect(),
        Fill::OrderOfExperts { experts } => {
            let beyond = |pair: u32| expert(pair as usize, experts).min(experts);
            let pairs = (count - experts as usize - 2) as u32;
            let mut order: Vec<u32> = (0..pairs).collect();
            order.sort_by_key(|&pair| beyond(pair));
            let before = |e: u32| order.iter().filter(|&&pair| beyond(pair) < e).count() as u32;
            (0..experts + 2).map(before).chain(order.iter().copied()).collect()
        }
        Fill::IdsBeyond { below } => (0..count)
            .map(|i| match i % 6 {
                1 => below,
                4 => u32::MAX,
                _ => rng.below(below as usize) as u32,
            })
            .collect(),
        Fill::DistinctIds { below } => {
            let mut all: Vec<u32> = (0..below).collect();
            rng.shuffle(&mut all);
            all.truncate(count);
            all
        }
        Fill::Ids { below } => (0..count).map(|_| rng.below(below as usize) as u32).collect(),
        _ => Vec::new(),
    }
}

fn values(fill: &Fill, rows: usize, cols: usize, rng: &mut Rng) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows * cols);
    for row in 0..rows {
        match *fill {
            Fill::Normal { mean, deviation } => {
                out.extend((0..cols).map(|_| mean + deviation * rng.normal()));
            }
            Fill::Uniform { low, high } => {
                out.extend((0..cols).map(|_| low + (high - low) * rng.unit()));
            }
            Fill::Distinct { step } => {
                let mut order: Vec<usize> = (0..cols).collect();
                rng.shuffle(&mut order);
                out.extend(order.iter().map(|&i| (i as f32 - (cols / 2) as f32) * step));
            }
            Fill::Ties => {
                let few = [-1.0, -0.5, -0.0, 0.0, 0.5, 1.0];
                out.extend((0..cols).map(|_| few[rng.below(few.len())]));
            }
            Fill::Spoiled { infinite } => {
                let (high, low) = (f32::INFINITY, f32::NEG_INFINITY);
                let kinds: [&[f32]; 5] =
                    [&[], &[f32::NAN, -f32::NAN], &[low], &[high], &[low, f32::NAN]];
                let all = if infinite { kinds.len() } else { 2 };
                let (kind, whole) = (kinds[rng.below(all)], rng.below(3) == 0);
                out.extend((0..cols).map(|_| {
                    let spoiled = !kind.is_empty() && (whole || rng.below(cols.min(9)) == 0);
                    if spoiled { kind[rng.below(kind.len())] } else { rng.normal() }
                }));
            }
            Fill::Causal => {
                let visible = (cols + row).saturating_sub(rows - 1).max(1);
                out.extend((0..cols).map(|c| if c < visible { 0.0 } else { f32::NEG_INFINITY }));
            }
            Fill::Mask => out.extend((0..cols).map(|_| {
                let shut = row == 0 || rng.below(3) == 0;
                if shut { f32::NEG_INFINITY } else { rng.normal() }
            })),
            _ => {}
        }
    }
    out
}

/// Blocks of a quantised format, drawn from a pool: encoding is a search and would take most of the
/// time of a run.
fn blocks(dtype: DType, elems: usize, rng: &mut Rng) -> Vec<u8> {
    static POOLS: LazyLock<FxHashMap<DType, Vec<u8>>> = LazyLock::new(|| {
        DType::ALL.into_iter().filter(|d| d.is_quantised()).map(|d| (d, pool(d))).collect()
    });
    let Some(pool) = POOLS.get(&dtype) else { return Vec::new() };
    let size = dtype.block_bytes();
    let mut out = Vec::with_capacity(elems / dtype.block_elems() * size);
    for _ in 0..elems / dtype.block_elems() {
        let block = rng.below(pool.len() / size);
        out.extend_from_slice(&pool[block * size..(block + 1) * size]);
    }
    out
}

const POOL_BLOCKS: usize = 64;

fn pool(dtype: DType) -> Vec<u8> {
    let (elems, size) = (dtype.block_elems(), dtype.block_bytes());
    let mut rng = Rng(dtype as u64);
    let mut out = vec![0; POOL_BLOCKS * size];
    for (i, bytes) in out.chunks_exact_mut(size).enumerate() {
        let weights: Vec<f32> = match i {
            0 => vec![0.0; elems],
            1 => vec![0.25; elems],
            2 => (0..elems).map(|j| if j == elems / 2 { -4.0 } else { 0.01 }).collect(),
            // All of one sign, so that formats with an offset use it.
            3..8 => (0..elems).map(|_| 1.0 + rng.unit()).collect(),
            _ => (0..elems).map(|_| rng.normal()).collect(),
        };
        // Finite and small: every format takes them. A block of zeros would be seen as coverage lost
        // by the test that counts distinct blocks.
        if quant::encode(dtype, &weights, bytes).is_err() {
            bytes.fill(0);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_holds_distinct_finite_blocks() {
        for dtype in DType::ALL.into_iter().filter(|d| d.is_quantised()) {
            let pool = pool(dtype);
            let blocks: std::collections::BTreeSet<&[u8]> =
                pool.chunks_exact(dtype.block_bytes()).collect();
            assert!(blocks.len() >= POOL_BLOCKS - 1, "{dtype}: {} blocks", blocks.len());
            let mut values = vec![0.0; POOL_BLOCKS * dtype.block_elems()];
            quant::decode(dtype, &pool, &mut values).unwrap();
            let power: f32 = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
            assert!((0.5..2.0).contains(&power), "{dtype}: {power}");
        }
    }

    #[test]
    fn a_row_of_distinct_values_has_no_two_alike() {
        let mut row = values(&Fill::Distinct { step: 0.03125 }, 1, 33, &mut Rng(1));
        row.sort_by(f32::total_cmp);
        assert!(row.windows(2).all(|w| w[1] - w[0] == 0.03125), "{row:?}");
        let mut ids = indices(&Fill::DistinctIds { below: 9 }, 9, &mut Rng(1));
        ids.sort_unstable();
        assert_eq!(ids, (0..9).collect::<Vec<_>>());
    }

    #[test]
    fn a_causal_mask_ends_in_the_last_corner() {
        let mask = values(&Fill::Causal, 2, 3, &mut Rng(1));
        let shut = f32::NEG_INFINITY;
        assert_eq!(mask, [0.0, 0.0, shut, 0.0, 0.0, 0.0]);
    }
}
