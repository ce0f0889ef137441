//! `clearway bench`

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result};
use clearway_llm::engine::{Engine, SamplerOptions};
use clearway_llm::gguf::Gguf;
use serde_json::json;

use super::print_json;
use crate::device::DeviceArgs;
use crate::model::{self, EngineArgs, NameArgs};
use crate::{interrupt, memory};

/// Arguments of `clearway bench`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway bench
  clearway bench -m model.gguf -p 128,512 -n 0 -t 4
  clearway bench -m synthetic.gguf -r 3 --json
  clearway bench --micro --device vulkan

ppN reads a prompt of N tokens, tgN generates N tokens one by one. Each is run once to warm up and
then -r times; tokens per second are shown as mean and standard deviation. On a GPU tokens are
chosen and fed back on the device.")]
pub struct Args {
    #[command(flatten)]
    name: NameArgs,
    /// Measure the device itself: dispatches, barriers, bandwidth, products, replay. No model is used.
    #[arg(long, conflicts_with_all = ["n_depth", "temp"])]
    micro: bool,
    /// Prompt lengths; 0 for none.
    #[arg(
        short = 'p',
        long = "n-prompt",
        value_name = "N,N,...",
        default_value = "512",
        value_delimiter = ','
    )]
    n_prompt: Vec<usize>,
    /// Numbers of tokens to generate; 0 for none.
    #[arg(
        short = 'n',
        long = "n-gen",
        value_name = "N,N,...",
        default_value = "128",
        value_delimiter = ','
    )]
    n_gen: Vec<usize>,
    /// Tokens in the cache before generation starts.
    #[arg(short = 'd', long = "n-depth", value_name = "N", default_value_t = 0)]
    n_depth: usize,
    /// Temperature of generated tokens; 0 takes the likeliest. Others are drawn with top-k 40 and
    /// top-p 0.95.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temp: f32,
    #[command(flatten)]
    engine: EngineArgs,
    /// How often each is measured.
    #[arg(short = 'r', long = "repetitions", value_name = "R", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: u32,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print a JSON array of one object per test.
    #[arg(long)]
    json: bool,
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Test {
    Prompt(usize),
    Generate(usize),
}

/// What was measured, in tokens per second.
struct Measured {
    test: Test,
    samples: Vec<f64>,
}

/// Measures a model, as llama-bench does.
pub fn run(args: &Args) -> Result<()> {
    if args.micro {
        return super::micro::run(args.device.open()?, args.json);
    }
    let prompts = args.n_prompt.iter().map(|&tokens| Test::Prompt(tokens));
    let tests = prompts.chain(args.n_gen.iter().map(|&tokens| Test::Generate(tokens)));
    let tests: Vec<_> = tests.filter(|test| test.tokens() > 0).collect();
    let longest = tests.iter().map(|test| test.tokens()).max();
    let longest = longest.context("nothing to measure: -p and -n are both 0")?;
    let context = longest + args.n_depth;
    let gguf = args.name.open()?;
    let device = args.device.open()?;
    let options = args.engine.options(Some(context));
    let mut engine = model::load(&gguf, device.clone(), options)?;
    interrupt::catch();

    let about = About::new(args, &gguf, &engine, &device.info().name);
    let mut table = (!args.json).then(|| Table::new(&about)).transpose()?;
    let mut objects = Vec::new();
    for test in tests {
        let measured = measure(&mut engine, test, args)?;
        match &mut table {
            Some(table) => table.row(&about, &measured)?,
            None => objects.push(about.object(&measured)),
        }
    }
    match table {
        Some(_) => Ok(()),
        None => print_json(&objects.into()),
    }
}

impl Test {
    const fn tokens(self) -> usize {
        match self {
            Self::Prompt(tokens) | Self::Generate(tokens) => tokens,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Prompt(tokens) => format!("pp{tokens}"),
            Self::Generate(tokens) => format!("tg{tokens}"),
        }
    }
}

fn measure(engine: &mut Engine, test: Test, args: &Args) -> Result<Measured> {
    once(engine, test, args)?;
    let mut samples = Vec::new();
    for _ in 0..args.repetitions {
        samples.push(once(engine, test, args)?);
    }
    Ok(Measured { test, samples })
}

