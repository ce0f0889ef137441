//! The plain ops that a product stands for.

use std::ops::Range;

use super::{Epilogue, Gate, Product, ROPE_PARAMS, Slot};
use crate::op::CapturedOpKind;

/// One of the plain ops that a product stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainOp {
    /// What it computes.
    pub kind: CapturedOpKind,
    /// What it reads, in the order in which it binds it.
    pub inputs: Vec<PlainInput>,
    /// Which constants of the product are its own.
    pub params: Range<usize>,
    /// Shape of what it gives.
    pub shape: PlainShape,
    /// The operand of the product that holds what it gives, if there is one.
    pub result: Option<Slot>,
}

/// What a plain op reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainInput {
    /// An operand of the product.
    Slot(Slot),
    /// What an earlier op of the list gives. Ops on heads see its rows as heads.
    Op(usize),
}

/// Shape of what a plain op gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainShape {
    /// That of the rows that are multiplied.
    Input,
    /// As many rows as these, as wide as the weights have rows; of experts one such row for each that was chosen.
    Product,
    /// The same as heads.
    Heads,
    /// The cache.
    Cache,
}

impl Product {
    /// The plain ops that it stands for, in the order in which one would record them. References, tests and
    /// devices without a kernel follow it.
    pub fn plain_ops(self) -> Vec<PlainOp> {
        let Epilogue { add, head_norm, rope, cache, norm } = self.epilogue();
        let mut list = PlainList::default();
        let mut x = PlainInput::Slot(Slot::Input);
        if self.is_normed() {
            x = list.norm(x, Slot::NormWeight, 0, PlainShape::Input);
        }
        let mut y = list.product(x, Slot::Weight, self.experts);
        match self.gate {
            Gate::None => {}
            Gate::Ungated(activation) => y = list.element_wise(activation.op(), &[y]),
            Gate::Operand(activation) => {
                y = list.element_wise(activation.op(), &[y]);
                y = list.element_wise(CapturedOpKind::MUL, &[y, PlainInput::Slot(Slot::Up)]);
            }
            Gate::Weights(activation) => {
                let up = list.product(x, Slot::UpWeight, self.experts);
                y = list.element_wise(activation.op(), &[y]);
                y = list.element_wise(CapturedOpKind::MUL, &[y, up]);
            }
        }
        if add {
            y = list.element_wise(CapturedOpKind::ADD, &[y, PlainInput::Slot(Slot::Addend)]);
        }
        if head_norm {
            let param = self.head_norm_param();
            y = list.norm(y, Slot::HeadNormWeight, param, PlainShape::Heads);
        }
        if rope {
            let inputs = [y, PlainInput::Slot(Slot::Positions), PlainInput::Slot(Slot::Factors)];
            let first = self.rope_params();
            y = list.push(
                CapturedOpKind::Rope,
                &inputs,
                first..first + ROPE_PARAMS,
                PlainShape::Heads,
            );
        }
        if cache {
            let inputs = [y, PlainInput::Slot(Slot::CacheRows)];
            y = list.push(CapturedOpKind::KvWrite, &inputs, 0..0, PlainShape::Cache);
        }
        if norm {
            list.keep(Slot::Sum);
            list.norm(y, Slot::NextNormWeight, 0, PlainShape::Product);
        }
        list.keep(if cache { Slot::Cache } else { Slot::Result });
        list.0
    }
}

/// Plain ops as they are added.
#[derive(Default)]
struct PlainList(Vec<PlainOp>);

impl PlainList {
    fn push(
        &mut self,
        kind: CapturedOpKind,
        inputs: &[PlainInput],
        params: Range<usize>,
        shape: PlainShape,
    ) -> PlainInput {
        self.0.push(PlainOp { kind, inputs: inputs.to_vec(), params, shape, result: None });
        PlainInput::Op(self.0.len() - 1)
    }

    fn product(&mut self, x: PlainInput, weight: Slot, experts: bool) -> PlainInput {
        let inputs = [x, PlainInput::Slot(weight), PlainInput::Slot(Slot::Ids)];
        let (kind, count) = match experts {
            true => (CapturedOpKind::MatMulExperts, 3),
            false => (CapturedOpKind::MATMUL, 2),
        };
        self.push(kind, &inputs[..count], 0..0, PlainShape::Product)
    }

    fn element_wise(&mut self, kind: CapturedOpKind, inputs: &[PlainInput]) -> PlainInput {
        self.push(kind, inputs, 0..0, PlainShape::Product)
    }

    /// A norm and its weight; `param` is its constant among those of the product.
    fn norm(&mut self, x: PlainInput, weight: Slot, param: usize, shape: PlainShape) -> PlainInput {
        let normed = self.push(CapturedOpKind::RmsNorm, &[x], param..param + 1, shape);
        self.push(CapturedOpKind::MUL, &[normed, PlainInput::Slot(weight)], 0..0, shape)
    }

    /// Says which operand holds what the last op gives.
    fn keep(&mut self, slot: Slot) {
        if let Some(last) = self.0.last_mut() {
            last.result = Some(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_ops_read_every_operand_once_and_write_the_results() {
        for &product in Product::all() {
            let ops = product.plain_ops();
            let mut slots: Vec<Slot> = ops.iter().filter_map(|op| op.result).collect();
            for input in ops.iter().flat_map(|op| &op.inputs) {
                match *input {
                    PlainInput::Slot(Slot::Input | Slot::Ids) => {}
                    PlainInput::Slot(slot) => slots.push(slot),
                    PlainInput::Op(earlier) => assert!(earlier < ops.len()),
                }
            }
            slots.push(Slot::Input);
            slots.extend(product.is_of_experts().then_some(Slot::Ids));
            slots.sort_unstable();
            assert_eq!(slots, product.slots(), "{}", product.spec().name);
            let params: usize = ops.iter().map(|op| op.params.len()).sum();
            assert_eq!(params, product.spec().params.len(), "{}", product.spec().name);
        }
    }
}
