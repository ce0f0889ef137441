//! Whether a kernel that the tuner may choose gives what the portable one gives.
//!
//! A driver that computes nonsense is fast. Kernels on matrices of a workgroup are words of our own with instructions that
//! few drivers have, so each runs once on operands of the tuner's own before it is timed: the weights are those of the
//! model, activations and addend are made up. Nothing that was computed is touched.

use std::sync::Arc;

use clearway_graph::{DType, Slot};
use half::f16;

use super::lowered::{Bound, Lowered};
use super::{Backend, Bytes, Piece, RangeOf};
use crate::device::{DeviceMemory, Program};
use crate::error::Result;
use crate::wgsl::{Job, Kernel};

/// How far results may be apart, in parts of what is typical of their column. Weights that are rounded otherwise make
/// some thousandths of it, a wrong weight of a chunk some hundredths.
const LIMIT: f64 = 1.0 / 128.0;

/// What the portable kernel of a product gives for operands of the tuner's own.
pub(crate) struct Trial<'a, B: Backend> {
    backend: &'a Arc<B>,
    bound: &'a Bound<RangeOf<B>>,
    /// Which operands are activations, addend and result.
    x: usize,
    addend: Option<usize>,
    y: usize,
    /// The addend is the memory of the result.
    in_place: bool,
    memory: [Arc<B::Memory>; 3],
    shape: Shape,
    /// What is added.
    added: Vec<f32>,
    wanted: Vec<f32>,
    /// Of each column, what is typical of the product.
    typical: Vec<f64>,
}

/// Results of a product: so many rows and columns, so far apart.
#[derive(Clone, Copy, Debug)]
struct Shape {
    rows: usize,
    columns: usize,
    stride: usize,
}

impl<'a, B: Backend> Trial<'a, B> {
    /// Runs the portable kernel. `None` where its results say nothing: they are zeros, or no numbers.
    pub(crate) fn new(
        backend: &'a Arc<B>,
        job: &Job<'_>,
        portable: &Kernel,
        bound: &'a Bound<RangeOf<B>>,
    ) -> Result<Option<Self>> {
        let (x, y, addend) = (0, job.operands.len() - 1, job.slot(Slot::Addend));
        let layout = &job.operands[y].layout;
        let stride = layout.strides4()[2] as usize;
        let columns = layout.cols();
        let shape = Shape { rows: layout.rows(), columns, stride: stride.max(columns) };
        let piece = |operand: Option<usize>| {
            let bytes = operand.map_or(0, |operand| bound.ranges[operand].bytes());
            backend.alloc_piece(bytes.max(super::ALIGN)).map(Arc::new)
        };
        let memory = [piece(Some(x))?, piece(addend)?, piece(Some(y))?];
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let halves = matches!(job.operands[x].layout.dtype(), DType::F16 | DType::A16);
        let made = activations(&mut random, bound.ranges[x].bytes() as usize, halves);
        memory[0].write(0, &made)?;
        let in_place = addend.is_some_and(|addend| job.operands[y].same_as == Some(addend));
        let count = bound.ranges[y].bytes() as usize / 4;
        let mut trial = Self {
            backend,
            bound,
            x,
            addend,
            y,
            in_place,
            memory,
            shape,
            added: vec![0.0; count],
            wanted: Vec::new(),
            typical: Vec::new(),
        };
        let plain = trial.run(portable)?;
        trial.typical = typical(&plain, shape);
        let size = trial.typical.iter().sum::<f64>() / shape.columns as f64;
        if !(size.is_finite() && size > 0.0) {
            return Ok(None);
        }
        trial.wanted = plain;
        if addend.is_some() {
            // As large as the product: neither hides an error of the other.
            trial.added.iter_mut().for_each(|c| *c = random.next() * size as f32);
            trial.wanted = trial.run(portable)?;
        }
        Ok(Some(trial))
    }

    /// Whether a kernel gives the same.
    pub(crate) fn agrees(&self, kernel: &Kernel) -> Result<bool> {
        Ok(agree(&self.wanted, &self.run(kernel)?, &self.typical, self.shape))
    }

