//! The default model against its golden data: ids, logits and greedy text.
//!
//! A float reference has left the ten best logits at 32 positions behind each of twelve prompts. Its own
//! tokens are the history there, so an error at one position does not grow into the next. Every position is
//! computed twice: all of a text at once, as a prompt is read, and token by token, as text is generated.
//!
//! The tests run where `CLEARWAY_GOLDEN_MODEL` names the model's file. A software driver takes two prompts,
//! unless `CLEARWAY_GOLDEN_ALL` is set; the CPU and real cards take all.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use std::sync::Arc;
use std::time::Instant;

use clearway::cpu::{CpuDevice, CpuOptions};
use clearway::vulkan::{VulkanDevice, VulkanOptions};
use clearway::{CompileOptions, DType, Device, GpuError};
use clearway_graph::testkit::skip;
use clearway_llm::engine::{Engine, EngineOptions, Rows, Sampler, Sampling, tokenizer};
use clearway_llm::gguf::Gguf;
use clearway_llm::text::EncodeOptions;
use serde::Deserialize;

/// Prompts in the golden data.
const CASES: usize = 12;
/// Positions of each.
const STEPS: usize = 32;
/// Largest mean error of logits where activations are rounded to 8 bits, and where they are not.
const ROUNDED_LIMIT: f64 = 0.15;
const FLOAT_LIMIT: f64 = 0.02;
/// Where activations are rounded and only some of the prompts are run: single prompts reach 0.29 on a card whose
/// mean over all twelve is 0.14.
const SOME_LIMIT: f64 = 0.25;
/// A best logit that leads by this much stays the best.
const CLEAR_MARGIN: f32 = 0.25;

#[test]
fn the_cpu_gives_the_golden_logits_at_every_position() {
    let Some(gguf) = model() else { return };
    let mut golden = Golden::new(&gguf, Arc::new(CpuDevice::new()), EngineOptions::default());
    golden.check_ids(&gguf);
    golden.check_prefill(CASES);
    golden.check_replay(CASES);
    golden.check_loop(CASES);
}

#[test]
fn the_cpu_gives_the_golden_logits_with_float_activations() {
    let Some(gguf) = model() else { return };
    let device =
        CpuDevice::with_options(CpuOptions { float_activations: true, ..CpuOptions::default() });
    let mut golden = Golden::new(&gguf, Arc::new(device), EngineOptions::default());
    assert_eq!(golden.limit, FLOAT_LIMIT);
    golden.check_prefill(CASES);
    golden.check_replay(SOME);
}

/// Keys and values rounded to 8 bits keep to the same limits.
#[test]
fn the_cpu_gives_the_golden_logits_with_a_cache_of_8_bits() {
    let Some(gguf) = model() else { return };
    let mut golden = Golden::new(&gguf, Arc::new(CpuDevice::new()), cache_of_8_bits());
    golden.check_prefill(CASES);
    golden.check_replay(CASES);
    golden.check_loop(CASES);
}

#[test]
fn vulkan_gives_the_golden_logits_with_a_cache_of_8_bits() {
    let Some(gguf) = model() else { return };
    let Some(device) = vulkan(VulkanOptions::default()) else { return };
    let cases = prompts(&device, 1);
    let mut golden = Golden::new(&gguf, device, cache_of_8_bits());
    golden.check_prefill(cases);
    golden.check_replay(cases);
    golden.check_loop(cases);
}

fn cache_of_8_bits() -> EngineOptions {
    EngineOptions { cache_dtype: DType::Q8_0, ..EngineOptions::default() }
}

/// Fused and not, replayed and encoded anew for every token. With `CLEARWAY_PROCESSORS=2` a large card takes
/// the kernels it has for larger models, as a software driver does anyway.
#[test]
fn vulkan_gives_the_golden_logits_at_every_position() {
    let Some(gguf) = model() else { return };
    let processors = std::env::var("CLEARWAY_PROCESSORS").ok().map(|text| text.parse().unwrap());
    let Some(device) = vulkan(VulkanOptions { processors, ..VulkanOptions::default() }) else {
        return;
    };
    let (most, few) = (prompts(&device, SOME), prompts(&device, 1));
    for (fuse, replay) in [(true, true), (true, false), (false, true), (false, false)] {
        if most < CASES && !fuse && !replay {
            continue; // each is run with the other, which is all a software driver has time for
        }
        let compile = CompileOptions { fuse, ..CompileOptions::default() };
        let options = EngineOptions { compile, replay, ..EngineOptions::default() };
        println!("fused: {fuse}, replayed: {replay}");
        let mut golden = Golden::new(&gguf, device.clone(), options);
        let cases = if fuse && replay { most } else { few };
        golden.check_replay(cases);
        if replay && (fuse || cases == CASES) {
            golden.check_prefill(cases);
        }
        if fuse {
            golden.check_loop(cases);
        }
    }
}

