//! Mixtures of experts: a router chooses some for each token, and what they give is summed by its weights.

use clearway::{DType, Ops, RouterMode, RouterParams, TensorView};

use super::Result;
use super::layer::{Given, Layers, reshape};
use super::shape::Experts;

/// Tokens up to which rows of experts are multiplied one by one: hardly any two share an expert.
pub(super) const FEW_TOKENS: usize = 8;

impl Layers<'_> {
    /// The experts each token chose, summed by weight, and the one that all use.
    pub(super) fn experts(
        &mut self,
        layer: usize,
        x: TensorView,
        experts: Experts,
    ) -> Result<TensorView> {
        let Experts { count, ff, shared_ff, shared_gate, .. } = experts;
        let biases = self.shape.biases.experts;
        let embd = self.shape.embd;
        let logits = self.biased(layer, "ffn_gate_inp", x, count, biases)?;
        let (ids, weights) = self.route(layer, logits, experts)?;
        let gate = self.expert_weight(layer, "ffn_gate_exps", &[count, ff, embd])?;
        let up = self.expert_weight(layer, "ffn_up_exps", &[count, ff, embd])?;
        let down = self.expert_weight(layer, "ffn_down_exps", &[count, embd, ff])?;
        let order = match self.options.order_experts && self.tokens > FEW_TOKENS {
            true => {
                self.label(layer, "ffn_order");
                Some(self.ops.expert_order(ids, count)?)
            }
            false => None,
        };
        let multiply = |this: &mut Self, part, x, w| {
            this.label(layer, part);
            let y = match order {
                Some(order) => this.ops.matmul_experts_in_order(x, w, ids, order),
                None => this.ops.matmul_experts(x, w, ids),
            }?;
            if biases { this.expert_bias(layer, part, y, ids, count) } else { Ok(y) }
        };
        let gate = multiply(self, "ffn_gate_exps", x, gate)?;
        let up = multiply(self, "ffn_up_exps", x, up)?;
        let y = self.activate(layer, gate, up)?;
        let y = multiply(self, "ffn_down_exps", y, down)?;
        self.label(layer, "ffn_experts");
        let y = self.ops.expert_sum(y, weights)?;
        let Some(shared_ff) = shared_ff else {
            return Ok(y);
        };
        let names = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
        let Given { y: shared, more } = self.gated(layer, x, names, shared_ff)?;
        let mut shared = self.sum(shared, more)?;
        if shared_gate {
            shared = self.gate_shared(layer, x, shared)?;
        }
        self.label(layer, "ffn_shared");
        self.ops.add(y, shared)
    }

    /// The experts that each token uses, and their weights.
    fn route(
        &mut self,
        layer: usize,
        logits: TensorView,
        experts: Experts,
    ) -> Result<(TensorView, TensorView)> {
        let Experts { count, used, renormalise, sigmoid, scale, bias, groups, .. } = experts;
        let mode = if sigmoid { RouterMode::Sigmoid } else { RouterMode::SoftmaxAll };
        let router = RouterParams { used, mode, renormalise, scale };
        let name = format!("blk.{layer}.exp_probs_b.bias");
        let bias = if bias { Some(self.vector(&name, count)?) } else { None };
        self.label(layer, "ffn_router");
        match (bias, groups.count) {
            (None, 1) => self.ops.router_top_k(logits, router),
            _ => self.ops.router_groups(logits, bias, router, groups),
        }
    }

    /// What the chosen experts gave, plus the bias of each: rows of a table by the numbers of the experts.
    fn expert_bias(
        &mut self,
        layer: usize,
        part: &str,
        y: TensorView,
        ids: TensorView,
        count: usize,
    ) -> Result<TensorView> {
        let [tokens, used, size] = [0, 1, 2].map(|i| y.layout.dims()[i] as usize);
        let name = format!("blk.{layer}.{part}.bias");
        let table = self.ops.external(&name, DType::F32, &[count, size])?;
        self.ops.set_label(&name);
        let rows = self.ops.gather(table, reshape(ids, &[tokens * used])?, 1.0)?;
        self.ops.add(y, reshape(rows, &[tokens, used, size])?)
    }

    /// What the expert that all use gives, times the sigmoid of a product of the row it was given. That is a sum over one
    /// expert, by the weight that a router of one expert gives it.
    fn gate_shared(&mut self, layer: usize, x: TensorView, y: TensorView) -> Result<TensorView> {
        let (tokens, embd) = (self.tokens, self.shape.embd);
        // A vector in files.
        let name = format!("blk.{layer}.ffn_gate_inp_shexp.weight");
        let weight = self.ops.external(&name, (self.options.weight_dtype)(&name), &[embd])?;
        self.label(layer, "ffn_gate_inp_shexp");
        let logits = self.ops.matmul(x, reshape(weight, &[1, embd])?)?;
        let sigmoid =
            RouterParams { used: 1, mode: RouterMode::Sigmoid, renormalise: false, scale: 1.0 };
        let (_, share) = self.ops.router_top_k(logits, sigmoid)?;
        self.label(layer, "ffn_shared_gate");
        self.ops.expert_sum(reshape(y, &[tokens, 1, embd])?, share)
    }

    fn expert_weight(&mut self, layer: usize, part: &str, shape: &[usize]) -> Result<TensorView> {
        self.matrix(&format!("blk.{layer}.{part}.weight"), shape)
    }
}
