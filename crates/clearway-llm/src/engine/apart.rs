//! Tensors that hold several matrices of a layer, as the matrices that layers are made of.
//!
//! Some families have queries, keys and values in one tensor, or gate and up of the feed-forward part. Rows lie one after
//! another in files, so the parts are ranges of the file, and a layer of such a family is recorded, fused and placed as
//! any other.

use super::shape::Keys;
use super::{EngineError, Result, latent};
use crate::gguf::Gguf;
use crate::model::Arch;

/// Rows of the parts, as the file's keys give them.
struct Sizes {
    q: usize,
    kv: usize,
    ff: usize,
}

/// A file with each matrix as a tensor of its own.
pub(super) fn apart(gguf: &Gguf, keys: &Keys<'_>) -> Result<Gguf> {
    if keys.arch() == Arch::DeepSeek2 {
        return latent::apart(gguf, keys);
    }
    let is_joined = |name: &str| name.contains(".attn_qkv.");
    let gated = keys.arch().joins_gate_and_up();
    if !gated && !gguf.tensors().any(|tensor| is_joined(tensor.name())) {
        return Ok(gguf.clone());
    }
    let heads = keys.size("attention.head_count")?;
    let kv_heads = keys.optional_size("attention.head_count_kv")?.unwrap_or(heads);
    let head = match keys.optional_size("attention.key_length")? {
        Some(size) => size,
        None => keys.size("embedding_length")? / heads,
    };
    let (q, kv) = (heads * head, kv_heads * head);
    let sizes = Sizes { q, kv, ff: keys.optional_size("feed_forward_length")?.unwrap_or(0) };
    let mut wrong = None;
    let cut = gguf.with_parts(|name, rows| {
        let (layer, part, kind) = names(name)?;
        let parts = match part {
            "attn_qkv" => {
                let Sizes { q, kv, .. } = sizes;
                vec![("attn_q", q), ("attn_k", kv), ("attn_v", kv)]
            }
            // A file with both has them apart.
            "ffn_up"
                if gated && gguf.find_tensor(&format!("{layer}.ffn_gate.{kind}")).is_none() =>
            {
                vec![("ffn_gate", sizes.ff), ("ffn_up", sizes.ff)]
            }
            _ => return None,
        };
        let sum: usize = parts.iter().map(|(_, rows)| rows).sum();
        if sum != rows && wrong.is_none() {
            let sizes = parts.iter().map(|(part, rows)| format!("{rows} of {part}"));
            wrong = Some(EngineError::TensorShape {
                name: name.to_owned(),
                found: format!("a tensor of {rows} rows"),
                expected: format!("{sum} rows ({})", sizes.collect::<Vec<_>>().join(", ")),
            });
        }
        Some(parts.iter().map(|(part, rows)| (format!("{layer}.{part}.{kind}"), *rows)).collect())
    });
    match wrong {
        Some(error) => Err(error),
        None => Ok(cut?),
    }
}

/// `blk.3`, `ffn_up` and `weight` of `blk.3.ffn_up.weight`.
fn names(name: &str) -> Option<(&str, &str, &str)> {
    let (rest, kind) = name.rsplit_once('.')?;
    let (layer, part) = rest.rsplit_once('.')?;
    (layer.starts_with("blk.") && matches!(kind, "weight" | "bias")).then_some((layer, part, kind))
}
