//! Products of packed plain weights with inputs that stay floats.
//!
//! Sixteen rows lie side by side, so a vector holds one weight of each of them and an input is the same for all: nothing is
//! summed across a vector. Two groups of rows meet eight inputs at a time, with their sums in registers. Weights are widened
//! where they lie: that takes no instruction from the multiplications, and less time than to write them down once for all
//! inputs and read them again.
//!
//! The products of [`BLOCK`] columns are summed from zero by fused multiply-adds, in the order of the columns; the sums of blocks
//! are added in order. So a result depends on the row of weights and the row of inputs alone: not on the machine, nor on how many
//! rows or inputs are multiplied together.

use clearway_graph::DType;
use half::{bf16, f16};

use super::float::Element;
use super::lanes::Lanes;
use super::packed::ROWS;
use super::{Isa, Vectorised, vectorise_as};

/// Columns that all inputs meet before the next ones: their weights stay in the nearest cache.
const BLOCK: usize = 256;

/// A weight of each row.
type Column<E> = [E; ROWS];

/// Multiplies `count` groups of sixteen packed rows, one behind the other, with all inputs. `out` has an element for each group
/// and input, those of a group together. Weights are of a plain type.
pub(super) fn products(
    isa: Isa,
    dtype: DType,
    groups: &[u8],
    count: usize,
    inputs: &[&[f32]],
    out: &mut [Column<f32>],
) {
    match dtype {
        DType::F16 => typed::<f16>(isa, groups, count, inputs, out),
        DType::BF16 => typed::<bf16>(isa, groups, count, inputs, out),
        DType::F32 => typed::<f32>(isa, groups, count, inputs, out),
        _ => crate::cpu::piece::misuse("weights are not plain"),
    }
}

fn typed<E: Element>(
    isa: Isa,
    groups: &[u8],
    count: usize,
    inputs: &[&[f32]],
    out: &mut [Column<f32>],
) {
    let columns: &[Column<E>] = bytemuck::cast_slice(groups);
    vectorise_as(isa, Work { columns, count, inputs, out });
}

struct Work<'a, E> {
    columns: &'a [Column<E>],
    count: usize,
    inputs: &'a [&'a [f32]],
    out: &'a mut [Column<f32>],
}

impl<E: Element> Vectorised for Work<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { columns, count, inputs, out } = self;
        let (inner, tokens) = (columns.len() / count, inputs.len());
        out.fill([0.0; ROWS]);
        for start in (0..inner).step_by(BLOCK) {
            let end = inner.min(start + BLOCK);
            let mut token = 0;
            while token < tokens {
                let part = Part { columns, inner, start, end, inputs, token };
                let first = token;
                token += match tokens - token {
                    8.. if const { L::TILE >= 8 } => part.meet_groups::<L, 8>(l, out),
                    4.. => part.meet_groups::<L, 4>(l, out),
                    2.. => part.meet_groups::<L, 2>(l, out),
                    _ => part.meet_groups::<L, 1>(l, out),
                };
                if tokens >= FETCHED {
                    fetch_next(l, columns, inner, end, [first, token, tokens]);
                }
            }
        }
    }
}

/// Inputs from which on weights are fetched ahead: fewer meet them as fast as processors fetch by themselves what is read in
/// order.
const FETCHED: usize = 8;

/// Fetches a share of the columns that come next: those from `end` on, or the first ones of the groups behind these. The share is
/// that of the inputs from the first to the second number among as many as the third.
#[inline(always)]
fn fetch_next<L: Lanes, E: Element>(
    l: L,
    columns: &[Column<E>],
    inner: usize,
    end: usize,
    [first, last, tokens]: [usize; 3],
) {
    const LINE: usize = 64;
    let lines = BLOCK * size_of::<Column<E>>() / LINE;
    let next = if end < inner { end } else { columns.len() };
    for group in (0..columns.len()).step_by(inner) {
        for line in lines * first / tokens..lines * last / tokens {
            let behind = (group + next) * size_of::<Column<E>>() + line * LINE;
            l.fetch_far(bytemuck::cast_slice(columns), behind);
        }
    }
}

/// A block of the columns of all groups, and the inputs from `token` on.
struct Part<'a, E> {
    columns: &'a [Column<E>],
    inner: usize,
    start: usize,
    end: usize,
    inputs: &'a [&'a [f32]],
    token: usize,
}

impl<E: Element> Part<'_, E> {
    /// Adds the products of all groups with `T` inputs; gives `T`.
    #[inline(always)]
    fn meet_groups<L: Lanes, const T: usize>(&self, l: L, out: &mut [Column<f32>]) -> usize {
        let mut inputs: [&[f32]; T] = [&[]; T];
        for (part, input) in inputs.iter_mut().zip(&self.inputs[self.token..]) {
            *part = &input[self.start..self.end];
        }
        let tokens = self.inputs.len();
        let mut columns = self.columns;
        let mut out = out;
        // Two groups share each input, where there are registers for their sums.
        if const { L::TILE >= 8 || T < 4 } {
            while columns.len() >= 2 * self.inner {
                let (pair, rest) = columns.split_at(2 * self.inner);
                let (one, two) = pair.split_at(self.inner);
                let (sums, out_rest) = std::mem::take(&mut out).split_at_mut(2 * tokens);
                let (sums_one, sums_two) = sums.split_at_mut(tokens);
                let weights = [&one[self.start..self.end], &two[self.start..self.end]];
                meet(
                    l,
                    weights,
                    inputs,
                    [&mut sums_one[self.token..], &mut sums_two[self.token..]],
                );
                (columns, out) = (rest, out_rest);
            }
        }
        for (group, sums) in columns.chunks_exact(self.inner).zip(out.chunks_exact_mut(tokens)) {
            meet(l, [&group[self.start..self.end]], inputs, [&mut sums[self.token..]]);
        }
        T
    }
}

/// Adds the products of a block of `R` groups with that of `T` inputs.
#[inline(always)]
fn meet<L: Lanes, E: Element, const R: usize, const T: usize>(
    l: L,
    weights: [&[Column<E>]; R],
    inputs: [&[f32]; T],
    out: [&mut [Column<f32>]; R],
) {
    // Of one length that the compiler sees, so that it checks no index.
    let len = inputs[0].len();
    let (mut weights, mut inputs) = (weights, inputs);
    for weights in &mut weights {
        *weights = &weights[..len];
    }
    for input in &mut inputs {
        *input = &input[..len];
    }
    let mut sums = [[l.float(0.0); T]; R];
    for at in 0..len {
        let mut column = [l.float(0.0); R];
        for (column, weights) in column.iter_mut().zip(&weights) {
            *column = E::floats(l, &weights[at]);
        }
        for (token, input) in inputs.iter().enumerate() {
            let x = l.float(input[at]);
            for (sums, &column) in sums.iter_mut().zip(&column) {
                sums[token] = l.mul_add(column, x, sums[token]);
            }
        }
    }
    for (sums, out) in sums.iter().zip(out) {
        for (&sum, out) in sums.iter().zip(out) {
            *out = l.store(l.add(l.floats(out), sum));
        }
    }
}
