//! The shape of a model: everything its graph depends on but the weights.

use clearway::{RopeMode, RouterGroups};

use super::rope::{Stretch, Yarn};

/// Family of a model: which ops its layers are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// Llama 2 and 3, Mistral, SmolLM.
    Llama,
    /// Qwen 2 and 2.5: biases on queries, keys and values.
    Qwen2,
    /// Qwen 2 with experts, and one that every token uses as far as a gate of its own lets it.
    Qwen2Moe,
    /// Qwen 3: norms on queries and keys.
    Qwen3,
    /// Qwen 3 with experts.
    Qwen3Moe,
    /// Gemma 2: norms before and after, soft caps, every other layer sees a window.
    Gemma2,
    /// Gemma 3: norms before and after and on queries and keys, five layers of six see a window.
    Gemma3,
    /// Phi 3 and 4: LongRoPE, a part of each head turns.
    Phi3,
    /// Granite: scales on embedding, residual stream, attention and logits.
    Granite,
    /// OLMo 2: norms behind attention and feed-forward and on whole rows of queries and keys.
    Olmo2,
    /// GLM 4: norms before and after, half of each head turns.
    Glm4,
    /// gpt-oss: experts with biases and a clamped gate, sinks in attention, every other layer sees a window.
    GptOss,
    /// DeepSeek V2 and V3: latent attention, experts in groups and one that every token uses.
    DeepSeek2,
    /// BERT: an encoder with layer norms behind the sums, biases and positions from a table.
    Bert,
    /// BERT with rotary embeddings and a gated feed-forward part.
    NomicBert,
    /// Llama's attention, experts with one that every token uses.
    MoeShared,
}

impl Arch {
    /// Whether it gives vectors of texts and no logits.
    pub const fn is_encoder(self) -> bool {
        matches!(self, Self::Bert | Self::NomicBert)
    }

    /// Whether files have the gate of the feed-forward part and what it gates in one tensor, `ffn_up`.
    pub const fn joins_gate_and_up(self) -> bool {
        matches!(self, Self::Phi3 | Self::Glm4)
    }

    /// Whether every product of a layer has a bias. Of other families the files say which have one.
    pub const fn biases_all(self) -> bool {
        matches!(self, Self::GptOss)
    }

    /// Whether files have queries, keys and values in one tensor, `attn_qkv`. Those of other families may.
    pub const fn joins_qkv(self) -> bool {
        matches!(self, Self::Phi3 | Self::NomicBert)
    }
}

/// Experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many each token uses.
    pub used: usize,
    /// Inner size of each.
    pub ff: usize,
    /// Inner size of the one that every token uses.
    pub shared_ff: Option<usize>,
    /// Whether that one has a gate: a product that says for each token how much of it counts.
    pub shared_gate: bool,
    /// Whether the weights of the chosen are scaled to sum to 1.
    pub renormalise: bool,
    /// Whether weights are sigmoids; else they are a softmax.
    pub sigmoid: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// Whether a bias counts where experts are chosen. It is no part of their weights.
    pub bias: bool,
    /// Groups that are chosen before experts are; one where there are none.
    pub groups: RouterGroups,
}

impl Experts {
    /// One group of experts without any that all tokens use, weighed by a softmax that is scaled to sum to 1.
    pub const fn new(count: usize, used: usize, ff: usize) -> Self {
        Self {
            count,
            used,
            ff,
            shared_ff: None,
            shared_gate: false,
            renormalise: true,
            sigmoid: false,
            scale: 1.0,
            bias: false,
            groups: RouterGroups { count: 1, used: 1, best: 1 },
        }
    }
}

/// Latent attention: keys and values of all heads are products of one row of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Size of the row that queries are products of, where there is one.
    pub q_rank: Option<usize>,
    /// Size of the row that keys and values are products of.
    pub kv_rank: usize,
    /// Elements of a head of queries and keys that do not turn. Those that turn come behind them.
    pub plain: usize,
    /// Elements of a head of values.
    pub value: usize,
}

/// Where a layer has norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlace {
    /// In front of attention and feed-forward.
    Before,
    /// In front of both and behind both, before they join the residual stream.
    Around,
    /// Behind both, before they join the residual stream.
    After,
    /// Behind both, of the sum with the residual stream.
    OfSum,
}

