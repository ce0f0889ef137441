//! Hyper-parameters of a file to a shape.
//!
//! Every number that sizes something is held against the other numbers here and against the tensors of the file in
//! [`check`], before anything is recorded. So what a shape costs is bounded by what the file holds.

use super::apart::apart;
use super::{EngineError, Result, adapter, check, latent};
use crate::gguf::{FromValue, Gguf, Metadata};
use crate::model::{
    Arch, Experts, FAMILIES, LONG_FACTORS, ModelShape, NormKind, Stretch, Window, Yarn, family_of,
    nearest_family,
};

/// The shape a file describes.
///
/// # Errors
/// A family or hyper-parameter that is not supported, one that is missing, and one that contradicts another
/// or the file's tensors.
pub fn model_shape(gguf: &Gguf) -> Result<ModelShape> {
    Ok(plain_model(gguf)?.1)
}

/// A file with each matrix of a layer as a tensor of its own, which is what [`record`](crate::model::record) names, and the
/// shape it describes. Nothing is copied.
///
/// # Errors
/// As [`model_shape`].
pub fn plain_model(gguf: &Gguf) -> Result<(Gguf, ModelShape)> {
    adapter::check_is_model(gguf)?;
    let keys = Keys::of(gguf.metadata())?;
    let plain = apart(gguf, &keys)?;
    let shape = read(&plain, &keys)?;
    check::tensors(&plain, &keys, &shape)?;
    Ok((plain, shape))
}

/// The shape as the metadata has it.
fn read(gguf: &Gguf, keys: &Keys<'_>) -> Result<ModelShape> {
    let (arch, meta) = (keys.arch, keys.meta);
    let (embd, heads) = (keys.size("embedding_length")?, keys.size("attention.head_count")?);
    let sizes = if arch == Arch::DeepSeek2 { Some(latent::sizes(keys)?) } else { None };
    let (head_dim, source, kv_heads) = match &sizes {
        // All heads look at the same rows.
        Some(sizes) => (sizes.head, sizes.source, 1),
        None => {
            let (head_dim, source) = head_dim(keys, embd, heads)?;
            keys.expect_head_size("attention.value_length", head_dim, source)?;
            let kv_heads = keys.optional_size("attention.head_count_kv")?.unwrap_or(heads);
            (head_dim, source, kv_heads)
        }
    };
    if !heads.is_multiple_of(kv_heads) {
        let expected = format!("a divisor of `{}`, {heads},", keys.key("attention.head_count"));
        return Err(keys.wrong("attention.head_count_kv", kv_heads, &expected));
    }
    let vocab = check::vocab(gguf, keys, embd)?;
    let experts = experts(gguf, keys, arch)?;
    let layers = keys.size("block_count")?;
    let dense_layers = match sizes {
        Some(_) => latent::dense_layers(keys, layers)?,
        None => 0,
    };
    let ff = match experts {
        Some(_) if dense_layers == 0 => keys.optional_size("feed_forward_length")?.unwrap_or(0),
        _ => keys.size("feed_forward_length")?,
    };
    let title = meta.optional::<&str>("general.name")?.unwrap_or(keys.prefix);
    let mut shape =
        ModelShape::new(title, arch, layers, embd, ff, heads, kv_heads, head_dim, vocab);
    shape.tied = gguf.find_tensor("output.weight").is_none();
    shape.context = keys.size("context_length")?;
    let eps = match shape.norm_kind {
        NormKind::RootMeanSquare => "attention.layer_norm_rms_epsilon",
        NormKind::Layer => "attention.layer_norm_epsilon",
    };
    shape.norm_eps = keys.number(eps, Sign::NotNegative)?;
    rope(gguf, keys, &mut shape, source)?;
    scales(keys, &mut shape)?;
    if let Some(sizes) = sizes {
        shape.latent = Some(sizes.latent);
        latent::stretch(keys, &mut shape)?;
    }
    if !arch.biases_all() {
        let has_bias = |part: &str| gguf.find_tensor(&format!("blk.0.{part}.bias")).is_some();
        shape.biases.qkv = has_bias("attn_q");
        shape.biases.output = has_bias("attn_output");
        shape.biases.feed_forward = has_bias("ffn_up");
    }
    let cap = |key: &str| {
        Ok::<_, EngineError>(keys.optional_number(key, Sign::NotNegative)?.unwrap_or(0.0))
    };
    shape.attention_softcap = cap("attn_logit_softcapping")?;
    shape.logit_softcap = cap("final_logit_softcapping")?;
    shape.causal &= keys.optional::<bool>("attention.causal")?.unwrap_or(true);
    let kinds = gguf.find_tensor("token_types.weight").filter(|_| arch.is_encoder());
    shape.token_types = kinds.and_then(|kinds| kinds.dims().get(1).copied()).unwrap_or(0);
    shape.window = window(keys, arch)?;
    shape.experts = experts;
    shape.dense_layers = dense_layers;
    Ok(shape)
}

