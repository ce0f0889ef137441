//! Many sequences on one device: each gets the tokens it gets alone, whoever joins and leaves.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use std::sync::Arc;

use clearway::cpu::CpuDevice;
use clearway::vulkan::VulkanOptions;
use clearway::{DType, Device};
use clearway_llm::batch::device::{DeviceOptions, DeviceRunner};
use clearway_llm::batch::runner::{Change, Read, Runner, SlotState, Work};
use clearway_llm::engine::{Engine, EngineOptions, Penalties, Sampling};
use clearway_llm::gguf::Gguf;
use clearway_llm::model::{Arch, ModelShape};

mod tiny;
use tiny::{file, shapes};

/// Random numbers by seed.
struct Rng(clearway_graph::testkit::Rng);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(clearway_graph::testkit::Rng::new(seed))
    }

    fn below(&mut self, end: usize) -> usize {
        self.0.below(end as u64) as usize
    }

    fn shuffle(&mut self, items: &mut [u32]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

const BLOCK: usize = 4;
const POOL: usize = 256;
const VOCAB: usize = 96;

/// A text that is to be continued.
#[derive(Clone, Debug)]
struct Text {
    prompt: Vec<u32>,
    count: usize,
    sampling: Sampling,
}

impl Text {
    fn random(rng: &mut Rng) -> Self {
        let length = 1 + rng.below(24);
        let prompt = (0..length).map(|_| rng.below(VOCAB) as u32).collect();
        let count = 1 + rng.below(8);
        let mut sampling = match rng.below(3) {
            0 => Sampling::greedy(),
            _ => Sampling { seed: rng.below(1000) as u64, ..Sampling::default() },
        };
        if rng.below(5) == 0 {
            // The host chooses these.
            sampling.penalties = Penalties { repeat: 1.3, ..Penalties::default() };
        }
        Self { prompt, count, sampling }
    }
}

/// A text in its slot.
struct Running {
    text: usize,
    slot: usize,
    blocks: Vec<u32>,
    read: usize,
    open: bool,
    found: Vec<u32>,
}

fn runner(device: &Arc<dyn Device>, deterministic: bool) -> DeviceRunner {
    runner_of(engine(device), deterministic)
}

fn engine(device: &Arc<dyn Device>) -> Engine {
    let (_, shape) = &shapes()[0];
    let gguf = Gguf::from_bytes(file("llama", shape, |_| ())).unwrap();
    let options = EngineOptions { context: Some(POOL), ..EngineOptions::default() };
    Engine::new(&gguf, device.clone(), options).unwrap()
}

/// A model with a cache of 8 bits, whose heads are turned by neighbours or by halves.
fn engine_of_8_bits(device: &Arc<dyn Device>, (arch, name): (Arch, &str)) -> Engine {
    let shape = ModelShape::new("tiny", arch, 3, 32, 48, 4, 2, 64, VOCAB);
    let gguf = Gguf::from_bytes(file(name, &shape, |_| ())).unwrap();
    let cache_dtype = DType::Q8_0;
    let options = EngineOptions { context: Some(POOL), cache_dtype, ..EngineOptions::default() };
    Engine::new(&gguf, device.clone(), options).unwrap()
}

const TURNED: [(Arch, &str); 2] = [(Arch::Llama, "llama"), (Arch::Qwen2, "qwen2")];

fn runner_of(engine: Engine, deterministic: bool) -> DeviceRunner {
    let options = DeviceOptions { slots: 5, block: BLOCK, context: 64, deterministic };
    DeviceRunner::new(engine, options).unwrap()
}

/// Continues all texts, with joins, prompt chunks and numbers of steps as `rng` has it. Blocks lie anywhere in the pool.
fn run(runner: &mut DeviceRunner, texts: &[Text], rng: &mut Rng) -> Vec<Vec<u32>> {
    let limits = runner.limits();
    let mut free: Vec<u32> = (0..limits.blocks as u32).collect();
    rng.shuffle(&mut free);
    let mut slots: Vec<usize> = (0..limits.slots).collect();
    let mut waiting: Vec<usize> = (0..texts.len()).rev().collect();
    let mut running: Vec<Running> = Vec::new();
    let mut done = vec![Vec::new(); texts.len()];
    while !(waiting.is_empty() && running.is_empty()) {
        let mut work = Work::default();
        while !waiting.is_empty() && !slots.is_empty() && (running.is_empty() || rng.below(2) == 0)
        {
            let (text, slot) = (waiting.pop().unwrap(), slots.pop().unwrap());
            let rows = texts[text].prompt.len() + texts[text].count;
            let blocks: Vec<u32> = (0..rows.div_ceil(BLOCK)).map(|_| free.pop().unwrap()).collect();
            work.changes.push(Change::Blocks { slot, first: 0, blocks: blocks.clone() });
            running.push(Running { text, slot, blocks, read: 0, open: false, found: Vec::new() });
        }
        for one in &mut running {
            let Text { prompt, count, sampling } = &texts[one.text];
            let last = prompt.len() - 1;
            if !one.open && one.read < last {
                let chunk = (1 + rng.below(20)).min(last - one.read);
                let tokens = prompt[one.read..one.read + chunk].to_vec();
                let adapter = sampling.adapter;
                work.read.push(Read { slot: one.slot, position: one.read, tokens, adapter });
                one.read += chunk;
            } else if !one.open {
                one.open = true;
                let state = SlotState {
                    token: prompt[last],
                    position: last,
                    end: last + count,
                    sampling: sampling.clone(),
                    stop_tokens: Vec::new(),
                    history: prompt.clone(),
                };
                work.changes.push(Change::Open { slot: one.slot, state: Box::new(state) });
            }
        }
        work.decode = running.iter().filter(|one| one.open).map(|one| one.slot).collect();
        let hosts = |one: &Running| !texts[one.text].sampling.runs_on_device();
        let alone = running.iter().any(|one| one.open && hosts(one));
        // Every other work has one step, which goes together with rows of prompts.
        let single = alone || rng.below(2) == 0;
        work.steps = if single { 1 } else { 1 + rng.below(limits.steps) };
        runner.start(&work).unwrap();
        // Without changes the next work may be under way before the first is done.
        let again = Work { decode: work.decode.clone(), steps: 1, ..Work::default() };
        let ahead = limits.ahead > 1 && !alone && rng.below(2) == 0;
        if ahead {
            runner.start(&again).unwrap();
        }
        let mut results = runner.finish().unwrap();
        if ahead {
            results.extend(runner.finish().unwrap());
        }
        for result in results {
            assert!(!result.failed);
            let one = running.iter_mut().find(|one| one.slot == result.slot).unwrap();
            one.found.extend(result.tokens.iter().map(|chosen| chosen.token));
        }
        let mut index = 0;
        while index < running.len() {
            // Some leave before they are done and are not looked at again.
            let leaves = running[index].found.len() == texts[running[index].text].count;
            if !leaves {
                index += 1;
                continue;
            }
            let one = running.swap_remove(index);
            runner
                .start(&Work { changes: vec![Change::Close { slot: one.slot }], ..Work::default() })
                .unwrap();
            runner.finish().unwrap();
            slots.push(one.slot);
            free.extend(one.blocks);
            rng.shuffle(&mut free);
            done[one.text] = one.found;
        }
    }
    done
}

fn devices() -> Vec<Arc<dyn Device>> {
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::with_threads(2));
    let vulkan = clearway::testkit::open_vulkan(VulkanOptions::default()).unwrap();
    let vulkan = vulkan.map(|device| Arc::new(device) as Arc<dyn Device>);
    [cpu].into_iter().chain(vulkan).collect()
}