/// What norms compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// Rows over their root mean square, times a weight.
    RootMeanSquare,
    /// Rows with mean 0 and variance 1, times a weight, plus a bias.
    Layer,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorms {
    /// None.
    None,
    /// Of each head.
    Each,
    /// Of all heads of a token together.
    Row,
}

/// What the feed-forward part does between its products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// `silu(gate) * up`.
    SiluGated,
    /// `gelu(gate) * up`, tanh form.
    GeluGated,
    /// `gelu(up)`, tanh form.
    Gelu,
    /// `clamped_gate(gate, up)` with the constants of gpt-oss, which no file has.
    ClampedGated,
}

/// Which products of a layer have biases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// Queries, keys and values.
    pub qkv: bool,
    /// The product behind attention.
    pub output: bool,
    /// Those of the feed-forward part.
    pub feed_forward: bool,
    /// The router and the experts.
    pub experts: bool,
}

/// A sliding window over the cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Rows a token sees, counted back from itself.
    pub rows: u32,
    /// One layer in `period`, the last of each period, sees everything.
    pub period: usize,
    /// Base of the rotary frequencies in layers with a window, where it differs.
    pub rope_base: Option<f32>,
}

/// Everything a graph depends on but the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// Name, for people.
    pub name: String,
    /// Family.
    pub arch: Arch,
    /// Number of layers.
    pub layers: usize,
    /// Size of the residual stream.
    pub embd: usize,
    /// Inner size of the feed-forward part; of no meaning where all of it is experts.
    pub ff: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads of the cache.
    pub kv_heads: usize,
    /// Size of a head of queries and keys.
    pub head_dim: usize,
    /// Latent attention, where the model has it.
    pub latent: Option<Latent>,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Longest context the model was made for.
    pub context: usize,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Factor on positions.
    pub rope_scale: f32,
    /// How rotary embeddings pair the elements of a head.
    pub rope_mode: RopeMode,
    /// Elements of a head that turn; 0 for a model without rotary embeddings.
    pub rope_dims: usize,
    /// How rotary frequencies are stretched.
    pub stretch: Stretch,
    /// Factor on the elements of a head that turn.
    pub rope_magnitude: f32,
    /// Whether a table has a row for each position that is added to the embedding.
    pub position_table: bool,
    /// Rows of the table of kinds of text, whose first is added to the embedding; 0 where there is no such table.
    pub token_types: usize,
    /// Whether a token sees only those before it; else it sees the whole text.
    pub causal: bool,
    /// Where layers have norms.
    pub norm_place: NormPlace,
    /// What norms compute, but for those of queries and keys.
    pub norm_kind: NormKind,
    /// Name of the norm in front of the feed-forward part.
    pub feed_forward_norm: &'static str,
    /// Norms of queries and keys.
    pub head_norms: HeadNorms,
    /// What the feed-forward part does between its products.
    pub feed_forward: FeedForward,
    /// Which products have biases.
    pub biases: Biases,
    /// Factor on the embedding.
    pub embedding_scale: f32,
    /// Factor on what joins the residual stream.
    pub residual_scale: f32,
    /// Factor on the logits.
    pub logit_scale: f32,
    /// Factor on attention scores; 1 over the root of the head size where the model has no other.
    pub attention_scale: f32,
    /// Whether each head has a sink: one more score, without a value.
    pub sinks: bool,
    /// Soft cap on attention scores; 0 for none.
    pub attention_softcap: f32,
    /// Soft cap on logits; 0 for none.
    pub logit_softcap: f32,
    /// Sliding window, where the model has one.
    pub window: Option<Window>,
    /// Experts, where the model has them.
    pub experts: Option<Experts>,
    /// Layers in front that have none.
    pub dense_layers: usize,
    /// Whether the output matrix is the embedding.
    pub tied: bool,
}

