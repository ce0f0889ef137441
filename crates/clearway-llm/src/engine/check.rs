//! Hyper-parameters against the tensors that are really there.
//!
//! A file may say that it has a million layers. Recording them would take gigabytes before the first missing tensor is
//! noticed. So the tensors are asked first: where a key disagrees with them, the error names the key; where one layer
//! disagrees with the others, it names the tensor.

use clearway::DType;

use super::shape::Keys;
use super::{EngineError, Result};
use crate::gguf::{Gguf, Strings, Tensor};
use crate::model::{
    self, HEADS, LONG_FACTORS, ModelShape, POSITIONS, ROPE_FACTORS, RecordOptions, SEEN,
    SHORT_FACTORS, Stretch, TOKENS,
};

/// Most layers of a model. The deepest in use have about 130; each takes some kilobytes when it is recorded.
const MAX_LAYERS: usize = 512;

const EMBEDDING: &str = "token_embd.weight";
const TOKEN_LIST: &str = "tokenizer.ggml.tokens";

/// Tokens of the vocabulary: rows of the embedding.
pub(super) fn vocab(gguf: &Gguf, keys: &Keys<'_>, embd: usize) -> Result<usize> {
    let table = gguf.tensor(EMBEDDING)?;
    let &[width, vocab] = table.dims() else {
        return Err(shape_error(&table, &format!("a matrix with rows of {embd}")));
    };
    if width != embd {
        let expected = format!("rows of `{EMBEDDING}` have {width} elements");
        return Err(keys.contradiction("embedding_length", embd, expected));
    }
    let rows = || format!("`{EMBEDDING}` has {vocab} rows");
    match keys.optional_size("vocab_size")? {
        Some(found) if found != vocab => {
            return Err(keys.contradiction("vocab_size", found, rows()));
        }
        _ => {}
    }
    // Tokens without a row could be produced from text and not be looked up. Rows without a token are padding.
    match keys.meta().optional::<Strings<'_>>(TOKEN_LIST)? {
        Some(tokens) if tokens.len() > vocab => Err(EngineError::Parameter {
            key: TOKEN_LIST.into(),
            found: format!("a list of {}", tokens.len()),
            expected: rows(),
        }),
        _ => Ok(vocab),
    }
}

/// Compares a shape with every tensor it asks for.
pub(super) fn tensors(gguf: &Gguf, keys: &Keys<'_>, shape: &ModelShape) -> Result<()> {
    layers(gguf, keys, shape)?;
    sizes(gguf, keys, shape)?;
    rope_factors(gguf, shape)?;
    every_layer(gguf, shape)
}

/// The number of layers against the names of the tensors.
fn layers(gguf: &Gguf, keys: &Keys<'_>, shape: &ModelShape) -> Result<()> {
    const KEY: &str = "block_count";
    let there = gguf.tensors().filter_map(|tensor| layer_of(tensor.name())).max();
    let there = there.map_or(0, |last| last.saturating_add(1));
    let found = shape.layers as u64;
    if found > there {
        let expected = format!("the file has tensors of {there} layers and none of `blk.{there}.`");
        return Err(keys.contradiction(KEY, found, expected));
    }
    if found < there {
        let expected = format!("the file has tensors of `blk.{}.` too", there - 1);
        return Err(keys.contradiction(KEY, found, expected));
    }
    if shape.layers > MAX_LAYERS {
        return Err(keys.contradiction(KEY, found, format!("at most {MAX_LAYERS} are supported")));
    }
    Ok(())
}

