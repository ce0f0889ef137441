//! Models that two devices have together: the same logits and texts as on one, and the memory of each by its layers.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use std::sync::Arc;

use clearway::cpu::{CpuDevice, CpuOptions};
use clearway::vulkan::VulkanOptions;
use clearway::{DType, Device};
use clearway_llm::batch::device::{DeviceOptions, DeviceRunner};
use clearway_llm::engine::{
    Devices, Engine, EngineError, EngineOptions, GpuLayers, Rows, Sampling, Share,
};
use clearway_llm::gguf::synth::{Synth, SynthQuant, SynthShape};
use clearway_llm::gguf::{Gguf, GgufWriter};
use clearway_llm::model::{Arch, ModelShape};
use clearway_llm::speculate::Speculation;
use clearway_llm::{Chat, Model};

mod tiny;
use tiny::{assert_close, file, quantised, shapes};

const LAYERS: usize = 4;

fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::with_threads(2))
}

/// A processor that says it has so many bytes.
fn small(bytes: u64) -> Arc<dyn Device> {
    let options =
        CpuOptions { threads: Some(1), memory_limit: Some(bytes), ..CpuOptions::default() };
    Arc::new(CpuDevice::with_options(options))
}

fn vulkan() -> Option<Arc<dyn Device>> {
    let vulkan = clearway::testkit::open_vulkan(VulkanOptions::default()).unwrap();
    vulkan.map(|device| Arc::new(device) as Arc<dyn Device>)
}

fn options() -> EngineOptions {
    EngineOptions { context: Some(128), ..EngineOptions::default() }
}

/// Tiny files of four layers: with a head of their own and without, experts, and block weights.
fn files() -> Vec<(&'static str, Gguf)> {
    let tiny = |arch: &str, index: usize| {
        let (_, shape) = &shapes()[index];
        let shape = ModelShape { layers: LAYERS, ..shape.clone() };
        Gguf::from_bytes(file(arch, &shape, |_| ())).unwrap()
    };
    let llama = tiny("llama", 0);
    let blocks = quantised(&llama, DType::Q8_0);
    vec![
        ("llama", llama),
        ("llama_tied", tiny("llama", 1)),
        ("qwen3moe", tiny("qwen3moe", 4)),
        ("llama in blocks", blocks),
    ]
}

fn divided(gguf: &Gguf, host_layers: usize, card: Arc<dyn Device>) -> Engine {
    let devices = Devices::Two { host: cpu(), card, host_layers };
    Engine::on(gguf, devices, options(), &mut |_| ()).unwrap()
}

/// Logits of a prompt, of tokens one by one, of chosen rows, and after a part of the text is forgotten.
fn logits(engine: &mut Engine) -> Vec<Vec<f32>> {
    let tokens: Vec<u32> = (0..40).map(|i| i * 37 % 96).collect();
    let mut all = vec![engine.eval(&tokens[..23]).unwrap()];
    all.extend(tokens[23..30].iter().map(|&token| engine.eval(&[token]).unwrap()));
    all.extend(engine.eval_rows(&tokens[30..], Rows::List(&[1, 7, 9])).unwrap());
    engine.truncate(12);
    all.extend(engine.eval_rows(&tokens[..3], Rows::All).unwrap());
    assert_eq!(engine.position(), 15);
    engine.clear();
    all.push(engine.embed(&tokens).unwrap());
    all
}

#[test]
fn two_processors_give_the_bits_of_one_wherever_the_model_is_divided() {
    for (name, gguf) in files() {
        let expected = logits(&mut Engine::new(&gguf, cpu(), options()).unwrap());
        for host_layers in 0..LAYERS {
            let found = logits(&mut divided(&gguf, host_layers, cpu()));
            assert_eq!(found, expected, "{name}, {host_layers} layers apart");
        }
        let anew = EngineOptions { replay: false, ..options() };
        let devices = Devices::Two { host: cpu(), card: cpu(), host_layers: 2 };
        let mut anew = Engine::on(&gguf, devices, anew, &mut |_| ()).unwrap();
        assert_eq!(logits(&mut anew), expected, "{name}, compiled anew for every step");
    }
}

