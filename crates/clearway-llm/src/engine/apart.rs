//! Tensors that hold several matrices of a layer, as the matrices that layers are made of.
//!
//! Some families have queries, keys and values in one tensor, or gate and up of the feed-forward part. Rows lie one after
//! another in files, so the parts are ranges of the file, and a layer of such a family is recorded, fused and placed as
//! any other.

use super::shape::Keys;
use super::{EngineError, Result, latent};
use crate::gguf::Gguf;
use crate::model::Arch;

/// How tensors that hold several matrices are cut: rows of the parts, as the file's keys give them.
pub(super) struct Cuts {
    q: usize,
    kv: usize,
    ff: usize,
    /// Whether `ffn_up` may hold the gate, too.
    gated: bool,
}

impl Cuts {
    /// How the tensors of a file are cut; `None` where each is one matrix.
    pub(super) fn of(gguf: &Gguf, keys: &Keys<'_>) -> Result<Option<Self>> {
        let is_joined = |name: &str| name.contains(".attn_qkv.");
        let gated = keys.arch().joins_gate_and_up();
        if !gated && !gguf.tensors().any(|tensor| is_joined(tensor.name())) {
            return Ok(None);
        }
        let heads = keys.size("attention.head_count")?;
        let kv_heads = keys.optional_size("attention.head_count_kv")?.unwrap_or(heads);
        let head = match keys.optional_size("attention.key_length")? {
            Some(size) => size,
            None => keys.size("embedding_length")? / heads,
        };
        let ff = keys.optional_size("feed_forward_length")?.unwrap_or(0);
        Ok(Some(Self { q: heads * head, kv: kv_heads * head, ff, gated }))
    }

    /// Names and rows of the matrices that a tensor of the file holds; `None` where it is one.
    pub(super) fn parts(&self, gguf: &Gguf, name: &str) -> Option<Vec<(String, usize)>> {
        let &Self { q, kv, ff, gated } = self;
        let (layer, part, kind) = names(name)?;
        let parts = match part {
            "attn_qkv" => vec![("attn_q", q), ("attn_k", kv), ("attn_v", kv)],
            // A file with both has them apart.
            "ffn_up"
                if gated && gguf.find_tensor(&format!("{layer}.ffn_gate.{kind}")).is_none() =>
            {
                vec![("ffn_gate", ff), ("ffn_up", ff)]
            }
            _ => return None,
        };
        Some(parts.iter().map(|(part, rows)| (format!("{layer}.{part}.{kind}"), *rows)).collect())
    }
}

/// A file with each matrix as a tensor of its own.
pub(super) fn apart(gguf: &Gguf, keys: &Keys<'_>) -> Result<Gguf> {
    if keys.arch() == Arch::DeepSeek2 {
        return latent::apart(gguf, keys);
    }
    let Some(cuts) = Cuts::of(gguf, keys)? else { return Ok(gguf.clone()) };
    let mut wrong = None;
    let cut = gguf.with_parts(|name, rows| {
        let parts = cuts.parts(gguf, name)?;
        let sum: usize = parts.iter().map(|(_, rows)| rows).sum();
        if sum != rows && wrong.is_none() {
            let sizes = parts.iter().filter_map(|(part, rows)| {
                let (_, part, _) = names(part)?;
                Some(format!("{rows} of {part}"))
            });
            wrong = Some(EngineError::TensorShape {
                name: name.to_owned(),
                found: format!("a tensor of {rows} rows"),
                expected: format!("{sum} rows ({})", sizes.collect::<Vec<_>>().join(", ")),
            });
        }
        Some(parts)
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
