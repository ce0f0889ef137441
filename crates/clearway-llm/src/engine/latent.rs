//! Files with latent attention: sizes, groups of experts, and old files whose matrices of keys and values are one tensor.

use clearway::quant::block_decoder;
use clearway::{DType, RouterGroups};
use half::{bf16, f16};

use super::shape::{Keys, Sign};
use super::{EngineError, Result};
use crate::gguf::{Gguf, Making, Tensor};
use crate::model::{Experts, Latent, ModelShape, Stretch};

const KV_RANK: &str = "attention.kv_lora_rank";
const ROPE_DIMS: &str = "rope.dimension_count";
const GROUPS: &str = "expert_group_count";
const GROUPS_USED: &str = "expert_group_used_count";
const GATING: &str = "expert_gating_func";

/// Most experts that a router can choose by groups.
const MOST_GROUPED: usize = 1024;

/// Sizes of heads as a file has them.
pub(super) struct Sizes {
    pub(super) latent: Latent,
    /// Size of a head of queries and keys, and the key it follows from.
    pub(super) head: usize,
    pub(super) source: &'static str,
}

/// The sizes of heads. New files have the size of the cache's heads as that of keys, and those of heads under names of their own.
pub(super) fn sizes(keys: &Keys<'_>) -> Result<Sizes> {
    refuse(keys)?;
    let kv_rank = keys.size(KV_RANK)?;
    let turned = keys.size(ROPE_DIMS)?;
    let (head, value, source) = match keys.optional_size("attention.key_length_mla")? {
        None => {
            let value = keys.size("attention.value_length")?;
            (keys.size("attention.key_length")?, value, "attention.key_length")
        }
        Some(head) => {
            for (key, size) in
                [("attention.key_length", kv_rank + turned), ("attention.value_length", kv_rank)]
            {
                keys.expect_head_size(key, size, KV_RANK)?;
            }
            (head, keys.size("attention.value_length_mla")?, "attention.key_length_mla")
        }
    };
    if turned >= head {
        let expected = format!("a part of the head size {head} of `{}`", keys.key(source));
        return Err(keys.wrong(ROPE_DIMS, turned, &expected));
    }
    let heads = keys.size("attention.head_count")?;
    match keys.optional_size("attention.head_count_kv")? {
        Some(found) if found != 1 && found != heads => {
            let expected = format!("1 or the {heads} of `{}`", keys.key("attention.head_count"));
            return Err(keys.wrong("attention.head_count_kv", found, &expected));
        }
        _ => {}
    }
    let q_rank = keys.optional_size("attention.q_lora_rank")?;
    let latent = Latent { q_rank, kv_rank, plain: head - turned, value };
    Ok(Sizes { latent, head, source })
}

/// What some files of the family have and nothing here computes.
fn refuse(keys: &Keys<'_>) -> Result<()> {
    if let Some(found) = keys.optional_size("nextn_predict_layers")? {
        let expected =
            "layers that predict further tokens are not supported; convert the model without them"
                .into();
        return Err(keys.contradiction("nextn_predict_layers", found, expected));
    }
    let key = "attention.temperature_scale";
    match keys.optional_number(key, Sign::NotNegative)? {
        Some(found) if found != 0.0 => {
            let expected = "scores that are scaled by positions are not supported".into();
            Err(keys.contradiction(key, found, expected))
        }
        _ => Ok(()),
    }
}

/// Scores are multiplied where other models stretched by YaRN have longer queries and keys.
pub(super) fn stretch(keys: &Keys<'_>, shape: &mut ModelShape) -> Result<()> {
    let Stretch::Yarn(mut yarn) = shape.stretch else { return Ok(()) };
    let factor = keys.optional_number("rope.scaling.attn_factor", Sign::Positive)?.unwrap_or(1.0);
    let log = keys.optional_number("rope.scaling.yarn_log_multiplier", Sign::NotNegative)?;
    yarn.log_multiplier = log.unwrap_or(0.0);
    shape.stretch = Stretch::Yarn(yarn);
    shape.rope_magnitude = factor;
    shape.attention_scale = factor * factor * yarn.latent_scale(shape.head_dim);
    Ok(())
}

