//! Adapters: what a model gives with them is what a model with merged weights gives, for each text by itself.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use std::sync::Arc;

use clearway::cpu::CpuDevice;
use clearway::vulkan::VulkanOptions;
use clearway::{DType, Device};
use clearway_llm::Sampling;
use clearway_llm::batch::device::{DeviceOptions, DeviceRunner};
use clearway_llm::batch::request::{Refusal, Request};
use clearway_llm::batch::service::{Output, Service, ServiceOptions, Stream};
use clearway_llm::engine::{
    Adapter, AdapterError, Adapters, Devices, Engine, EngineError, EngineOptions, Footprint, Rows,
    tokenizer,
};
use clearway_llm::gguf::{Gguf, GgufWriter};

#[allow(dead_code)] // only the files are needed
#[path = "families/decoders.rs"]
mod decoders;
#[path = "adapters/low_rank.rs"]
mod low_rank;
#[allow(dead_code)] // what decoders.rs is written with
#[path = "families/math.rs"]
mod math;
#[allow(dead_code)] // decoders.rs uses all of it
#[path = "families/tiny.rs"]
mod tiny;
#[allow(dead_code)] // the weights are all that is needed
#[path = "tiny/mod.rs"]
mod weights;

use low_rank::LowRank;
use tiny::{EMBD, FF, KV, Meta, Q, Tiny, VOCAB};

const TOKENS: [u32; 9] = [3, 91, 17, 17, 60, 5, 42, 8, 77];
/// How far logits may be off, by the largest.
const LIMIT: f32 = 1e-5;

fn devices() -> Vec<Arc<dyn Device>> {
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::with_threads(2));
    let vulkan = clearway::testkit::open_vulkan(VulkanOptions::default()).unwrap();
    std::iter::once(cpu).chain(vulkan.map(|device| Arc::new(device) as Arc<dyn Device>)).collect()
}

fn llama() -> Tiny {
    let mut file = Tiny::decoder("llama", &[("rope.freq_base", Meta::F(10_000.0))]);
    file.layers(&[
        ("attn_norm.weight", &[EMBD]),
        ("attn_q.weight", &[EMBD, Q]),
        ("attn_k.weight", &[EMBD, KV]),
        ("attn_v.weight", &[EMBD, KV]),
        ("attn_output.weight", &[Q, EMBD]),
        ("ffn_norm.weight", &[EMBD]),
        ("ffn_gate.weight", &[EMBD, FF]),
        ("ffn_up.weight", &[EMBD, FF]),
        ("ffn_down.weight", &[FF, EMBD]),
    ]);
    file
}

/// Models by the architecture of their files: queries, keys and values in one tensor, biases, norms behind and around
/// what joins the stream, a factor on it, experts beside products of other kinds.
fn models() -> Vec<(&'static str, Tiny)> {
    let of_family =
        |name: &str| decoders::all().into_iter().find(|decoder| decoder.name == name).unwrap().file;
    vec![
        ("llama", llama()),
        ("phi3", of_family("phi3_short")),
        ("qwen2", of_family("qwen2_yarn")),
        ("olmo2", of_family("olmo2")),
        ("glm4", of_family("glm4")),
        ("granite", of_family("granite")),
        ("qwen2moe", of_family("qwen2moe")),
        ("gpt-oss", of_family("gpt_oss")),
    ]
}

/// Whether adapters of a weight are supported.
fn is_product(weight: &str) -> bool {
    !["norm", "token_embd", "_exps", "ffn_gate_inp_shexp"].iter().any(|no| weight.contains(no))
}

fn everything(arch: &'static str, model: &Tiny) -> LowRank {
    LowRank::of("everything", arch, model, |weight| is_product(weight).then_some(4))
}

/// An adapter of some weights, of more in some layers, with ranks that differ, and without alpha.
fn partial(arch: &'static str, model: &Tiny) -> LowRank {
    let rank = |weight: &str| match weight {
        _ if !is_product(weight) => None,
        _ if weight.starts_with("blk.1.attn") => Some(5),
        _ if weight.starts_with("blk.2.ffn_down") => Some(1),
        _ if weight.contains("attn_v") || weight.contains("attn_qkv") => Some(2),
        _ => None,
    };
    LowRank { alpha: None, ..LowRank::of("partial", arch, model, rank) }
}

