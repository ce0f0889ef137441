//! What becomes of the product in ops that turn its heads or write them to a cache.

use clearway_graph::{CapturedOpKind as Kind, DType, Epilogue, Product, Slot};

use super::tolerance::{Weights, tolerance};
use crate::ops::reference::{RefTensor, reference};

/// How an op follows its product.
pub(super) struct Heads<'a> {
    product: Product,
    operands: &'a [RefTensor],
    params: &'a [u32],
    /// Of the rotation; none where heads are not turned.
    turn: Option<&'a [u32]>,
}

impl<'a> Heads<'a> {
    /// `None` for an op whose result is its product.
    pub(super) fn of(kind: Kind, operands: &'a [RefTensor], params: &'a [u32]) -> Option<Self> {
        let product = kind.product().filter(|product| product.epilogue().heads())?;
        let turn = product.epilogue().rope.then(|| &params[product.rope_params()..]);
        Some(Self { product, operands, params, turn })
    }

    fn operand(&self, slot: Slot) -> Option<&'a RefTensor> {
        self.product.operand(slot, self.operands.len()).map(|index| &self.operands[index])
    }

    /// The product itself, to be written.
    pub(super) fn product(&self) -> RefTensor {
        let (x, w) = (&self.operands[0], self.operand(Slot::Weight));
        let outer = w.map_or(0, RefTensor::rows);
        RefTensor::output(float_of(x.dtype), &[x.rows(), outer])
    }

    /// What the product gives for these operands, with what is added to it, before its heads are touched.
    pub(super) fn product_of(
        &self,
        operands: &[RefTensor],
        params: &[u32],
    ) -> Result<Vec<f64>, String> {
        let epilogue = Epilogue { add: self.product.epilogue().add, ..Epilogue::NONE };
        let in_front = self.product.with_epilogue(epilogue).ok_or("no product without heads")?;
        let operand = |&slot: &Slot| match self.product.operand(slot, operands.len()) {
            Some(index) if slot != Slot::Result => operands[index].clone(),
            _ => self.product(),
        };
        let operands: Vec<_> = in_front.slots().iter().map(operand).collect();
        let results = reference(
            Kind::Product(in_front),
            &operands,
            &params[..self.product.head_norm_param()],
        );
        let results = results.map_err(|error| error.to_string())?;
        Ok(results.into_iter().next_back().map(|result| result.data).unwrap_or_default())
    }

    /// Bounds of the product's elements as bounds of the result's. A turn keeps the length of a pair but for the magnitude,
    /// so that neither of the two is beyond that of their bounds.
    pub(super) fn bounds(&self, mut product: Vec<f64>) -> Result<Vec<f64>, String> {
        let result = &self.operands[self.operands.len() - 1];
        let (heads, head) = (result.shape[1], result.cols());
        if let Some(weight) = self.operand(Slot::HeadNormWeight) {
            self.through_norm(&mut product, head, weight)?;
        }
        if let Some(params) = self.turn {
            let (n_dims, neighbours) = (params[0] as usize, params[1] == 0);
            let magnitude = f64::from(f32::from_bits(params[4]).abs());
            for head in product.chunks_mut(head) {
                for pair in 0..n_dims / 2 {
                    let (a, b) = if neighbours {
                        (2 * pair, 2 * pair + 1)
                    } else {
                        (pair, pair + n_dims / 2)
                    };
                    let length = magnitude * head[a].hypot(head[b]);
                    (head[a], head[b]) = (length, length);
                }
            }
        }
        let Some(rows) = self.operand(Slot::CacheRows) else { return Ok(product) };
        let shape = [self.operands[0].rows(), heads, head];
        let product = RefTensor::new(float_of(self.operands[0].dtype), &shape, product);
        // What is not written is not off.
        let cache = RefTensor { data: vec![0.0; result.data.len()], ..result.clone() };
        let written = reference(Kind::KvWrite, &[product, rows.clone(), cache], &[]);
        Ok(written.map_err(|error| error.to_string())?.remove(0).data)
    }

    /// Bounds of the product's elements as those of its normed heads: the root of a head is off by as much as its elements
    /// together are.
    fn through_norm(
        &self,
        bounds: &mut [f64],
        head: usize,
        weight: &RefTensor,
    ) -> Result<(), String> {
        let eps = f64::from(f32::from_bits(self.params[self.product.head_norm_param()]));
        let values = self.product_of(self.operands, self.params)?;
        let mean = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>() / head as f64;
        for (bounds, values) in bounds.chunks_mut(head).zip(values.chunks(head)) {
            let root = (mean(values) + eps).sqrt();
            let spread = mean(bounds).sqrt() / root;
            for ((bound, value), weight) in bounds.iter_mut().zip(values).zip(&weight.data) {
                *bound = (*bound + value.abs() * spread) * weight.abs() / root;
            }
        }
        Ok(())
    }

    /// How far the turn itself may be off, as a part of the pair's length.
    pub(super) fn turn_limit(&self) -> f64 {
        let (Some(params), Some(positions), Some(factors)) =
            (self.turn, self.operand(Slot::Positions), self.operand(Slot::Factors))
        else {
            return 0.0;
        };
        let angle = largest_angle(positions, factors, params);
        let rope = tolerance(Kind::Rope, self.operands[0].dtype, Weights::None);
        rope.map_or(0.0, |rope| rope.limit * (1.0 + angle))
    }
}

