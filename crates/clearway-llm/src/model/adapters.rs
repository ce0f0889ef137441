//! Low-rank adapters of products, as extra products.
//!
//! With adapters a product `W x` becomes `W x + sum B_i (A_i x)`, `B_i` times its scale. The adapters of a step are stacked:
//! the rows of all `A_i` that read the same `x` lie one under the other in one matrix, and the columns of all `B_i` of a
//! weight side by side in another, with zeros where an adapter has nothing to say. So a layer has one narrow product for
//! each value that adapted weights read and one product with a sum for each adapted weight, however many adapters there are.
//!
//! Where every token has adapters of its own, its row of the narrow product is multiplied by a row of zeros and ones, which
//! the token's number among the choices picks from a table. The table of an input serves all layers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use clearway::{DType, Ops, TensorView};

use super::Result;
use super::layer::{Layers, some_rows};

/// Name of the external tensor with the choice of adapters of each token, `u32[T]`, where tokens have choices: 0 for none,
/// else one more than the number of the choice.
pub const ADAPTERS: &str = "adapters";

/// Which weights have adapters, and how wide these are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdapterLayout {
    /// Names of the weights.
    pub weights: BTreeSet<String>,
    /// Stacked ranks, by [`AdapterInput::kind`].
    pub ranks: BTreeMap<String, usize>,
    /// How many choices of adapters tokens have; `None` where all adapters act on all tokens.
    pub choices: Option<usize>,
}

/// The rows that a weight is multiplied with. Weights that read the same rows share them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AdapterInput {
    /// What stands in front of the part in the weight's name: `blk.3.`, or nothing.
    prefix: String,
    kind: String,
}

impl AdapterInput {
    /// The rows that the weight of this name reads.
    pub fn of(weight: &str) -> Self {
        let name = weight.strip_suffix(".weight").unwrap_or(weight);
        let (prefix, part) = match name.rfind('.') {
            Some(dot) => name.split_at(dot + 1),
            None => ("", name),
        };
        let kind = match part {
            "attn_q" | "attn_k" | "attn_v" => "attn_qkv",
            "ffn_gate" | "ffn_up" => "ffn_gate_up",
            "ffn_gate_shexp" | "ffn_up_shexp" => "ffn_gate_up_shexp",
            alone => alone,
        };
        Self { prefix: prefix.to_owned(), kind: kind.to_owned() }
    }

    /// What all layers call it.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Name of the stacked first matrices, `[rank, elements of a row]`.
    pub fn first(&self) -> String {
        format!("{}{}.lora_a", self.prefix, self.kind)
    }

    /// Name of the stacked second matrices of a weight, `[rows of the weight, rank]`.
    pub fn second(weight: &str) -> String {
        format!("{weight}.lora_b")
    }

    /// Name of the table of choices of a kind, `f32[choices + 1, rank]`, whose first row is zeros.
    pub fn table(kind: &str) -> String {
        format!("adapters.{kind}")
    }
}

/// Narrow products that several weights read, and rows of choices that all layers read.
#[derive(Default)]
pub(super) struct Narrow {
    last: Option<(AdapterInput, TensorView, TensorView)>,
    /// The choice of each token.
    picked: Option<TensorView>,
    choices: BTreeMap<String, TensorView>,
}

impl Narrow {
    /// Only these tokens go on.
    pub(super) fn keep(&mut self, rows: &Range<usize>) -> Result<()> {
        for each in self.picked.iter_mut().chain(self.choices.values_mut()) {
            *each = some_rows(*each, rows)?;
        }
        Ok(())
    }
}

impl Layers<'_> {
    /// What adapters add to the product of `x` with a weight of so many rows; `None` where the weight has none.
    pub(super) fn adapted(
        &mut self,
        weight: &str,
        x: TensorView,
        rows: usize,
    ) -> Result<Option<TensorView>> {
        let Some(layout) = self.options.adapters.filter(|all| all.weights.contains(weight)) else {
            return Ok(None);
        };
        let input = AdapterInput::of(weight);
        let rank = layout.ranks.get(&input.kind).copied().unwrap_or_default();
        let narrow = match &self.narrow.last {
            Some((last, of, narrow)) if (last, of) == (&input, &x) => *narrow,
            _ => {
                let narrow = self.narrowed(&input, x, rank)?;
                self.narrow.last = Some((input, x, narrow));
                narrow
            }
        };
        let name = AdapterInput::second(weight);
        let second = self.matrix(&name, &[rows, rank])?;
        self.ops.set_label(&name);
        self.ops.matmul(narrow, second).map(Some)
    }

    /// The product with the stacked first matrices, with zeros where a token has other adapters.
    fn narrowed(&mut self, input: &AdapterInput, x: TensorView, rank: usize) -> Result<TensorView> {
        let name = input.first();
        let first = self.matrix(&name, &[rank, x.layout.cols()])?;
        self.ops.set_label(&name);
        let narrow = self.ops.matmul(x, first)?;
        match self.options.adapters.and_then(|layout| layout.choices) {
            None => Ok(narrow),
            Some(choices) => {
                let chosen = self.chosen(&input.kind, choices, rank)?;
                self.ops.set_label(&name);
                self.ops.mul(narrow, chosen)
            }
        }
    }

    /// The rows of the table of choices that the step's tokens pick.
    fn chosen(&mut self, kind: &str, choices: usize, rank: usize) -> Result<TensorView> {
        if let Some(&chosen) = self.narrow.choices.get(kind) {
            return Ok(chosen);
        }
        let picked = match self.narrow.picked {
            Some(picked) => picked,
            None => {
                let all = self.options.tokens;
                let picked = self.ops.external(ADAPTERS, DType::U32, &[all])?;
                some_rows(picked, &(all - self.tokens..all))?
            }
        };
        self.narrow.picked = Some(picked);
        let name = AdapterInput::table(kind);
        let table = self.ops.external(&name, DType::F32, &[choices + 1, rank])?;
        self.ops.set_label(&name);
        let chosen = self.ops.gather(table, picked, 1.0)?;
        self.narrow.choices.insert(kind.to_owned(), chosen);
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_read_the_same_rows_share_their_first_matrices() {
        let first = |weight| AdapterInput::of(weight).first();
        assert_eq!(first("blk.3.attn_q.weight"), "blk.3.attn_qkv.lora_a");
        assert_eq!(first("blk.3.attn_v.weight"), "blk.3.attn_qkv.lora_a");
        assert_eq!(first("blk.4.attn_v.weight"), "blk.4.attn_qkv.lora_a");
        assert_eq!(first("blk.3.ffn_up.weight"), first("blk.3.ffn_gate.weight"));
        assert_ne!(first("blk.3.ffn_up.weight"), first("blk.3.ffn_up_shexp.weight"));
        assert_eq!(first("blk.3.ffn_down.weight"), "blk.3.ffn_down.lora_a");
        assert_eq!(first("output.weight"), "output.lora_a");
    }
}