/// Cards with cooperative matrices read prompts with them; others have tiles, as software drivers do anyway.
#[test]
fn vulkan_gives_the_golden_logits_without_matrices() {
    let Some(gguf) = model() else { return };
    let options = VulkanOptions { matrices: false, ..VulkanOptions::default() };
    let Some(device) = vulkan(options) else { return };
    if device.is_software() {
        return skip("matrices", "software drivers have no cooperative matrices to do without");
    }
    let mut golden = Golden::new(&gguf, device, EngineOptions::default());
    golden.check_prefill(CASES);
    golden.check_replay(CASES);
}

#[test]
fn vulkan_gives_the_golden_logits_with_float_activations() {
    let Some(gguf) = model() else { return };
    let options = VulkanOptions { float_activations: true, ..VulkanOptions::default() };
    let Some(device) = vulkan(options) else { return };
    let cases = prompts(&device, 1);
    let mut golden = Golden::new(&gguf, device, EngineOptions::default());
    assert_eq!(golden.limit, FLOAT_LIMIT);
    golden.check_prefill(cases);
    golden.check_replay(cases);
}

/// The same kernels through wgpu, fused and replayed, and text that stays on the device.
#[cfg(feature = "wgpu")]
#[test]
fn wgpu_gives_the_golden_logits_at_every_position() {
    use clearway::wgpu::{WgpuDevice, WgpuOptions};
    let Some(gguf) = model() else { return };
    let device = match WgpuDevice::open(WgpuOptions::default()) {
        Ok(device) => Arc::new(device),
        Err(error @ (GpuError::NoAdapter { .. } | GpuError::Unsupported { .. })) => {
            return skip("vulkan", error);
        }
        Err(error) => panic!("{error}"),
    };
    let all = !device.is_software() || std::env::var_os("CLEARWAY_GOLDEN_ALL").is_some();
    // The same kernels have run through Vulkan: one prompt is all a software driver has time for.
    let cases = if all { CASES } else { 1 };
    let mut golden = Golden::new(&gguf, device.clone(), EngineOptions::default());
    golden.check_prefill(cases);
    golden.check_replay(cases);
    golden.check_loop(cases);
    let mut golden = Golden::new(&gguf, device, cache_of_8_bits());
    golden.check_prefill(cases);
    golden.check_replay(cases);
}

/// Prompts of a device that has no time for all.
const SOME: usize = 2;

/// How many prompts a device takes: all, or `some` on a software driver.
fn prompts(device: &VulkanDevice, some: usize) -> usize {
    let all = !device.is_software() || std::env::var_os("CLEARWAY_GOLDEN_ALL").is_some();
    if all { CASES } else { some }
}

/// The default model's file.
fn model() -> Option<Gguf> {
    let Some(path) = std::env::var_os("CLEARWAY_GOLDEN_MODEL") else {
        skip("golden", "CLEARWAY_GOLDEN_MODEL does not name the default model's file");
        return None;
    };
    Some(Gguf::open(path).unwrap())
}