/// The layer that a tensor belongs to by its name.
fn layer_of(name: &str) -> Option<u64> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// The sizes that keys give against the tensors of the first layer.
fn sizes(gguf: &Gguf, keys: &Keys<'_>, shape: &ModelShape) -> Result<()> {
    let ModelShape { embd, heads, kv_heads, head_dim, .. } = *shape;
    let of_heads = |heads: usize| format!(" with heads of {head_dim}, {} rows", heads * head_dim);
    let expect = |key: &str, value: usize, more: String, part: &str, rows: usize| {
        let name = format!("{part}.weight");
        let tensor = gguf.tensor(&name)?;
        let &[width, found] = tensor.dims() else {
            return Err(shape_error(&tensor, &format!("a matrix of [{rows}, {embd}]")));
        };
        match (width == embd, found == rows) {
            (true, true) => Ok(()),
            // Its rows contradict the embedding too, so the tensor is the odd one out.
            (false, _) => Err(shape_error(&tensor, &format!("a matrix with rows of {embd}"))),
            (true, false) => {
                let expected = format!("`{name}` has {found} rows");
                Err(keys.contradiction(key, format!("{value}{more}"), expected))
            }
        }
    };
    let plain = String::new;
    match shape.latent {
        None => {
            expect(
                "attention.head_count",
                heads,
                of_heads(heads),
                "blk.0.attn_q",
                heads * head_dim,
            )?;
            let (more, rows) = (of_heads(kv_heads), kv_heads * head_dim);
            expect("attention.head_count_kv", kv_heads, more, "blk.0.attn_k", rows)?;
        }
        Some(latent) => {
            let (rank, turned) = (latent.kv_rank, shape.rope_dims);
            let more = format!(" and {turned} elements that turn, {} rows", rank + turned);
            expect("attention.kv_lora_rank", rank, more, "blk.0.attn_kv_a_mqa", rank + turned)?;
            match latent.q_rank {
                Some(rank) => {
                    expect("attention.q_lora_rank", rank, plain(), "blk.0.attn_q_a", rank)?;
                }
                None => {
                    let (more, rows) = (of_heads(heads), heads * head_dim);
                    expect("attention.head_count", heads, more, "blk.0.attn_q", rows)?;
                }
            }
        }
    }
    if shape.experts_of(0).is_none() {
        expect("feed_forward_length", shape.ff, plain(), "blk.0.ffn_up", shape.ff)?;
    }
    let first = shape.dense_layers;
    let Some(experts) = shape.experts.filter(|_| first < shape.layers) else { return Ok(()) };
    let router = format!("blk.{first}.ffn_gate_inp");
    expect("expert_count", experts.count, plain(), &router, experts.count)?;
    let name = format!("blk.{first}.ffn_up_exps.weight");
    let tensor = gguf.tensor(&name)?;
    match *tensor.dims() {
        [_, rows, count] if rows != experts.ff && count == experts.count => {
            let expected = format!("`{name}` has {rows} rows for each expert");
            Err(keys.contradiction("expert_feed_forward_length", experts.ff, expected))
        }
        _ => Ok(()),
    }
}

/// What rotary frequencies are divided by: a float for each pair that turns.
fn rope_factors(gguf: &Gguf, shape: &ModelShape) -> Result<()> {
    let pairs = shape.rope_dims / 2;
    let check = |tensor: Tensor<'_>| match tensor.dims() {
        [found] if *found == pairs && tensor.dtype() == DType::F32 => Ok(()),
        _ => Err(shape_error(&tensor, &format!("f32 [{pairs}]"))),
    };
    if let Stretch::Long { .. } = shape.stretch {
        check(gguf.tensor(SHORT_FACTORS)?)?;
        return check(gguf.tensor(LONG_FACTORS)?);
    }
    gguf.find_tensor(ROPE_FACTORS).map_or(Ok(()), check)
}

/// Every tensor of every layer. The first layer of each kind is recorded to learn what it asks for; the others ask for the same.
fn every_layer(gguf: &Gguf, shape: &ModelShape) -> Result<()> {
    let dtype = |name: &str| gguf.find_tensor(name).map_or(DType::F32, |tensor| tensor.dtype());
    let options = RecordOptions { weight_dtype: &dtype, ..RecordOptions::new(1, 1) };
    // Layers without experts come first.
    let kind =
        |layer: usize| if shape.experts_of(layer).is_some() { shape.dense_layers } else { 0 };
    let last = kind(shape.layers - 1);
    let first = ModelShape { layers: last + 1, ..shape.clone() };
    for external in model::record(&first, &options)?.into_externals() {
        let name = &*external.name;
        if matches!(name, TOKENS | POSITIONS | SEEN | ROPE_FACTORS | HEADS)
            || name.starts_with("cache.")
        {
            continue;
        }
        let expected = external.view.layout.dims();
        let fits = |tensor: &Tensor<'_>| {
            let found = tensor.dims().iter().rev();
            found.copied().eq(expected.iter().map(|&dim| dim as usize))
        };
        let check = |name: &str| {
            let tensor = gguf.tensor(name)?;
            if fits(&tensor) { Ok(()) } else { Err(shape_error(&tensor, &format!("{expected:?}"))) }
        };
        let Some((layer, part)) = layer_of(name).zip(name.splitn(3, '.').nth(2)) else {
            check(name)?;
            continue;
        };
        let alike = (0..shape.layers).filter(|&n| kind(n) as u64 == layer);
        alike.into_iter().try_for_each(|n| check(&format!("blk.{n}.{part}")))?;
    }
    Ok(())
}

fn shape_error(tensor: &Tensor<'_>, expected: &str) -> EngineError {
    let dims: Vec<usize> = tensor.dims().iter().rev().copied().collect();
    EngineError::TensorShape {
        name: tensor.name().to_owned(),
        found: format!("{} {dims:?}", tensor.dtype()),
        expected: expected.to_owned(),
    }
}
