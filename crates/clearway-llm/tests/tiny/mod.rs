//! The tiny models of data/models/make_logits.py: their shapes, weights and logits.

use clearway::{DType, quant};
use clearway_llm::gguf::{Gguf, GgufWriter};
use clearway_llm::model::{
    self, Arch, Experts, ModelShape, POSITIONS, ROPE_FACTORS, RecordOptions, TOKENS, Window,
};

/// The shapes of make_logits.py, by name.
pub fn shapes() -> Vec<(&'static str, ModelShape)> {
    let base = |arch, heads, kv_heads, head_dim| {
        ModelShape::new("tiny", arch, 3, 32, 48, heads, kv_heads, head_dim, 96)
    };
    let gemma = |arch| ModelShape { tied: true, ..base(arch, 4, 2, 8) };
    let experts = |count, used, ff, shared_ff, renormalise| {
        Some(Experts { shared_ff, renormalise, ..Experts::new(count, used, ff) })
    };
    vec![
        ("llama", base(Arch::Llama, 4, 2, 8)),
        (
            "llama_tied",
            ModelShape { tied: true, rope_base: 500_000.0, ..base(Arch::Llama, 3, 1, 8) },
        ),
        (
            "qwen2",
            ModelShape { rope_base: 1_000_000.0, norm_eps: 1e-6, ..base(Arch::Qwen2, 4, 2, 8) },
        ),
        ("qwen3", ModelShape { tied: true, ..base(Arch::Qwen3, 4, 2, 16) }),
        (
            "qwen3moe",
            ModelShape { experts: experts(6, 3, 16, None, true), ..base(Arch::Qwen3Moe, 4, 2, 8) },
        ),
        (
            "gemma2",
            ModelShape {
                attention_scale: 0.25,
                attention_softcap: 2.0,
                logit_softcap: 1.5,
                window: Some(Window { rows: 3, period: 2, rope_base: None }),
                ..gemma(Arch::Gemma2)
            },
        ),
        (
            "gemma3",
            ModelShape {
                window: Some(Window { rows: 4, period: 3, rope_base: Some(100.0) }),
                rope_base: 5000.0,
                rope_scale: 0.125,
                ..gemma(Arch::Gemma3)
            },
        ),
        (
            "moe_shared",
            ModelShape {
                experts: experts(8, 2, 24, Some(40), false),
                ..base(Arch::MoeShared, 4, 2, 8)
            },
        ),
    ]
}

/// Shapes of make_logits.py that only files are tried with: what their metadata can say.
#[allow(dead_code)] // recorders.rs has no files
pub fn file_shapes() -> Vec<(&'static str, ModelShape)> {
    let base = |arch, kv_heads, head_dim| {
        ModelShape::new("tiny", arch, 3, 32, 48, 4, kv_heads, head_dim, 96)
    };
    vec![
        ("llama3_file", ModelShape { rope_base: 500_000.0, ..base(Arch::Llama, 2, 8) }),
        ("llama_linear_file", ModelShape { rope_scale: 0.25, ..base(Arch::Llama, 2, 8) }),
        ("mistral_file", ModelShape { rope_base: 1_000_000.0, ..base(Arch::Llama, 1, 16) }),
        (
            "gemma2_file",
            ModelShape {
                attention_softcap: 2.0,
                logit_softcap: 1.5,
                window: Some(Window { rows: 3, period: 2, rope_base: None }),
                tied: true,
                ..base(Arch::Gemma2, 2, 8)
            },
        ),
        (
            "gemma3_file",
            ModelShape {
                layers: 7,
                window: Some(Window { rows: 3, period: 6, rope_base: Some(10_000.0) }),
                rope_base: 1_000_000.0,
                rope_scale: 0.125,
                tied: true,
                ..base(Arch::Gemma3, 2, 8)
            },
        ),
    ]
}

/// What Llama 3 divides its rotary frequencies by, in `llama3_file`.
#[allow(dead_code)] // recorders.rs has no files
pub fn rope_factors(pairs: usize) -> Vec<f32> {
    (0..pairs).map(|pair| 1.0 + 0.75 * pair as f32).collect()
}