/// The best Vulkan device.
fn vulkan(options: VulkanOptions) -> Option<Arc<VulkanDevice>> {
    match VulkanDevice::open(options) {
        Ok(device) => Some(Arc::new(device)),
        Err(error @ (GpuError::NoDevice { .. } | GpuError::Unsupported { .. })) => {
            skip("vulkan", error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A prompt with what the reference computed behind it.
struct Case {
    name: String,
    prompt: String,
    tokens: Vec<u32>,
    /// The tokens it chose.
    greedy: Vec<u32>,
    /// Best logit minus the second best at each of them.
    margin: Vec<f32>,
    /// The best logits at each of them.
    steps: Vec<Vec<(usize, f32)>>,
}

impl Case {
    fn load() -> Vec<Self> {
        #[derive(Deserialize)]
        struct Prompt {
            name: String,
            prompt: String,
            tokens: Vec<u32>,
        }
        #[derive(Deserialize)]
        struct Steps {
            name: String,
            tokens: Vec<u32>,
            greedy: Vec<u32>,
            margin: Vec<f32>,
            steps: Vec<Vec<(usize, f32)>>,
        }
        let prompts: Vec<Prompt> =
            serde_json::from_str(include_str!("data/smollm2-golden.json")).unwrap();
        let steps: Vec<Steps> =
            serde_json::from_str(include_str!("data/smollm2-golden-steps.json")).unwrap();
        assert_eq!((prompts.len(), steps.len()), (CASES, CASES));
        let both = prompts.into_iter().zip(steps).map(|(prompt, data)| {
            assert_eq!((&prompt.name, &prompt.tokens), (&data.name, &data.tokens));
            assert_eq!([data.greedy.len(), data.margin.len(), data.steps.len()], [STEPS; 3]);
            assert!(data.steps.iter().all(|best| best.len() == 10));
            let Prompt { name, prompt, tokens } = prompt;
            let Steps { greedy, margin, steps, .. } = data;
            Self { name, prompt, tokens, greedy, margin, steps }
        });
        both.collect()
    }

    /// Mean error of the logits at all positions, one row of them for each. The text must be the reference's
    /// up to the first token that was a close call.
    fn error(&self, found: &[Vec<f32>]) -> f64 {
        assert_eq!(found.len(), STEPS, "{}", self.name);
        let clear = self.margin.iter().take_while(|&&margin| margin >= CLEAR_MARGIN).count();
        for (step, logits) in found.iter().enumerate().take(clear) {
            assert_eq!(greedy(logits), self.greedy[step], "{:?}, step {step}", self.prompt);
        }
        let of_step = |(best, logits): (&Vec<(usize, f32)>, &Vec<f32>)| {
            let off = best.iter().map(|&(id, logit)| f64::from((logits[id] - logit).abs()));
            off.sum::<f64>() / best.len() as f64
        };
        self.steps.iter().zip(found).map(of_step).sum::<f64>() / STEPS as f64
    }
}

/// The default model on a device.
struct Golden {
    cases: Vec<Case>,
    engine: Engine,
    device: String,
    limit: f64,
}

impl Golden {
    fn new(gguf: &Gguf, device: Arc<dyn Device>, options: EngineOptions) -> Self {
        let name = device.info().description.clone();
        let limit = if device.quantises_activations() { ROUNDED_LIMIT } else { FLOAT_LIMIT };
        let engine = Engine::new(gguf, device, options).unwrap();
        Self { cases: Case::load(), engine, device: name, limit }
    }

    fn check_ids(&self, gguf: &Gguf) {
        let text = tokenizer(gguf).unwrap();
        for Case { prompt, tokens, .. } in &self.cases {
            assert_eq!(&text.encode(prompt, EncodeOptions::PROMPT).unwrap(), tokens, "{prompt:?}");
        }
    }

    /// Each text in one step.
    fn check_prefill(&mut self, cases: usize) {
        self.check("at once", cases, |engine, case| {
            let text = [&case.tokens[..], &case.greedy[..STEPS - 1]].concat();
            let rows: Vec<usize> = (text.len() - STEPS..text.len()).collect();
            engine.eval_rows(&text, Rows::List(&rows)).unwrap()
        });
    }

    /// The prompt in one step, then a step for each token.
    fn check_replay(&mut self, cases: usize) {
        self.check("token by token", cases, |engine, case| {
            let first = engine.eval(&case.tokens).unwrap();
            let rest = case.greedy[..STEPS - 1].iter();
            let rest = rest.map(|&token| engine.eval(&[token]).unwrap());
            std::iter::once(first).chain(rest).collect()
        });
    }

    fn check(
        &mut self,
        how: &str,
        cases: usize,
        logits: impl Fn(&mut Engine, &Case) -> Vec<Vec<f32>>,
    ) {
        let start = Instant::now();
        let mut errors = Vec::new();
        for case in &self.cases[..cases] {
            self.engine.clear();
            errors.push(case.error(&logits(&mut self.engine, case)));
        }
        let mean = errors.iter().sum::<f64>() / cases as f64;
        let each: Vec<String> = errors.iter().map(|error| format!("{error:.3}")).collect();
        let limit = match cases < CASES && self.limit > FLOAT_LIMIT {
            true => SOME_LIMIT,
            false => self.limit,
        };
        let (device, seconds) = (&self.device, start.elapsed().as_secs_f64());
        println!("{device}, {how}: mean error {mean:.4} ({}), {seconds:.1} s", each.join(" "));
        assert!(mean <= limit, "mean error {mean} {how} on {device}, {limit} allowed");
    }

    /// Tokens chosen and fed back on the device are those the host would have chosen.
    fn check_loop(&mut self, cases: usize) {
        let engine = &mut self.engine;
        for case in &self.cases[..cases] {
            engine.clear();
            let first = greedy(&engine.eval(&case.tokens).unwrap());
            let mut looped = vec![first];
            let keep = &mut |token| {
                looped.push(token);
                true
            };
            engine.generate(first, 3, &Sampling::greedy(), keep).unwrap();
            assert_eq!(engine.position(), case.tokens.len() + 3);
            engine.truncate(case.tokens.len());
            let mut stepped = vec![first];
            for _ in 0..3 {
                stepped.push(greedy(&engine.eval(&stepped[stepped.len() - 1..]).unwrap()));
            }
            assert_eq!(looped, stepped, "{:?}", case.prompt);
        }
    }
}

/// The token of the best logit.
fn greedy(logits: &[f32]) -> u32 {
    Sampler::new(Sampling::greedy()).sample(logits, &[]).unwrap()
}
