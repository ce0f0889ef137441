//! Long prompts on a GPU against the CPU's float path: at once, and more tokens over a deep cache.
//!
//! The test command reads some hundred tokens. Soak (`CLEARWAY_CASES` is a number) reads 4,096 and 8,192.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use std::sync::Arc;

use clearway::cpu::{CpuDevice, CpuOptions};
use clearway::vulkan::VulkanOptions;
use clearway::{DType, Device};
use clearway_graph::testkit::skip;
use clearway_llm::engine::{Engine, EngineOptions, Rows};
use clearway_llm::gguf::Gguf;
use clearway_llm::gguf::synth::{Synth, SynthQuant, SynthShape};
use clearway_llm::model::{Arch, ModelShape};

/// Tokens that follow a prompt.
const MORE: usize = 130;
/// Error of a row of logits at most, of their own root mean square: activations and scores are f16 on matrices.
const LIMIT: f64 = 0.01;

fn lengths() -> &'static [usize] {
    let soak = std::env::var("CLEARWAY_CASES").is_ok_and(|cases| cases.parse::<u64>().is_ok());
    if soak { &[4_096, 8_192] } else { &[700] }
}

fn model(arch: Arch, heads: usize, kv_heads: usize, head: usize) -> Gguf {
    let shape = ModelShape::new("tiny", arch, 2, 256, 512, heads, kv_heads, head, 300);
    let synth = Synth::new(SynthShape::new(shape).unwrap(), SynthQuant::F16, 2);
    let mut bytes = Vec::new();
    synth.write_to(&mut bytes, |_| Ok(())).unwrap();
    Gguf::from_bytes(bytes).unwrap()
}

/// Logits of some rows of a prompt, and of tokens that follow it.
fn logits(gguf: &Gguf, device: Arc<dyn Device>, length: usize, cache: DType) -> Vec<Vec<f32>> {
    let context = Some(length + MORE);
    let options = EngineOptions { context, cache_dtype: cache, ..EngineOptions::default() };
    let mut engine = Engine::new(gguf, device, options).unwrap();
    let tokens: Vec<u32> = (0..length + MORE).map(|i| (i * i + 7 * i) as u32 % 300).collect();
    let rows = [0, 1, length / 3, length / 2, length - 2, length - 1];
    let mut all = engine.eval_rows(&tokens[..length], Rows::List(&rows)).unwrap();
    all.extend(engine.eval_rows(&tokens[length..], Rows::List(&[0, 64, MORE - 1])).unwrap());
    all
}

fn rms(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), v| (sum + v * v, count + 1));
    (sum / f64::from(count.max(1))).sqrt()
}

#[test]
fn long_prompts_agree_with_the_float_path_of_the_cpu() {
    agree(VulkanOptions::default());
}

#[test]
fn long_prompts_agree_without_matrices() {
    agree(VulkanOptions { matrices: false, ..VulkanOptions::default() });
}

fn agree(options: VulkanOptions) {
    let Some(card) = clearway::testkit::open_vulkan(options).unwrap() else { return };
    if card.is_software() && !options.matrices {
        return skip("matrices", "software drivers have no cooperative matrices to do without");
    }
    let card: Arc<dyn Device> = Arc::new(card);
    let floats = CpuOptions { float_activations: true, ..CpuOptions::default() };
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::with_options(floats));
    for (heads, kv_heads, head) in [(4, 2, 64), (2, 1, 128)] {
        let gguf = model(Arch::Llama, heads, kv_heads, head);
        for &length in lengths() {
            let expected = logits(&gguf, cpu.clone(), length, DType::F32);
            for cache in [DType::F16, DType::F32] {
                let found = logits(&gguf, card.clone(), length, cache);
                assert_eq!(found.len(), expected.len());
                for (row, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let pairs = found.iter().zip(expected);
                    let error = rms(pairs.map(|(f, e)| f64::from(*f) - f64::from(*e)));
                    let size = rms(expected.iter().map(|e| f64::from(*e)));
                    assert!(
                        error <= LIMIT * size,
                        "heads of {head}, {length} tokens, {cache}, row {row}: {error} of {size}"
                    );
                }
            }
        }
    }
}
