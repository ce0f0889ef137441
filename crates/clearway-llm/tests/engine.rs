//! Model files end to end: tiny GGUF files against numpy's logits, and files that are wrong.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use std::sync::Arc;

use clearway::cpu::CpuDevice;
use clearway::vulkan::VulkanOptions;
use clearway::{Buffer, DType, Device, DeviceInfo, Encoder, GpuError, KernelRegistry, Layout};
use clearway_graph::FusedRequest;
use clearway_llm::engine::{
    Engine, EngineError, EngineOptions, Rows, Sampler, Sampling, tokenizer,
};
use clearway_llm::gguf::Gguf;
use clearway_llm::model::{Arch, ModelShape, ROPE_FACTORS};

mod tiny;
use tiny::{assert_close, file, file_shapes, golden, quantised, rope_factors, shapes};

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
        Arch::Gemma2 => "gemma2",
        Arch::Gemma3 => "gemma3",
        _ => return None,
    })
}

/// Every family's file with the name of its logits. Some constants of Gemma are fixed by its family, so
/// it has shapes of its own here.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    let gemma = |shape: &ModelShape| matches!(shape.arch, Arch::Gemma2 | Arch::Gemma3);
    let plain = shapes().into_iter().filter(|(_, shape)| !gemma(shape));
    let all = plain.chain(file_shapes());
    let all = all.filter_map(|(name, shape)| {
        let factors = rope_factors(shape.head_dim / 2);
        let bytes = file(architecture(shape.arch)?, &shape, |writer| {
            writer.set("tokenizer.ggml.model", "none").unwrap();
            if name == "llama3_file" {
                let dims = [factors.len()];
                let factors = factors.clone();
                let write = move |out: &mut dyn std::io::Write| {
                    factors.iter().try_for_each(|factor| out.write_all(&factor.to_le_bytes()))
                };
                writer.tensor(ROPE_FACTORS, DType::F32, &dims, write).unwrap();
            }
        });
        Some((name, bytes))
    });
    all.collect()
}

#[test]
fn files_of_every_family_give_numpys_logits() {
    let files = files();
    assert_eq!(files.len(), 10);
    for (name, bytes) in files {
        // For `cargo xtask peers --logits`, which holds them against llama.cpp.
        if let Some(folder) = std::env::var_os("CLEARWAY_TINY_MODELS") {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(std::path::Path::new(&folder).join(format!("{name}.gguf")), &bytes)
                .unwrap();
        }
        let gguf = Gguf::from_bytes(bytes).unwrap();
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
    }
}

#[test]
fn batches_of_any_length_give_the_bits_of_single_tokens() {
    let (_, shape) = &shapes()[3];
    let gguf = Gguf::from_bytes(file("qwen3", shape, |_| ())).unwrap();
    let options = EngineOptions { context: Some(300), ..EngineOptions::default() };
    let mut engine = Engine::new(&gguf, cpu(), options).unwrap();
    let tokens: Vec<u32> = (0..300).map(|i| i * 37 % 96).collect();
    let alone: Vec<Vec<f32>> = tokens.iter().map(|&t| engine.eval(&[t]).unwrap()).collect();
    for length in [2, 3, 7, 8, 25, 97, 255, 256, 257, 300] {
        engine.clear();
        assert_eq!(engine.eval(&tokens[..length]).unwrap(), alone[length - 1], "{length} tokens");
        assert_eq!(engine.position(), length);
        engine.clear();
        let rows: Vec<usize> = (length.saturating_sub(5)..length).collect();
        let each = engine.eval_rows(&tokens[..length], Rows::List(&rows)).unwrap();
        assert_eq!(each, alone[length.saturating_sub(5)..length], "the last 5 of {length}");
        assert_eq!(engine.position(), length);
        // What stands in for missing tokens leaves nothing behind.
        if length < 300 {
            let next = engine.eval(&tokens[length..=length]).unwrap();
            assert_eq!(next, alone[length], "the token after {length}");
        }
    }
}

