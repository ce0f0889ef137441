//! Steps whose barriers are counters: the same bits, and the same text where a wait never ends.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use std::sync::Arc;

use clearway::DType;
use clearway::vulkan::{Counting, VulkanDevice, VulkanOptions};
use clearway_llm::batch::device::{DeviceOptions, DeviceRunner};
use clearway_llm::batch::runner::{Change, Read, Runner, SlotState, Work};
use clearway_llm::engine::{Engine, EngineOptions, Sampling};
use clearway_llm::gguf::Gguf;

mod tiny;
use tiny::{file, quantised, shapes};

const COUNT: usize = 40;

fn open(counting: Counting) -> Option<Arc<VulkanDevice>> {
    let options = VulkanOptions { disk_cache: false, counting, ..VulkanOptions::default() };
    clearway::testkit::open_vulkan(options).unwrap().map(Arc::new)
}

/// What the device generates, greedy and drawn, and whether steps were done again.
fn generated(gguf: &Gguf, device: &Arc<VulkanDevice>) -> (Vec<u32>, bool) {
    let options = EngineOptions { context: Some(128), ..EngineOptions::default() };
    let mut engine = Engine::new(gguf, device.clone(), options).unwrap();
    let mut found = Vec::new();
    for sampling in [Sampling::greedy(), Sampling { seed: 9, ..Sampling::default() }] {
        engine.clear();
        engine.eval(&[5, 17, 40]).unwrap();
        let keep = &mut |token| {
            found.push(token);
            true
        };
        engine.generate(11, COUNT, &sampling, keep).unwrap();
        assert_eq!(engine.position(), 3 + COUNT);
    }
    (found, engine.has_stalled())
}

#[test]
fn counters_give_the_tokens_of_barriers() {
    let Some(barriers) = open(Counting::Never) else { return };
    let counted = open(Counting::Always).unwrap();
    let stalling = open(Counting::Stalling).unwrap();
    let plain = Gguf::from_bytes(file("llama", &shapes()[0].1, |_| ())).unwrap();
    for gguf in [&plain, &quantised(&plain, DType::Q8_0), &quantised(&plain, DType::F16)] {
        let (expected, stalled) = generated(gguf, &barriers);
        assert!(!stalled);
        assert_eq!(generated(gguf, &counted), (expected.clone(), false));
        // A wait that never ends ends in the same text, with barriers from then on.
        let first = stalling.counts_workgroups();
        assert_eq!(generated(gguf, &stalling), (expected, first));
        assert!(!stalling.counts_workgroups());
    }
    assert!(counted.kernels_with("b_counters") >= 4);
    assert_eq!(barriers.kernels_with("b_counters"), 0);
}

/// So many texts through slots and blocks, greedy and then drawn, with works handed over ahead.
fn through_slots(gguf: &Gguf, device: &Arc<VulkanDevice>, texts: usize) -> (Vec<u32>, bool) {
    const BLOCKS: usize = 8;
    let (slots, context) = (texts + 1, 8 * BLOCKS);
    let options = EngineOptions { context: Some(slots * context), ..EngineOptions::default() };
    let engine = Engine::new(gguf, device.clone(), options).unwrap();
    let options = DeviceOptions { slots, block: 8, context, deterministic: false };
    let mut runner = DeviceRunner::new(engine, options).unwrap();
    let mut found = Vec::new();
    for sampling in [Sampling::greedy(), Sampling { seed: 9, ..Sampling::default() }] {
        let (mut changes, mut read) = (Vec::new(), Vec::new());
        for slot in 1..=texts {
            let tokens = vec![5, 17, 39 + slot as u32];
            let state = SlotState {
                token: 11,
                position: tokens.len(),
                end: tokens.len() + COUNT,
                sampling: sampling.clone(),
                stop_tokens: Vec::new(),
                history: Vec::new(),
            };
            // Blocks of a text lie in no order.
            let blocks = (0..BLOCKS).map(|block| (slot * BLOCKS + block * 5 % BLOCKS) as u32);
            changes.push(Change::Blocks { slot, first: 0, blocks: blocks.collect() });
            changes.push(Change::Open { slot, state: Box::new(state) });
            read.push(Read { slot, position: 0, tokens, adapter: None });
        }
        let decode: Vec<usize> = (1..=texts).collect();
        let second = Work { decode: decode.clone(), steps: COUNT / 2, ..Work::default() };
        let first = Work { changes, read, decode, steps: COUNT / 2 };
        runner.start(&first).unwrap();
        runner.start(&second).unwrap();
        for _ in 0..2 {
            let results = runner.finish().unwrap();
            found.extend(results.iter().flat_map(|slot| &slot.tokens).map(|chosen| chosen.token));
        }
    }
    assert_eq!(found.len(), 2 * COUNT * texts);
    (found, runner.engine().has_stalled())
}

