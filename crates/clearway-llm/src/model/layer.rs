//! The parts of a layer.

use clearway::{
    Attention, AttentionParams, BlockTable, DType, Layout, Ops, Recorder, RopeParams, TensorView,
};

use super::adapters::Narrow;
use super::shape::{FeedForward, HeadNorms, ModelShape, NormPlace};
use super::{
    BLOCKS, CACHE_ROWS, CacheLayout, DECODE_BLOCKS, LOGIT_ROWS, Logits, POSITIONS, Part,
    ROPE_FACTORS, RecordOptions, Result, SEEN, SEQUENCES, STREAM, TOKENS, in_cache,
};

/// Constants of the clamped gate: its limit, and the factor in its sigmoid.
const GATE_LIMIT: f32 = 7.0;
const GATE_ALPHA: f32 = 1.702;

/// What a part of a layer gives.
pub(super) struct Given {
    pub(super) y: TensorView,
    /// What adapters of its last product add to that.
    pub(super) more: Option<TensorView>,
}

/// Records the parts of a model one after another.
pub(super) struct Layers<'a> {
    pub(super) shape: &'a ModelShape,
    pub(super) options: &'a RecordOptions<'a>,
    pub(super) ops: Recorder,
    pub(super) narrow: Narrow,
    /// Tokens that the step goes on with.
    pub(super) tokens: usize,
    /// Token ids, or the residual stream where a part begins with it.
    input: TensorView,
    /// Rotary position of each token: how many tokens of its sequence it sees, less one.
    positions: TensorView,
    /// Last cache row that each token sees.
    seen: TensorView,
    /// Cache row that each token is written to.
    pub(super) cache_rows: TensorView,
    /// Where the rows of a sequence lie; `None` where the cache is one sequence. Its sequences are those of all tokens.
    table: Option<BlockTable>,
    /// Tokens at the end whose rows lie elsewhere, and where.
    decode: Option<(usize, BlockTable)>,
    rope_factors: TensorView,
    /// `None` as long as nothing asks for it.
    embedding: Option<TensorView>,
    /// Numbers of the heads, and their order by head, where a layer has asked for them.
    pub(super) heads: Option<TensorView>,
    pub(super) head_order: Option<TensorView>,
}

impl<'a> Layers<'a> {
    pub(super) fn new(shape: &'a ModelShape, options: &'a RecordOptions<'a>) -> Result<Self> {
        let mut ops = Recorder::new();
        let begins = match options.part {
            Part::Whole | Part::Front { .. } => true,
            Part::Back { .. } => false,
        };
        let input = match begins {
            true => ops.external(TOKENS, DType::U32, &[options.tokens])?,
            false => ops.external(STREAM, DType::F32, &[options.tokens, shape.embd])?,
        };
        let positions = ops.external(POSITIONS, DType::U32, &[options.tokens])?;
        let rope_factors = ops.external(ROPE_FACTORS, DType::F32, &[shape.rope_pairs()])?;
        let seen = match shape.causal {
            true => positions,
            false => ops.external(SEEN, DType::U32, &[options.tokens])?,
        };
        let embedding = match begins {
            true => Some(embedding(&mut ops, shape, options)?),
            false => None,
        };
        let (cache_rows, table, decode) = match options.cache {
            CacheLayout::Whole => (positions, None, None),
            CacheLayout::Blocks { block, sequences, entries } => {
                let cache_rows = ops.external(CACHE_ROWS, DType::U32, &[options.tokens])?;
                let of_tokens = ops.external(SEQUENCES, DType::U32, &[options.tokens])?;
                let blocks = ops.external(BLOCKS, DType::U32, &[sequences, entries])?;
                let table = BlockTable { sequences: of_tokens, blocks, block: block as u32 };
                let decode = match options.decode {
                    None => None,
                    Some(decode) => {
                        let own = [decode.sequences, entries];
                        let blocks = ops.external(DECODE_BLOCKS, DType::U32, &own)?;
                        Some((decode.rows, BlockTable { blocks, ..table }))
                    }
                };
                (cache_rows, Some(table), decode)
            }
        };
        Ok(Self {
            shape,
            options,
            ops,
            narrow: Narrow::default(),
            tokens: options.tokens,
            input,
            positions,
            seen,
            cache_rows,
            table,
            decode,
            rope_factors,
            embedding,
            heads: None,
            head_order: None,
        })
    }