#[test]
fn a_processor_and_a_card_agree_with_the_processor_wherever_the_model_is_divided() {
    let Some(card) = vulkan() else { return };
    // In f16 a last bit more or less may round otherwise.
    let options = EngineOptions { cache_dtype: DType::F32, ..options() };
    for (name, gguf) in files().into_iter().take(2) {
        let expected = logits(&mut Engine::new(&gguf, cpu(), options).unwrap());
        for host_layers in 0..LAYERS {
            let devices = Devices::Two { host: cpu(), card: card.clone(), host_layers };
            let mut engine = Engine::on(&gguf, devices, options, &mut |_| ()).unwrap();
            let found = logits(&mut engine);
            for (found, expected) in found.iter().zip(&expected) {
                assert_close(&format!("{name}, {host_layers} layers apart"), found, expected);
            }
        }
    }
}

/// A file of four layers with a vocabulary.
fn talking() -> Gguf {
    let shape = ModelShape::new("tiny", Arch::Llama, LAYERS, 256, 512, 4, 2, 64, 300);
    let synth = Synth::new(SynthShape::new(shape).unwrap(), SynthQuant::F16, 2);
    let mut bytes = Vec::new();
    Synth { vocab: true, ..synth }.write_to(&mut bytes, |_| Ok(())).unwrap();
    Gguf::from_bytes(bytes).unwrap()
}

fn turn(chat: &mut Chat<'_>, text: &str) -> String {
    let sampling = Sampling { temperature: 1.1, seed: 4, budget: 12, ..Sampling::default() };
    chat.user(text);
    chat.reply(&sampling).unwrap().map(|piece| piece.unwrap().text).collect()
}

#[test]
fn a_conversation_goes_on_whichever_devices_have_the_model() {
    let gguf = talking();
    let load = |devices| Model::on(&gguf, devices, options(), &mut |_| ()).unwrap();
    let two = |host_layers| Devices::Two { host: cpu(), card: cpu(), host_layers };
    let mut whole = load(Devices::One(cpu()));
    let mut chat = whole.chat().unwrap();
    let first = turn(&mut chat, "Hello");
    let saved = chat.save().unwrap();
    let second = turn(&mut chat, "Again");
    for host_layers in [0, 1, 3] {
        let mut model = load(two(host_layers));
        model.prepare(&Sampling::greedy()).unwrap();
        let mut chat = model.chat().unwrap();
        assert_eq!(turn(&mut chat, "Hello"), first, "{host_layers}");
        assert!(chat.save().unwrap() == saved, "{host_layers}: rows lie by layer");
        drop(chat);
        let mut other = load(two(LAYERS - 1 - host_layers));
        let mut restored = other.restore_chat(&saved).unwrap();
        assert_eq!(turn(&mut restored, "Again"), second, "{host_layers}");
    }
    let mut restored = whole.restore_chat(&saved).unwrap();
    assert_eq!(turn(&mut restored, "Again"), second);
    // Drafts are checked by both devices.
    let mut drafting = load(two(2));
    drafting.speculate(Some(Speculation::ngram()));
    drafting.prepare(&Sampling::greedy()).unwrap();
    assert_eq!(turn(&mut drafting.chat().unwrap(), "Hello"), first);
}