#[test]
fn a_sequence_gets_bit_for_bit_the_tokens_it_gets_alone() {
    for (index, device) in devices().into_iter().enumerate() {
        let name = device.info().name.clone();
        let mut runner = runner(&device, true);
        let schedules = [1000, 30][index.min(1)];
        let mut rng = Rng::new(7);
        let mut tokens = 0;
        for round in 0..schedules / 10 {
            let texts: Vec<Text> = (0..5).map(|_| Text::random(&mut rng)).collect();
            let alone: Vec<Vec<u32>> = texts
                .iter()
                .map(|text| run(&mut runner, std::slice::from_ref(text), &mut rng).remove(0))
                .collect();
            for _ in 0..10 {
                let together = run(&mut runner, &texts, &mut rng);
                assert_eq!(together, alone, "{name}, round {round}");
                tokens += together.iter().map(Vec::len).sum::<usize>();
            }
        }
        println!("counted: {schedules} schedules on {name}, {tokens} tokens");
    }
}

/// On the CPU a row has the bits it has alone, whatever stands beside it: rows of prompts, too.
#[test]
fn on_the_cpu_a_sequence_beside_prompts_gets_bit_for_bit_the_tokens_it_gets_alone() {
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::with_threads(2));
    let mut pinned = runner(&cpu, true);
    let mut runner = runner(&cpu, false);
    let mut rng = Rng::new(17);
    for round in 0..20 {
        let texts: Vec<Text> = (0..7).map(|_| Text::random(&mut rng)).collect();
        let alone: Vec<Vec<u32>> = texts
            .iter()
            .map(|text| run(&mut pinned, std::slice::from_ref(text), &mut rng).remove(0))
            .collect();
        for _ in 0..10 {
            assert_eq!(run(&mut runner, &texts, &mut rng), alone, "round {round}");
        }
    }
    assert_eq!(pinned.mixed(), 0, "rows that are pinned stay apart");
    assert!(runner.mixed() > 200, "{} works had both", runner.mixed());
    println!("counted: {} works of rows of prompts and a step", runner.mixed());
}

