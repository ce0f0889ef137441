//! Metadata and tensors of a synthetic model, as the reader of each family expects them.

use clearway_graph::DType;

use super::super::{error::GgufError, writer::GgufWriter};
use super::{
    Synth, SynthQuant,
    quant::{Place, Role},
    tile::Fill,
    vocabulary,
};
use crate::model::{Arch, Experts, ModelShape};

/// A tensor to be written.
pub(super) struct Planned {
    pub name: String,
    pub dtype: DType,
    /// In file order, rows first.
    pub dims: Vec<usize>,
    /// Whether it is the weight of a norm.
    norm: bool,
}

impl Planned {
    pub fn bytes(&self) -> u64 {
        let elements: usize = self.dims.iter().product();
        (elements / self.dtype.block_elems() * self.dtype.block_bytes()) as u64
    }

    pub fn fill(&self) -> Fill {
        if self.norm { Fill::Ones } else { Fill::Random(self.dtype) }
    }
}

/// `general.architecture` of a family.
pub(super) fn architecture(arch: Arch) -> Option<&'static str> {
    match arch {
        Arch::Llama => Some("llama"),
        Arch::Qwen2 => Some("qwen2"),
        Arch::Qwen3 => Some("qwen3"),
        Arch::Qwen3Moe => Some("qwen3moe"),
        Arch::Gemma2 => Some("gemma2"),
        Arch::Gemma3 => Some("gemma3"),
        Arch::MoeShared => None,
    }
}

impl Synth {
    pub(super) fn add_metadata(&self, writer: &mut GgufWriter<'_>) -> Result<(), GgufError> {
        let shape = self.shape.shape();
        let prefix = architecture(shape.arch).unwrap_or_default();
        let short_name = self.shape.short_name().unwrap_or(self.shape.name());
        let key = |key: &str| format!("{prefix}.{key}");
        let size = |value: usize| value as u32;

        // The order is that of the reference script: headers of the Llama family equal its own.
        writer.set("general.architecture", prefix)?;
        writer.set("general.name", &format!("synthetic-{short_name}-{}", self.quant.name()))?;
        writer.set(&key("block_count"), &size(shape.layers))?;
        writer.set(&key("context_length"), &size(shape.context))?;
        writer.set(&key("embedding_length"), &size(shape.embd))?;
        writer.set(&key("feed_forward_length"), &size(shape.ff))?;
        writer.set(&key("attention.head_count"), &size(shape.heads))?;
        writer.set(&key("attention.head_count_kv"), &size(shape.kv_heads))?;
        writer.set(&key("attention.layer_norm_rms_epsilon"), &shape.norm_eps)?;
        writer.set(&key("rope.freq_base"), &shape.rope_base)?;
        writer.set(&key("rope.dimension_count"), &size(shape.head_dim))?;
        writer.set(&key("vocab_size"), &size(shape.vocab))?;
        if shape.heads * shape.head_dim != shape.embd {
            writer.set(&key("attention.key_length"), &size(shape.head_dim))?;
            writer.set(&key("attention.value_length"), &size(shape.head_dim))?;
        }
        if shape.rope_scale != 1.0 {
            writer.set(&key("rope.scaling.type"), "linear")?;
            writer.set(&key("rope.scaling.factor"), &(1.0 / shape.rope_scale))?;
        }
        for (name, cap) in [
            ("attn_logit_softcapping", shape.attention_softcap),
            ("final_logit_softcapping", shape.logit_softcap),
        ] {
            if cap != 0.0 {
                writer.set(&key(name), &cap)?;
            }
        }
        if let Some(window) = shape.window {
            writer.set(&key("attention.sliding_window"), &window.rows)?;
        }
        if let Some(experts) = shape.experts {
            writer.set(&key("expert_count"), &size(experts.count))?;
            writer.set(&key("expert_used_count"), &size(experts.used))?;
            writer.set(&key("expert_feed_forward_length"), &size(experts.ff))?;
        }
        if !self.vocab {
            return writer.set("tokenizer.ggml.model", "no_vocab");
        }
        if !(vocabulary::FEWEST..=vocabulary::MOST).contains(&shape.vocab) {
            return Err(GgufError::NoSynth {
                shape: shape.name.clone(),
                reason: format!(
                    "vocabularies are made for {} to {} tokens, and it has {}",
                    vocabulary::FEWEST,
                    vocabulary::MOST,
                    shape.vocab
                ),
            });
        }
        vocabulary::add(writer, shape.vocab)
    }

