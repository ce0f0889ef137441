//! Hyper-parameters of a file to a shape.
//!
//! Every number that sizes something is held against the other numbers here and against the tensors of the file in
//! [`check`], before anything is recorded. So what a shape costs is bounded by what the file holds.

use super::{EngineError, Result, check};
use crate::gguf::{FromValue, Gguf, Metadata};
use crate::model::{Arch, Experts, ModelShape, Window};

const SUPPORTED: &str = "llama, qwen2, qwen3, qwen3moe, gemma2, gemma3";

/// The shape a file describes.
///
/// # Errors
/// A family or hyper-parameter that is not supported, one that is missing, and one that contradicts another
/// or the file's tensors.
pub fn model_shape(gguf: &Gguf) -> Result<ModelShape> {
    let keys = Keys::of(gguf.metadata())?;
    let shape = read(gguf, &keys)?;
    check::tensors(gguf, &keys, &shape)?;
    Ok(shape)
}

/// The shape as the metadata has it.
fn read(gguf: &Gguf, keys: &Keys<'_>) -> Result<ModelShape> {
    let (arch, meta) = (keys.arch, keys.meta);
    let (embd, heads) = (keys.size("embedding_length")?, keys.size("attention.head_count")?);
    let kv_heads = keys.optional_size("attention.head_count_kv")?.unwrap_or(heads);
    let (head_dim, source) = head_dim(keys, embd, heads)?;
    keys.expect_head_size("attention.value_length", head_dim, source)?;
    keys.expect_head_size("rope.dimension_count", head_dim, source)?;
    if !heads.is_multiple_of(kv_heads) {
        let expected = format!("a divisor of `{}`, {heads},", keys.key("attention.head_count"));
        return Err(keys.wrong("attention.head_count_kv", kv_heads, &expected));
    }
    let vocab = check::vocab(gguf, keys, embd)?;
    let experts = experts(keys, arch)?;
    let ff = match experts {
        Some(_) => keys.optional_size("feed_forward_length")?.unwrap_or(0),
        None => keys.size("feed_forward_length")?,
    };
    let layers = keys.size("block_count")?;
    let title = meta.optional::<&str>("general.name")?.unwrap_or(keys.prefix);
    let mut shape =
        ModelShape::new(title, arch, layers, embd, ff, heads, kv_heads, head_dim, vocab);
    shape.tied = gguf.find_tensor("output.weight").is_none();
    shape.context = keys.size("context_length")?;
    shape.norm_eps = keys.number("attention.layer_norm_rms_epsilon", Sign::NotNegative)?;
    shape.rope_base =
        keys.optional_number("rope.freq_base", Sign::Positive)?.unwrap_or(shape.rope_base);
    shape.rope_scale = rope_scale(keys)?;
    let cap = |key: &str| {
        Ok::<_, EngineError>(keys.optional_number(key, Sign::NotNegative)?.unwrap_or(0.0))
    };
    shape.attention_softcap = cap("attn_logit_softcapping")?;
    shape.logit_softcap = cap("final_logit_softcapping")?;
    shape.window = window(keys, arch)?;
    shape.experts = experts;
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
fn rope_scale(keys: &Keys<'_>) -> Result<f32> {
    match keys.optional::<&str>("rope.scaling.type")? {
        None | Some("none") => Ok(1.0),
        Some("linear") => Ok(1.0 / keys.number("rope.scaling.factor", Sign::Positive)?),
        Some(other) => Err(keys.wrong("rope.scaling.type", other, "none or linear")),
    }
}

fn window(keys: &Keys<'_>, arch: Arch) -> Result<Option<Window>> {
    let (period, rope_base) = match arch {
        Arch::Gemma2 => (2, None),
        Arch::Gemma3 => (6, Some(10_000.0)),
        _ => return Ok(None),
    };
    let rows = keys.optional::<u32>("attention.sliding_window")?;
    Ok(rows.filter(|&rows| rows > 0).map(|rows| Window { rows, period, rope_base }))
}

fn experts(keys: &Keys<'_>, arch: Arch) -> Result<Option<Experts>> {
    let count = keys.optional_size("expert_count")?.unwrap_or(0);
    match (arch, count) {
        (_, 0) => Ok(None),
        (Arch::Qwen3Moe, _) => {
            let used = keys.size("expert_used_count")?;
            if used > count {
                let expected =
                    format!("there are {count} experts by `{}`", keys.key("expert_count"));
                return Err(keys.contradiction("expert_used_count", used, expected));
            }
            let ff = keys.size("expert_feed_forward_length")?;
            Ok(Some(Experts { count, used, ff, shared_ff: None, renormalise: true }))
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
    fn of(meta: &'a Metadata) -> Result<Self> {
        let prefix = meta.str("general.architecture")?;
        let arch = match prefix {
            "llama" => Arch::Llama,
            "qwen2" => Arch::Qwen2,
            "qwen3" => Arch::Qwen3,
            "qwen3moe" => Arch::Qwen3Moe,
            "gemma2" => Arch::Gemma2,
            "gemma3" => Arch::Gemma3,
            other => {
                let found = other.chars().take(64).collect();
                return Err(EngineError::Architecture { found, supported: SUPPORTED });
            }
        };
        Ok(Self { meta, prefix, arch })
    }

    /// The name of a key in the file.
    pub(super) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// The file's metadata.
    pub(super) fn meta(&self) -> &'a Metadata {
        self.meta
    }

    fn optional<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>> {
        Ok(self.meta.optional(&self.key(key))?)
    }

    /// A number of things: at least one, and small enough to multiply.
    fn size(&self, key: &str) -> Result<usize> {
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

    fn optional_number(&self, key: &str, sign: Sign) -> Result<Option<f32>> {
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
    fn expect_head_size(&self, key: &str, expected: usize, source: &str) -> Result<()> {
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