#[test]
fn each_device_has_its_layers_and_no_more() {
    for (name, gguf) in files() {
        let bytes = |tensors: &dyn Fn(&str) -> bool| -> u64 {
            let own = gguf.tensors().filter(|tensor| tensors(tensor.name()));
            own.map(|tensor| tensor.bytes().len() as u64).sum()
        };
        let alone = Engine::new(&gguf, cpu(), options()).unwrap().shares().unwrap();
        assert_eq!(alone[0].weights, gguf.tensor_bytes(), "{name}");
        let tied = gguf.find_tensor("output.weight").is_none();
        let row = 2 * 2 * if name == "llama_tied" { 8 } else { 16 };
        for host_layers in 0..LAYERS {
            let layer = |tensor: &str| {
                let rest = tensor.strip_prefix("blk.")?;
                rest.split_once('.')?.0.parse::<usize>().ok()
            };
            let front = bytes(&|tensor| match layer(tensor) {
                Some(layer) => layer < host_layers,
                None => tensor == "token_embd.weight",
            });
            let back = bytes(&|tensor| match layer(tensor) {
                Some(layer) => layer >= host_layers,
                None => tied || tensor != "token_embd.weight",
            });
            let share = |layers: std::ops::Range<usize>, weights| Share {
                device: "cpu".into(),
                cache: 128 * row * layers.len() as u64,
                layers,
                weights,
                fetched: 0,
            };
            let expected = [share(0..host_layers, front), share(host_layers..LAYERS, back)];
            let found = divided(&gguf, host_layers, cpu()).shares().unwrap();
            let devices = Devices::Two { host: cpu(), card: cpu(), host_layers };
            assert_eq!(devices.shares(&gguf, &options()).unwrap(), found, "{name} beforehand");
            // Together they fetch what one device does, one row of the embedding and rotary factors apart.
            let fetched: u64 = found.iter().map(|share| share.fetched).sum();
            let more = fetched - alone[0].fetched;
            assert!(more <= 32 * 4 + 4 * 4, "{name} {host_layers}: {more} bytes more");
            assert!(host_layers > 0 || found[0].fetched <= 32 * 4, "{name}: one row");
            let found: Vec<Share> =
                found.into_iter().map(|share| Share { fetched: 0, ..share }).collect();
            assert_eq!(found, expected, "{name}");
        }
    }
}

#[test]
fn a_card_gets_as_many_layers_as_it_has_room_for() {
    let (_, gguf) = files().remove(0);
    let choose = |wanted, card: u64, host: u64| {
        Devices::choose(&gguf, &options(), wanted, small(card), || small(host))
    };
    let of = |devices: Result<Devices, EngineError>| match devices.unwrap() {
        Devices::One(device) => (None, device.info().memory_bytes),
        Devices::Two { host_layers, card, .. } => (Some(host_layers), card.info().memory_bytes),
    };
    let (lots, auto) = (1 << 30, GpuLayers::Auto);
    assert_eq!(of(choose(auto, lots, 1)), (None, lots), "the other device is not asked");
    // All layers, and all layers without the embedding, are two steps of their own.
    let mut seen = vec![0];
    for card in (0..50).map(|step| 1000 * (500 + 5 * step)) {
        let devices = choose(auto, card, lots).unwrap();
        let shares = devices.shares(&gguf, &options()).unwrap();
        let on_card = match &devices {
            Devices::One(device) if device.info().memory_bytes == lots => 0,
            Devices::One(_) => LAYERS + 1,
            Devices::Two { host_layers, .. } => LAYERS - host_layers,
        };
        if on_card > 0 {
            assert!(shares.last().unwrap().total() <= card, "{card}: {shares:?}");
        }
        seen.push(on_card);
    }
    assert!(seen.is_sorted(), "more memory holds no fewer layers: {seen:?}");
    seen.dedup();
    assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
    assert_eq!(of(choose(auto, 1000, lots)), (None, lots), "all of it lies on the other device");
    assert_eq!(of(choose(GpuLayers::Count(0), lots, lots - 1)), (None, lots - 1));
    assert_eq!(of(choose(GpuLayers::Count(3), lots, lots)), (Some(1), lots));
    assert_eq!(of(choose(GpuLayers::Count(99), lots, lots)), (None, lots));

    let refused = |wanted, card, host| choose(wanted, card, host).err().unwrap().to_string();
    let error = refused(GpuLayers::Count(3), 1000, lots);
    assert!(error.contains("`cpu`") && error.contains("0 layers fit"), "{error}");
    let error = refused(auto, 1000, 1000);
    assert!(error.contains("together") && error.contains("128 tokens"), "{error}");
    let far = EngineOptions { context: Some(1 << 31), ..options() };
    let error = Devices::choose(&gguf, &far, auto, small(lots), || small(lots)).err().unwrap();
    assert!(matches!(error, EngineError::TooLargeTogether { .. }), "{error}");
}