    /// Tensors in file order.
    pub(super) fn tensors(&self) -> Vec<Planned> {
        let shape = self.shape.shape();
        let mut list = List { shape, quant: self.quant, layer: 0, all: Vec::new() };
        let table = if shape.tied { Role::Output } else { Role::Other };
        list.matrix("token_embd", &[shape.embd, shape.vocab], table);
        if shape.tied && shape.arch == Arch::Llama {
            // As the reference script has it.
            list.retype(DType::Q8_0);
        }
        for layer in 0..shape.layers {
            list.layer(layer);
        }
        list.norm("output_norm", shape.embd);
        if !shape.tied {
            list.matrix("output", &[shape.embd, shape.vocab], Role::Output);
        }
        list.all
    }
}

/// The tensors so far.
struct List<'a> {
    shape: &'a ModelShape,
    quant: SynthQuant,
    layer: usize,
    all: Vec<Planned>,
}

impl List<'_> {
    fn layer(&mut self, layer: usize) {
        self.layer = layer;
        let shape = self.shape;
        let (embd, ff) = (shape.embd, shape.ff);
        let [q, kv] = [shape.heads, shape.kv_heads].map(|heads| heads * shape.head_dim);
        let head_norms = matches!(shape.arch, Arch::Qwen3 | Arch::Qwen3Moe | Arch::Gemma3);
        let post_norms = matches!(shape.arch, Arch::Gemma2 | Arch::Gemma3);
        let name = |part: &str| format!("blk.{layer}.{part}");

        self.norm(&name("attn_norm"), embd);
        self.matrix(&name("attn_q"), &[embd, q], Role::Other);
        self.matrix(&name("attn_k"), &[embd, kv], Role::Other);
        self.matrix(&name("attn_v"), &[embd, kv], Role::Values);
        if shape.arch == Arch::Qwen2 {
            for (part, width) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
                self.plain(format!("{}.bias", name(part)), &[width], false);
            }
        }
        if head_norms {
            self.norm(&name("attn_q_norm"), shape.head_dim);
            self.norm(&name("attn_k_norm"), shape.head_dim);
        }
        self.matrix(&name("attn_output"), &[q, embd], Role::Attended);
        if post_norms {
            self.norm(&name("post_attention_norm"), embd);
        }
        self.norm(&name("ffn_norm"), embd);
        match shape.experts {
            Some(Experts { count, ff, .. }) => {
                // The router is never quantised.
                self.plain(format!("{}.weight", name("ffn_gate_inp")), &[embd, count], false);
                self.matrix(&name("ffn_gate_exps"), &[embd, ff, count], Role::Other);
                self.matrix(&name("ffn_up_exps"), &[embd, ff, count], Role::Other);
                self.matrix(&name("ffn_down_exps"), &[ff, embd, count], Role::Down);
            }
            None => {
                self.matrix(&name("ffn_gate"), &[embd, ff], Role::Other);
                self.matrix(&name("ffn_up"), &[embd, ff], Role::Other);
                self.matrix(&name("ffn_down"), &[ff, embd], Role::Down);
            }
        }
        if post_norms {
            self.norm(&name("post_ffw_norm"), embd);
        }
    }

    /// A matrix, or one for each expert, of the format's types.
    fn matrix(&mut self, name: &str, dims: &[usize], role: Role) {
        let shape = self.shape;
        let dtype = self.quant.dtype(&Place {
            role,
            layer: self.layer,
            layers: shape.layers,
            group: shape.heads / shape.kv_heads.max(1),
            row: dims[0],
        });
        let name = format!("{name}.weight");
        self.all.push(Planned { name, dtype, dims: dims.to_vec(), norm: false });
    }

    fn norm(&mut self, name: &str, width: usize) {
        self.plain(format!("{name}.weight"), &[width], true);
    }

    fn plain(&mut self, name: String, dims: &[usize], norm: bool) {
        self.all.push(Planned { name, dtype: DType::F32, dims: dims.to_vec(), norm });
    }

    /// Another type for the tensor that came last.
    fn retype(&mut self, dtype: DType) {
        if let Some(last) = self.all.last_mut() {
            last.dtype = dtype;
        }
    }
}
