//! Model files end to end: tiny GGUF files against numpy's logits, the default model against its
//! golden data, and files that are wrong.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::sync::Arc;

use clearway::cpu::CpuDevice;
use clearway::{DType, Device};
use clearway_llm::engine::{
    Engine, EngineError, EngineOptions, Sampler, SamplerOptions, tokenizer,
};
use clearway_llm::gguf::{Gguf, GgufWriter};
use clearway_llm::model::{self, Arch, ModelShape, POSITIONS, ROPE_FACTORS, RecordOptions, TOKENS};
use clearway_llm::text::EncodeOptions;

mod tiny;
use tiny::{assert_close, golden, shapes, weight};

fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::with_threads(2))
}

fn options() -> EngineOptions {
    EngineOptions { context: Some(12), cache_dtype: DType::F32, ..EngineOptions::default() }
}

/// Name of a family in files; `None` for those only built-in shapes have.
fn architecture(arch: Arch) -> Option<&'static str> {
    Some(match arch {
        Arch::Llama => "llama",
        Arch::Qwen2 => "qwen2",
        Arch::Qwen3 => "qwen3",
        Arch::Qwen3Moe => "qwen3moe",
        _ => return None,
    })
}

/// A file of this shape with the weights of make_logits.py.
fn file(arch: &str, shape: &ModelShape, change: impl Fn(&mut GgufWriter<'_>)) -> Vec<u8> {
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
    set("context_length", 64);
    if let Some(experts) = shape.experts {
        set("expert_count", experts.count);
        set("expert_used_count", experts.used);
        set("expert_feed_forward_length", experts.ff);
    }
    let eps = format!("{arch}.attention.layer_norm_rms_epsilon");
    writer.set(&eps, &shape.norm_eps).unwrap();
    writer.set(&format!("{arch}.rope.freq_base"), &shape.rope_base).unwrap();
    let record = RecordOptions { weight_dtype: &|_| DType::F32, ..RecordOptions::new(1, 4) };
    for external in model::record(shape, &record).unwrap().externals {
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

#[test]
fn files_of_every_family_give_numpys_logits() {
    let mut tried = 0;
    for (name, shape) in shapes() {
        let Some(arch) = architecture(shape.arch) else { continue };
        let gguf = Gguf::from_bytes(file(arch, &shape, |_| ())).unwrap();
        let mut engine = Engine::new(&gguf, cpu(), options()).unwrap();
        let (tokens, expected) = golden(name);
        let found = engine.eval(&tokens[..7]).unwrap();
        assert_close(name, &found, &expected[6]);
        for (position, token) in tokens.iter().enumerate().skip(7) {
            let found = engine.eval(&[*token]).unwrap();
            assert_close(name, &found, &expected[position]);
        }
        engine.clear();
        assert_close(name, &engine.eval(&tokens).unwrap(), &expected[tokens.len() - 1]);
        tried += 1;
    }
    assert_eq!(tried, 5);
}

#[test]
fn what_cannot_be_computed_is_an_error_before_anything_is() {
    let (_, shape) = &shapes()[0];
    let gguf = Gguf::from_bytes(file("llama", shape, |_| ())).unwrap();
    let mut engine = Engine::new(&gguf, cpu(), options()).unwrap();
    assert!(matches!(engine.eval(&[]), Err(EngineError::Empty)));
    let out = engine.eval(&[1, 96]);
    assert!(matches!(out, Err(EngineError::TokenOutOfRange { token: 96, vocab: 96 })));
    let long = engine.eval(&[1; 13]);
    assert!(matches!(long, Err(EngineError::ContextFull { wanted: 13, context: 12 })));
    assert_eq!(engine.position(), 0);
    engine.eval(&[1; 12]).unwrap();
    assert!(matches!(engine.eval(&[1]), Err(EngineError::ContextFull { wanted: 13, .. })));
}

#[test]
fn files_that_are_wrong_say_what_is() {
    let (_, shape) = &shapes()[0];
    let open = |bytes: Vec<u8>| {
        let gguf = Gguf::from_bytes(bytes).unwrap();
        Engine::new(&gguf, cpu(), options()).err().unwrap().to_string()
    };
    let unknown = open(file("mamba", shape, |_| ()));
    assert!(unknown.contains("mamba") && unknown.contains("qwen3"), "{unknown}");
    let missing = ModelShape { layers: 2, ..shape.clone() };
    let mut writer_layers = file("llama", &missing, |_| ());
    // The file says three layers and holds two.
    let key = b"llama.block_count";
    let at = writer_layers.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
    writer_layers[at] = 3;
    let error = open(writer_layers);
    assert!(error.contains("blk.2."), "{error}");
    let yarn = open(file("llama", shape, |writer| {
        writer.set("llama.rope.scaling.type", "yarn").unwrap();
    }));
    assert!(yarn.contains("rope.scaling.type") && yarn.contains("yarn"), "{yarn}");
    let wide = ModelShape { vocab: 64, ..shape.clone() };
    let swapped = file("llama", &wide, |_| ());
    assert!(Gguf::from_bytes(swapped).is_ok());
    let gguf = Gguf::from_bytes(file("llama", shape, |_| ())).unwrap();
    assert!(matches!(tokenizer(&gguf), Err(EngineError::NoVocabulary { .. })));
}

/// Runs where `CLEARWAY_GOLDEN_MODEL` names the default model's file.
#[test]
fn the_default_model_gives_its_golden_logits_and_text() {
    let Some(path) = std::env::var_os("CLEARWAY_GOLDEN_MODEL") else {
        println!("skipped: CLEARWAY_GOLDEN_MODEL does not name the default model's file");
        return;
    };
    let cases: Vec<serde_json::Value> =
        serde_json::from_str(include_str!("data/smollm2-golden.json")).unwrap();
    assert_eq!(cases.len(), 12);
    let gguf = Gguf::open(path).unwrap();
    let text = tokenizer(&gguf).unwrap();
    let device = cpu();
    let mut engine = Engine::new(&gguf, device.clone(), EngineOptions::default()).unwrap();
    let mut error = 0.0;
    for case in &cases {
        let ids = |key: &str| -> Vec<u32> { serde_json::from_value(case[key].clone()).unwrap() };
        let tokens = ids("tokens");
        let prompt = case["prompt"].as_str().unwrap();
        assert_eq!(text.encode(prompt, EncodeOptions::PROMPT).unwrap(), tokens, "{prompt:?}");
        engine.clear();
        let mut logits = engine.eval(&tokens).unwrap();
        let top: Vec<(usize, f32)> = serde_json::from_value(case["top"].clone()).unwrap();
        let off: f32 = top.iter().map(|&(id, logit)| (logits[id] - logit).abs()).sum();
        error += off / top.len() as f32 / cases.len() as f32;
        let margins: Vec<f32> = serde_json::from_value(case["margin"].clone()).unwrap();
        let mut greedy =
            Sampler::new(SamplerOptions { temperature: 0.0, ..SamplerOptions::default() });
        for (step, (expected, margin)) in ids("greedy").into_iter().zip(margins).enumerate() {
            if margin < 0.25 {
                break;
            }
            let token = greedy.sample(&logits);
            assert_eq!(token, expected, "{prompt:?}, step {step}");
            logits = engine.eval(&[token]).unwrap();
        }
    }
    println!("mean error of the logits: {error:.4}");
    let limit = if device.rounds_activations() { 0.15 } else { 0.02 };
    assert!(error <= limit, "mean error {error}, {limit} allowed");
}
