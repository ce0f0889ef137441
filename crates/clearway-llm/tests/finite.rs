//! Models with a damaged weight: an error that names the place, never a text.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use std::sync::Arc;

use clearway::cpu::CpuDevice;
use clearway::vulkan::{VulkanDevice, VulkanOptions};
use clearway::{DType, Device, quant};
use clearway_llm::engine::{Engine, EngineError, EngineOptions, Origin, Sampling};
use clearway_llm::gguf::{Gguf, GgufWriter};
use clearway_llm::model::{self, Arch, ModelShape, POSITIONS, ROPE_FACTORS, RecordOptions, TOKENS};

/// Bits of a NaN and of an infinity in the scale of a block, and the same as floats.
const SPOILS: [(u16, f32); 2] = [(0x7e00, f32::NAN), (0x7c00, f32::INFINITY)];

/// All devices of this machine, the software driver included.
fn devices() -> Vec<(&'static str, Arc<dyn Device>)> {
    let mut devices: Vec<(&str, Arc<dyn Device>)> =
        vec![("cpu", Arc::new(CpuDevice::with_threads(2)))];
    match VulkanDevice::open(VulkanOptions { disk_cache: false, ..VulkanOptions::default() }) {
        Ok(device) => devices.push(("vulkan", Arc::new(device))),
        Err(error) => println!("skipped: {error}"),
    }
    devices
}

fn shape() -> ModelShape {
    ModelShape::new("tiny", Arch::Llama, 3, 64, 96, 4, 2, 16, 96)
}

/// A file with matrices of this type, of which one tensor is changed.
fn file(matrices: DType, spoiled: &str, spoil: &dyn Fn(&mut [u8])) -> Gguf {
    let shape = shape();
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "llama").unwrap();
    for (key, value) in [
        ("block_count", shape.layers),
        ("embedding_length", shape.embd),
        ("feed_forward_length", shape.ff),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim),
        ("vocab_size", shape.vocab),
        ("context_length", 64),
    ] {
        writer.set(&format!("llama.{key}"), &(value as u32)).unwrap();
    }
    writer.set("llama.attention.layer_norm_rms_epsilon", &1e-5_f32).unwrap();
    let mut state = 1_u64;
    for external in model::record(&shape, &RecordOptions::new(1, 1)).unwrap().into_externals() {
        let name = &*external.name;
        if [TOKENS, POSITIONS, ROPE_FACTORS].contains(&name) || name.starts_with("cache.") {
            continue;
        }
        let layout = external.view.layout;
        let dims: Vec<usize> = layout.dims().iter().rev().map(|&d| d as usize).collect();
        let values: Vec<f32> = (0..layout.elems())
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as f32 / (1 << 24) as f32 - 0.5
            })
            .collect();
        let dtype = if dims.len() == 1 { DType::F32 } else { matrices };
        let mut bytes = vec![0; values.len() / dtype.block_elems() * dtype.block_bytes()];
        quant::encode(dtype, &values, &mut bytes).unwrap();
        if name == spoiled {
            spoil(&mut bytes);
        }
        writer.tensor(name, dtype, &dims, move |out| out.write_all(&bytes)).unwrap();
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).unwrap();
    Gguf::from_bytes(bytes).unwrap()
}

fn engine(file: &Gguf, device: &Arc<dyn Device>) -> Engine {
    let options = EngineOptions { context: Some(64), ..EngineOptions::default() };
    Engine::new(file, device.clone(), options).unwrap()
}

/// The error of a step that must fail.
fn refused(logits: Result<Vec<f32>, EngineError>, what: &str) -> EngineError {
    logits.err().unwrap_or_else(|| panic!("{what}: the logits count as sound"))
}

fn origin(error: &EngineError) -> (usize, Origin) {
    match error {
        EngineError::NotFinite { position, origin: Some(origin) } => (*position, origin.clone()),
        other => panic!("{other}"),
    }
}

/// Ways to choose on the device.
fn choices() -> [Sampling; 2] {
    [Sampling::greedy(), Sampling::default()]
}