fn options(replay: bool) -> EngineOptions {
    let cache_dtype = DType::F32;
    EngineOptions { context: Some(40), cache_dtype, replay, ..EngineOptions::default() }
}

fn engine(model: &Tiny, adapters: &Adapters, device: &Arc<dyn Device>) -> Engine {
    let gguf = Gguf::from_bytes(model.bytes()).unwrap();
    Engine::with_adapters(&gguf, adapters, device.clone(), options(true), &mut |_| ()).unwrap()
}

/// Logits after each token: a prompt, then token by token.
fn logits(engine: &mut Engine) -> Vec<Vec<f32>> {
    engine.clear();
    let mut logits = engine.eval_rows(&TOKENS[..7], Rows::All).unwrap();
    logits.extend(TOKENS[7..].iter().map(|&token| engine.eval(&[token]).unwrap()));
    logits
}

/// How far two sets of logits are apart, by the largest of them.
fn distance(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().flatten().fold(0.0_f32, |most, x| most.max(x.abs()));
    let off = a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs());
    off.fold(0.0, f32::max) / largest
}

#[test]
fn logits_are_those_of_merged_weights() {
    for device in devices() {
        for (arch, model) in models() {
            let what = format!("{arch} on {}", device.info().name);
            let [one, two] = [everything(arch, &model), partial(arch, &model)];
            assert!(one.pairs.len() > 10 && two.pairs.len() > 2, "{what}");
            let halves = LowRank { dtype: DType::F16, ..one.clone() };
            let cases = [
                ("one", vec![(&one, 0.75)]),
                ("of halves", vec![(&halves, 1.0)]),
                ("two", vec![(&one, 0.5), (&two, -0.7)]),
            ];
            let base = logits(&mut engine(&model, &Adapters::None, &device));
            for (case, adapters) in cases {
                let mut merged = model.clone();
                adapters.iter().for_each(|(adapter, scale)| adapter.merge(&mut merged, *scale));
                let expected = logits(&mut engine(&merged, &Adapters::None, &device));
                let list = adapters.iter().map(|(one, scale)| one.adapter(*scale as f32));
                let mut engine = engine(&model, &Adapters::All(list.collect()), &device);
                let found = logits(&mut engine);
                let (off, changed) = (distance(&found, &expected), distance(&base, &expected));
                println!("{what}, {case}: {off:.1e} off, {changed:.1e} from the model alone");
                assert!(off <= LIMIT, "{what}, {case}: {off} off");
                assert!(changed > 0.05, "{what}, {case}: the adapters change nothing");
            }
        }
    }
}

#[test]
fn weights_in_blocks_take_adapters_too() {
    for device in devices() {
        let model = llama();
        let adapter = everything("llama", &model);
        let mut merged = model.clone();
        adapter.merge(&mut merged, 0.75);
        let blocks = |file: &Tiny, adapters: &Adapters| {
            let gguf = weights::quantised(&Gguf::from_bytes(file.bytes()).unwrap(), DType::Q8_0);
            let device = device.clone();
            let loaded = Engine::with_adapters(&gguf, adapters, device, options(true), &mut |_| ());
            logits(&mut loaded.unwrap())
        };
        let expected = logits(&mut engine(&merged, &Adapters::None, &device));
        let adapters = Adapters::All(vec![adapter.adapter(0.75)]);
        let off = distance(&blocks(&model, &adapters), &expected);
        // Blocks of merged weights are as far off: activations are rounded to 8 bits there.
        let rounded = distance(&blocks(&merged, &Adapters::None), &expected);
        println!("{}: {off:.1e} off, merged {rounded:.1e}", device.info().name);
        assert!(off < 2.0 * rounded, "{}: {off} off, {rounded}", device.info().name);
    }
}