/// The size of a head, which rotary embeddings need to be even, and the key it follows from.
fn head_dim(keys: &Keys<'_>, embd: usize, heads: usize) -> Result<(usize, &'static str)> {
    const KEY: &str = "attention.key_length";
    const HEADS: &str = "attention.head_count";
    if let Some(size) = keys.optional_size(KEY)? {
        return match size % 2 {
            0 => Ok((size, KEY)),
            _ => Err(keys.wrong(KEY, size, "an even head size")),
        };
    }
    if !embd.is_multiple_of(heads) {
        return Err(keys.wrong(HEADS, heads, &format!("a divisor of the embedding length {embd}")));
    }
    match embd / heads {
        odd if odd % 2 == 1 => {
            let expected = format!(
                "a number that cuts the embedding length {embd} into heads of an even size, not {odd},"
            );
            Err(keys.wrong(HEADS, heads, &expected))
        }
        size => Ok((size, HEADS)),
    }
}

/// What turns how.
fn rope(gguf: &Gguf, keys: &Keys<'_>, shape: &mut ModelShape, source: &str) -> Result<()> {
    const DIMS: &str = "rope.dimension_count";
    if shape.rope_dims == 0 {
        return Ok(());
    }
    if let Some(dims) = keys.optional_size(DIMS)? {
        if dims > shape.head_dim || dims % 2 == 1 {
            let size = shape.head_dim;
            let expected =
                format!("an even number up to the head size {size} of `{}`", keys.key(source));
            return Err(keys.wrong(DIMS, dims, &expected));
        }
        shape.rope_dims = dims;
    }
    shape.rope_base =
        keys.optional_number("rope.freq_base", Sign::Positive)?.unwrap_or(shape.rope_base);
    let factor = |what: &str| keys.optional_number(what, Sign::Positive);
    shape.rope_magnitude = factor("rope.scaling.attn_factor")?.unwrap_or(1.0);
    let original = keys.optional_size("rope.scaling.original_context_length")?;
    let original_context = original.unwrap_or(shape.context);
    let kind = keys.optional::<&str>("rope.scaling.type")?;
    if matches!(kind, None | Some("longrope")) && gguf.find_tensor(LONG_FACTORS).is_some() {
        shape.stretch = Stretch::Long { original_context };
        return Ok(());
    }
    match kind {
        // Files of Llama 3 have the factors themselves.
        None | Some("none" | "longrope") => {}
        Some("linear") => {
            shape.rope_scale = 1.0 / keys.number("rope.scaling.factor", Sign::Positive)?;
        }
        Some("yarn") => {
            let factor = keys.number("rope.scaling.factor", Sign::Positive)?;
            let mut yarn = Yarn::new(factor, original_context);
            let beta = |key: &str| keys.optional_number(key, Sign::Positive);
            yarn.beta_fast = beta("rope.scaling.yarn_beta_fast")?.unwrap_or(yarn.beta_fast);
            yarn.beta_slow = beta("rope.scaling.yarn_beta_slow")?.unwrap_or(yarn.beta_slow);
            shape.rope_magnitude *= yarn.magnitude();
            shape.stretch = Stretch::Yarn(yarn);
        }
        Some(other) => {
            return Err(keys.wrong("rope.scaling.type", other, "none, linear, yarn or longrope"));
        }
    }
    Ok(())
}

/// Factors that some families have in their files; 0 stands for none.
fn scales(keys: &Keys<'_>, shape: &mut ModelShape) -> Result<()> {
    let scale = |key: &str| {
        let found = keys.optional_number(key, Sign::NotNegative)?;
        Ok::<_, EngineError>(found.filter(|&scale| scale > 0.0))
    };
    if shape.arch == Arch::Granite {
        shape.embedding_scale = scale("embedding_scale")?.unwrap_or(1.0);
        shape.residual_scale = scale("residual_scale")?.unwrap_or(1.0);
        shape.logit_scale = 1.0 / scale("logit_scale")?.unwrap_or(1.0);
    }
    // Files of the largest Gemma 2 and 3 do not say that their scale is not that of their heads.
    if matches!((shape.arch, shape.layers), (Arch::Gemma2, 46) | (Arch::Gemma3, 62)) {
        shape.attention_scale = ((shape.heads as f32) / (shape.embd as f32)).sqrt();
    }
    shape.attention_scale = scale("attention.scale")?.unwrap_or(shape.attention_scale);
    Ok(())
}

fn window(keys: &Keys<'_>, arch: Arch) -> Result<Option<Window>> {
    let (period, rope_base) = match arch {
        Arch::Gemma2 => (2, None),
        Arch::Gemma3 => (6, Some(10_000.0)),
        Arch::GptOss => {
            (keys.optional_size("attention.sliding_window_pattern")?.unwrap_or(2), None)
        }
        // Every layer.
        Arch::Phi3 => (usize::MAX, None),
        _ => return Ok(None),
    };
    let rows = keys.optional::<u32>("attention.sliding_window")?;
    Ok(rows.filter(|&rows| rows > 0).map(|rows| Window { rows, period, rope_base }))
}