#[test]
fn counters_give_the_tokens_of_barriers_through_slots() {
    for texts in [1, 3] {
        let Some(barriers) = open(Counting::Never) else { return };
        let counted = open(Counting::Always).unwrap();
        let stalling = open(Counting::Stalling).unwrap();
        let plain = Gguf::from_bytes(file("llama", &shapes()[0].1, |_| ())).unwrap();
        let gguf = quantised(&plain, DType::Q8_0);
        let (expected, stalled) = through_slots(&gguf, &barriers, texts);
        assert!(!stalled);
        assert_eq!(through_slots(&gguf, &counted, texts), (expected.clone(), false));
        assert!(counted.kernels_with("b_counters") >= 4);
        // A wait that never ends ends in the same text, with barriers from then on.
        assert_eq!(through_slots(&gguf, &stalling, texts), (expected, true));
        assert!(!stalling.counts_workgroups());
    }
}

#[test]
fn the_test_of_the_order_passes_where_workgroups_start_in_order() {
    let Some(device) = open(Counting::Always) else { return };
    assert!(device.test_counters().unwrap());
    let stalling = open(Counting::Stalling).unwrap();
    let error = stalling.test_counters().unwrap_err().to_string();
    assert!(error.contains("in order"), "{error}");
}

/// Steps with counters and with barriers, of the same kernels: bit for bit. `CLEARWAY_CASES` says how many, and
/// `CLEARWAY_COUNTER_MODEL` names a model file other than the tiny one.
#[test]
fn many_steps_with_counters_give_the_bits_of_barriers() {
    let Some(barriers) = open(Counting::Idle) else { return };
    let counted = open(Counting::Always).unwrap();
    let steps: usize = std::env::var("CLEARWAY_CASES").ok().map_or(200, |n| n.parse().unwrap());
    let plain = Gguf::from_bytes(file("llama", &shapes()[0].1, |_| ())).unwrap();
    let gguf = match std::env::var_os("CLEARWAY_COUNTER_MODEL") {
        Some(path) => Gguf::open(path).unwrap(),
        None => quantised(&plain, DType::Q8_0),
    };
    const CONTEXT: usize = 512;
    let options = || EngineOptions { context: Some(CONTEXT), ..EngineOptions::default() };
    let mut engines =
        [&barriers, &counted].map(|d| Engine::new(&gguf, d.clone(), options()).unwrap());
    let (mut done, mut seed) = (0, 0);
    while done < steps {
        let count = (steps - done).min(CONTEXT - 4);
        let texts = engines.each_mut().map(|engine| {
            let mut text = Vec::with_capacity(count);
            let keep = &mut |token| {
                text.push(token);
                true
            };
            engine.clear();
            engine.eval(&[5, 17, 40]).unwrap();
            let sampling = Sampling { seed, temperature: 1.0, ..Sampling::default() };
            engine.generate(11, count, &sampling, keep).unwrap();
            let logits = engine.eval(&[7]).unwrap();
            assert!(!engine.has_stalled());
            (text, logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        });
        assert!(texts[0] == texts[1], "after {done} steps, seed {seed}");
        (done, seed) = (done + count, seed + 1);
    }
    println!("counted: {done} steps with counters");
}