#[test]
fn a_damaged_block_is_named_in_prompts_and_in_generation() {
    for (name, device) in devices() {
        for op in ["token_embd", "blk.0.attn_q", "blk.1.ffn_down", "blk.2.attn_v", "output"] {
            let tensor = &*format!("{op}.weight");
            // A logit of negative infinity is a token that must not come, which is no fault.
            let spoils = if op == "output" { &SPOILS[..1] } else { &SPOILS };
            for &(bits, value) in spoils {
                // The third block: of matrices with 64 columns the start of row 1.
                let spoil =
                    |bytes: &mut [u8]| bytes[2 * 34..][..2].copy_from_slice(&bits.to_le_bytes());
                let file = file(DType::Q8_0, tensor, &spoil);
                let what = format!("{tensor} {value} on {name}");
                let check = |error: EngineError, position: usize| {
                    let (found, origin) = origin(&error);
                    assert_eq!(found, position, "{what}: {error}");
                    let bad = origin.tensor.as_ref().unwrap_or_else(|| panic!("{what}: {error}"));
                    assert_eq!((&*bad.name, bad.element), (tensor, 64), "{what}");
                    // An infinite scale times a quant of 0 is NaN, too.
                    assert!(
                        !bad.value.is_finite() && (bad.value.is_nan() || value.is_infinite()),
                        "{what}: {error}"
                    );
                    let text = error.to_string();
                    assert_eq!(origin.op, op, "{what}: {text}");
                    assert!(text.contains(tensor) && text.contains("damaged"), "{text}");
                };
                let mut engine = engine(&file, &device);
                check(refused(engine.eval(&[5, 7, 1, 11, 3]), &what), 5);
                // The engine is where it was, and says it again.
                assert_eq!(engine.position(), 0);
                check(refused(engine.eval(&[1]), &what), 1);
                for options in choices() {
                    let error = engine.generate(1, 20, &options, &mut |token| panic!("{token}"));
                    check(error.unwrap_err(), 1);
                }
            }
        }
    }
}

/// Tokens that the likeliest choice gives after token 5, chosen on the device.
fn generated(engine: &mut Engine, seen: &mut Vec<u32>) -> Result<(), EngineError> {
    engine.generate(5, 12, &choices()[0], &mut |token| {
        seen.push(token);
        true
    })
}

#[test]
fn a_damaged_row_is_found_where_its_token_comes() {
    for (name, device) in devices() {
        let mut tokens = Vec::new();
        generated(&mut engine(&file(DType::Q8_0, "", &|_| ()), &device), &mut tokens).unwrap();
        // The last token that comes for the first time.
        let first = |at: &usize| tokens[*at] != 5 && !tokens[..*at].contains(&tokens[*at]);
        let at = (0..tokens.len() - 1).rev().find(first).unwrap();
        let spoil = |bytes: &mut [u8]| {
            let block = 2 * tokens[at] as usize * 34;
            bytes[block..][..2].copy_from_slice(&0x7e00_u16.to_le_bytes());
        };
        let file = file(DType::Q8_0, "token_embd.weight", &spoil);
        let mut damaged = engine(&file, &device);
        let mut seen = Vec::new();
        let error = generated(&mut damaged, &mut seen).unwrap_err();
        assert_eq!(seen, tokens[..=at], "{name}: all tokens before it are right");
        let (position, found) = origin(&error);
        assert_eq!((position, &*found.op), (at + 2, "token_embd"), "{name}: {error}");
        // In a prompt, after tokens that are sound and in one batch with them.
        damaged.clear();
        damaged.eval(&[5, 5, 5]).unwrap();
        let (position, found) = origin(&refused(damaged.eval(&[5, 5, tokens[at], 5]), name));
        assert_eq!((position, &*found.op), (7, "token_embd"), "{name}");
        assert_eq!(damaged.position(), 3, "{name}");
    }
}

#[test]
fn numbers_too_large_for_the_cache_are_not_blamed_on_the_file() {
    for (name, device) in devices() {
        // Keys beyond the largest f16; the scale of every block is large and sound.
        let spoil = |bytes: &mut [u8]| {
            let huge = |block: &mut [u8]| block[..2].copy_from_slice(&0x7000_u16.to_le_bytes());
            bytes.chunks_exact_mut(34).for_each(huge);
        };
        let file = file(DType::Q8_0, "blk.1.attn_k.weight", &spoil);
        let mut half = engine(&file, &device);
        let error = refused(half.eval(&[5, 7]), name);
        let (_, origin) = origin(&error);
        assert_eq!((&*origin.op, origin.tensor), ("blk.1.cache_k", None), "{name}: {error}");
        assert!(error.to_string().contains("f32"), "{error}");
        let options = EngineOptions {
            context: Some(64),
            cache_dtype: DType::F32,
            ..EngineOptions::default()
        };
        let mut full = Engine::new(&file, device.clone(), options).unwrap();
        full.eval(&[5, 7]).unwrap();
    }
}

#[test]
fn a_sound_model_generates_the_same_with_the_device_as_with_the_host() {
    let file = file(DType::Q8_0, "", &|_| ());
    for (name, device) in devices() {
        let mut engine = engine(&file, &device);
        let mut seen = Vec::new();
        generated(&mut engine, &mut seen).unwrap();
        engine.clear();
        let (mut next, mut expected) = (5, Vec::new());
        for _ in 0..12 {
            let logits = engine.eval(&[next]).unwrap();
            let best = |a: &usize, b: &usize| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a));
            next = (0..logits.len()).max_by(best).unwrap() as u32;
            expected.push(next);
        }
        assert_eq!(seen, expected, "{name}");
    }
}