#[test]
fn a_model_on_two_devices_takes_the_adapters_of_its_layers() {
    let cpu = || Arc::new(CpuDevice::with_threads(1)) as Arc<dyn Device>;
    for (arch, model) in models().into_iter().take(2) {
        let adapters = [everything(arch, &model), partial(arch, &model)];
        let adapters = Adapters::All(adapters.iter().map(|one| one.adapter(0.5)).collect());
        let expected = logits(&mut engine(&model, &adapters, &cpu()));
        let without = logits(&mut engine(&model, &Adapters::None, &cpu()));
        assert!(distance(&without, &expected) > 100.0 * LIMIT, "{arch}: the adapters do nothing");
        let gguf = Gguf::from_bytes(model.bytes()).unwrap();
        for host_layers in 0..tiny::LAYERS {
            let two = Devices::Two { host: cpu(), card: cpu(), host_layers };
            let divided = Engine::with_adapters(&gguf, &adapters, two, options(true), &mut |_| ());
            assert_eq!(logits(&mut divided.unwrap()), expected, "{arch}, {host_layers} layers");
        }
    }
}

#[test]
fn a_scale_of_zero_is_no_adapter() {
    for device in devices() {
        let model = llama();
        let expected = logits(&mut engine(&model, &Adapters::None, &device));
        let adapter = everything("llama", &model).adapter(0.0);
        let found = logits(&mut engine(&model, &Adapters::All(vec![adapter]), &device));
        assert!(distance(&found, &expected) < 1e-6, "{}", device.info().name);
        let none = Adapters::All(Vec::new());
        assert_eq!(logits(&mut engine(&model, &none, &device)), expected);
    }
}

#[test]
fn generated_text_is_that_of_merged_weights() {
    let sampling = Sampling::greedy();
    let generate = |engine: &mut Engine| {
        let mut tokens = Vec::new();
        engine.eval(&TOKENS[..6]).unwrap();
        engine
            .generate(TOKENS[6], 8, &sampling, &mut |token| {
                tokens.push(token);
                true
            })
            .unwrap();
        tokens
    };
    for device in devices() {
        let mut model = llama();
        let adapter = everything("llama", &model);
        let adapters = Adapters::All(vec![adapter.adapter(1.0)]);
        let found = generate(&mut engine(&model, &adapters, &device));
        let base = generate(&mut engine(&model, &Adapters::None, &device));
        adapter.merge(&mut model, 1.0);
        assert_eq!(found, generate(&mut engine(&model, &Adapters::None, &device)));
        assert_ne!(found, base);
    }
}

#[test]
fn a_layer_has_a_narrow_product_for_each_input_however_many_adapters_there_are() {
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::with_threads(2));
    let model = llama();
    let dispatches = |adapters: Adapters| {
        let mut engine = engine(&model, &adapters, &cpu);
        engine.eval(&[1]).unwrap();
        engine.decode_stats().unwrap().compile.dispatches
    };
    let one = everything("llama", &model);
    let with_one = dispatches(Adapters::All(vec![one.adapter(1.0)]));
    let list = [&one, &partial("llama", &model), &one].map(|adapter| adapter.adapter(0.5));
    assert_eq!(dispatches(Adapters::All(list.to_vec())), with_one);
    // Four narrow products and seven with a sum in a layer, and one pair behind it. Gate and up are no longer one.
    let more = with_one - dispatches(Adapters::None);
    assert!(more <= 3 * (4 + 7 + 2) + 2, "{more} more dispatches");
}

/// The tokens of a text, and how many of its prompt were not read.
fn collect(stream: Stream) -> (Vec<u32>, usize) {
    let mut found = (Vec::new(), 0);
    for output in stream {
        match output {
            Output::Tokens { tokens, usage, .. } => {
                found.0.extend(tokens.iter().map(|chosen| chosen.token));
                found.1 = usage.cached;
            }
            Output::End { .. } => {}
        }
    }
    found
}

