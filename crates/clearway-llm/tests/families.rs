//! Families end to end: tiny files with the names and metadata of each family against references in f64 that are written
//! from its definition and share nothing with the recorders.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use std::sync::Arc;

use clearway::cpu::CpuDevice;
use clearway::vulkan::VulkanOptions;
use clearway::{DType, Device};
use clearway_llm::batch::device::{DeviceOptions, DeviceRunner};
use clearway_llm::batch::runner::{Change, Read, Runner, SlotState, Work};
use clearway_llm::engine::{Engine, EngineOptions, Rows, Sampling, model_shape};
use clearway_llm::gguf::Gguf;

#[path = "families/decoders.rs"]
mod decoders;
#[path = "families/deepseek.rs"]
mod deepseek;
#[path = "families/encoders.rs"]
mod encoders;
#[path = "families/math.rs"]
mod math;
#[path = "families/tiny.rs"]
mod tiny;
#[allow(dead_code)] // the weights are all that is needed
#[path = "tiny/mod.rs"]
mod weights;

const TOKENS: [u32; 9] = [3, 91, 17, 17, 60, 5, 42, 8, 77];
/// Rows of the cache: more than the original context of `phi3_long`.
const CONTEXT: usize = 20;
/// How far logits may be off.
const LIMIT: f64 = 0.001;

fn all_decoders() -> impl Iterator<Item = decoders::Decoder> {
    decoders::all().into_iter().chain(deepseek::all())
}

fn devices() -> Vec<Arc<dyn Device>> {
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::with_threads(2));
    let vulkan = clearway::testkit::open_vulkan(VulkanOptions::default()).unwrap();
    std::iter::once(cpu).chain(vulkan.map(|device| Arc::new(device) as Arc<dyn Device>)).collect()
}

#[track_caller]
fn assert_near(what: &str, found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len(), "{what}");
    let worst = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs());
    let worst = worst.fold(0.0, f64::max);
    assert!(worst <= LIMIT, "{what}: {worst} off");
    worst
}

#[test]
fn decoders_give_the_logits_of_their_definition() {
    let devices = devices();
    for decoder in all_decoders() {
        let (name, bytes) = (decoder.name, decoder.file.bytes());
        // For `cargo xtask peers --logits`, which holds them against llama.cpp.
        if let Some(folder) = std::env::var_os("CLEARWAY_TINY_MODELS")
            && decoder.as_llama_cpp
        {
            std::fs::create_dir_all(&folder).unwrap();
            let path = std::path::Path::new(&folder).join(format!("{name}.gguf"));
            std::fs::write(path, &bytes).unwrap();
        }
        let expected = (decoder.logits)(&decoder.file, &TOKENS);
        let gguf = Gguf::from_bytes(bytes).unwrap();
        for device in &devices {
            let options = EngineOptions {
                context: Some(CONTEXT),
                cache_dtype: DType::F32,
                ..EngineOptions::default()
            };
            let mut engine = Engine::new(&gguf, device.clone(), options).unwrap();
            let what = format!("{name} on {}", device.info().name);
            let mut worst: f64 = 0.0;
            // A prompt, all of its logits, then token by token.
            let prompt = engine.eval_rows(&TOKENS[..7], Rows::All).unwrap();
            for (found, expected) in prompt.iter().zip(&expected) {
                worst = worst.max(assert_near(&what, found, expected));
            }
            for (position, token) in TOKENS.iter().enumerate().skip(7) {
                let found = engine.eval(&[*token]).unwrap();
                worst = worst.max(assert_near(&what, &found, &expected[position]));
            }
            let scale = expected.iter().flatten().fold(0.0_f64, |most, x| most.max(x.abs()));
            println!("{what}: {worst:.1e} off at most, logits up to {scale:.2}");
        }
    }
}

/// Rows of latent attention in blocks: two sequences that share the first block, the second block of one copied from the other's.
#[test]
fn sequences_of_latent_attention_get_the_tokens_of_the_single_stream() {
    let decoder = all_decoders().find(|one| one.name == "deepseek2_v3").unwrap();
    let gguf = Gguf::from_bytes(decoder.file.bytes()).unwrap();
    for device in devices() {
        let name = device.info().name.clone();
        let options = EngineOptions { context: Some(64), ..EngineOptions::default() };
        let engine = || Engine::new(&gguf, device.clone(), options).unwrap();
        let of_device = DeviceOptions { slots: 2, block: 4, context: 32, deterministic: true };
        let mut runner = DeviceRunner::new(engine(), of_device).unwrap();
        let mut first = Work::default();
        first.changes.push(Change::Blocks { slot: 0, first: 0, blocks: vec![5, 2, 11, 8] });
        first.read.push(Read { slot: 0, position: 0, tokens: TOKENS[..8].to_vec(), adapter: None });
        runner.start(&first).unwrap();
        runner.finish().unwrap();
        let mut second = Work { decode: vec![0, 1], steps: 1, ..Work::default() };
        second.changes.push(Change::Copy { from: 2, to: 7 });
        second.changes.push(Change::Blocks { slot: 1, first: 0, blocks: vec![5, 7, 3, 1] });
        for slot in 0..2 {
            let state = SlotState {
                token: TOKENS[8],
                position: 8,
                end: 13,
                sampling: Sampling::greedy(),
                stop_tokens: Vec::new(),
                history: TOKENS.to_vec(),
            };
            second.changes.push(Change::Open { slot, state: Box::new(state) });
        }
        let mut found = [Vec::new(), Vec::new()];
        while found[0].len() < 5 {
            runner.start(&second).unwrap();
            for result in runner.finish().unwrap() {
                found[result.slot].extend(result.tokens.iter().map(|chosen| chosen.token));
            }
            second = Work { decode: vec![0, 1], steps: 1, ..Work::default() };
        }
        assert_eq!(found[0], found[1], "{name}");
        let mut engine = engine();
        let mut logits = engine.eval(&TOKENS).unwrap();
        for &token in &found[0] {
            let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            // Only a near tie may be decided otherwise.
            assert!(best - logits[token as usize] < 1e-3, "{name}: {found:?}");
            logits = engine.eval(&[token]).unwrap();
        }
    }
}