#[test]
fn greedy_text_of_the_crowd_is_that_of_the_single_stream() {
    for device in devices() {
        let name = device.info().name.clone();
        // Kernels of other sizes sum in another order: only a near tie may be decided otherwise.
        compare(engine(&device), runner(&device, false), &name, 1e-3);
    }
}

/// As the test before, and as bits where rows are pinned, while lists are made on a thread beside.
#[test]
fn texts_are_those_of_the_single_stream_while_lists_are_made_beside() {
    for device in devices() {
        let name = device.info().name.clone();
        let mut crowd = runner(&device, false);
        crowd.make_ahead().unwrap();
        compare_texts(engine(&device), &mut crowd, &name, 1e-3);
        let lists = crowd.lists();
        assert_eq!((lists.waits, lists.failed), (0, 0), "{name}: {lists:?}");
        let [mut waits, mut goes_on] = [runner(&device, true), runner(&device, true)];
        goes_on.make_ahead().unwrap();
        let mut rng = Rng::new(23);
        let texts: Vec<Text> = (0..5).map(|_| Text::random(&mut rng)).collect();
        assert_eq!(
            run(&mut goes_on, &texts, &mut rng),
            run(&mut waits, &texts, &mut rng),
            "{name}"
        );
    }
}

/// Greedy texts of a crowd are those of the single stream, up to tokens that are as good within `tie`.
fn compare(engine: Engine, mut crowd: DeviceRunner, name: &str, tie: f32) {
    compare_texts(engine, &mut crowd, name, tie);
    assert!(crowd.mixed() > 0, "{name}: no work had rows of prompts and a step");
}

fn compare_texts(mut engine: Engine, crowd: &mut DeviceRunner, name: &str, tie: f32) {
    let mut rng = Rng::new(3);
    let mut texts: Vec<Text> = (0..12).map(|_| Text::random(&mut rng)).collect();
    texts.iter_mut().for_each(|text| text.sampling = Sampling::greedy());
    let together = run(crowd, &texts, &mut rng);
    for (text, found) in texts.iter().zip(together) {
        engine.clear();
        let mut logits = engine.eval(&text.prompt).unwrap();
        for (at, token) in found.into_iter().enumerate() {
            let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let off = best - logits[token as usize];
            assert!(off < tie, "{name}: token {at} of {text:?} is off by {off}");
            logits = engine.eval(&[token]).unwrap();
        }
    }
}

#[test]
fn a_pool_of_8_bits_gives_the_texts_of_the_single_stream() {
    for device in devices() {
        for turned in TURNED {
            let name = format!("{} {}", device.info().name, turned.1);
            let crowd = runner_of(engine_of_8_bits(&device, turned), false);
            // A number between two steps may be rounded either way.
            compare(engine_of_8_bits(&device, turned), crowd, &name, 0.05);
        }
    }
}