fn service(model: &Tiny, adapters: &Adapters, device: &Arc<dyn Device>) -> Service {
    let gguf = Gguf::from_bytes(model.bytes()).unwrap();
    let options = EngineOptions { context: Some(256), ..options(true) };
    let engine = Engine::with_adapters(&gguf, adapters, device.clone(), options, &mut |_| ());
    // Where rows are independent they need not be pinned, and prompts are read beside steps.
    let deterministic = !device.rows_are_independent();
    let options = DeviceOptions { slots: 4, block: 4, context: 40, deterministic };
    let runner = DeviceRunner::new(engine.unwrap(), options).unwrap();
    let options = ServiceOptions { queue: 64, ..ServiceOptions::default() };
    Service::new(Box::new(runner), options).unwrap()
}

#[test]
fn a_text_gets_what_it_gets_alone_whatever_adapters_others_have() {
    for (device, (arch, model)) in
        devices().into_iter().zip([("phi3", models().remove(1).1), ("llama", llama())])
    {
        let what = format!("{arch} on {}", device.info().name);
        let [one, two] = [everything(arch, &model), partial(arch, &model)];
        // Of the third name there are two.
        let list = vec![
            one.adapter(1.0),
            two.adapter(2.0),
            one.adapter(-0.8).named("both"),
            two.adapter(1.5).named("both"),
        ];
        let adapters = Adapters::ByText(list.clone());
        assert_eq!(adapters.choices(), ["everything", "partial", "both"]);
        let choices = [None, Some(0), Some(1), Some(2)];
        // All begin alike, so that blocks of the cache would be found.
        let prompt: Vec<u32> = TOKENS.into_iter().chain(20..31).collect();
        let request = |index: usize| {
            let adapter = choices[index % 4];
            let mut prompt = prompt.clone();
            prompt.push(index as u32 % 3);
            let sampling = Sampling { adapter, budget: 6, ..Sampling::greedy() };
            Request::new(prompt, sampling)
        };
        let crowd = service(&model, &adapters, &device);
        let refused = Sampling { adapter: Some(3), ..Sampling::greedy() };
        let refused = crowd.submit(Request::new(vec![1], refused)).err();
        assert_eq!(refused, Some(Refusal::Adapter { adapter: 3, loaded: 3 }));
        let streams = crowd.submit_all((0..24).map(request).collect()).unwrap();
        let together: Vec<_> = streams.into_iter().map(collect).collect();
        let mixed = crowd.stats().numbers().mixed_works;
        assert_eq!(mixed > 0, device.rows_are_independent(), "{what}: {mixed} works had both");
        assert!(together.iter().filter(|(_, cached)| *cached > 0).count() > 8, "{what}");
        let mut texts = Vec::new();
        for (choice, own) in choices.iter().zip([&list[..0], &list[..1], &list[1..2], &list[2..]]) {
            let mut single = engine(&model, &Adapters::All(own.to_vec()), &device);
            let alone = service(&model, &adapters, &device);
            for index in (0..12).filter(|index| choices[index % 4] == *choice) {
                let (tokens, _) = collect(alone.submit(request(index)).unwrap());
                assert_eq!(tokens.len(), 6, "{what}");
                assert_eq!(tokens, together[index].0, "{what}, text {index}");
                assert_eq!(tokens, together[index + 12].0, "{what}, text {}", index + 12);
                // An engine whose only adapters these are would choose the same.
                single.clear();
                let mut logits = single.eval(&request(index).prompt).unwrap();
                for &token in &tokens {
                    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    assert!(best - logits[token as usize] < 1e-3, "{what}, text {index}");
                    logits = single.eval(&[token]).unwrap();
                }
                texts.push(tokens);
            }
        }
        texts.sort();
        texts.dedup();
        assert!(texts.len() > 9, "{what}: adapters change little");
    }
}

#[test]
fn texts_that_choose_adapters_find_none_where_they_cannot_choose() {
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::with_threads(2));
    let model = llama();
    let adapters = Adapters::ByText(vec![everything("llama", &model).adapter(1.0)]);
    let mut chosen = engine(&model, &adapters, &cpu);
    let base = logits(&mut engine(&model, &Adapters::None, &cpu));
    assert_eq!(logits(&mut chosen), base);
    let sampling = Sampling { adapter: Some(0), ..Sampling::greedy() };
    let refused = chosen.generate(1, 1, &sampling, &mut |_| true);
    assert!(matches!(refused, Err(EngineError::NoAdapter { adapter: 0 })));
}

