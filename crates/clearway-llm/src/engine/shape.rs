//! Hyper-parameters of a file to a shape.

use super::{EngineError, Result};
use crate::gguf::{FromValue, Gguf, Metadata};
use crate::model::{Arch, Experts, ModelShape, Window};

const SUPPORTED: &str = "llama, qwen2, qwen3, qwen3moe, gemma2, gemma3";

/// The shape a file describes.
///
/// # Errors
/// A family or hyper-parameter that is not supported, or one that is missing.
pub fn model_shape(gguf: &Gguf) -> Result<ModelShape> {
    let meta = gguf.metadata();
    let name = meta.str("general.architecture")?;
    let arch = match name {
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
    let keys = Keys { meta, prefix: name };
    let (embd, heads) = (keys.size("embedding_length")?, keys.size("attention.head_count")?);
    let kv_heads = keys.optional_size("attention.head_count_kv")?.unwrap_or(heads);
    let head_dim = match keys.optional_size("attention.key_length")? {
        Some(size) => size,
        None => embd / heads,
    };
    keys.expect_equal("attention.value_length", head_dim)?;
    keys.expect_equal("rope.dimension_count", head_dim)?;
    if !heads.is_multiple_of(kv_heads) || !head_dim.is_multiple_of(2) {
        return Err(keys.wrong("attention.head_count_kv", kv_heads, "a divisor of the heads"));
    }
    let table = gguf.tensor("token_embd.weight")?;
    let vocab = *table.dims().last().unwrap_or(&0);
    let ff = keys.optional_size("feed_forward_length")?.unwrap_or(0);
    let layers = keys.size("block_count")?;
    let title = meta.optional::<&str>("general.name")?.unwrap_or(name);
    let mut shape =
        ModelShape::new(title, arch, layers, embd, ff, heads, kv_heads, head_dim, vocab);
    shape.tied = gguf.find_tensor("output.weight").is_none();
    shape.context = keys.size("context_length")?;
    shape.norm_eps = keys.required("attention.layer_norm_rms_epsilon")?;
    shape.rope_base = keys.optional("rope.freq_base")?.unwrap_or(shape.rope_base);
    shape.rope_scale = rope_scale(&keys)?;
    shape.attention_softcap = keys.optional("attn_logit_softcapping")?.unwrap_or(0.0);
    shape.logit_softcap = keys.optional("final_logit_softcapping")?.unwrap_or(0.0);
    shape.window = window(&keys, arch)?;
    shape.experts = experts(&keys, arch)?;
    Ok(shape)
}

fn rope_scale(keys: &Keys<'_>) -> Result<f32> {
    match keys.optional::<&str>("rope.scaling.type")? {
        None | Some("none") => Ok(1.0),
        Some("linear") => Ok(1.0 / keys.required::<f32>("rope.scaling.factor")?),
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
        (Arch::Qwen3Moe, _) => Ok(Some(Experts {
            count,
            used: keys.size("expert_used_count")?,
            ff: keys.size("expert_feed_forward_length")?,
            shared_ff: None,
            renormalise: true,
        })),
        _ => Err(keys.wrong("expert_count", count, "0 in this architecture")),
    }
}

/// Keys of one architecture.
struct Keys<'a> {
    meta: &'a Metadata,
    prefix: &'a str,
}

impl<'a> Keys<'a> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn required<T: FromValue<'a>>(&self, key: &str) -> Result<T> {
        Ok(self.meta.required(&self.key(key))?)
    }

    fn optional<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>> {
        Ok(self.meta.optional(&self.key(key))?)
    }

    /// A number of things: at least one, and small enough to multiply.
    fn size(&self, key: &str) -> Result<usize> {
        let found: u32 = self.required(key)?;
        self.checked(key, found)
    }

    fn optional_size(&self, key: &str) -> Result<Option<usize>> {
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

    fn expect_equal(&self, key: &str, expected: usize) -> Result<()> {
        match self.optional_size(key)? {
            Some(found) if found != expected => {
                Err(self.wrong(key, found, &format!("the head size {expected}")))
            }
            _ => Ok(()),
        }
    }

    fn wrong(&self, key: &str, found: impl ToString, expected: &str) -> EngineError {
        EngineError::Parameter {
            key: self.key(key),
            found: found.to_string(),
            expected: format!("{expected} is needed"),
        }
    }
}
