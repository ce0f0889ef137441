//! The list of cases: ops by shapes, types, constants and places.

mod fused;
mod halved;
mod heads;
mod positional;
mod products;
mod rounded;
mod rows;
mod select;

use clearway_graph::{CapturedOpKind as Kind, DType};

use super::fill::Fill;
use super::{OpCase, OperandSpec};
use crate::quant;
use crate::random::Rng;

/// Every case, with the values of its inputs drawn from `seed`. The list itself, its shapes and
/// places, is always the same.
pub fn cases(seed: u64) -> Vec<OpCase> {
    let mut list = List { cases: Vec::new(), seeds: Rng(seed) };
    rows::add(&mut list);
    products::add(&mut list);
    fused::add(&mut list);
    positional::add(&mut list);
    select::add(&mut list);
    heads::add(&mut list);
    rounded::add(&mut list);
    halved::add(&mut list);
    positional::add_other_values(&mut list);
    select::add_groups(&mut list);
    positional::add_rounded_caches(&mut list);
    heads::add_rounded_caches(&mut list);
    rounded::add_rounded_caches(&mut list);
    list.cases
}

/// Types of activations.
const ACTIVATIONS: [DType; 2] = [DType::F32, DType::F16];

/// Where the operands of a case lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Dense, at the start of a buffer each.
    Dense,
    /// Dense, at odd distances from the start of a buffer each.
    Shifted,
    /// Slices of wider tensors in a buffer each: outer strides above the dense ones.
    Strided,
    /// Dense, one after another in one buffer, as values lie in an arena.
    Arena,
}

impl Place {
    const ALL: [Self; 4] = [Self::Dense, Self::Shifted, Self::Strided, Self::Arena];

    /// One after another, as a table goes on.
    fn cycle(index: usize) -> Self {
        Self::ALL[index % Self::ALL.len()]
    }
}

struct List {
    cases: Vec<OpCase>,
    seeds: Rng,
}

impl List {
    /// Adds a case, its operands given dense and without a place.
    fn push(&mut self, kind: Kind, operands: &[OperandSpec], params: &[u32], place: Place) {
        let mut operands = operands.to_vec();
        if place == Place::Strided && operands.iter().all(|spec| spec.rows() == 1) {
            return; // the same as `Shifted`
        }
        match place {
            Place::Dense => own_buffers(&mut operands),
            Place::Shifted => shift(&mut operands),
            Place::Strided => {
                shift(&mut operands);
                operands.iter_mut().for_each(widen);
            }
            Place::Arena => one_buffer(&mut operands),
        }
        self.push_as_is(kind, &operands, params);
    }

    /// Adds a case at each place.
    fn push_everywhere(&mut self, kind: Kind, operands: &[OperandSpec], params: &[u32]) {
        for place in Place::ALL {
            self.push(kind, operands, params, place);
        }
    }

    /// Adds a strided case, and one at another place that changes as a table goes on.
    fn push_strided_and(
        &mut self,
        kind: Kind,
        operands: &[OperandSpec],
        params: &[u32],
        index: usize,
    ) {
        let others = [Place::Dense, Place::Shifted, Place::Arena];
        for place in [Place::Strided, others[index % others.len()]] {
            self.push(kind, operands, params, place);
        }
    }

    /// Adds a case whose operands have their places.
    fn push_as_is(&mut self, kind: Kind, operands: &[OperandSpec], params: &[u32]) {
        let (operands, params) = (operands.to_vec(), params.to_vec());
        self.cases.push(OpCase { kind, operands, params, seed: self.seeds.next() });
    }
}

/// An input, dense.
fn input(dtype: DType, shape: &[usize], fill: Fill) -> OperandSpec {
    OperandSpec {
        dtype,
        shape: shape.to_vec(),
        strides: dense_strides(shape),
        buffer: 0,
        offset: 0,
        fill,
    }
}

/// Activations on a bell curve.
fn normal(dtype: DType, shape: &[usize]) -> OperandSpec {
    input(dtype, shape, Fill::NORMAL)
}

/// An output, dense.
fn output(dtype: DType, shape: &[usize]) -> OperandSpec {
    input(dtype, shape, Fill::Sentinel)
}

fn dense_strides(shape: &[usize]) -> Vec<usize> {
    (1..=shape.len()).map(|inner| shape[inner..].iter().product()).collect()
}

/// Bytes that every offset of a type must be a multiple of: a block, as a slice of rows has it.
fn unit(spec: &OperandSpec) -> u64 {
    match spec.dtype {
        DType::C8 => quant::alignment(spec.dtype),
        dtype => dtype.block_bytes() as u64,
    }
}

fn own_buffers(operands: &mut [OperandSpec]) {
    for (index, spec) in operands.iter_mut().enumerate() {
        spec.buffer = index;
    }
}

fn shift(operands: &mut [OperandSpec]) {
    own_buffers(operands);
    for (index, spec) in operands.iter_mut().enumerate() {
        spec.offset = unit(spec) * (3 + 2 * index as u64);
    }
}

/// Makes a dense operand a slice of something wider.
fn widen(spec: &mut OperandSpec) {
    // Where the scales lie follows from the whole tensor.
    if spec.dtype == DType::C8 {
        return;
    }
    let pad = if spec.dtype.is_quantised() { spec.dtype.block_elems() } else { 3 };
    let mut stride = 1;
    for dim in (0..spec.shape.len()).rev() {
        spec.strides[dim] = stride;
        stride = stride * spec.shape[dim] + pad;
    }
}

fn one_buffer(operands: &mut [OperandSpec]) {
    let mut end = 0;
    for spec in operands {
        // A multiple of 64, which suits every type but blocks, and those are read by bytes.
        let start = u64::next_multiple_of(end + 1, 64);
        let blocks = spec.shape.iter().product::<usize>() / spec.dtype.block_elems();
        spec.buffer = 0;
        spec.offset = start;
        end = start + blocks as u64 * spec.dtype.block_bytes() as u64;
    }
}
