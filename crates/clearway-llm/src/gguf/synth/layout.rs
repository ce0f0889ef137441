//! Metadata and tensors of a synthetic model, as the reader of each family expects them.

use clearway_graph::DType;

use super::super::{error::GgufError, writer::GgufWriter};
use super::{
    Synth, SynthQuant,
    quant::{Place, Role},
    tile::Fill,
    vocabulary,
};
use crate::model::{
    Arch, Experts, FAMILIES, FeedForward, HeadNorms, LONG_FACTORS, Latent, ModelShape, NormPlace,
    SHORT_FACTORS, Stretch,
};

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
    FAMILIES.iter().find(|family| family.arch == arch).map(|family| family.name)
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
        writer.set(&key("rope.dimension_count"), &size(shape.rope_dims))?;
        writer.set(&key("vocab_size"), &size(shape.vocab))?;
        if let Some(latent) = shape.latent {
            let rows = latent.kv_rank + shape.rope_dims;
            for (name, value) in [
                ("attention.q_lora_rank", latent.q_rank.unwrap_or(0)),
                ("attention.kv_lora_rank", latent.kv_rank),
                ("attention.key_length", rows),
                ("attention.value_length", latent.kv_rank),
                ("attention.key_length_mla", shape.head_dim),
                ("attention.value_length_mla", latent.value),
                ("leading_dense_block_count", shape.dense_layers),
            ] {
                writer.set(&key(name), &size(value))?;
            }
        } else if shape.heads * shape.head_dim != shape.embd {
            writer.set(&key("attention.key_length"), &size(shape.head_dim))?;
            writer.set(&key("attention.value_length"), &size(shape.head_dim))?;
        }
        if shape.rope_scale != 1.0 {
            writer.set(&key("rope.scaling.type"), "linear")?;
            writer.set(&key("rope.scaling.factor"), &(1.0 / shape.rope_scale))?;
        }
        self.add_stretch(writer)?;
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
            match experts.shared_ff {
                Some(ff) if shape.arch == Arch::DeepSeek2 => {
                    writer.set(&key("expert_shared_count"), &size(ff / experts.ff))?;
                }
                Some(ff) => writer.set(&key("expert_shared_feed_forward_length"), &size(ff))?,
                None => {}
            }
            if shape.arch == Arch::DeepSeek2 {
                writer.set(&key("expert_weights_scale"), &experts.scale)?;
                writer.set(&key("expert_weights_norm"), &experts.renormalise)?;
                writer.set(&key("expert_gating_func"), &(1 + u32::from(experts.sigmoid)))?;
                writer.set(&key("expert_group_count"), &size(experts.groups.count))?;
                writer.set(&key("expert_group_used_count"), &size(experts.groups.used))?;
            }
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

    /// How rotary frequencies are stretched, and the scales of Granite.
    fn add_stretch(&self, writer: &mut GgufWriter<'_>) -> Result<(), GgufError> {
        let shape = self.shape.shape();
        let prefix = architecture(shape.arch).unwrap_or_default();
        let key = |key: &str| format!("{prefix}.{key}");
        let original = |writer: &mut GgufWriter<'_>, context: usize| {
            writer.set(&key("rope.scaling.original_context_length"), &(context as u32))
        };
        match shape.stretch {
            Stretch::None => {}
            Stretch::Long { original_context } => {
                original(writer, original_context)?;
                writer.set(&key("rope.scaling.attn_factor"), &shape.rope_magnitude)?;
            }
            Stretch::Yarn(yarn) => {
                writer.set(&key("rope.scaling.type"), "yarn")?;
                writer.set(&key("rope.scaling.factor"), &yarn.factor)?;
                original(writer, yarn.original_context)?;
                if shape.latent.is_some() {
                    let log = &key("rope.scaling.yarn_log_multiplier");
                    writer.set(log, &yarn.log_multiplier)?;
                }
            }
        }
        if shape.arch == Arch::Granite {
            writer.set(&key("embedding_scale"), &shape.embedding_scale)?;
            writer.set(&key("residual_scale"), &shape.residual_scale)?;
            writer.set(&key("logit_scale"), &(1.0 / shape.logit_scale))?;
            writer.set(&key("attention.scale"), &shape.attention_scale)?;
        }
        Ok(())
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
        if let Stretch::Long { .. } = shape.stretch {
            for name in [SHORT_FACTORS, LONG_FACTORS] {
                list.plain(name.to_owned(), &[shape.rope_dims / 2], true);
            }
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
        let norms = |places: [NormPlace; 2]| places.contains(&shape.norm_place);
        let pre_norms = norms([NormPlace::Before, NormPlace::Around]);
        let post_norms = norms([NormPlace::After, NormPlace::Around]);
        let name = |part: &str| format!("blk.{layer}.{part}");

        if pre_norms {
            self.norm(&name("attn_norm"), embd);
        }
        let parts = if let Some(latent) = shape.latent {
            self.latent(layer, latent);
            Vec::new()
        } else if shape.arch.joins_qkv() {
            self.matrix(&name("attn_qkv"), &[embd, q + 2 * kv], Role::Values);
            vec![("attn_qkv", q + 2 * kv)]
        } else {
            self.matrix(&name("attn_q"), &[embd, q], Role::Other);
            self.matrix(&name("attn_k"), &[embd, kv], Role::Other);
            self.matrix(&name("attn_v"), &[embd, kv], Role::Values);
            vec![("attn_q", q), ("attn_k", kv), ("attn_v", kv)]
        };
        if shape.biases.qkv {
            for (part, width) in parts {
                self.plain(format!("{}.bias", name(part)), &[width], false);
            }
        }
        let head_norms = match shape.head_norms {
            HeadNorms::None => None,
            HeadNorms::Each => Some([shape.head_dim; 2]),
            HeadNorms::Row => Some([q, kv]),
        };
        if let Some([q, k]) = head_norms {
            self.norm(&name("attn_q_norm"), q);
            self.norm(&name("attn_k_norm"), k);
        }
        let attended = shape.latent.map_or(q, |latent| shape.heads * latent.value);
        self.matrix(&name("attn_output"), &[attended, embd], Role::Attended);
        if shape.biases.output {
            self.plain(format!("{}.bias", name("attn_output")), &[embd], false);
        }
        if shape.sinks {
            self.plain(format!("{}.weight", name("attn_sinks")), &[shape.heads], false);
        }
        if post_norms {
            self.norm(&name("post_attention_norm"), embd);
        }
        if pre_norms {
            self.norm(&name(shape.feed_forward_norm), embd);
        }
        match shape.experts_of(layer) {
            Some(Experts { count, ff, shared_ff, shared_gate, bias, .. }) => {
                // The router is never quantised.
                self.plain(format!("{}.weight", name("ffn_gate_inp")), &[embd, count], false);
                self.matrix(&name("ffn_gate_exps"), &[embd, ff, count], Role::Other);
                self.matrix(&name("ffn_up_exps"), &[embd, ff, count], Role::Other);
                self.matrix(&name("ffn_down_exps"), &[ff, embd, count], Role::Down);
                if shape.biases.experts {
                    self.plain(format!("{}.bias", name("ffn_gate_inp")), &[count], false);
                    let parts =
                        [("ffn_gate_exps", ff), ("ffn_up_exps", ff), ("ffn_down_exps", embd)];
                    for (part, width) in parts {
                        self.plain(format!("{}.bias", name(part)), &[width, count], false);
                    }
                }
                if bias {
                    self.plain(format!("{}.bias", name("exp_probs_b")), &[count], false);
                }
                if let Some(ff) = shared_ff {
                    self.matrix(&name("ffn_gate_shexp"), &[embd, ff], Role::Other);
                    self.matrix(&name("ffn_up_shexp"), &[embd, ff], Role::Other);
                    self.matrix(&name("ffn_down_shexp"), &[ff, embd], Role::Down);
                }
                if shared_gate {
                    let gate = format!("{}.weight", name("ffn_gate_inp_shexp"));
                    self.plain(gate, &[embd], false);
                }
            }
            None if shape.arch.joins_gate_and_up() => {
                self.matrix(&name("ffn_up"), &[embd, 2 * ff], Role::Other);
                self.matrix(&name("ffn_down"), &[ff, embd], Role::Down);
            }
            None => {
                if shape.feed_forward != FeedForward::Gelu {
                    self.matrix(&name("ffn_gate"), &[embd, ff], Role::Other);
                }
                self.matrix(&name("ffn_up"), &[embd, ff], Role::Other);
                self.matrix(&name("ffn_down"), &[ff, embd], Role::Down);
            }
        }
        if post_norms {
            self.norm(&name("post_ffw_norm"), embd);
        }
    }

    /// What latent attention has in front of the product behind it.
    fn latent(&mut self, layer: usize, latent: Latent) {
        let shape = self.shape;
        let (embd, heads, q) = (shape.embd, shape.heads, shape.heads * shape.head_dim);
        let name = |part: &str| format!("blk.{layer}.{part}");
        match latent.q_rank {
            None => self.matrix(&name("attn_q"), &[embd, q], Role::Other),
            Some(rank) => {
                self.matrix(&name("attn_q_a"), &[embd, rank], Role::Other);
                self.norm(&name("attn_q_a_norm"), rank);
                self.matrix(&name("attn_q_b"), &[rank, q], Role::Other);
            }
        }
        let rows = latent.kv_rank + shape.rope_dims;
        self.matrix(&name("attn_kv_a_mqa"), &[embd, rows], Role::Other);
        self.norm(&name("attn_kv_a_norm"), latent.kv_rank);
        let (plain, value) = (latent.plain, latent.value);
        self.matrix(&name("attn_k_b"), &[plain, latent.kv_rank, heads], Role::Other);
        self.matrix(&name("attn_v_b"), &[latent.kv_rank, value, heads], Role::Values);
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