impl ModelShape {
    /// A Llama-like shape with the usual constants; a start to change fields of.
    #[allow(clippy::too_many_arguments)] // a row of a table
    pub fn new(
        name: &str,
        arch: Arch,
        layers: usize,
        embd: usize,
        ff: usize,
        heads: usize,
        kv_heads: usize,
        head_dim: usize,
        vocab: usize,
    ) -> Self {
        let rope_mode = match arch {
            Arch::Llama | Arch::Granite | Arch::Glm4 | Arch::MoeShared | Arch::DeepSeek2 => {
                RopeMode::Adjacent
            }
            _ => RopeMode::Halves,
        };
        let gemma = matches!(arch, Arch::Gemma2 | Arch::Gemma3);
        let encoder = arch.is_encoder();
        Self {
            name: name.to_owned(),
            arch,
            layers,
            embd,
            ff,
            heads,
            kv_heads,
            head_dim,
            latent: None,
            vocab,
            context: 8192,
            norm_eps: 1e-5,
            rope_base: 10_000.0,
            rope_scale: 1.0,
            rope_mode,
            rope_dims: if arch == Arch::Bert { 0 } else { head_dim },
            stretch: Stretch::None,
            rope_magnitude: 1.0,
            position_table: arch == Arch::Bert,
            token_types: if encoder { 2 } else { 0 },
            causal: !encoder,
            norm_place: match arch {
                Arch::Gemma2 | Arch::Gemma3 | Arch::Glm4 => NormPlace::Around,
                Arch::Olmo2 => NormPlace::After,
                Arch::Bert | Arch::NomicBert => NormPlace::OfSum,
                _ => NormPlace::Before,
            },
            feed_forward_norm: match arch {
                Arch::GptOss => "post_attention_norm",
                _ => "ffn_norm",
            },
            norm_kind: if encoder { NormKind::Layer } else { NormKind::RootMeanSquare },
            head_norms: match arch {
                Arch::Qwen3 | Arch::Qwen3Moe | Arch::Gemma3 => HeadNorms::Each,
                Arch::Olmo2 => HeadNorms::Row,
                _ => HeadNorms::None,
            },
            feed_forward: match arch {
                Arch::Gemma2 | Arch::Gemma3 => FeedForward::GeluGated,
                Arch::Bert => FeedForward::Gelu,
                Arch::GptOss => FeedForward::ClampedGated,
                _ => FeedForward::SiluGated,
            },
            biases: Biases {
                qkv: matches!(arch, Arch::Qwen2 | Arch::Qwen2Moe | Arch::GptOss | Arch::Bert),
                output: matches!(arch, Arch::GptOss | Arch::Bert),
                feed_forward: arch == Arch::Bert,
                experts: arch == Arch::GptOss,
            },
            embedding_scale: if gemma { (embd as f32).sqrt() } else { 1.0 },
            residual_scale: 1.0,
            logit_scale: 1.0,
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            sinks: arch == Arch::GptOss,
            attention_softcap: 0.0,
            logit_softcap: 0.0,
            window: None,
            experts: None,
            dense_layers: 0,
            tied: false,
        }
    }

    /// The window of a layer, if it has one.
    pub fn layer_window(&self, layer: usize) -> Option<Window> {
        self.window.filter(|window| !(layer + 1).is_multiple_of(window.period))
    }

    /// The experts of a layer, if it has any.
    pub fn experts_of(&self, layer: usize) -> Option<Experts> {
        self.experts.filter(|_| layer >= self.dense_layers)
    }

    /// Size of a head of the cache.
    pub fn cache_head(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| latent.kv_rank + self.rope_dims)
    }

    /// The parts of a layer's cache by their names: keys and values, or the one that holds both.
    pub fn cache_parts(&self) -> &'static [&'static str] {
        if self.latent.is_some() { &["k"] } else { &["k", "v"] }
    }

    /// Parameters of the model, embeddings included.
    pub fn parameters(&self) -> u64 {
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let attention = match self.latent {
            None => self.embd * (2 * q + 2 * kv),
            Some(latent) => {
                let queries = latent.q_rank.map_or(self.embd * q, |rank| rank * (self.embd + q));
                let row = latent.kv_rank * self.heads * (latent.plain + latent.value);
                let output = self.heads * latent.value * self.embd;
                queries + self.embd * self.cache_head() + row + output
            }
        };
        let feed_forward = |layer: usize| match self.experts_of(layer) {
            Some(e) => {
                let shared = e.shared_ff.unwrap_or(0);
                3 * self.embd * (e.count * e.ff + shared) + self.embd * e.count
            }
            None if self.feed_forward == FeedForward::Gelu => 2 * self.embd * self.ff,
            None => 3 * self.embd * self.ff,
        };
        let layers: usize = (0..self.layers).map(|layer| attention + feed_forward(layer)).sum();
        let tables = self.vocab * self.embd * if self.tied { 1 } else { 2 };
        (layers + tables) as u64
    }
}