    pub(super) fn into_recorder(self) -> Recorder {
        self.ops
    }

    /// The residual stream that a part begins with.
    pub(super) fn stream(&self) -> TensorView {
        self.input
    }

    /// The embedding, which is named when it is first asked for: a part without it does not load it.
    fn embedding(&mut self) -> Result<TensorView> {
        match self.embedding {
            Some(embedding) => Ok(embedding),
            None => {
                let named = embedding(&mut self.ops, self.shape, self.options)?;
                Ok(*self.embedding.insert(named))
            }
        }
    }

    /// Rows of the embedding for the step's tokens.
    pub(super) fn embed(&mut self) -> Result<TensorView> {
        self.ops.set_label("token_embd");
        let scale = self.shape.embedding_scale / self.shape.residual_scale;
        let embedding = self.embedding()?;
        let mut x = self.ops.gather(embedding, self.input, scale)?;
        let embd = self.shape.embd;
        if self.shape.position_table {
            let table = self.matrix("position_embd.weight", &[self.shape.context, embd])?;
            self.ops.set_label("position_embd");
            let at = self.ops.gather(table, self.positions, 1.0)?;
            x = self.ops.add(x, at)?;
        }
        if self.shape.token_types > 0 {
            let types = [self.shape.token_types, embd];
            let types = self.ops.external("token_types.weight", DType::F32, &types)?;
            self.ops.set_label("token_types");
            x = self.ops.add(x, reshape(types, &[embd])?)?;
        }
        match self.shape.norm_place {
            NormPlace::OfSum => self.layer_norm("token_embd_norm", x),
            NormPlace::Before | NormPlace::Around | NormPlace::After => Ok(x),
        }
    }

    /// One layer: attention and feed-forward, each added to the residual stream.
    pub(super) fn layer(&mut self, layer: usize, x: TensorView) -> Result<TensorView> {
        let attended = self.norm_before(layer, "attn_norm", x)?;
        let attended = self.attention(layer, attended)?;
        self.behind_attention(layer, x, attended)
    }

    /// As [`layer`](Self::layer), of the last so many tokens. The others only fill the cache, and are gone from then on.
    pub(super) fn last_layer(
        &mut self,
        layer: usize,
        x: TensorView,
        count: usize,
    ) -> Result<TensorView> {
        let (normed, cache) = self.fill_cache(layer, x)?;
        let kept = self.tokens - count..self.tokens;
        let (x, normed) = (some_rows(x, &kept)?, some_rows(normed, &kept)?);
        self.keep(kept)?;
        let attended = match self.shape.latent {
            Some(latent) => {
                let q = self.latent_queries(layer, normed, latent)?;
                self.latent_found(layer, q, cache, latent)?
            }
            None => {
                let q = self.project(layer, "attn_q", normed, self.shape.heads)?;
                let q = self.normed_heads(layer, "attn_q_norm", q)?;
                let q = self.rotate(layer, "attn_q_rope", q)?;
                self.found(layer, q, cache)?
            }
        };
        self.behind_attention(layer, x, attended)
    }

    /// The step goes on with these tokens, the last.
    fn keep(&mut self, rows: std::ops::Range<usize>) -> Result<()> {
        for each in [&mut self.positions, &mut self.seen, &mut self.cache_rows] {
            *each = some_rows(*each, &rows)?;
        }
        let tables = self.table.iter_mut().chain(self.decode.as_mut().map(|(_, table)| table));
        for table in tables {
            table.sequences = some_rows(table.sequences, &rows)?;
        }
        self.narrow.keep(&rows)?;
        self.head_order = None;
        self.tokens = rows.len();
        Ok(())
    }

    /// What attention gives and the feed-forward part, each added to the residual stream.
    fn behind_attention(
        &mut self,
        layer: usize,
        x: TensorView,
        attended: Given,
    ) -> Result<TensorView> {
        let x = self.join(layer, x, attended, ["post_attention_norm", "attn_residual"])?;
        let x = self.norm_of_sum(layer, "attn_output_norm", x)?;

        let fed = self.norm_before(layer, self.shape.feed_forward_norm, x)?;
        let fed = match self.shape.experts_of(layer) {
            Some(experts) => Given { y: self.experts(layer, fed, experts)?, more: None },
            None => self.gated(layer, fed, ["ffn_gate", "ffn_up", "ffn_down"], self.shape.ff)?,
        };
        let x = self.join(layer, x, fed, ["post_ffw_norm", "ffn_residual"])?;
        self.norm_of_sum(layer, "layer_output_norm", x)
    }