fn experts(gguf: &Gguf, keys: &Keys<'_>, arch: Arch) -> Result<Option<Experts>> {
    let count = keys.optional_size("expert_count")?.unwrap_or(0);
    match (arch, count) {
        (_, 0) => Ok(None),
        (Arch::Qwen3Moe | Arch::Qwen2Moe | Arch::GptOss | Arch::DeepSeek2, _) => {
            let used = keys.size("expert_used_count")?;
            if used > count {
                let expected =
                    format!("there are {count} experts by `{}`", keys.key("expert_count"));
                return Err(keys.contradiction("expert_used_count", used, expected));
            }
            let qwen2 = arch == Arch::Qwen2Moe;
            let whole = || keys.size("feed_forward_length");
            // Old files of Qwen 2 have only the sum of what a token uses.
            let ff = match keys.optional_size("expert_feed_forward_length")? {
                Some(ff) => ff,
                None if qwen2 => whole()? / used,
                None => keys.size("expert_feed_forward_length")?,
            };
            let shared_ff = match keys.optional_size("expert_shared_feed_forward_length")? {
                _ if !qwen2 => None,
                Some(ff) => Some(ff),
                None => Some(whole()?),
            };
            let plain = Experts::new(count, used, ff);
            if arch == Arch::DeepSeek2 {
                return latent::experts(gguf, keys, plain).map(Some);
            }
            Ok(Some(Experts { shared_ff, shared_gate: qwen2, renormalise: !qwen2, ..plain }))
        }
        _ => {
            let expected = format!("`{}` models have no experts here", keys.prefix);
            Err(keys.contradiction("expert_count", count, expected))
        }
    }
}

/// What a number may be.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Sign {
    /// Above zero.
    Positive,
    /// Zero or above.
    NotNegative,
}

/// Keys of one architecture.
pub(super) struct Keys<'a> {
    meta: &'a Metadata,
    prefix: &'a str,
    arch: Arch,
}

impl<'a> Keys<'a> {
    /// The keys of the architecture that the file names.
    pub(super) fn of(meta: &'a Metadata) -> Result<Self> {
        let prefix = meta.str("general.architecture")?;
        let Some(family) = family_of(prefix) else {
            let names: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
            return Err(EngineError::Architecture {
                found: prefix.chars().take(64).collect(),
                supported: names.join(", "),
                nearest: nearest_family(prefix).map(|family| family.name),
            });
        };
        Ok(Self { meta, prefix, arch: family.arch })
    }

    /// The file's family, as it names it.
    pub(super) fn prefix(&self) -> &'a str {
        self.prefix
    }

    /// The file's family.
    pub(super) fn arch(&self) -> Arch {
        self.arch
    }

    /// The name of a key in the file.
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// The file's metadata.
    pub(super) fn meta(&self) -> &'a Metadata {
        self.meta
    }

    pub(super) fn optional<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>> {
        Ok(self.meta.optional(&self.key(key))?)
    }

    /// A number of things: at least one, and small enough to multiply.
    pub(super) fn size(&self, key: &str) -> Result<usize> {
        let found: u32 = self.meta.required(&self.key(key))?;
        self.checked(key, found)
    }

    /// As [`size`](Self::size); zero is as good as no key.
    pub(super) fn optional_size(&self, key: &str) -> Result<Option<usize>> {
        match self.optional::<u32>(key)? {
            Some(0) | None => Ok(None),
            Some(found) => self.checked(key, found).map(Some),
        }
    }

    fn checked(&self, key: &str, found: u32) -> Result<usize> {
        if !(1..=1 << 24).contains(&found) {
            return Err(self.wrong(key, found, "a number from 1 to 16777216"));
        }
        Ok(found as usize)
    }

    /// A finite number.
    fn number(&self, key: &str, sign: Sign) -> Result<f32> {
        let found = self.meta.required(&self.key(key))?;
        self.finite(key, found, sign)
    }

    pub(super) fn optional_number(&self, key: &str, sign: Sign) -> Result<Option<f32>> {
        self.optional(key)?.map(|found| self.finite(key, found, sign)).transpose()
    }

    fn finite(&self, key: &str, found: f32, sign: Sign) -> Result<f32> {
        let (fits, expected) = match sign {
            Sign::Positive => (found > 0.0, "a finite number above zero"),
            Sign::NotNegative => (found >= 0.0, "a finite number that is not negative"),
        };
        if fits && found.is_finite() { Ok(found) } else { Err(self.wrong(key, found, expected)) }
    }

    /// Refuses another head size than the one that follows from the key `source`.
    pub(super) fn expect_head_size(&self, key: &str, expected: usize, source: &str) -> Result<()> {
        match self.optional_size(key)? {
            Some(found) if found != expected => {
                let expected = format!("the head size {expected} of `{}`", self.key(source));
                Err(self.wrong(key, found, &expected))
            }
            _ => Ok(()),
        }
    }

    /// A value where another is needed.
    pub(super) fn wrong(&self, key: &str, found: impl ToString, expected: &str) -> EngineError {
        self.contradiction(key, found, format!("{expected} is needed"))
    }

    /// A value that something else contradicts.
    pub(super) fn contradiction(
        &self,
        key: &str,
        found: impl ToString,
        expected: String,
    ) -> EngineError {
        EngineError::Parameter { key: self.key(key), found: found.to_string(), expected }
    }
}
