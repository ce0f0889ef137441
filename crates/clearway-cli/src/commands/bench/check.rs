//! `clearway bench --check-counters N`: steps whose workgroups wait for counters against the same kernels with barriers,
//! bit for bit, and with a fault on demand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clearway::Device;
use clearway_llm::Sampling;
use clearway_llm::engine::{Devices, Engine};
use serde_json::json;

use super::Args;
use crate::model;
use crate::out::{self, note, say};
use crate::stats;
use crate::vulkan::Counters;

/// Steps of one sequence. Each starts with an empty cache and has a seed of its own.
const SEQUENCE: usize = 1_000;
/// Tokens that a sequence starts with.
const PROMPT: usize = 3;
/// After so many sequences the whole cache is compared, too, and after the last one.
const CACHES: usize = 16;
/// Time between two lines that say how far it is.
const PROGRESS: Duration = Duration::from_secs(5);

/// What is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Fault {
    /// A counter of every list that never fills.
    NeverFills,
    /// A wait that is given up after the second look.
    OneLook,
}

/// What a sequence gave.
#[derive(PartialEq)]
struct Outcome {
    tokens: Vec<u32>,
    /// Bits of the logits after all of them.
    logits: Vec<u32>,
    /// Rows of the cache, where they are compared.
    cache: Option<Vec<u8>>,
}

/// An engine and the time it took to generate.
struct Side {
    engine: Engine,
    time: Duration,
    steps: usize,
}

/// Compares `steps` steps and prints a verdict. Fails where they differ or where waits are in vain; with a fault, where they are
/// not.
pub fn run(args: &Args, steps: usize) -> Result<()> {
    ensure!(steps > 0, "--check-counters wants a number of steps");
    let fault = args.counter_fault;
    let wanted = match fault {
        None => Counters::Always,
        Some(Fault::NeverFills) => Counters::Unfilled,
        Some(Fault::OneLook) => Counters::Impatient,
    };
    let tested = args.device.open()?;
    ensure!(
        tested.info().name.starts_with("vulkan"),
        "`{}` has no counters to check; choose --device vulkan",
        tested.info().name
    );
    let (name, about) = (tested.info().name.clone(), tested.info().description.clone());
    let refused = tested.without_counters();
    drop(tested);
    let gguf = args.name.open()?;
    let side = |counters| -> Result<(Arc<dyn Device>, Side)> {
        let device = args.device.open_counting(counters)?;
        let options = args.engine.options(Some(SEQUENCE + PROMPT + 2));
        let adapters = args.lora.for_all()?;
        let engine = model::load(&gguf, &adapters, Devices::One(device.clone()), options)?;
        ensure!(engine.feeds_back(), "steps of this engine do not stay on the device");
        Ok((device, Side { engine, time: Duration::ZERO, steps: 0 }))
    };
    let (_, mut barriers) = side(Counters::Idle)?;
    let (device, mut counted) = side(wanted)?;

    let (mut done, mut sequence, mut stalled_at) = (0, 0, None);
    let mut told = Instant::now();
    while done < steps {
        let count = (steps - done).min(SEQUENCE);
        // Drawn first, then greedy: a step that chooses in another way is compiled anew.
        let drawn = done < steps.div_ceil(2);
        let cache = sequence % CACHES == 0 || done + count >= steps;
        let expected = barriers.sequence(sequence as u64, count, drawn, cache)?;
        let found = counted.sequence(sequence as u64, count, drawn, cache)?;
        if counted.engine.has_stalled() && stalled_at.is_none() {
            stalled_at = Some(done);
        }
        if let Some(what) = difference(&expected, &found) {
            bail!(
                "counters give something else than barriers: {what}, sequence {sequence}, after {done} steps"
            );
        }
        if let (Some(at), None) = (stalled_at, fault) {
            bail!(
                "a workgroup waited in vain in the {count} steps after step {at}; the text is right"
            );
        }
        done += count;
        sequence += 1;
        if told.elapsed() >= PROGRESS && done < steps {
            told = Instant::now();
            note!("{done} of {steps} steps, the same bits so far; {:.0} a second", counted.rate());
        }
    }
    stats::print_stall(&counted.engine);
    if fault.is_some() && stalled_at.is_none() {
        bail!("no wait was in vain in {done} steps, so the fault was not seen; the text is right");
    }
    let off = device.without_counters();
    ensure!(fault.is_none() == off.is_none(), "counters are not off after a wait in vain");
    let outcome = match stalled_at {
        None => "no wait was in vain".to_owned(),
        Some(_) => {
            "waits were in vain, as wanted: steps were done again, and barriers stand since then"
                .to_owned()
        }
    };
    if args.json {
        return out::json(&json!({
            "device": name, "description": about, "model": counted.engine.shape().name, "steps": done, "sequences": sequence,
            "same_bits": true, "fault": fault.map(|fault| format!("{fault:?}")), "stalled": stalled_at.is_some(),
            "test_of_the_order": refused.unwrap_or("passed"),
            "steps_per_second": { "counters": counted.rate(), "barriers": barriers.rate() },
        }));
    }
    let plural = if sequence == 1 { "sequence" } else { "sequences" };
    say!("{name}: {about}")?;
    say!("test of the order of workgroups: {}", refused.unwrap_or("passed"))?;
    say!(
        "{done} steps in {sequence} {plural}: tokens, logits and cache have the bits of the same kernels with barriers; {outcome}"
    )?;
    say!("{:.0} steps a second with counters, {:.0} with barriers", counted.rate(), barriers.rate())
}