    /// The residual stream with what a part gives. What adapters add comes last where no norm is in between: then either
    /// product takes one of the sums in.
    fn join(
        &mut self,
        layer: usize,
        x: TensorView,
        given: Given,
        [norm, residual]: [&str; 2],
    ) -> Result<TensorView> {
        let Given { y, more } = given;
        let (y, late) = match self.shape.norm_place {
            NormPlace::Around | NormPlace::After => (self.sum(y, more)?, None),
            NormPlace::Before | NormPlace::OfSum => (y, more),
        };
        let y = self.norm_after(layer, norm, y)?;
        self.label(layer, residual);
        let x = self.ops.add(x, y)?;
        self.sum(x, late)
    }

    /// What adapters add and what they add it to. The product of the adapters comes first: it is the one that shall take
    /// the sum in, while the other runs beside the narrow product.
    pub(super) fn sum(&mut self, y: TensorView, more: Option<TensorView>) -> Result<TensorView> {
        match more {
            None => Ok(y),
            Some(more) => self.ops.add(more, y),
        }
    }

    /// The norm of the residual stream behind a part, where the family has one there.
    fn norm_of_sum(&mut self, layer: usize, part: &str, x: TensorView) -> Result<TensorView> {
        match self.shape.norm_place {
            NormPlace::OfSum => self.layer_norm(&format!("blk.{layer}.{part}"), x),
            NormPlace::Before | NormPlace::Around | NormPlace::After => Ok(x),
        }
    }

    /// The norm of encoders.
    fn layer_norm(&mut self, name: &str, x: TensorView) -> Result<TensorView> {
        let weight = self.vector(&format!("{name}.weight"), self.shape.embd)?;
        let bias = self.vector(&format!("{name}.bias"), self.shape.embd)?;
        self.ops.set_label(name);
        self.ops.layer_norm(x, weight, bias, self.shape.norm_eps)
    }

    /// Final norm and logits.
    pub(super) fn head(&mut self, x: TensorView) -> Result<TensorView> {
        let x = match self.options.logits {
            // Of a tail the others are gone already.
            Logits::All | Logits::None | Logits::Normed | Logits::Tail(_) => x,
            Logits::Last => some_rows(x, &(self.tokens - 1..self.tokens))?,
            Logits::Rows(count) => {
                let rows = self.ops.external(LOGIT_ROWS, DType::U32, &[count])?;
                self.ops.set_label("logit_rows");
                self.ops.gather(x, rows, 1.0)?
            }
        };
        let x = self.last_norm(x)?;
        let head = match self.shape.tied {
            true => self.embedding()?,
            false => self.matrix("output.weight", &[self.shape.vocab, self.shape.embd])?,
        };
        self.ops.set_label("output");
        let mut logits = self.ops.matmul(x, head)?;
        if !self.shape.tied {
            let more = self.adapted("output.weight", x, self.shape.vocab)?;
            logits = self.sum(logits, more)?;
        }
        if self.shape.logit_scale != 1.0 {
            self.ops.set_label("output_scale");
            logits = self.ops.scale(logits, self.shape.logit_scale)?;
        }
        match self.shape.logit_softcap {
            0.0 => Ok(logits),
            cap => self.ops.soft_cap(logits, cap),
        }
    }

    /// The final norm.
    pub(super) fn last_norm(&mut self, x: TensorView) -> Result<TensorView> {
        self.ops.set_label("output_norm");
        let weight = self.vector("output_norm.weight", self.shape.embd)?;
        let x = self.ops.rms_norm(x, self.stream_eps())?;
        self.ops.mul(x, weight)
    }

    /// What norms of the residual stream add to the mean square. The stream is kept over the factor on what joins it
    /// ([`ModelShape::residual_scale`]), so that nothing need be multiplied by that factor on its way: norms do not see it,
    /// but for this.
    fn stream_eps(&self) -> f32 {
        self.shape.norm_eps / (self.shape.residual_scale * self.shape.residual_scale)
    }