#[test]
fn tokens_fed_back_on_a_device_are_those_the_host_chooses() {
    const COUNT: usize = 80;
    let (_, shape) = &shapes()[0];
    let gguf = Gguf::from_bytes(file("llama", shape, |_| ())).unwrap();
    let vulkan = clearway::testkit::open_vulkan(VulkanOptions::default()).unwrap();
    let vulkan = vulkan.map(|device| Arc::new(device) as Arc<dyn Device>);
    let greedy = Sampling::greedy();
    for device in [cpu()].into_iter().chain(vulkan) {
        let name = device.info().name.clone();
        let options = EngineOptions { context: Some(256), ..EngineOptions::default() };
        let mut engine = Engine::new(&gguf, device.clone(), options).unwrap();
        let prompt = [5, 17, 40];
        let mut logits = engine.eval(&prompt).unwrap();
        let mut expected = vec![Sampler::new(greedy.clone()).sample(&logits, &[]).unwrap()];
        for step in 0..COUNT {
            logits = engine.eval(&expected[step..]).unwrap();
            expected.push(Sampler::new(greedy.clone()).sample(&logits, &[]).unwrap());
        }
        let generate = |engine: &mut Engine, from: usize, count: usize, end: u32| {
            let mut found = Vec::new();
            let keep = &mut |token| {
                found.push(token);
                token != end
            };
            engine.truncate(prompt.len() + from);
            engine.generate(expected[from], count, &greedy, keep).unwrap();
            assert_eq!(engine.position(), prompt.len() + from + found.len(), "{name}");
            found
        };
        engine.prepare(&greedy).unwrap();
        let before = device.host_work();
        assert_eq!(generate(&mut engine, 0, 4, u32::MAX), expected[1..5], "{name}");
        assert_eq!(device.host_work(), before, "{name}: what was prepared is only run");
        assert_eq!(generate(&mut engine, 0, COUNT, u32::MAX), expected[1..], "{name}");

        // The text ends where the host says, wherever that is in what was handed over, and can be
        // continued from there at once.
        let end = (1..=COUNT).filter(|&i| !expected[1..i].contains(&expected[i])).max().unwrap();
        assert_eq!(generate(&mut engine, 0, COUNT, expected[end]), expected[1..=end], "{name}");
        let rest = generate(&mut engine, end, COUNT - end, u32::MAX);
        assert_eq!(rest, expected[end + 1..], "{name}");
        println!("{name}: the stop was token {end}");
    }
}