/// The type that products of activations have: rounded ones are floats again.
pub(super) fn float_of(dtype: DType) -> DType {
    if dtype.is_form() { DType::F32 } else { dtype }
}

/// Largest angle a rotary op turns a pair by.
pub(super) fn largest_angle(positions: &RefTensor, factors: &RefTensor, params: &[u32]) -> f64 {
    let base = f64::from(f32::from_bits(params[2]));
    let scale = f64::from(f32::from_bits(params[3]));
    let position = positions.data.iter().copied().fold(0.0, f64::max);
    let frequency = factors
        .data
        .iter()
        .enumerate()
        .map(|(pair, factor)| (base.powf(-2.0 * pair as f64 / f64::from(params[0])) / factor).abs())
        .fold(0.0, f64::max);
    (position * scale * frequency).abs()
}

#[cfg(test)]
mod tests {
    use clearway_graph::testkit::kind;

    use super::*;

    #[test]
    fn bounds_follow_pairs_and_rows() {
        let t = |shape: &[usize], data: &[f64]| RefTensor::new(DType::F32, shape, data.to_vec());
        let ids = |data: &[f64]| RefTensor::new(DType::U32, &[data.len()], data.to_vec());
        let (x, g, w) = (t(&[2, 1], &[1.0; 2]), t(&[1], &[1.0]), t(&[5, 1], &[1.0; 5]));
        let product = vec![3.0, 5.0, 4.0, 12.0, 7.0, 1.0, 1.0, 0.0, 0.0, 2.0];
        let turn = [ids(&[0.0, 8.0]), t(&[2], &[1.0, 0.5])];
        let in_front = [&[x, g, w], &turn[..]].concat();
        let at = |mode, magnitude: f32| {
            [0, 4, mode, 16.0_f32.to_bits(), 1.0_f32.to_bits(), magnitude.to_bits()]
        };

        let operands = [&in_front[..], &[RefTensor::output(DType::F32, &[2, 1, 5])]].concat();
        let params = at(1, 1.0);
        let heads = Heads::of(kind("norm_matmul_rope"), &operands, &params).unwrap();
        assert_eq!(heads.product().shape, [2, 5]);
        let pairs = [5.0, 13.0, 5.0, 13.0, 7.0, 1.0, 1.0, 1.0, 1.0, 2.0];
        assert_eq!(heads.bounds(product.clone()).unwrap(), pairs);
        let params_longer = at(1, 2.0);
        let longer = Heads::of(kind("norm_matmul_rope"), &operands, &params_longer).unwrap();
        let twice = [10.0, 26.0, 10.0, 26.0, 7.0, 2.0, 2.0, 2.0, 2.0, 2.0];
        assert_eq!(longer.bounds(product.clone()).unwrap(), twice);
        // Position 8 by a frequency of 1 at most.
        let limit = tolerance(Kind::Rope, DType::F32, Weights::None).unwrap().limit;
        assert_eq!(heads.turn_limit(), 9.0 * limit);

        let operands = [&in_front[..], &[ids(&[2.0, 7.0]), t(&[3, 1, 5], &[9.0; 15])]].concat();
        let heads = Heads::of(kind("norm_matmul_rope_kv"), &operands, &params).unwrap();
        let written = heads.bounds(product.clone()).unwrap();
        assert_eq!(written, [&[0.0; 10], &pairs[..5]].concat());

        let operands = [&in_front[..3], &operands[5..]].concat();
        let heads = Heads::of(kind("norm_matmul_kv"), &operands, &params[..1]).unwrap();
        assert_eq!(heads.turn_limit(), 0.0);
        let written = heads.bounds(product.clone()).unwrap();
        assert_eq!(written, [&[0.0; 10], &product[..5]].concat());
        assert!(Heads::of(kind("norm_matmul"), &operands, &params[..1]).is_none());
    }
}