    /// What a kernel gives.
    fn run(&self, kernel: &Kernel) -> Result<Vec<f32>> {
        let [x, c, y] = &self.memory;
        // What is not written must not look right.
        let before =
            if self.in_place { self.added.clone() } else { vec![f32::NAN; self.added.len()] };
        y.write(0, bytemuck::cast_slice(&before))?;
        let mut ranges = self.bound.ranges.clone();
        let own = |memory: &B::Memory, operand: usize| {
            memory.range(memory.base(), self.bound.ranges[operand].bytes())
        };
        ranges[self.x] = own(x, self.x);
        if let Some(addend) = self.addend {
            let count = self.bound.ranges[addend].bytes() as usize / 4;
            if !self.in_place {
                c.write(0, bytemuck::cast_slice(&self.added[..count.min(self.added.len())]))?;
            }
            ranges[addend] = own(if self.in_place { y } else { c }, addend);
        }
        ranges[self.y] = own(y, self.y);
        let again: Vec<_> = kernel.again.iter().map(|&operand| ranges[operand].clone()).collect();
        ranges.extend(again);
        let mut lowered = Lowered::default();
        lowered.push_alone(kernel.clone(), Bound { ranges, ..Bound::default() });
        let memory = self.memory.to_vec();
        self.backend.program(lowered, memory)?.run()?;
        let mut found = vec![0.0; self.added.len()];
        y.read(0, bytemuck::cast_slice_mut(&mut found))?;
        Ok(found)
    }
}

/// Bytes of activations between -1 and 1.
fn activations(random: &mut Random, bytes: usize, halves: bool) -> Vec<u8> {
    let mut made = Vec::with_capacity(bytes + 4);
    while made.len() < bytes {
        let x = random.next();
        match halves {
            true => made.extend(f16::from_f32(x).to_le_bytes()),
            false => made.extend(x.to_le_bytes()),
        }
    }
    made.truncate(bytes);
    made
}

/// The root of the mean square of each column.
fn typical(results: &[f32], shape: Shape) -> Vec<f64> {
    let mut squares = vec![0.0; shape.columns];
    for row in results.chunks(shape.stride).take(shape.rows) {
        for (sum, &y) in squares.iter_mut().zip(row) {
            *sum += f64::from(y) * f64::from(y);
        }
    }
    squares.into_iter().map(|sum| (sum / shape.rows as f64).sqrt()).collect()
}

/// Whether results are as near to each other as rounding lets them be.
fn agree(wanted: &[f32], found: &[f32], typical: &[f64], shape: Shape) -> bool {
    let rows = wanted.chunks(shape.stride).zip(found.chunks(shape.stride)).take(shape.rows);
    rows.flat_map(|(wanted, found)| wanted.iter().zip(found).zip(typical)).all(
        |((&wanted, &found), &typical)| {
            // What is no number is not near anything.
            (f64::from(wanted) - f64::from(found)).abs() <= typical * LIMIT
        },
    )
}

/// Numbers between -1 and 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_agree_up_to_rounding_and_no_further() {
        let shape = Shape { rows: 40, columns: 3, stride: 4 };
        let mut random = Random(5);
        let wanted: Vec<f32> =
            (0..160).map(|i| random.next() * [1.0, 100.0, 0.0, 7.0][i % 4]).collect();
        let typical = typical(&wanted, shape);
        assert!((0.4..0.8).contains(&typical[0]) && typical[1] > 40.0 && typical[2] == 0.0);
        let with = |at: usize, by: f32| {
            let mut found = wanted.clone();
            found[at] += by;
            agree(&wanted, &found, &typical, shape)
        };
        assert!(with(0, 0.0), "the same");
        assert!(with(8, 0.003) && !with(8, 0.01), "a small column has a small limit");
        assert!(with(9, 0.3) && !with(9, 1.0), "a large one a large one");
        assert!(!with(10, 1e-6), "zeros are zeros");
        assert!(with(11, 9.0), "between rows anything may lie");
        assert!(!with(4, f32::NAN) && !with(4, f32::INFINITY));
    }

    #[test]
    fn activations_fill_all_bytes_with_numbers() {
        for halves in [false, true] {
            let bytes = activations(&mut Random(3), 4 * 1001, halves);
            assert_eq!(bytes.len(), 4004);
            let numbers: Vec<f32> = match halves {
                true => {
                    bytes.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
                }
                false => {
                    bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
                }
            };
            assert!(numbers.iter().all(|x| x.abs() <= 1.0));
            assert!(numbers.iter().map(|x| x.abs()).sum::<f32>() > 0.4 * numbers.len() as f32);
        }
    }
}