    /// Keys and values of one layer written into the cache, and nothing else; what they are products of, and the cache.
    pub(super) fn fill_cache(
        &mut self,
        layer: usize,
        x: TensorView,
    ) -> Result<(TensorView, [TensorView; 2])> {
        let x = self.norm_before(layer, "attn_norm", x)?;
        if let Some(latent) = self.shape.latent {
            return Ok((x, self.write_latent(layer, x, latent)?));
        }
        let k = self.project(layer, "attn_k", x, self.shape.kv_heads)?;
        let v = self.project(layer, "attn_v", x, self.shape.kv_heads)?;
        let k = self.normed_heads(layer, "attn_k_norm", k)?;
        let k = self.rotate(layer, "attn_k_rope", k)?;
        Ok((x, self.write_cache(layer, k, v)?))
    }

    fn attention(&mut self, layer: usize, x: TensorView) -> Result<Given> {
        if let Some(latent) = self.shape.latent {
            return self.latent_attention(layer, x, latent);
        }
        let q = self.project(layer, "attn_q", x, self.shape.heads)?;
        let k = self.project(layer, "attn_k", x, self.shape.kv_heads)?;
        let v = self.project(layer, "attn_v", x, self.shape.kv_heads)?;
        let q = self.normed_heads(layer, "attn_q_norm", q)?;
        let k = self.normed_heads(layer, "attn_k_norm", k)?;
        let q = self.rotate(layer, "attn_q_rope", q)?;
        let k = self.rotate(layer, "attn_k_rope", k)?;
        let cache = self.write_cache(layer, k, v)?;
        self.found(layer, q, cache)
    }

    /// What queries find in the cache, and the product behind it.
    fn found(&mut self, layer: usize, q: TensorView, cache: [TensorView; 2]) -> Result<Given> {
        let y = self.attend(layer, q, cache)?;
        let y = reshape(y, &[self.tokens, self.shape.heads * self.shape.head_dim])?;
        self.given(layer, "attn_output", y, self.shape.embd, self.shape.biases.output)
    }

    /// What queries find in the cache.
    pub(super) fn attend(
        &mut self,
        layer: usize,
        q: TensorView,
        [keys, values]: [TensorView; 2],
    ) -> Result<TensorView> {
        self.label(layer, "attention");
        let params = AttentionParams {
            scale: self.shape.attention_scale,
            window: self.shape.layer_window(layer).map_or(0, |window| window.rows),
            softcap: self.shape.attention_softcap,
        };
        let sinks = match self.shape.sinks {
            true => Some(self.vector(&format!("blk.{layer}.attn_sinks.weight"), self.shape.heads)?),
            false => None,
        };
        let [heads, size] = [q.layout.dims()[1] as usize, values.layout.cols()];
        let y = self.ops.declare(Layout::new(q.layout.dtype(), &[self.tokens, heads, size])?)?;
        // Rows of prompts, then those that decode: both read the cache and give rows of one result.
        let decode = self.decode.map_or(0, |(rows, _)| rows);
        let front = (self.tokens.saturating_sub(decode), self.table);
        let back = (decode.min(self.tokens), self.decode.map(|(_, table)| table));
        let mut from = 0;
        for (count, table) in [front, back].into_iter().filter(|(count, _)| *count > 0) {
            let rows = from..from + count;
            from += count;
            let table = match table {
                Some(table) => {
                    let sequences = some_rows(table.sequences, &rows)?;
                    Some(BlockTable { sequences, ..table })
                }
                None => None,
            };
            let (cache, positions) = ([keys, values], some_rows(self.seen, &rows)?);
            let q = some_rows(q, &rows)?;
            let of = Attention { q, cache, positions, table, sinks, params };
            self.ops.attention_into(&of, some_rows(y, &rows)?)?;
        }
        Ok(y)
    }

    /// Queries or keys, normed where the family does that.
    fn normed_heads(&mut self, layer: usize, part: &str, x: TensorView) -> Result<TensorView> {
        let [tokens, heads, head] = [0, 1, 2].map(|i| x.layout.dims()[i] as usize);
        match self.shape.head_norms {
            HeadNorms::None => Ok(x),
            HeadNorms::Each => self.weighted_norm(layer, part, x, head),
            HeadNorms::Row => {
                let row = reshape(x, &[tokens, heads * head])?;
                let normed = self.weighted_norm(layer, part, row, heads * head)?;
                reshape(normed, &[tokens, heads, head])
            }
        }
    }