#[test]
fn a_sequence_in_a_pool_of_8_bits_gets_bit_for_bit_the_tokens_it_gets_alone() {
    for (index, device) in devices().into_iter().enumerate() {
        let name = device.info().name.clone();
        let mut runner = runner_of(engine_of_8_bits(&device, TURNED[0]), true);
        let mut rng = Rng::new(13);
        for round in 0..[10, 1][index.min(1)] {
            let texts: Vec<Text> = (0..5).map(|_| Text::random(&mut rng)).collect();
            let alone: Vec<Vec<u32>> = texts
                .iter()
                .map(|text| run(&mut runner, std::slice::from_ref(text), &mut rng).remove(0))
                .collect();
            for _ in 0..3 {
                assert_eq!(run(&mut runner, &texts, &mut rng), alone, "{name}, round {round}");
            }
        }
    }
}

/// A copy of a block goes on as the block does, though what it holds was read and rounded again.
#[test]
fn a_copy_of_a_block_of_8_bits_is_the_block() {
    for device in devices() {
        let mut runner = runner_of(engine_of_8_bits(&device, TURNED[0]), true);
        let mut rng = Rng::new(5);
        let prompt: Vec<u32> = (0..9).map(|_| rng.below(VOCAB) as u32).collect();
        let read = Read { slot: 0, position: 0, tokens: prompt[..8].to_vec(), adapter: None };
        let blocks =
            |slot, blocks: [u32; 4]| Change::Blocks { slot, first: 0, blocks: blocks.into() };
        let changes = vec![blocks(0, [3, 9, 5, 6])];
        runner.start(&Work { changes, read: vec![read], ..Work::default() }).unwrap();
        runner.finish().unwrap();
        let state = || SlotState {
            token: prompt[8],
            position: 8,
            end: 16,
            sampling: Sampling::greedy(),
            stop_tokens: Vec::new(),
            history: prompt.clone(),
        };
        let open = |slot| Change::Open { slot, state: Box::new(state()) };
        let copies = [(3, 40), (9, 20)].map(|(from, to)| Change::Copy { from, to });
        let mut changes = Vec::from(copies);
        changes.extend([blocks(1, [40, 20, 41, 42]), open(0), open(1)]);
        let mut work = Work { changes, decode: vec![0, 1], steps: 1, ..Work::default() };
        let mut found = [Vec::new(), Vec::new()];
        while found[0].len() < 8 {
            runner.start(&work).unwrap();
            for (found, result) in found.iter_mut().zip(runner.finish().unwrap()) {
                found.extend(result.tokens.iter().map(|chosen| chosen.token));
            }
            work = Work { decode: vec![0, 1], steps: 1, ..Work::default() };
        }
        assert_eq!(found[0], found[1], "{}", device.info().name);
    }
}

#[test]
fn prompts_that_are_read_in_turns_stay_apart() {
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::with_threads(2));
    let mut rng = Rng::new(11);
    let prompts: [Vec<u32>; 2] =
        [(); 2].map(|()| (0..21).map(|_| rng.below(VOCAB) as u32).collect());
    let sampling = Sampling::greedy();
    let texts = prompts.clone().map(|prompt| Text { prompt, count: 8, sampling: sampling.clone() });
    let mut runner = runner(&cpu, true);
    let alone = texts
        .each_ref()
        .map(|text| run(&mut runner, std::slice::from_ref(text), &mut rng).remove(0));
    // Both prompts in one work, a few tokens of each in turns.
    let mut work = Work { decode: vec![0, 1], steps: 1, ..Work::default() };
    for (slot, prompt) in prompts.iter().enumerate() {
        let blocks = (0..8).map(|block| 2 * block + slot as u32).collect();
        work.changes.push(Change::Blocks { slot, first: 0, blocks });
        let state = SlotState {
            token: prompt[20],
            position: 20,
            end: 28,
            sampling: sampling.clone(),
            stop_tokens: Vec::new(),
            history: Vec::new(),
        };
        work.changes.push(Change::Open { slot, state: Box::new(state) });
    }
    for position in (0..20).step_by(5) {
        for (slot, prompt) in prompts.iter().enumerate() {
            let tokens = prompt[position..position + 5].to_vec();
            work.read.push(Read { slot, position, tokens, adapter: None });
        }
    }
    let mut found = [Vec::new(), Vec::new()];
    while found[0].len() < 8 {
        runner.start(&work).unwrap();
        for (found, result) in found.iter_mut().zip(runner.finish().unwrap()) {
            found.extend(result.tokens.iter().map(|chosen| chosen.token));
        }
        work = Work { decode: vec![0, 1], steps: 1, ..Work::default() };
    }
    assert_eq!(found, alone);
}
