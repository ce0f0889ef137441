//! The bytes of a case: sentinels everywhere, inputs filled in, results found again.

use clearway_graph::{BindingRole, DType};

use super::fill::dense_bytes;
use super::{OpCase, OperandSpec};
use crate::ops::reference::RefTensor;
use crate::quant;
use crate::random::Rng;

/// Bytes of sentinels behind the last operand of a buffer.
const TAIL: usize = 64;

/// Buffers of a case before it runs, and its operands as the reference takes them.
pub(super) struct Prepared {
    pub(super) buffers: Vec<Vec<u8>>,
    pub(super) operands: Vec<RefTensor>,
}

impl Prepared {
    pub(super) fn new(case: &OpCase) -> Result<Self, String> {
        let mut ends: Vec<usize> = Vec::new();
        for spec in &case.operands {
            let span = spec.layout().map_err(|e| e.to_string())?.span_bytes() as usize;
            ends.resize(ends.len().max(spec.buffer + 1), 0);
            ends[spec.buffer] = ends[spec.buffer].max(spec.offset as usize + span);
        }
        // Whole words, so that every backend can move the buffer at once.
        let mut buffers: Vec<_> =
            ends.iter().map(|end| sentinels((end + TAIL).next_multiple_of(4))).collect();
        let mut rng = Rng(case.seed);
        for spec in &case.operands {
            if let Some(bytes) = dense_bytes(spec, &mut rng)? {
                scatter(spec, &bytes, &mut buffers[spec.buffer]);
            }
        }
        // Read back what was stored, so that the reference starts from rounded values.
        let roles = case.roles();
        let mut operands = Vec::with_capacity(case.operands.len());
        for (index, spec) in case.operands.iter().enumerate() {
            let written_only = roles.get(index) == Some(&BindingRole::Write);
            let data = if written_only { Vec::new() } else { read(spec, &buffers[spec.buffer])? };
            operands.push(RefTensor::new(spec.dtype, &spec.shape, data));
        }
        Ok(Self { buffers, operands })
    }
}

/// Elements of an operand in row-major order.
pub(super) fn read(spec: &OperandSpec, buffer: &[u8]) -> Result<Vec<f64>, String> {
    let mut out = Vec::with_capacity(spec.rows() * spec.cols());
    let mut values = Vec::new();
    for (start, end) in runs(spec) {
        let bytes = buffer.get(start..end).ok_or("an operand reaches outside its buffer")?;
        if spec.dtype == DType::U32 {
            let words = bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
            out.extend(words.map(f64::from));
        } else {
            values.resize(bytes.len() / spec.dtype.block_bytes() * spec.dtype.block_elems(), 0.0);
            quant::decode(spec.dtype, bytes, &mut values).map_err(|e| e.to_string())?;
            out.extend(values.iter().map(|&v| f64::from(v)));
        }
    }
    Ok(out)
}

/// Byte ranges that an operand's elements take, in row-major order: a row each, or an element each
/// where rows are not contiguous.
pub(super) fn runs(spec: &OperandSpec) -> impl Iterator<Item = (usize, usize)> + '_ {
    let (block, size) = (spec.dtype.block_elems(), spec.dtype.block_bytes());
    let (cols, step) = (spec.cols(), spec.strides.last().copied().unwrap_or(1));
    let contiguous = step == 1 || cols == 1;
    let (runs, elems) = if contiguous { (1, cols) } else { (cols, 1) };
    // Scales of all rows lie behind the quants of all.
    let (rows, elems) = match spec.dtype {
        DType::C8 => (1, spec.rows() * cols),
        _ => (spec.rows(), elems),
    };
    (0..rows).flat_map(move |row| {
        let first = row_start(spec, row);
        (0..runs).map(move |run| {
            let start = spec.offset as usize + (first + run * step) / block * size;
            (start, start + elems / block * size)
        })
    })
}

/// Fills sentinels: sixteen bits at a time a NaN of f16 and bf16, hence two together one of f32; no
/// two neighbours alike, so that a shifted copy shows.
fn sentinels(bytes: usize) -> Vec<u8> {
    let half = |i: usize| {
        let mixed = (i as u32).wrapping_mul(0x9e37_79b1);
        let sign = (mixed >> 16) as u16 & 0x8000;
        sign | 0x7f80 | (1 + (mixed >> 20) as u16 % 127)
    };
    (0..bytes.div_ceil(2)).flat_map(|i| half(i).to_ne_bytes()).take(bytes).collect()
}

fn scatter(spec: &OperandSpec, dense: &[u8], buffer: &mut [u8]) {
    let mut from = 0;
    for (start, end) in runs(spec) {
        buffer[start..end].copy_from_slice(&dense[from..from + end - start]);
        from += end - start;
    }
}

/// Index of the first element of a row, counted over all outer dimensions.
fn row_start(spec: &OperandSpec, mut row: usize) -> usize {
    let mut start = 0;
    for (extent, stride) in spec.shape.iter().zip(&spec.strides).rev().skip(1) {
        start += row % extent * stride;
        row /= extent;
    }
    start
}

#[cfg(test)]
mod tests {
    use super::super::Fill;
    use super::*;

    fn spec(dtype: DType, shape: &[usize], strides: &[usize], offset: u64) -> OperandSpec {
        let (shape, strides) = (shape.to_vec(), strides.to_vec());
        OperandSpec { dtype, shape, strides, buffer: 0, offset, fill: Fill::NORMAL }
    }

    #[test]
    fn sentinels_are_nan_in_every_float_type() {
        let bytes = sentinels(4096);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            // From every even address, as a stray read might.
            for shift in [0, 2] {
                let elems = (bytes.len() - shift) / dtype.block_bytes();
                let mut values = vec![0.0; elems];
                let part = &bytes[shift..shift + elems * dtype.block_bytes()];
                quant::decode(dtype, part, &mut values).unwrap();
                assert!(values.iter().all(|v| v.is_nan()), "{dtype} at {shift}");
            }
        }
        assert!(bytes.chunks_exact(2).zip(bytes[2..].chunks_exact(2)).all(|(a, b)| a != b));
    }

    #[test]
    fn rows_and_elements_are_found_by_strides() {
        let rows = spec(DType::F16, &[2, 2, 3], &[20, 5, 1], 6);
        assert_eq!(runs(&rows).collect::<Vec<_>>(), [(6, 12), (16, 22), (46, 52), (56, 62)]);
        let transposed = spec(DType::F32, &[2, 2], &[1, 2], 0);
        assert_eq!(runs(&transposed).collect::<Vec<_>>(), [(0, 4), (8, 12), (4, 8), (12, 16)]);
        let blocks = spec(DType::Q4_0, &[2, 64], &[96, 1], 18);
        assert_eq!(runs(&blocks).collect::<Vec<_>>(), [(18, 54), (72, 108)]);
    }
}