#[test]
fn adapters_count_as_weights() {
    let model = llama();
    let gguf = Gguf::from_bytes(model.bytes()).unwrap();
    let adapters = Adapters::All(vec![everything("llama", &model).adapter(1.0)]);
    let weights = |footprint: Result<Footprint, EngineError>| footprint.unwrap().weights;
    let with = Footprint::with_adapters(&gguf, &adapters, Some(20), DType::F16, 0);
    let more = weights(with) - weights(Footprint::new(&gguf, Some(20), DType::F16, 0));
    // Halves hold the values. Ranks are padded to 32.
    let a_layer = EMBD + Q + EMBD + FF + Q + 2 * KV + EMBD + 2 * FF + EMBD;
    assert_eq!(more, 2 * 32 * (3 * a_layer + EMBD + VOCAB) as u64);
}

#[test]
fn what_is_wrong_with_an_adapter_is_named() {
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::with_threads(2));
    let model = llama();
    let base = Gguf::from_bytes(model.bytes()).unwrap();
    let good = everything("llama", &model);
    let said = |meta: &[(&str, &str)]| {
        let mut writer = GgufWriter::new();
        meta.iter().for_each(|(key, value)| writer.set(key, *value).unwrap());
        Adapter::new("mine", &good.write(writer), 1.0).unwrap_err()
    };
    let lora = [("general.type", "adapter"), ("adapter.type", "lora")];
    let wrong = |adapter: &LowRank| {
        let adapter = Adapter::new("mine", &adapter.gguf(), 1.0)?;
        let adapters = Adapters::All(vec![adapter]);
        let device = cpu.clone();
        match Engine::with_adapters(&base, &adapters, device, options(true), &mut |_| ()) {
            Err(EngineError::Adapter(error)) => Err(error),
            Err(other) => panic!("{other}"),
            Ok(_) => Ok(()),
        }
    };
    assert!(wrong(&good).is_ok());
    let changed = |weight: &str, change: &dyn Fn(&mut low_rank::Pair)| {
        let mut adapter = good.clone();
        change(adapter.pairs.iter_mut().find(|pair| pair.weight == weight).unwrap());
        wrong(&adapter).unwrap_err()
    };
    let one = |weight: &str, width: usize, rows: usize| {
        let zeros = |elems| vec![0.5; elems];
        let (first, second) = (zeros(2 * width), zeros(2 * rows));
        let weight = weight.to_owned();
        let pair = low_rank::Pair { weight, rank: 2, first, width, second, rows };
        wrong(&LowRank { pairs: vec![pair], ..good.clone() }).unwrap_err()
    };
    let single = |name: &str| {
        let mut writer = GgufWriter::new();
        lora.iter().for_each(|(key, value)| writer.set(key, *value).unwrap());
        writer.set("general.architecture", "llama").unwrap();
        let write = |out: &mut dyn std::io::Write| out.write_all(&[0; 4 * 64]);
        writer.tensor(name, DType::F32, &[32, 2], write).unwrap();
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).unwrap();
        Adapter::new("mine", &Gguf::from_bytes(bytes).unwrap(), 1.0).unwrap_err()
    };
    let activated = {
        let mut writer = GgufWriter::new();
        lora.iter().for_each(|(key, value)| writer.set(key, *value).unwrap());
        writer.set("adapter.alora.invocation_tokens", &[1_u32, 2][..]).unwrap();
        Adapter::new("mine", &good.write(writer), 1.0).unwrap_err()
    };
    const K: &str = "blk.1.attn_k.weight";
    for (error, words) in [
        (Adapter::new("mine", &base, 1.0).unwrap_err(), &["no adapter", "not there"][..]),
        (said(&[("general.type", "model")]), &["no adapter", "\"model\""]),
        (said(&[lora[0], ("adapter.type", "loha")]), &["\"loha\"", "only \"lora\""]),
        (said(&lora), &["general.architecture"]),
        (activated, &["adapter.alora.invocation_tokens"]),
        (
            Adapter::new("mine", &good.gguf(), f32::NAN).unwrap_err(),
            &["scale", "NaN", "a finite number"],
        ),
        (
            wrong(&LowRank { alpha: Some(f32::INFINITY), ..good.clone() }).unwrap_err(),
            &["alpha", "inf"],
        ),
        (wrong(&LowRank { pairs: Vec::new(), ..good.clone() }).unwrap_err(), &["no tensors"]),
        (wrong(&LowRank { arch: "qwen2", ..good.clone() }).unwrap_err(), &["`qwen2`", "`llama`"]),
        (single("blk.0.attn_q.weight.lora_a"), &["lacks `blk.0.attn_q.weight.lora_b`"]),
        (single("blk.0.attn_q.weight.lora_b"), &["lacks `blk.0.attn_q.weight.lora_a`"]),
        (single("blk.0.attn_norm.weight"), &["blk.0.attn_norm.weight", "not supported"]),
        (one("blk.3.attn_q.weight", EMBD, Q), &["blk.3.attn_q.weight", "does not have"]),
        (one("blk.0.attn_qkv.weight", EMBD, Q), &["blk.0.attn_qkv.weight", "does not have"]),
        (one("token_embd.weight", EMBD, VOCAB), &["token_embd.weight", "not supported"]),
        (one("blk.0.attn_norm.weight", EMBD, 1), &["blk.0.attn_norm.weight", "not supported"]),
        (one(K, EMBD + 1, KV), &["blk.1.attn_k.weight.lora_a", "[2, 33]", "[2, 32]"]),
        (one(K, EMBD, Q), &["blk.1.attn_k.weight.lora_b", "[32, 2]", "[16, 2]", "[16, 32]"]),
        (
            changed(K, &|pair| {
                (pair.rank, pair.first, pair.second) =
                    (40, vec![0.5; 40 * EMBD], vec![0.5; 40 * KV]);
            }),
            &["blk.1.attn_k.weight.lora_a", "at most 32"],
        ),
        (
            changed(K, &|pair| pair.first[5] = f32::NAN),
            &["element 5", "blk.1.attn_k.weight.lora_a", "NaN", "damaged"],
        ),
        (
            changed(K, &|pair| pair.second[7] = f32::INFINITY),
            &["element 7", "blk.1.attn_k.weight.lora_b", "inf"],
        ),
    ] {
        let text = error.to_string();
        println!("{text}");
        assert!(text.contains("`mine`"), "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
    // Experts have a matrix each.
    let experts = models().into_iter().find(|(arch, _)| *arch == "qwen2moe").unwrap().1;
    let mut adapter = LowRank { arch: "qwen2moe", pairs: Vec::new(), ..good.clone() };
    let (first, second) = (vec![0.5; 2 * EMBD], vec![0.5; 2 * FF]);
    let weight = "blk.0.ffn_up_exps.weight".to_owned();
    adapter.pairs = vec![low_rank::Pair { weight, rank: 2, first, width: EMBD, second, rows: FF }];
    let adapters = Adapters::All(vec![adapter.adapter(1.0)]);
    let base = Gguf::from_bytes(experts.bytes()).unwrap();
    let error = Footprint::with_adapters(&base, &adapters, None, DType::F16, 0).unwrap_err();
    assert!(matches!(&error, EngineError::Adapter(AdapterError::Target { weight, .. })
        if weight == "blk.0.ffn_up_exps.weight"));
}

#[test]
fn an_adapter_is_no_model() {
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::with_threads(2));
    let file = everything("llama", &llama()).gguf();
    let found =
        [Engine::new(&file, cpu, options(true)).err().unwrap(), tokenizer(&file).err().unwrap()];
    for error in found {
        assert!(matches!(error, EngineError::IsAdapter { .. }), "{error}");
        assert!(error.to_string().contains("\"llama\""), "{error}");
    }
}