/// Of every family: a text decodes while the prompt of another is read in the same list, and that one's first step is in it, too.
#[test]
fn sequences_beside_prompts_get_the_tokens_of_the_single_stream() {
    for decoder in all_decoders() {
        let gguf = Gguf::from_bytes(decoder.file.bytes()).unwrap();
        for device in devices() {
            let name = format!("{} on {}", decoder.name, device.info().name);
            let options = EngineOptions { context: Some(128), ..EngineOptions::default() };
            let engine = || Engine::new(&gguf, device.clone(), options).unwrap();
            let of_device = DeviceOptions { slots: 3, block: 4, context: 32, deterministic: false };
            let mut runner = DeviceRunner::new(engine(), of_device).unwrap();
            let texts: [Vec<u32>; 3] =
                [0, 2, 4].map(|from| TOKENS.iter().cycle().skip(from).take(9).copied().collect());
            let mut found = [Vec::new(), Vec::new(), Vec::new()];
            // Each text begins with the work behind that of the one before, and has its first token from that work.
            for step in 0..6 {
                let mut work =
                    Work { decode: (0..=step.min(2)).collect(), steps: 1, ..Work::default() };
                if let Some(text) = texts.get(step) {
                    let blocks = (0..5).map(|block| (3 * block + step) as u32).collect();
                    work.changes.push(Change::Blocks { slot: step, first: 0, blocks });
                    let state = SlotState {
                        token: text[8],
                        position: 8,
                        end: 16,
                        sampling: Sampling::greedy(),
                        stop_tokens: Vec::new(),
                        history: text.clone(),
                    };
                    work.changes.push(Change::Open { slot: step, state: Box::new(state) });
                    let tokens = text[..8].to_vec();
                    work.read.push(Read { slot: step, position: 0, tokens, adapter: None });
                }
                runner.start(&work).unwrap();
                for result in runner.finish().unwrap() {
                    found[result.slot].extend(result.tokens.iter().map(|chosen| chosen.token));
                }
            }
            assert_eq!(runner.mixed(), 3, "{name}");
            let mut engine = engine();
            for (text, found) in texts.iter().zip(&found) {
                assert!(found.len() >= 4, "{name}");
                engine.clear();
                let mut logits = engine.eval(text).unwrap();
                for &token in found {
                    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    // Only a near tie may be decided otherwise.
                    assert!(best - logits[token as usize] < 2e-3, "{name}: {found:?}");
                    logits = engine.eval(&[token]).unwrap();
                }
            }
        }
    }
}

#[test]
fn encoders_give_the_vectors_of_their_definition() {
    let devices = devices();
    for encoder in encoders::all() {
        let gguf = Gguf::from_bytes(encoder.file.bytes()).unwrap();
        for device in &devices {
            let options = EngineOptions { context: Some(64), ..EngineOptions::default() };
            let mut engine = Engine::new(&gguf, device.clone(), options).unwrap();
            for length in [1, 7, 9, 40] {
                let tokens: Vec<u32> = (0..length).map(|i| TOKENS[i % 9] + i as u32 / 9).collect();
                let rows = (encoder.rows)(&encoder.file, &tokens);
                let expected: Vec<f64> = match encoder.pooling {
                    encoders::Pooling::First => rows[0].clone(),
                    encoders::Pooling::Last => rows[length - 1].clone(),
                    encoders::Pooling::Mean => {
                        (0..rows[0].len()).map(|i| rows.iter().map(|row| row[i]).sum()).collect()
                    }
                };
                let found = engine.embed(&tokens).unwrap();
                let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                let length_of = dot(&expected, &expected).sqrt();
                let unit: Vec<f64> = expected.iter().map(|x| x / length_of).collect();
                let what = format!("{} of {length} tokens on {}", encoder.name, device.info().name);
                // The cache is f16, as by default.
                let found: Vec<f64> = found.iter().map(|&x| f64::from(x)).collect();
                let cosine = dot(&found, &unit) / dot(&found, &found).sqrt();
                assert!(cosine >= 0.9999, "{what}: {cosine}");
                let worst = found.iter().zip(&unit).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                println!("{what}: cosine {cosine:.7}, {worst:.1e} off at most");
                assert!(worst <= LIMIT, "{what}: {worst} off");
            }
            if encoder.name != "qwen3" {
                let error = engine.eval(&TOKENS).unwrap_err().to_string();
                assert!(error.contains("encoder"), "{error}");
            }
        }
    }
}