#[test]
fn a_card_gives_no_more_than_its_limit() {
    const LIMIT: u64 = 1 << 20;
    let options = VulkanOptions { memory_limit: Some(LIMIT), ..VulkanOptions::default() };
    let Some(device) = clearway::testkit::open_vulkan(options).unwrap() else { return };
    assert_eq!((device.info().memory_bytes, device.free_bytes()), (LIMIT, LIMIT));
    let half = device.alloc(LIMIT / 2).unwrap();
    assert_eq!(device.free_bytes(), LIMIT / 2);
    let error = device.alloc(LIMIT / 2 + 1).err().unwrap().to_string();
    assert!(error.contains(&(LIMIT / 2).to_string()), "{error}");
    device.alloc(LIMIT / 2).unwrap();
    drop(half);
    assert_eq!(device.free_bytes(), LIMIT);
}

#[test]
fn a_number_that_is_not_finite_is_found_on_either_device() {
    for spoiled in ["token_embd", "blk.0.attn_q", "blk.1.ffn_down", "blk.2.attn_v", "output"] {
        let (_, plain) = files().remove(0);
        let mut writer = GgufWriter::new();
        for (key, value) in plain.metadata().iter() {
            writer.set_value(key, value).unwrap();
        }
        for tensor in plain.tensors() {
            let mut bytes = tensor.bytes().to_vec();
            if tensor.name() == format!("{spoiled}.weight") {
                bytes[40..44].copy_from_slice(&f32::NAN.to_le_bytes());
            }
            let write = move |out: &mut dyn std::io::Write| out.write_all(&bytes);
            writer.tensor(tensor.name(), DType::F32, tensor.dims(), write).unwrap();
        }
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).unwrap();
        let gguf = Gguf::from_bytes(bytes).unwrap();
        for host_layers in 0..LAYERS {
            let mut engine = divided(&gguf, host_layers, cpu());
            let error = engine.eval(&[3, 0, 5]).unwrap_err();
            let EngineError::NotFinite { position: 3, origin: Some(origin) } = error else {
                panic!("{spoiled}, {host_layers}: {error}");
            };
            let tensor = origin.tensor.unwrap();
            let found = (&*origin.op, &*tensor.name, tensor.element);
            assert_eq!(found, (spoiled, &*format!("{spoiled}.weight"), 10), "{host_layers}");
            assert_eq!(engine.position(), 0);
        }
    }
}

#[test]
fn what_needs_one_device_says_so() {
    let (_, gguf) = files().remove(0);
    let mut engine = divided(&gguf, 2, cpu());
    assert!(!engine.feeds_back());
    let mut none = |_| panic!("a token");
    let error = engine.generate(1, 4, &Sampling::greedy(), &mut none).unwrap_err();
    assert!(matches!(error, EngineError::NotOnDevice), "{error}");
    let devices = DeviceOptions { slots: 2, block: 32, context: 64, deterministic: false };
    let error = DeviceRunner::new(engine, devices).err().unwrap();
    assert!(matches!(error, EngineError::Divided { .. }), "{error}");
    let devices = Devices::Two { host: cpu(), card: cpu(), host_layers: LAYERS };
    let error = Engine::on(&gguf, devices, options(), &mut |_| ()).err().unwrap();
    assert!(matches!(error, EngineError::Layers { host_layers: 4, layers: 4 }), "{error}");
}