    /// Queries or keys, turned by the positions of their tokens.
    pub(super) fn rotate(&mut self, layer: usize, part: &str, x: TensorView) -> Result<TensorView> {
        if self.shape.rope_dims == 0 {
            return Ok(x);
        }
        let local_base = self.shape.layer_window(layer).and_then(|window| window.rope_base);
        let rope = RopeParams {
            n_dims: self.shape.rope_dims as u32,
            mode: self.shape.rope_mode,
            base: local_base.unwrap_or(self.shape.rope_base),
            // Layers with a base of their own see short distances and are not stretched.
            scale: if local_base.is_some() { 1.0 } else { self.shape.rope_scale },
        };
        self.label(layer, part);
        let magnitude = self.shape.rope_magnitude;
        self.ops.rope_scaled(x, self.positions, self.rope_factors, rope, magnitude)
    }

    /// Writes keys and values into the cache; returns it.
    fn write_cache(
        &mut self,
        layer: usize,
        k: TensorView,
        v: TensorView,
    ) -> Result<[TensorView; 2]> {
        let keys = self.cache(layer, "k")?;
        let values = self.cache(layer, "v")?;
        self.label(layer, "cache_k");
        self.ops.kv_write(k, self.cache_rows, keys)?;
        self.label(layer, "cache_v");
        self.ops.kv_write(v, self.cache_rows, values)?;
        Ok([keys, values])
    }

    /// Queries, keys or values: `[T, heads, head_dim]`.
    fn project(
        &mut self,
        layer: usize,
        part: &str,
        x: TensorView,
        heads: usize,
    ) -> Result<TensorView> {
        let size = heads * self.shape.head_dim;
        let y = self.biased(layer, part, x, size, self.shape.biases.qkv)?;
        reshape(y, &[self.tokens, heads, self.shape.head_dim])
    }

    /// `act(gate(x)) * up(x)`, or `act(up(x))` where there is no gate; then down.
    pub(super) fn gated(
        &mut self,
        layer: usize,
        x: TensorView,
        [gate, up, down]: [&str; 3],
        size: usize,
    ) -> Result<Given> {
        let biased = self.shape.biases.feed_forward;
        let up = self.biased(layer, up, x, size, biased)?;
        let y = match self.shape.feed_forward {
            FeedForward::Gelu => {
                self.label(layer, "ffn_act");
                self.ops.gelu(up)?
            }
            FeedForward::SiluGated | FeedForward::GeluGated | FeedForward::ClampedGated => {
                let gate = self.biased(layer, gate, x, size, biased)?;
                self.activate(layer, gate, up)?
            }
        };
        self.given(layer, down, y, self.shape.embd, biased)
    }

    pub(super) fn activate(
        &mut self,
        layer: usize,
        gate: TensorView,
        up: TensorView,
    ) -> Result<TensorView> {
        self.label(layer, "ffn_act");
        let gate = match self.shape.feed_forward {
            FeedForward::SiluGated => self.ops.silu(gate)?,
            FeedForward::GeluGated | FeedForward::Gelu => self.ops.gelu(gate)?,
            FeedForward::ClampedGated => {
                return self.ops.clamped_gate(gate, up, GATE_LIMIT, GATE_ALPHA);
            }
        };
        self.ops.mul(gate, up)
    }

    /// The norm in front of a part, where the family has one there.
    fn norm_before(&mut self, layer: usize, part: &str, x: TensorView) -> Result<TensorView> {
        match self.shape.norm_place {
            NormPlace::Before | NormPlace::Around => {
                let eps = self.stream_eps();
                self.norm_with(layer, part, x, self.shape.embd, eps)
            }
            NormPlace::After | NormPlace::OfSum => Ok(x),
        }
    }

    /// The norm behind a part, before it joins the residual stream, where the family has one there.
    fn norm_after(&mut self, layer: usize, part: &str, x: TensorView) -> Result<TensorView> {
        match self.shape.norm_place {
            NormPlace::Around | NormPlace::After => {
                self.weighted_norm(layer, part, x, self.shape.embd)
            }
            NormPlace::Before | NormPlace::OfSum => Ok(x),
        }
    }