/// How DeepSeek V2 is stretched.
const DEEPSEEK_YARN: Yarn = Yarn {
    factor: 40.0,
    original_context: 4096,
    beta_fast: 32.0,
    beta_slow: 1.0,
    log_multiplier: 0.0707,
};

/// The built-in shapes, by the names the command line knows.
pub fn builtin_shapes() -> Vec<ModelShape> {
    let base = ModelShape::new;
    vec![
        ModelShape {
            rope_base: 100_000.0,
            tied: true,
            ..base("smollm2-135m", Arch::Llama, 30, 576, 1536, 9, 3, 64, 49_152)
        },
        ModelShape {
            rope_base: 500_000.0,
            ..base("llama-1b", Arch::Llama, 16, 2048, 8192, 32, 8, 64, 128_256)
        },
        ModelShape {
            rope_base: 500_000.0,
            ..base("llama-8b", Arch::Llama, 32, 4096, 14_336, 32, 8, 128, 128_256)
        },
        ModelShape {
            context: 40_960,
            rope_base: 1_000_000.0,
            norm_eps: 1e-6,
            tied: true,
            ..base("qwen3-0.6b", Arch::Qwen3, 28, 1024, 3072, 16, 8, 128, 151_936)
        },
        ModelShape {
            context: 40_960,
            rope_base: 1_000_000.0,
            norm_eps: 1e-6,
            experts: Some(Experts::new(128, 8, 768)),
            ..base("qwen3-30b-a3b", Arch::Qwen3Moe, 48, 2048, 6144, 32, 4, 128, 151_936)
        },
        ModelShape {
            experts: Some(Experts {
                shared_ff: Some(2048),
                renormalise: false,
                ..Experts::new(64, 8, 1024)
            }),
            ..base("moe-16l-shared", Arch::MoeShared, 16, 2048, 2048, 16, 16, 128, 50_304)
        },
        ModelShape {
            context: 131_072,
            rope_base: 1_000_000.0,
            rope_scale: 1.0 / 8.0,
            norm_eps: 1e-6,
            window: Some(Window { rows: 1024, period: 6, rope_base: Some(10_000.0) }),
            tied: true,
            ..base("gemma3-4b", Arch::Gemma3, 34, 2560, 10_240, 8, 4, 256, 262_144)
        },
        ModelShape {
            context: 131_072,
            rope_dims: 96,
            stretch: Stretch::Long { original_context: 4096 },
            rope_magnitude: 1.190_238,
            tied: true,
            ..base("phi4-mini", Arch::Phi3, 32, 3072, 8192, 24, 8, 128, 200_064)
        },
        ModelShape {
            context: 131_072,
            rope_base: 150_000.0,
            rope_magnitude: Yarn::new(32.0, 4096).magnitude(),
            stretch: Stretch::Yarn(Yarn::new(32.0, 4096)),
            window: Some(Window { rows: 128, period: 2, rope_base: None }),
            experts: Some(Experts::new(32, 4, 2880)),
            ..base("gpt-oss-20b", Arch::GptOss, 24, 2880, 2880, 64, 8, 64, 201_088)
        },
        ModelShape {
            context: 163_840,
            norm_eps: 1e-6,
            rope_dims: 64,
            stretch: Stretch::Yarn(DEEPSEEK_YARN),
            attention_scale: DEEPSEEK_YARN.latent_scale(192),
            latent: Some(Latent { q_rank: None, kv_rank: 512, plain: 128, value: 128 }),
            experts: Some(Experts {
                shared_ff: Some(2816),
                renormalise: false,
                ..Experts::new(64, 6, 1408)
            }),
            dense_layers: 1,
            ..base("deepseek-v2-lite", Arch::DeepSeek2, 27, 2048, 10_944, 16, 1, 192, 102_400)
        },
    ]
}

/// A built-in shape by name.
pub fn builtin_shape(name: &str) -> Option<ModelShape> {
    builtin_shapes().into_iter().find(|shape| shape.name == name)
}
