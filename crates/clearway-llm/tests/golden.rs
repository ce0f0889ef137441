//! The default model against its golden data: ids, logits and greedy text.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use std::sync::Arc;

use clearway::cpu::CpuDevice;
use clearway::vulkan::{VulkanDevice, VulkanOptions};
use clearway::{CompileOptions, Device, GpuError};
use clearway_graph::testkit::skip;
use clearway_llm::engine::{Engine, EngineOptions, Sampler, SamplerOptions, tokenizer};
use clearway_llm::gguf::Gguf;
use clearway_llm::text::EncodeOptions;

/// The default model's file; the tests run where `CLEARWAY_GOLDEN_MODEL` names it.
fn model() -> Option<Gguf> {
    let path = std::env::var_os("CLEARWAY_GOLDEN_MODEL");
    if path.is_none() {
        skip("golden", "CLEARWAY_GOLDEN_MODEL does not name the default model's file");
    }
    Some(Gguf::open(path?).unwrap())
}

#[test]
fn the_default_model_gives_its_golden_logits_and_text_on_the_cpu() {
    let Some(gguf) = model() else { return };
    check(&gguf, Arc::new(CpuDevice::new()), EngineOptions::default(), CASES);
}

/// On the best Vulkan device: fused and not, replayed and encoded anew for every token. A software driver
/// has time for all prompts only once. With `CLEARWAY_PROCESSORS=2` a large card takes the kernels it has for
/// larger models, as a software driver does anyway.
#[test]
fn the_default_model_gives_its_golden_logits_and_text_on_vulkan() {
    let Some(gguf) = model() else { return };
    let processors = std::env::var("CLEARWAY_PROCESSORS").ok().map(|text| text.parse().unwrap());
    match VulkanDevice::open(VulkanOptions { processors, ..VulkanOptions::default() }) {
        Ok(device) => {
            let device = Arc::new(device);
            let some = if device.is_software() { 1 } else { CASES };
            for (fuse, replay) in [(true, true), (true, false), (false, true), (false, false)] {
                let compile = CompileOptions { fuse, ..CompileOptions::default() };
                let options = EngineOptions { compile, replay, ..EngineOptions::default() };
                let cases = if fuse && replay { CASES } else { some };
                println!("fused: {fuse}, replayed: {replay}");
                check(&gguf, device.clone(), options, cases);
            }
        }
        Err(error @ (GpuError::NoDevice { .. } | GpuError::Unsupported { .. })) => {
            skip("vulkan", error);
        }
        Err(error) => panic!("{error}"),
    }
}

/// Prompts in the golden data.
const CASES: usize = 12;

fn check(gguf: &Gguf, device: Arc<dyn Device>, options: EngineOptions, some: usize) {
    let mut cases: Vec<serde_json::Value> =
        serde_json::from_str(include_str!("data/smollm2-golden.json")).unwrap();
    assert_eq!(cases.len(), CASES);
    cases.truncate(some);
    let text = tokenizer(gguf).unwrap();
    println!("on {}", device.info().description);
    let mut engine = Engine::new(gguf, device.clone(), options).unwrap();
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
    // Tokens chosen and fed back on the device are those the host would have chosen.
    let looped = if some == CASES { CASES } else { 0 };
    for case in &cases[..looped] {
        let tokens: Vec<u32> = serde_json::from_value(case["tokens"].clone()).unwrap();
        engine.clear();
        let logits = engine.eval(&tokens).unwrap();
        let options = SamplerOptions { temperature: 0.0, ..SamplerOptions::default() };
        let first = Sampler::new(options).sample(&logits);
        let mut looped = vec![first];
        let keep = &mut |token| {
            looped.push(token);
            true
        };
        engine.generate(first, 3, &options, keep).unwrap();
        assert_eq!(engine.position(), tokens.len() + 3);
        engine.truncate(tokens.len());
        let mut stepped = vec![first];
        for _ in 0..3 {
            let logits = engine.eval(&stepped[stepped.len() - 1..]).unwrap();
            stepped.push(Sampler::new(options).sample(&logits));
        }
        assert_eq!(looped, stepped, "{:?}", case["prompt"]);
    }
    println!("mean error of the logits on {}: {error:.4}", device.info().name);
    let limit = if device.rounds_activations() { 0.15 } else { 0.02 };
    assert!(error <= limit, "mean error {error}, {limit} allowed");
}