#[test]
fn a_drawn_text_depends_neither_on_grouping_nor_on_who_drew() {
    const COUNT: usize = 60;
    let (_, shape) = &shapes()[0];
    let gguf = Gguf::from_bytes(file("llama", shape, |_| ())).unwrap();
    let vulkan = clearway::testkit::open_vulkan(VulkanOptions::default()).unwrap();
    let vulkan = vulkan.map(|device| Arc::new(device) as Arc<dyn Device>);
    for device in [cpu()].into_iter().chain(vulkan) {
        let name = device.info().name.clone();
        let options = EngineOptions { context: Some(256), ..EngineOptions::default() };
        let mut engine = Engine::new(&gguf, device.clone(), options).unwrap();
        let prompt = [5, 17, 40];
        let drawn = Sampling { temperature: 1.5, seed: 9, ..Sampling::default() };
        engine.prepare(&drawn).unwrap();
        // A step that is compiled anew takes memory.
        let allocations = || device.host_work().map(|work| work.allocations);
        let before = allocations();
        for sampling in [
            drawn.clone(),
            Sampling { temperature: 0.7, min_p: 0.0, top_k: 7, ..drawn.clone() },
            Sampling { seed: 10, top_p: 0.5, ..drawn.clone() },
            Sampling::greedy(),
        ] {
            engine.clear();
            let generate = |engine: &mut Engine, token: u32, count: usize| {
                let mut found = Vec::new();
                let keep = &mut |token| {
                    found.push(token);
                    true
                };
                engine.generate(token, count, &sampling, keep).unwrap();
                found
            };
            let at_once = generate(&mut engine, prompt[0], COUNT);
            engine.clear();
            let mut text = vec![prompt[0]];
            for group in [1, 2, 1, 30, 26] {
                let last = text[text.len() - 1];
                text.extend(generate(&mut engine, last, group));
                // A step that is done again gives the same token.
                engine.truncate(text.len() - 2);
                let [input, output] = text[text.len() - 2..] else { panic!("{text:?}") };
                assert_eq!(generate(&mut engine, input, 1), [output], "{name} {sampling:?}");
            }
            assert_eq!(text[1..], at_once, "{name} {sampling:?}");
            assert_eq!(allocations(), before, "{name}: sampling is data");
        }
        let mut sampler = Sampler::new(drawn.clone());
        let mut text = prompt.to_vec();
        engine.clear();
        let mut logits = engine.eval(&prompt).unwrap();
        for _ in 0..COUNT {
            text.push(sampler.sample(&logits, &text).unwrap());
            logits = engine.eval(&text[text.len() - 1..]).unwrap();
        }
        engine.truncate(prompt.len());
        let mut found = Vec::new();
        let keep = &mut |token| {
            found.push(token);
            true
        };
        engine.generate(text[prompt.len()], COUNT - 1, &drawn, keep).unwrap();
        assert_eq!(found, text[prompt.len() + 1..], "{name}");
        let mut all = found.clone();
        all.sort_unstable();
        all.dedup();
        assert!(all.len() > 5, "{name}: {all:?} is not drawn");
    }
}

#[test]
fn logits_of_chosen_tokens_are_those_of_single_steps() {
    let (_, shape) = &shapes()[3];
    let gguf = Gguf::from_bytes(file("qwen3", shape, |_| ())).unwrap();
    let vulkan = clearway::testkit::open_vulkan(VulkanOptions::default()).unwrap();
    let vulkan = vulkan.map(|device| Arc::new(device) as Arc<dyn Device>);
    for device in [cpu()].into_iter().chain(vulkan) {
        let name = device.info().name.clone();
        let options = EngineOptions { context: Some(300), ..EngineOptions::default() };
        let mut engine = Engine::new(&gguf, device, options).unwrap();
        let tokens: Vec<u32> = (0..300).map(|i| i * 37 % 96).collect();
        let alone: Vec<Vec<f32>> = tokens.iter().map(|&t| engine.eval(&[t]).unwrap()).collect();
        let mut check = |length: usize, rows: Rows<'_>, expected: &[usize]| {
            engine.clear();
            let found = engine.eval_rows(&tokens[..length], rows).unwrap();
            assert_eq!(engine.position(), length);
            assert_eq!(found.len(), expected.len(), "{name}: {rows:?} of {length}");
            for (found, &row) in found.iter().zip(expected) {
                let largest = alone[row].iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                let off = found.iter().zip(&alone[row]).map(|(a, b)| (a - b).abs());
                let off = off.fold(0.0, f32::max);
                // Sums may run in another order where several tokens are read together.
                assert!(off <= 2e-3 * largest, "{name}: row {row} of {rows:?} of {length}: {off}");
            }
        };
        check(20, Rows::Last, &[19]);
        check(20, Rows::All, &(0..20).collect::<Vec<_>>());
        // In any order, some twice, over several batches, and none at all.
        for (length, list) in [
            (20, &[3, 0, 19, 3][..]),
            (20, &[4]),
            (300, &[299, 0, 255, 256, 257, 17]),
            (300, &[130]),
            (7, &[]),
            (1, &[0, 0, 0]),
        ] {
            check(length, Rows::List(list), list);
        }
        engine.clear();
        let refused = engine.eval_rows(&tokens[..4], Rows::List(&[1, 4]));
        assert!(matches!(refused, Err(EngineError::RowOutOfRange { row: 4, tokens: 4 })));
        assert_eq!(engine.position(), 0);
    }
}