/// The layers in front that have no experts.
pub(super) fn dense_layers(keys: &Keys<'_>, layers: usize) -> Result<usize> {
    const KEY: &str = "leading_dense_block_count";
    match keys.optional_size(KEY)?.unwrap_or(0) {
        found if found > layers => {
            let expected = format!("there are {layers} layers by `{}`", keys.key("block_count"));
            Err(keys.contradiction(KEY, found, expected))
        }
        found => Ok(found),
    }
}

/// How experts are weighed and chosen.
pub(super) fn experts(gguf: &Gguf, keys: &Keys<'_>, plain: Experts) -> Result<Experts> {
    let Experts { count, used, ff, .. } = plain;
    let sigmoid = match keys.optional::<u32>(GATING)?.unwrap_or(0) {
        // Files from before V3 have no such key.
        0 | 1 => false,
        2 => true,
        found => return Err(keys.wrong(GATING, found, "1 (softmax) or 2 (sigmoid)")),
    };
    let bias = gguf.tensors().any(|tensor| tensor.name().ends_with(".exp_probs_b.bias"));
    if bias && !sigmoid {
        let expected = "the file has biases of experts, which only sigmoids (2) have".into();
        return Err(keys.contradiction(GATING, 1, expected));
    }
    let groups = keys.optional_size(GROUPS)?.unwrap_or(1);
    let groups_used = keys.optional_size(GROUPS_USED)?.unwrap_or(groups);
    if !count.is_multiple_of(groups) || (sigmoid && groups > 1 && count / groups < 2) {
        let expected = format!("a number that cuts the {count} experts into groups of at least 2");
        return Err(keys.wrong(GROUPS, groups, &expected));
    }
    if groups_used > groups || groups_used * (count / groups) < used {
        let expected = format!("as many of the {groups} groups as hold the {used} experts used");
        return Err(keys.wrong(GROUPS_USED, groups_used, &expected));
    }
    if (bias || groups > 1) && count > MOST_GROUPED {
        let expected = format!("at most {MOST_GROUPED} with groups or biases");
        return Err(keys.wrong("expert_count", count, &expected));
    }
    let scale = keys.optional_number("expert_weights_scale", Sign::NotNegative)?;
    // The score of a group is its best of softmaxes (V2) or its best two of sigmoids (V3).
    let best = if sigmoid && groups > 1 { 2 } else { 1 };
    Ok(Experts {
        shared_ff: keys.optional_size("expert_shared_count")?.map(|shared| shared * ff),
        renormalise: keys.optional::<bool>("expert_weights_norm")?.unwrap_or(false),
        sigmoid,
        scale: scale.filter(|&scale| scale > 0.0).unwrap_or(1.0),
        bias,
        groups: RouterGroups { count: groups, used: groups_used, best },
        ..plain
    })
}