/// What differs, in words.
fn difference(expected: &Outcome, found: &Outcome) -> Option<String> {
    let pairs = expected.tokens.iter().zip(&found.tokens);
    if let Some(at) = pairs.clone().position(|(a, b)| a != b) {
        let (a, b) = (expected.tokens[at], found.tokens[at]);
        return Some(format!("token {at} is {b} instead of {a}"));
    }
    if expected.tokens.len() != found.tokens.len() {
        return Some(format!("{} tokens instead of {}", found.tokens.len(), expected.tokens.len()));
    }
    if expected.logits != found.logits {
        return Some("the logits behind the last token".into());
    }
    (expected.cache != found.cache).then(|| "rows of the cache".into())
}

impl Side {
    /// Generates a sequence from an empty cache.
    fn sequence(&mut self, seed: u64, count: usize, drawn: bool, cache: bool) -> Result<Outcome> {
        let engine = &mut self.engine;
        let vocab = engine.shape().vocab as u64;
        let token = |at: u64| ((seed * 7 + at + 1).wrapping_mul(2_654_435_761) % vocab) as u32;
        let prompt: Vec<u32> = (0..PROMPT as u64).map(token).collect();
        let sampling = match drawn {
            true => Sampling { seed, temperature: 1.0, ..Sampling::default() },
            false => Sampling::greedy(),
        };
        engine.clear();
        engine.eval(&prompt)?;
        engine.prepare(&sampling)?;
        let mut tokens = Vec::with_capacity(count);
        let started = Instant::now();
        engine.generate(token(PROMPT as u64), count, &sampling, &mut |token| {
            tokens.push(token);
            true
        })?;
        self.time += started.elapsed();
        self.steps += count;
        let cache = if cache { Some(engine.read_cache()?) } else { None };
        let logits = engine.eval(&[token(PROMPT as u64 + 1)])?;
        Ok(Outcome { tokens, logits: logits.iter().map(|x| x.to_bits()).collect(), cache })
    }

    /// Steps a second, so far.
    fn rate(&self) -> f64 {
        self.steps as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_named() {
        let outcome = |tokens: &[u32], logits: u32, cache: u8| Outcome {
            tokens: tokens.into(),
            logits: vec![logits],
            cache: Some(vec![cache]),
        };
        let of = |found| difference(&outcome(&[1, 2], 5, 7), &found);
        assert_eq!(of(outcome(&[1, 2], 5, 7)), None);
        assert_eq!(of(outcome(&[1, 3], 5, 7)).unwrap(), "token 1 is 3 instead of 2");
        assert_eq!(of(outcome(&[1], 5, 7)).unwrap(), "1 tokens instead of 2");
        assert!(of(outcome(&[1, 2], 6, 7)).unwrap().contains("logits"));
        assert!(of(outcome(&[1, 2], 5, 8)).unwrap().contains("cache"));
    }
}