    pub(super) fn weighted_norm(
        &mut self,
        layer: usize,
        part: &str,
        x: TensorView,
        size: usize,
    ) -> Result<TensorView> {
        self.norm_with(layer, part, x, size, self.shape.norm_eps)
    }

    fn norm_with(
        &mut self,
        layer: usize,
        part: &str,
        x: TensorView,
        size: usize,
        eps: f32,
    ) -> Result<TensorView> {
        let weight = self.vector(&format!("blk.{layer}.{part}.weight"), size)?;
        self.label(layer, part);
        let y = self.ops.rms_norm(x, eps)?;
        self.ops.mul(y, weight)
    }

    /// A product, plus a bias and what adapters add, where it has them.
    pub(super) fn biased(
        &mut self,
        layer: usize,
        part: &str,
        x: TensorView,
        size: usize,
        has_bias: bool,
    ) -> Result<TensorView> {
        let Given { y, more } = self.given(layer, part, x, size, has_bias)?;
        self.sum(y, more)
    }

    /// A product without adapters.
    pub(super) fn linear(
        &mut self,
        layer: usize,
        part: &str,
        x: TensorView,
        size: usize,
    ) -> Result<TensorView> {
        let name = format!("blk.{layer}.{part}.weight");
        let weight = self.matrix(&name, &[size, x.layout.cols()])?;
        self.label(layer, part);
        self.ops.matmul(x, weight)
    }

    /// A product, plus a bias where it has one, and what adapters are to add.
    pub(super) fn given(
        &mut self,
        layer: usize,
        part: &str,
        x: TensorView,
        size: usize,
        has_bias: bool,
    ) -> Result<Given> {
        let mut y = self.linear(layer, part, x, size)?;
        if has_bias {
            let bias = self.vector(&format!("blk.{layer}.{part}.bias"), size)?;
            y = self.ops.add(y, bias)?;
        }
        let name = format!("blk.{layer}.{part}.weight");
        Ok(Given { y, more: self.adapted(&name, x, size)? })
    }

    pub(super) fn matrix(&mut self, name: &str, shape: &[usize]) -> Result<TensorView> {
        self.ops.external(name, (self.options.weight_dtype)(name), shape)
    }

    pub(super) fn vector(&mut self, name: &str, size: usize) -> Result<TensorView> {
        self.ops.external(name, DType::F32, &[size])
    }

    pub(super) fn cache(&mut self, layer: usize, part: &str) -> Result<TensorView> {
        let size = self.shape.cache_head();
        let shape = [self.options.cache_rows, self.shape.kv_heads, size];
        let dtype = in_cache(self.options.cache_dtype);
        self.ops.external(&format!("cache.{part}.{layer}"), dtype, &shape)
    }

    pub(super) fn label(&mut self, layer: usize, part: &str) {
        self.ops.set_label(&format!("blk.{layer}.{part}"));
    }
}

fn embedding(
    ops: &mut Recorder,
    shape: &ModelShape,
    options: &RecordOptions<'_>,
) -> Result<TensorView> {
    let name = "token_embd.weight";
    ops.external(name, (options.weight_dtype)(name), &[shape.vocab, shape.embd])
}

/// The same bytes in another shape.
pub(super) fn reshape(x: TensorView, shape: &[usize]) -> Result<TensorView> {
    Ok(x.reinterpret(0, Layout::new(x.layout.dtype(), shape)?)?)
}

/// Some of the rows of a dense tensor, which are those of its first dimension.
pub(super) fn some_rows(x: TensorView, rows: &std::ops::Range<usize>) -> Result<TensorView> {
    let mut shape: Vec<usize> = x.layout.dims().iter().map(|&dim| dim as usize).collect();
    if shape.first() == Some(&rows.len()) {
        return Ok(x);
    }
    let (all, bytes) = (shape.first().copied().unwrap_or(1).max(1), x.layout.span_bytes());
    if let Some(first) = shape.first_mut() {
        *first = rows.len();
    }
    let from = bytes / all as u64 * rows.start as u64;
    Ok(x.reinterpret(from, Layout::new(x.layout.dtype(), &shape)?)?)
}
