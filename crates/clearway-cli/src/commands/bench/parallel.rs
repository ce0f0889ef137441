//! `clearway bench --parallel`: many sequences at once, as llama-batched-bench counts them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clearway_llm::Sampling;
use clearway_llm::batch::device::{DeviceOptions, DeviceRunner};
use clearway_llm::batch::runner::{Change, Read, Runner, SlotState, Work};
use clearway_llm::engine::Devices;
use serde_json::json;

use super::Args;
use crate::model;
use crate::out;

const WHAT: &str = "`bench --parallel`";
/// Tokens of a block of the cache.
const BLOCK: usize = 32;

/// What one number of sequences took.
struct Measured {
    sequences: usize,
    prompt: Duration,
    generated: Duration,
    /// Time of all cores; `None` where the system does not say.
    cpu: Option<Duration>,
}

/// Measures each number of sequences.
pub fn run(args: &Args) -> Result<()> {
    let (prompt, count) = (first(&args.n_prompt), first(&args.n_gen));
    let most = args.parallel.iter().copied().max().context("--parallel needs a number")?;
    anyhow::ensure!(
        prompt > 0 && count > 0 && !args.parallel.contains(&0),
        "--parallel needs prompts (-p), tokens to generate (-n) and sequences, none of them 0"
    );
    let blocks = (prompt + count).div_ceil(BLOCK);
    let gguf = args.name.open()?;
    let options = args.engine.options(Some(most * blocks * BLOCK));
    let adapters = args.lora.for_all()?;
    let device = args.engine.layers.only_device(WHAT, &args.device)?.open()?;
    let loaded = model::load(&gguf, &adapters, Devices::One(device), options);
    let engine = model::undivided(WHAT, loaded)?;
    let sampling = Sampling { temperature: args.temp, min_p: 0.0, ..Sampling::default() };
    let context = blocks * BLOCK;
    let options = DeviceOptions { slots: most, block: BLOCK, context, deterministic: false };
    let mut runner = DeviceRunner::new(engine, options)?;
    if !args.json {
        out::line(
            "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |",
        )?;
        out::line(
            "| ----: | -----: | ---: | -----: | -------: | -------: | -------: | -------: | -------: | -------: |",
        )?;
    }
    let mut objects = Vec::new();
    for &sequences in &args.parallel {
        let shape = Shape { sequences, prompt, count, blocks };
        shape.run(&mut runner, &sampling)?;
        let runs: Vec<Measured> = (0..args.repetitions)
            .map(|_| shape.run(&mut runner, &sampling))
            .collect::<Result<_>>()?;
        let mean = |of: fn(&Measured) -> Duration| {
            runs.iter().map(|run| of(run).as_secs_f64()).sum::<f64>() / runs.len() as f64
        };
        let (t_pp, t_tg) = (mean(|run| run.prompt), mean(|run| run.generated));
        let cpu = runs.iter().map(|run| run.cpu).sum::<Option<Duration>>();
        let cpu = cpu.map(|all| all.as_secs_f64() / runs.len() as f64);
        let kv = sequences * (prompt + count);
        let [pp, tg] = [prompt, count].map(|tokens| (sequences * tokens) as f64);
        if args.json {
            objects.push(json!({
                "pp": prompt, "tg": count, "b": runs[0].sequences, "n_kv": kv,
                "t_pp_s": t_pp, "s_pp": pp / t_pp, "t_tg_s": t_tg, "s_tg": tg / t_tg,
                "t_s": t_pp + t_tg, "s": (pp + tg) / (t_pp + t_tg), "cpu_s": cpu,
            }));
        } else {
            out::line(&format!(
                "| {prompt:>5} | {count:>6} | {sequences:>4} | {kv:>6} | {t_pp:>8.3} | {:>8.2} | {t_tg:>8.3} | {:>8.2} | {:>8.3} | {:>8.2} |",
                pp / t_pp,
                tg / t_tg,
                t_pp + t_tg,
                (pp + tg) / (t_pp + t_tg)
            ))?;
        }
    }
    if args.json { out::json(&objects.into()) } else { Ok(()) }
}

fn first(list: &[usize]) -> usize {
    list.first().copied().unwrap_or(0)
}

/// So many sequences of so many tokens, each with blocks of its own.
struct Shape {
    sequences: usize,
    prompt: usize,
    count: usize,
    blocks: usize,
}

impl Shape {
    fn run(&self, runner: &mut DeviceRunner, sampling: &Sampling) -> Result<Measured> {
        let Self { sequences, prompt, count, blocks } = *self;
        let vocab = runner.engine().shape().vocab as u64;
        let token = |i: usize| ((i as u64).wrapping_mul(2_654_435_761) % vocab) as u32;
        let limits = runner.limits();
        let tokens = |slot: usize| (0..prompt).map(move |i| token(slot * prompt + i + 1));
        let mut work = Work::default();
        for slot in 0..sequences {
            let blocks = (slot * blocks) as u32..((slot + 1) * blocks) as u32;
            work.changes.push(Change::Blocks { slot, first: 0, blocks: blocks.collect() });
            let tokens: Vec<u32> = tokens(slot).take(prompt - 1).collect();
            work.read.push(Read { slot, position: 0, tokens, adapter: None });
            let state = SlotState {
                token: token(slot * prompt + prompt),
                position: prompt - 1,
                end: prompt - 1 + count,
                sampling: sampling.clone(),
                stop_tokens: Vec::new(),
                history: Vec::new(),
            };
            work.changes.push(Change::Open { slot, state: Box::new(state) });
        }
        let slots: Vec<usize> = (0..sequences).collect();
        // The first token of each sequence belongs to its prompt.
        (work.decode, work.steps) = (slots.clone(), 1);
        let (cpu, started) = (super::cpu_time(), Instant::now());
        runner.start(&work)?;
        runner.finish()?;
        let prompt = started.elapsed();
        let started = Instant::now();
        let (mut left, mut under_way, mut found) = (count - 1, 0, 1);
        while left > 0 || under_way > 0 {
            while left > 0 && under_way < limits.ahead {
                let steps = left.min(limits.steps);
                runner.start(&Work { decode: slots.clone(), steps, ..Work::default() })?;
                (left, under_way) = (left - steps, under_way + 1);
            }
            let results = runner.finish()?;
            under_way -= 1;
            found += results.first().map_or(0, |result| result.tokens.len());
        }
        anyhow::ensure!(found == count, "a sequence stopped after {found} of {count} tokens");
        let generated = started.elapsed();
        let cpu = cpu.zip(super::cpu_time());
        let cpu = cpu.map(|(before, after)| after.all.saturating_sub(before.all));
        let close = |slot| Change::Close { slot };
        let changes = slots.into_iter().map(close).collect();
        runner.start(&Work { changes, ..Work::default() })?;
        runner.finish()?;
        Ok(Measured { sequences, prompt, generated, cpu })
    }
}
