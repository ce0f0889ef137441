//! Inputs, the check of a variant against f64, and its timing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use half::f16;

use crate::gpu::{Buffer, Gpu, Kernel, QUERIES, Result, Set};
use crate::kernel::{Out, Variant, Weights};

/// M, N and K: products of an 8B model with prompts of 512 and 2,048 tokens.
pub const SHAPES: [[u32; 3]; 5] = [
    [512, 4096, 4096],
    [2048, 4096, 4096],
    [2048, 14336, 4096],
    [2048, 4096, 14336],
    [512, 14336, 4096],
];

/// Elements of C that are checked.
const SAMPLES: usize = 256;

pub struct Timing {
    pub best: f64,
    pub median: f64,
}

pub fn tflops(shape: usize, us: f64) -> f64 {
    SHAPES[shape].iter().map(|&size| f64::from(size)).product::<f64>() * 2.0 / us / 1e6
}

/// The largest count of elements over all shapes.
fn largest(count: impl Fn([u32; 3]) -> u32) -> usize {
    SHAPES.into_iter().map(count).max().unwrap_or(0) as usize
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Activations, and weights in f16 and in 4 bits.
struct Inputs {
    a: Vec<u16>,
    b: Vec<u16>,
    /// 16 bytes a block of 32.
    nibbles: Vec<u8>,
    scales: Vec<u16>,
}

impl Inputs {
    fn new() -> Self {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        // Uniform in [-1, 1] / 64, by a table: 1 / sqrt(4096) for every shape.
        let table: Vec<u16> = (0..65536)
            .map(|i| f16::from_f32((i as f32 - 32767.5) / 32767.5 / 64.0).to_bits())
            .collect();
        let mut fill = |count: usize| -> Vec<u16> {
            let four = |_| {
                let x = random.next();
                [0, 16, 32, 48].map(|shift| table[(x >> shift) as usize & 0xffff])
            };
            (0..count / 4).flat_map(four).collect()
        };
        let a = fill(largest(|[m, _, k]| m * k));
        // Room for four copies of the smallest weights.
        let b = fill(largest(|[_, n, k]| n * k).max(4096 * 4096 * 4));
        let (mut nibbles, mut scales) = (Vec::new(), Vec::new());
        for _ in 0..b.len() / 32 {
            let (x, y, z) = (random.next(), random.next(), random.next());
            let scale = (0.5 + (z >> 40) as f32 / (1u64 << 25) as f32) / 512.0;
            scales.push(f16::from_f32(scale).to_bits());
            nibbles.extend(x.to_le_bytes());
            nibbles.extend(y.to_le_bytes());
        }
        Self { a, b, nibbles, scales }
    }

    /// Scale and nibbles of each block together.
    fn blocks(&self) -> Vec<u8> {
        let parts = self.scales.iter().zip(self.nibbles.chunks_exact(16));
        parts.flat_map(|(s, n)| s.to_le_bytes().into_iter().chain(n.iter().copied())).collect()
    }

    /// A weight as kernels make it: products of f16 rounded to f16.
    fn weight(&self, weights: Weights, at: usize) -> f64 {
        if weights == Weights::F16 {
            return f16::from_bits(self.b[at]).to_f64();
        }
        let (block, i) = (at / 32, at % 32);
        let bytes = &self.nibbles[block * 16..][..16];
        let nibble = match weights {
            Weights::Blocks => bytes[i % 16] >> (i / 16 * 4) & 15,
            _ => bytes[i / 2] >> (i % 2 * 4) & 15,
        };
        let scale = f16::from_bits(self.scales[block]).to_f32();
        f16::from_f32((f32::from(nibble) - 8.0) * scale).to_f64()
    }

    /// Corners of C and elements at random.
    fn samples(&self, weights: Weights, [m, n, k]: [u32; 3]) -> Vec<Sample> {
        let seed = u64::from(m) << 40 ^ u64::from(n) << 20 ^ u64::from(k);
        let mut random = Random(0x1234_5678_9abc_def1 ^ seed);
        let mut below = |size: u32| (random.next() >> 33) as u32 % size;
        let corners = [(0, 0), (m - 1, n - 1), (0, n - 1), (m - 1, 0)];
        let others = std::iter::repeat_with(|| (below(m), below(n)));
        let places: Vec<_> = corners.into_iter().chain(others).take(SAMPLES).collect();
        let k = k as usize;
        let sample = |(row, column): (u32, u32)| {
            let (mut wanted, mut squares) = (0.0, 0.0);
            let (row_at, column_at) = (row as usize * k, column as usize * k);
            for j in 0..k {
                let x = f16::from_bits(self.a[row_at + j]).to_f64();
                let product = x * self.weight(weights, column_at + j);
                wanted += product;
                squares += product * product;
            }
            Sample {
                at: u64::from(row) * u64::from(n) + u64::from(column),
                wanted,
                typical: squares.sqrt(),
            }
        };
        places.into_iter().map(sample).collect()
    }
}

/// An element to check, its value, and the size of a typical sum of such products.
struct Sample {
    at: u64,
    wanted: f64,
    typical: f64,
}

pub struct Bench {
    gpu: Gpu,
    inputs: Inputs,
    a: Buffer,
    b: Buffer,
    blocks: Buffer,
    nibbles: Buffer,
    scales: Buffer,
    c: Buffer,
    back: Buffer,
    sets: HashMap<(Weights, usize), Vec<Set>>,
    samples: HashMap<(Weights, usize), Vec<Sample>>,
    last: Option<Instant>,
}

impl Bench {
    pub fn new(gpu: Gpu) -> Result<Self> {
        let inputs = Inputs::new();
        let uploaded = |bytes: &[u8]| {
            let buffer = gpu.buffer(bytes.len() as u64, false)?;
            gpu.upload(buffer, bytes).map(|()| buffer)
        };
        let a = uploaded(bytemuck::cast_slice(&inputs.a))?;
        let b = uploaded(bytemuck::cast_slice(&inputs.b))?;
        let blocks = uploaded(&inputs.blocks())?;
        let nibbles = uploaded(&inputs.nibbles)?;
        let scales = uploaded(bytemuck::cast_slice(&inputs.scales))?;
        let c = gpu.buffer(largest(|[m, n, _]| m * n) as u64 * 4, false)?;
        let back = gpu.buffer(SAMPLES as u64 * 4, true)?;
        let (sets, samples) = Default::default();
        Ok(Self { gpu, inputs, a, b, blocks, nibbles, scales, c, back, sets, samples, last: None })
    }

    /// Checks and times a variant with all shapes that it fits, and prints a line.
    pub fn run(
        &mut self,
        variant: &Variant,
        kernel: Kernel,
    ) -> Result<Vec<(Variant, usize, Timing)>> {
        let limit = match variant.out {
            Out::F32 => 1e-3,
            Out::F16 => 5e-3,
            Out::SumsF16 => 3e-1,
        };
        let (mut line, mut worst) = (String::new(), 0f64);
        let mut found = Vec::new();
        for (i, shape) in SHAPES.into_iter().enumerate() {
            if !variant.fits(shape) {
                line += "      -        ";
                continue;
            }
            let (error, us) = self.verify(variant, kernel, i)?;
            worst = worst.max(error);
            // Not a number is wrong, too.
            if error.is_nan() || error > limit {
                println!("WRONG {}, {shape:?}: {error:.1e} of a typical sum", variant.name());
                return Ok(Vec::new());
            }
            let warm_up = if found.is_empty() { 0.1 } else { 0.015 };
            let timing = self.time(variant, kernel, i, us, (warm_up, 0.03))?;
            line += &format!(" {:6.1} ({:5.1})", tflops(i, timing.median), tflops(i, timing.best));
            found.push((*variant, i, timing));
        }
        println!("OK    {:<26} error {worst:.1e} {line}", variant.name());
        Ok(found)
    }

    /// Sets over different copies of the weights, so that repeated products do not find them in the second-level
    /// cache.
    fn sets(&mut self, weights: Weights, shape: usize) -> Result<Vec<Set>> {
        if let Some(sets) = self.sets.get(&(weights, shape)) {
            return Ok(sets.clone());
        }
        let [m, n, k] = SHAPES[shape].map(u64::from);
        let (buffer, bytes, scales) = match weights {
            Weights::F16 => (self.b, n * k * 2, 0),
            Weights::Blocks => (self.blocks, n * k / 32 * 18, 0),
            Weights::Apart => (self.nibbles, n * k / 2, n * k / 16),
        };
        let set = |copy: u64| {
            // Where kernels know no scales the binding is there all the same.
            let range = if scales > 0 { scales } else { self.scales.bytes };
            let a = (self.a, 0, m * k * 2);
            let c = (self.c, 0, m * n * 4);
            self.gpu.set([a, (buffer, bytes * copy, bytes), c, (self.scales, scales * copy, range)])
        };
        let copies = (buffer.bytes / bytes).clamp(1, 4);
        let sets: Vec<Set> = (0..copies).map(set).collect::<Result<_>>()?;
        self.sets.insert((weights, shape), sets.clone());
        Ok(sets)
    }

    fn dispatch(&self, variant: &Variant, shape: usize, set: Set) {
        let ([m, n, _], [tile_m, tile_n, _]) = (SHAPES[shape], variant.tile);
        self.gpu.dispatch(set, (m / tile_m, n / tile_n));
    }

    /// The largest error in units of a typical sum, and microseconds of this first dispatch.
    fn verify(&mut self, variant: &Variant, kernel: Kernel, shape: usize) -> Result<(f64, f64)> {
        let set = self.sets(variant.weights, shape)?[0];
        let make = || self.inputs.samples(variant.weights, SHAPES[shape]);
        let samples = self.samples.entry((variant.weights, shape)).or_insert_with(make);
        let bytes = if variant.out == Out::F32 { 4 } else { 2 };
        let parts: Vec<_> =
            (0..).zip(&*samples).map(|(i, s)| (s.at * bytes, i * 4, bytes)).collect();
        self.gpu.begin()?;
        self.gpu.fill(self.c);
        self.gpu.barrier();
        self.gpu.bind(kernel, SHAPES[shape]);
        self.gpu.stamp(0);
        self.dispatch(variant, shape, set);
        self.gpu.barrier();
        self.gpu.stamp(1);
        self.gpu.copy(self.c, self.back, &parts);
        self.gpu.barrier();
        self.gpu.submit(5)?;
        let us = self.gpu.times(2)?[0];
        let mut worst = 0f64;
        for (sample, b) in self.samples[&(variant.weights, shape)]
            .iter()
            .zip(self.gpu.read(self.back).chunks_exact(4))
        {
            let got = match variant.out {
                Out::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into(),
                _ => f16::from_le_bytes([b[0], b[1]]).to_f64(),
            };
            let error = (got - sample.wanted).abs() / sample.typical;
            worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
        }
        Ok((worst, us))
    }

    /// Many dispatches one after the other, after others that are not counted; `seconds` of both. `guess` is about
    /// how many microseconds one takes.
    fn time(
        &mut self,
        variant: &Variant,
        kernel: Kernel,
        shape: usize,
        guess: f64,
        (warm_up, seconds): (f64, f64),
    ) -> Result<Timing> {
        let sets = self.sets(variant.weights, shape)?;
        // After a pause the clocks are low.
        let cold = self.last.is_none_or(|last| last.elapsed() > Duration::from_millis(100));
        let (guess, warm_up) = if cold {
            self.last = Some(Instant::now());
            let first = self.time(variant, kernel, shape, guess, (0.15, 0.01))?;
            (first.median.max(5.0), warm_up.max(0.3))
        } else {
            (guess.max(5.0), warm_up)
        };
        let before = ((warm_up * 1e6 / guess) as usize).clamp(2, 8000);
        let runs = ((seconds * 1e6 / guess) as usize).clamp(6, QUERIES as usize - 1);
        self.gpu.begin()?;
        self.gpu.bind(kernel, SHAPES[shape]);
        for i in 0..before + runs {
            if i == before {
                self.gpu.stamp(0);
            }
            self.dispatch(variant, shape, sets[i % sets.len()]);
            self.gpu.phase();
            if i >= before {
                self.gpu.stamp((i - before) as u32 + 1);
            }
        }
        self.gpu.submit(6)?;
        self.last = Some(Instant::now());
        let mut times = self.gpu.times(runs + 1)?;
        times.sort_by(f64::total_cmp);
        Ok(Timing { best: times[0], median: times[runs / 2] })
    }
}