/// The weight both sides make from a tensor's name.
pub fn weight(name: &str, elems: usize, cols: usize) -> Vec<f32> {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let unit = |index: usize| {
        let mut z = hash.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let scale = 4.0 / (cols as f32).sqrt();
    (0..elems)
        .map(|index| match name {
            _ if name.ends_with("norm.weight") => 1.0 + 0.5 * unit(index),
            _ if name.ends_with("bias") => unit(index),
            _ => unit(index) * scale,
        })
        .collect()
}

/// The tokens of all models, and the logits of one after each of them.
#[allow(dead_code)] // sequences.rs compares with single streams
pub fn golden(model: &str) -> (Vec<u32>, Vec<Vec<f32>>) {
    let text = include_str!("../data/models/logits.json");
    let data: serde_json::Value = serde_json::from_str(text).unwrap();
    let tokens = serde_json::from_value(data["tokens"].clone()).unwrap();
    (tokens, serde_json::from_value(data["logits"][model].clone()).unwrap())
}

/// Fails unless logits agree as far as two orders of float32 summation can.
#[allow(dead_code)] // sequences.rs compares with single streams
pub fn assert_close(name: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let scale = expected.iter().map(|v| v.abs()).fold(0.0, f32::max);
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= 2e-5 * scale, "{name}: {worst} off at scale {scale}");
}

/// A file of this shape with the weights of make_logits.py.
#[allow(dead_code)] // recorders.rs has no files
pub fn file(arch: &str, shape: &ModelShape, change: impl Fn(&mut GgufWriter<'_>)) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", arch).unwrap();
    let mut set = |key: &str, value: usize| {
        writer.set(&format!("{arch}.{key}"), &(value as u32)).unwrap();
    };
    set("block_count", shape.layers);
    set("embedding_length", shape.embd);
    set("feed_forward_length", shape.ff);
    set("attention.head_count", shape.heads);
    set("attention.head_count_kv", shape.kv_heads);
    set("attention.key_length", shape.head_dim);
    set("attention.value_length", shape.head_dim);
    set("vocab_size", shape.vocab);
    if let Some(window) = shape.window {
        set("attention.sliding_window", window.rows as usize);
    }
    set("context_length", 64);
    if let Some(experts) = shape.experts {
        set("expert_count", experts.count);
        set("expert_used_count", experts.used);
        set("expert_feed_forward_length", experts.ff);
    }
    let eps = format!("{arch}.attention.layer_norm_rms_epsilon");
    writer.set(&eps, &shape.norm_eps).unwrap();
    writer.set(&format!("{arch}.rope.freq_base"), &shape.rope_base).unwrap();
    if shape.rope_scale != 1.0 {
        writer.set(&format!("{arch}.rope.scaling.type"), "linear").unwrap();
        let factor = 1.0 / shape.rope_scale;
        writer.set(&format!("{arch}.rope.scaling.factor"), &factor).unwrap();
    }
    for (key, cap) in [
        ("attn_logit_softcapping", shape.attention_softcap),
        ("final_logit_softcapping", shape.logit_softcap),
    ] {
        if cap != 0.0 {
            writer.set(&format!("{arch}.{key}"), &cap).unwrap();
        }
    }
    let record = RecordOptions { weight_dtype: &|_| DType::F32, ..RecordOptions::new(1, 4) };
    for external in model::record(shape, &record).unwrap().into_externals() {
        let name = &*external.name;
        if [TOKENS, POSITIONS, ROPE_FACTORS].contains(&name) || name.starts_with("cache.") {
            continue;
        }
        let layout = external.view.layout;
        let dims: Vec<usize> = layout.dims().iter().rev().map(|&d| d as usize).collect();
        let values = weight(name, layout.elems(), layout.cols());
        let write = move |out: &mut dyn std::io::Write| {
            values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
        };
        writer.tensor(name, DType::F32, &dims, write).unwrap();
    }
    change(&mut writer);
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).unwrap();
    bytes
}

/// The same file with matrices of this type, as far as their rows are whole blocks.
#[allow(dead_code)] // some of the tests that share this module have no blocks
pub fn quantised(plain: &Gguf, dtype: DType) -> Gguf {
    let mut writer = GgufWriter::new();
    for (key, value) in plain.metadata().iter() {
        writer.set_value(key, value).unwrap();
    }
    for tensor in plain.tensors() {
        // Norms stay f32, and so do rows that are no whole blocks.
        let whole = tensor.dims().len() > 1 && tensor.dims()[0] % dtype.block_elems() == 0;
        let dtype = if whole { dtype } else { DType::F32 };
        let (words, _) = tensor.bytes().as_chunks::<4>();
        let values: Vec<f32> = words.iter().map(|&word| f32::from_le_bytes(word)).collect();
        let mut bytes = vec![0; quant::row_bytes(dtype, values.len()).unwrap()];
        quant::encode(dtype, &values, &mut bytes).unwrap();
        let write = move |out: &mut dyn std::io::Write| out.write_all(&bytes);
        writer.tensor(tensor.name(), dtype, tensor.dims(), write).unwrap();
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).unwrap();
    Gguf::from_bytes(bytes).unwrap()
}
