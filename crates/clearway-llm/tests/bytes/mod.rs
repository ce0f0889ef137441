//! A tiny model that reads and writes bytes, for tests of texts.
#![allow(dead_code)] // not every test needs all of it

use std::sync::Arc;

use clearway::cpu::CpuDevice;
use clearway::vulkan::VulkanOptions;
use clearway::{DType, Device};
use clearway_llm::Model;
use clearway_llm::engine::{EngineOptions, Sampling};
use clearway_llm::gguf::{Gguf, GgufWriter};
use clearway_llm::model::{self, Arch, ModelShape, POSITIONS, ROPE_FACTORS, RecordOptions, TOKENS};

/// Marks the end of a turn in the tiny vocabulary.
pub const END: u32 = 257;

/// A llama of two layers with random weights, one token for each byte, and ChatML's tokens.
pub fn file(seed: u64) -> Gguf {
    odd_file(seed, "<|endoftext|>", None)
}

/// The same with another name of token 258, or with a token whose row of the embedding holds no numbers: the head is apart
/// then, so that texts without that token know nothing of it.
pub fn odd_file(seed: u64, name: &str, bad_token: Option<usize>) -> Gguf {
    file_of_heads(seed, name, bad_token, 16)
}

/// The same with heads of this size.
pub fn file_of_heads(seed: u64, name: &str, bad_token: Option<usize>, head: usize) -> Gguf {
    let mut shape = ModelShape::new("tiny", Arch::Llama, 2, 32, 64, 2, 1, head, 260);
    shape.tied = bad_token.is_none();
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "llama").unwrap();
    for (key, value) in [
        ("block_count", 2),
        ("embedding_length", 32),
        ("feed_forward_length", 64),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", head),
        ("attention.value_length", head),
        ("context_length", 1024),
    ] {
        writer.set(&format!("llama.{key}"), &(value as u32)).unwrap();
    }
    writer.set("llama.attention.layer_norm_rms_epsilon", &1e-5_f32).unwrap();
    set_vocabulary(&mut writer, name);
    let record = RecordOptions { weight_dtype: &|_| DType::F32, ..RecordOptions::new(1, 1) };
    let mut state = seed;
    for external in model::record(&shape, &record).unwrap().into_externals() {
        let name = &*external.name;
        if [TOKENS, POSITIONS, ROPE_FACTORS].contains(&name) || name.starts_with("cache.") {
            continue;
        }
        let layout = external.view.layout;
        let dims: Vec<usize> = layout.dims().iter().rev().map(|&d| d as usize).collect();
        let mut values: Vec<f32> = (0..layout.elems())
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as f32 / (1 << 24) as f32 - 0.5
            })
            .collect();
        if let Some(token) = bad_token.filter(|_| name == "token_embd.weight") {
            values[token * 32..(token + 1) * 32].fill(f32::NAN);
        }
        let write = move |out: &mut dyn std::io::Write| {
            values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
        };
        writer.tensor(name, DType::F32, &dims, write).unwrap();
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).unwrap();
    Gguf::from_bytes(bytes).unwrap()
}

/// Byte-level BPE with one merge, the fewest a file may have: printable bytes stand for themselves, the others for
/// characters from U+0100 on, as GPT-2 has it.
fn set_vocabulary(writer: &mut GgufWriter<'_>, end_of_text: &str) {
    let printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    let mut tokens: Vec<String> = (0..=255_u8)
        .map(|byte| {
            let code = if printable(byte) { u32::from(byte) } else { next };
            next += u32::from(!printable(byte));
            char::from_u32(code).unwrap().to_string()
        })
        .collect();
    tokens.extend(["<|im_start|>", "<|im_end|>", end_of_text, "qq"].map(str::to_owned));
    let types: Vec<i32> =
        (0..tokens.len()).map(|id| if (256..259).contains(&id) { 3 } else { 1 }).collect();
    writer.set("tokenizer.ggml.model", "gpt2").unwrap();
    writer.set("tokenizer.ggml.pre", "gpt-2").unwrap();
    writer.set("tokenizer.ggml.tokens", &tokens).unwrap();
    writer.set("tokenizer.ggml.token_type", &types).unwrap();
    writer.set("tokenizer.ggml.merges", &["q q"]).unwrap();
    writer.set("tokenizer.ggml.eos_token_id", &END).unwrap();
}

pub fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::with_threads(1))
}

/// All devices of this machine, the software driver included.
pub fn devices() -> Vec<Arc<dyn Device>> {
    let vulkan = clearway::testkit::open_vulkan(VulkanOptions::default()).unwrap();
    let vulkan = vulkan.map(|device| Arc::new(device) as Arc<dyn Device>);
    [cpu()].into_iter().chain(vulkan).collect()
}

pub fn load(device: Arc<dyn Device>, context: usize) -> Model {
    let options = EngineOptions { context: Some(context), ..EngineOptions::default() };
    Model::new(&file(1), device, options, &mut |_| ()).unwrap()
}

/// A row whose texts go on until something else ends them.
pub fn endless(budget: usize) -> Sampling {
    let biases = (256..259).map(|token| (token, f32::NEG_INFINITY)).collect();
    Sampling { biases, budget, ..Sampling::greedy() }
}