#[test]
fn an_adapter_is_refused() {
    let (_, shape) = &shapes()[0];
    let gguf = Gguf::from_bytes(file("llama", shape, |_| ())).unwrap();
    let mut engine = Engine::new(&gguf, cpu(), options()).unwrap();
    let adapted = Sampling { adapter: Some(3), ..Sampling::greedy() };
    let refused = engine.generate(1, 1, &adapted, &mut |_| true);
    assert!(matches!(refused, Err(EngineError::NoAdapter { adapter: 3 })));
}

#[test]
fn types_without_kernels_are_converted_and_said_so() {
    let (_, shape) = &shapes()[0];
    let plain = Gguf::from_bytes(file("llama", shape, |_| ())).unwrap();
    for (from, to, exact) in [
        (DType::Q4_0, DType::Q8_0, true),
        (DType::Q5_0, DType::Q8_0, true),
        (DType::IQ4_NL, DType::Q8_0, true),
        (DType::Q4_1, DType::F16, false),
        (DType::MXFP4, DType::F16, false),
        (DType::BF16, DType::F32, true),
    ] {
        let gguf = quantised(&plain, from);
        let logits = |device: Arc<dyn Device>| {
            let mut engine = Engine::new(&gguf, device, options()).unwrap();
            let notes = engine.conversions().to_vec();
            (engine.eval(&[3, 91, 17]).unwrap(), notes)
        };
        let (expected, none) = logits(cpu());
        assert!(none.is_empty());
        let (found, notes) =
            logits(Arc::new(Without { inner: CpuDevice::with_threads(1), dtype: from }));
        assert_eq!(notes.len(), 1);
        assert_eq!((notes[0].from, notes[0].to, notes[0].exact), (from, to, exact));
        let tensors = gguf.tensors().filter(|tensor| tensor.dtype() == from).count();
        assert!(notes[0].device_bytes > notes[0].file_bytes && notes[0].tensors == tensors);
        assert!(notes[0].to_string().contains(&notes[0].device_bytes.to_string()));
        let scale = expected.iter().map(|v| v.abs()).fold(0.0, f32::max);
        let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Products of block weights round their inputs, those of plain ones do not.
        let limit = if exact { 1e-4 } else { 0.05 };
        assert!(worst <= limit * scale, "{from}: {worst} off at scale {scale}");
    }
}

/// The CPU, as if it had no kernels for a type.
struct Without {
    inner: CpuDevice,
    dtype: DType,
}

impl Device for Without {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer, GpuError> {
        self.inner.alloc(bytes)
    }

    fn upload_weights(&self, layout: &Layout, bytes: &[u8]) -> Result<Buffer, GpuError> {
        assert_ne!(layout.dtype(), self.dtype);
        self.inner.upload_weights(layout, bytes)
    }

    fn supports_weights(&self, dtype: DType) -> bool {
        dtype != self.dtype
    }

    fn buffer(&self, buf_id: usize) -> Result<Buffer, GpuError> {
        self.inner.buffer(buf_id)
    }

    fn has_fused(&self, request: &FusedRequest<'_>) -> bool {
        self.inner.has_fused(request)
    }

    fn encoder(&self, kernels: &KernelRegistry) -> Box<dyn Encoder> {
        self.inner.encoder(kernels)
    }
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
    let dynamic = open(file("llama", shape, |writer| {
        writer.set("llama.rope.scaling.type", "dynamic").unwrap();
    }));
    assert!(dynamic.contains("rope.scaling.type") && dynamic.contains("dynamic"), "{dynamic}");
    let wide = ModelShape { vocab: 64, ..shape.clone() };
    let swapped = file("llama", &wide, |_| ());
    assert!(Gguf::from_bytes(swapped).is_ok());
    let gguf = Gguf::from_bytes(file("llama", shape, |_| ())).unwrap();
    assert!(matches!(tokenizer(&gguf), Err(EngineError::NoVocabulary { .. })));
}