/// Tokens per second of one run. What the tokens are does not matter, but they are not all one:
/// experts and rows of the embedding would be more in the caches than in real text.
fn once(engine: &mut Engine, test: Test, args: &Args) -> Result<f64> {
    let vocab = engine.shape().vocab as u64;
    let token = |i: usize| (i as u64).wrapping_mul(2_654_435_761) % vocab;
    let tokens: Vec<u32> = (1..=test.tokens()).map(|i| token(i) as u32).collect();
    engine.clear();
    let generates = matches!(test, Test::Generate(_));
    if generates && args.n_depth > 0 {
        let text: Vec<u32> = (1..=args.n_depth).map(|i| token(i) as u32).collect();
        engine.eval(&text)?;
    }
    let started = Instant::now();
    match test {
        Test::Generate(count) if engine.feeds_back() => {
            let options =
                SamplerOptions { temperature: args.temp, min_p: 0.0, ..SamplerOptions::default() };
            engine.generate(tokens[0], count, &options, &mut |_| !interrupt::wanted())?;
            interrupt::check()?;
        }
        Test::Prompt(_) => {
            interrupt::check()?;
            engine.eval(&tokens)?;
        }
        Test::Generate(_) => {
            for token in tokens {
                interrupt::check()?;
                engine.eval(&[token])?;
            }
        }
    }
    Ok(test.tokens() as f64 / started.elapsed().as_secs_f64())
}

impl Measured {
    fn mean(&self) -> f64 {
        self.samples.iter().sum::<f64>() / self.samples.len() as f64
    }

    /// Of the sample, as llama-bench has it; 0 for one run.
    fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        let degrees = self.samples.len().saturating_sub(1).max(1);
        (squares / degrees as f64).sqrt()
    }
}

/// What all tests of a run share.
struct About {
    model: String,
    bytes: u64,
    parameters: u64,
    device: String,
    threads: Option<usize>,
}

impl About {
    fn new(args: &Args, gguf: &Gguf, engine: &Engine, device: &str) -> Self {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = args.device.threads().unwrap_or_else(cores);
        Self {
            model: format!("{} {}", engine.shape().name, common_type(gguf)),
            bytes: gguf.tensor_bytes(),
            parameters: gguf.tensors().map(|t| t.dims().iter().product::<usize>() as u64).sum(),
            device: device.to_owned(),
            threads: (device == "cpu").then_some(threads),
        }
    }

    fn object(&self, measured: &Measured) -> serde_json::Value {
        json!({
            "model": self.model,
            "model_bytes": self.bytes,
            "parameters": self.parameters,
            "device": self.device,
            "threads": self.threads,
            "test": measured.test.name(),
            "avg_ts": measured.mean(),
            "stddev_ts": measured.deviation(),
            "samples_ts": measured.samples,
        })
    }
}

/// The type that most bytes of the file have.
fn common_type(gguf: &Gguf) -> String {
    let mut bytes = std::collections::BTreeMap::<String, u64>::new();
    for tensor in gguf.tensors() {
        *bytes.entry(tensor.dtype().to_string()).or_default() += tensor.bytes().len() as u64;
    }
    let most = bytes.into_iter().max_by_key(|&(_, bytes)| bytes);
    most.map(|(dtype, _)| dtype).unwrap_or_default()
}

/// A table whose rows come as they are measured, in Markdown as llama-bench prints it.
struct Table {
    width: usize,
}

impl Table {
    fn new(about: &About) -> Result<Self> {
        let width = about.model.len().max(8);
        let mut out = std::io::stdout().lock();
        writeln!(
            out,
            "| {:<width$} | {:>10} | {:>8} | {:<10} | {:>7} | {:>7} | {:>18} |",
            "model", "size", "params", "device", "threads", "test", "t/s"
        )?;
        let line = |count: usize| "-".repeat(count);
        writeln!(
            out,
            "| {} | {}: | {}: | {} | {}: | {}: | {}: |",
            line(width),
            line(9),
            line(7),
            line(10),
            line(6),
            line(6),
            line(17)
        )?;
        Ok(Self { width })
    }

    fn row(&mut self, about: &About, measured: &Measured) -> Result<()> {
        let threads = about.threads.map_or_else(String::new, |threads| threads.to_string());
        let mut out = std::io::stdout().lock();
        writeln!(
            out,
            "| {:<width$} | {:>10} | {:>8} | {:<10} | {:>7} | {:>7} | {:>18} |",
            about.model,
            memory::size(about.bytes),
            parameters(about.parameters),
            about.device,
            threads,
            measured.test.name(),
            format!("{:.2} ± {:.2}", measured.mean(), measured.deviation()),
            width = self.width,
        )?;
        Ok(out.flush()?)
    }
}

fn parameters(count: u64) -> String {
    match count {
        1_000_000_000.. => format!("{:.2} B", count as f64 / 1e9),
        _ => format!("{:.2} M", count as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_are_those_of_a_sample() {
        let measured =
            |samples: &[f64]| Measured { test: Test::Prompt(1), samples: samples.into() };
        let spread = measured(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(spread.mean(), 2.5);
        assert!((spread.deviation() - (5.0_f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(measured(&[7.0]).deviation(), 0.0);
    }
}