#[test]
fn what_is_wrong_with_a_file_of_a_family_is_named() {
    use tiny::{EMBD, FF, HEADS, KV, Meta, Q, Tiny};
    let error = |file: &Tiny| {
        let gguf = Gguf::from_bytes(file.bytes()).unwrap();
        let error = model_shape(&gguf).expect_err("the file is wrong").to_string();
        println!("{error}");
        error
    };
    let by_name = |name: &str| all_decoders().find(|one| one.name == name).unwrap();
    let changed = |name: &str, tensor: &str, dims: &[usize]| {
        let mut file = by_name(name).file;
        file.tensor(tensor, dims);
        error(&file)
    };
    let without = |name: &str, tensor: &str| {
        let mut file = by_name(name).file;
        file.remove(tensor);
        error(&file)
    };
    for (found, words) in [
        (
            changed("phi3_short", "blk.1.attn_qkv.weight", &[EMBD, Q + KV]),
            &["blk.1.attn_qkv.weight", "48 rows", "64 rows", "32 of attn_q", "16 of attn_k"][..],
        ),
        (
            changed("phi3_short", "blk.2.ffn_up.weight", &[EMBD, FF]),
            &["blk.2.ffn_up.weight", "48 of ffn_gate"],
        ),
        (
            changed("phi3_short", "rope_factors_long.weight", &[4]),
            &["rope_factors_long.weight", "f32 [3]"],
        ),
        (
            changed("qwen2moe", "blk.0.ffn_gate_inp_shexp.weight", &[EMBD + 1]),
            &["blk.0.ffn_gate_inp_shexp.weight", "[32]"],
        ),
        (changed("olmo2", "blk.1.attn_k_norm.weight", &[8]), &["blk.1.attn_k_norm.weight", "[16]"]),
        (
            changed("gpt_oss", "blk.1.attn_sinks.weight", &[HEADS / 2]),
            &["blk.1.attn_sinks.weight", "[2]", "[4]"],
        ),
        (
            changed("gpt_oss", "blk.2.ffn_up_exps.bias", &[EMBD, 6]),
            &["blk.2.ffn_up_exps.bias", "[6, 32]", "[6, 16]"],
        ),
        (without("gpt_oss", "blk.1.attn_sinks.weight"), &["blk.1.attn_sinks.weight"]),
        (
            changed("deepseek2_lite", "blk.1.attn_kv_b.weight", &[16, 55]),
            &["blk.1.attn_kv_b.weight", "[55, 16]", "[56, 16]", "8 and 6 rows of each head"],
        ),
        (
            changed("deepseek2_v3", "blk.2.attn_k_b.weight", &[8, 16, 3]),
            &["blk.2.attn_k_b.weight", "[3, 16, 8]", "[4, 16, 8]"],
        ),
        (
            changed("deepseek2_v3", "blk.2.exp_probs_b.bias", &[7]),
            &["blk.2.exp_probs_b.bias", "[7]", "[8]"],
        ),
        (without("deepseek2_v3", "blk.1.exp_probs_b.bias"), &["blk.1.exp_probs_b.bias"]),
        (without("deepseek2_v3", "blk.1.attn_v_b.weight"), &["blk.1.attn_v_b.weight"]),
        (without("deepseek2_v2", "blk.2.attn_kv_b.weight"), &["blk.2.attn_k_b.weight"]),
        (without("deepseek2_lite", "blk.0.ffn_gate.weight"), &["blk.0.ffn_gate.weight"]),
        (without("deepseek2_lite", "blk.2.ffn_up_shexp.weight"), &["blk.2.ffn_up_shexp.weight"]),
        (without("gpt_oss", "blk.0.attn_q.bias"), &["blk.0.attn_q.bias"]),
        (without("gpt_oss", "blk.0.ffn_gate_inp.bias"), &["blk.0.ffn_gate_inp.bias"]),
        (without("gpt_oss", "blk.2.ffn_down_exps.bias"), &["blk.2.ffn_down_exps.bias"]),
        (without("gpt_oss", "blk.0.post_attention_norm.weight"), &["post_attention_norm"]),
        (
            error(&Tiny::decoder("granite", &[("logit_scale", Meta::F(f32::NAN))])),
            &["granite.logit_scale", "NaN"],
        ),
        (error(&Tiny::decoder("llama4", &[])), &["`llama4` is not supported", "nearest", "llama"]),
        (error(&Tiny::decoder("rwkv7", &[])), &["`rwkv7` is not supported", "phi3, granite"]),
    ] {
        assert!(words.iter().all(|word| found.contains(word)), "{found}");
    }
}