/// A file with the matrices of keys and values as tensors of their own. Old files have both in one, head after head; keys must be
/// transposed for attention over the rows themselves.
pub(super) fn apart(gguf: &Gguf, keys: &Keys<'_>) -> Result<Gguf> {
    const JOINED: &str = ".attn_kv_b.weight";
    let named = |layer: &str, part: &str| format!("{layer}.{part}.weight");
    let is_joined = |tensor: &Tensor<'_>| {
        let layer = tensor.name().strip_suffix(JOINED)?;
        gguf.find_tensor(&named(layer, "attn_k_b")).is_none().then(|| layer.to_owned())
    };
    if !gguf.tensors().any(|tensor| is_joined(&tensor).is_some()) {
        return Ok(gguf.clone());
    }
    let Latent { kv_rank, plain, value, .. } = sizes(keys)?.latent;
    let heads = keys.size("attention.head_count")?;
    let mut wrong = None;
    let made = gguf.with_made(|tensor| {
        let layer = is_joined(tensor)?;
        let rows = heads * (plain + value);
        if *tensor.dims() != [kv_rank, rows] {
            wrong = wrong.take().or_else(|| {
                let dims: Vec<usize> = tensor.dims().iter().rev().copied().collect();
                Some(EngineError::TensorShape {
                    name: tensor.name().to_owned(),
                    found: format!("{} {dims:?}", tensor.dtype()),
                    expected: format!("[{rows}, {kv_rank}], {plain} and {value} rows of each head"),
                })
            });
            return None;
        }
        let (dtype, sizes) = (tensor.dtype(), [kv_rank, plain, value]);
        let held = match dtype {
            DType::F32 | DType::F16 | DType::BF16 => dtype,
            _ => DType::F16,
        };
        Some(vec![
            Making {
                name: named(&layer, "attn_k_b"),
                dtype: held,
                dims: vec![plain, kv_rank, heads],
                make: Box::new(move |bytes| transposed_keys(bytes, dtype, held, sizes)),
            },
            Making {
                name: named(&layer, "attn_v_b"),
                dtype,
                dims: vec![kv_rank, value, heads],
                make: Box::new(move |bytes| values(bytes, dtype, sizes)),
            },
        ])
    });
    match wrong {
        Some(error) => Err(error),
        None => Ok(made?),
    }
}

/// Bytes of a row of a tensor.
fn row_bytes(dtype: DType, elems: usize) -> usize {
    elems / dtype.block_elems() * dtype.block_bytes()
}

/// The first rows of each head, as columns.
fn transposed_keys(
    bytes: &[u8],
    from: DType,
    to: DType,
    [rank, plain, value]: [usize; 3],
) -> Vec<u8> {
    let Some(decode) = block_decoder(from) else { return Vec::new() };
    let row = row_bytes(from, rank);
    let (mut rows, mut out) = (vec![0.0_f32; plain * rank], Vec::new());
    for head in bytes.chunks_exact((plain + value) * row) {
        decode(&head[..plain * row], &mut rows);
        for column in 0..rank {
            let elems = (0..plain).map(|element| rows[element * rank + column]);
            match to {
                DType::F32 => out.extend(elems.flat_map(f32::to_le_bytes)),
                DType::BF16 => out.extend(elems.flat_map(|x| bf16::from_f32(x).to_le_bytes())),
                // What f16 cannot hold becomes its largest number, not infinity.
                _ => out.extend(elems.flat_map(|x| {
                    let limit = f16::MAX.to_f32();
                    f16::from_f32(x.clamp(-limit, limit)).to_le_bytes()
                })),
            }
        }
    }
    out
}

/// The other rows of each head, as they are.
fn values(bytes: &[u8], dtype: DType, [rank, plain, value]: [usize; 3]) -> Vec<u8> {
    let row = row_bytes(dtype, rank);
    let heads = bytes.chunks_exact((plain + value) * row);
    heads.flat_map(|head| head[plain * row..].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_joined_tensors_are_transposed_and_values_are_cut_out() {
        // Two heads of three rows of keys and one of values, each of two elements.
        let elems: Vec<f32> = (0..16).map(|i| i as f32).collect();
        let bytes: Vec<u8> = elems.iter().flat_map(|x| x.to_le_bytes()).collect();
        let floats = |bytes: Vec<u8>| -> Vec<f32> {
            bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
        };
        let sizes = [2, 3, 1];
        let keys = floats(transposed_keys(&bytes, DType::F32, DType::F32, sizes));
        assert_eq!(keys, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0, 8.0, 10.0, 12.0, 9.0, 11.0, 13.0]);
        assert_eq!(floats(values(&bytes, DType::F32, sizes)), [6.0, 7.0, 14.0, 15.0]);
        let halves = transposed_keys(&bytes, DType::F32, DType::F16, sizes);
        let halves: Vec<f32> =
            halves.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes).to_f32()).collect();
        assert_eq!(halves, keys);
    }
}
