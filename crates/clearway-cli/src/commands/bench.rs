//! `clearway bench`

#[cfg(feature = "vulkan")]
mod check;
mod drafts;
pub mod micro;
mod parallel;
mod table;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clearway::{Device, GraphExecutor, HostTimes, HostWork};
use clearway_llm::Sampling;
use clearway_llm::engine::{Devices, Engine, TokenBytes};

use crate::device::DeviceArgs;
use crate::lora::LoraArgs;
use crate::model::{self, EngineArgs, NameArgs};
use crate::out;
use crate::spec::{Spec, SpecArgs};
use table::{About, Table};

/// Arguments of `clearway bench`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway bench
  clearway bench -m model.gguf -p 128,512 -n 0 -t 4
  clearway bench -m synthetic.gguf -r 3 --json
  clearway bench --micro --device vulkan
  clearway bench -m model.gguf -p 128 -n 128 --parallel 1,2,4,8,16
  clearway bench --spec ngram -n 256
  clearway bench -m model.gguf --device vulkan --check-counters 200000

ppN reads a prompt of N tokens, tgN generates N tokens one by one. Each is run to warm up, once
or on a GPU for at least 0.3 seconds, and then -r times; tokens per second are shown as mean and
standard deviation. On a GPU tokens are chosen and fed back on the device.

A generated token takes so many phases, each behind a barrier, fetches so many bytes (every weight
it uses once, and the rows of the cache it looks at, on average), which makes this share of the
bandwidth that a kernel that only reads has on the device, and costs so much time of all threads of
the process, those of the driver included.

With --spec a text is answered with drafts and without, -r times in turns: one whose answer quotes it
and one whose answer does not, or that of -f. Ratios are medians of pairs.

With --check-counters nothing is measured but held against each other: sequences of 1,000 steps whose
workgroups wait for counters, and the same kernels with barriers. Tokens, logits and cache must have the
same bits and no wait may be in vain; the exit status says whether. The check does not ask whether the
device passed the test that decides about counters.")]
pub struct Args {
    #[command(flatten)]
    name: NameArgs,
    #[command(flatten)]
    lora: LoraArgs,
    /// Measure the device itself: dispatches, barriers, counters, bandwidth, products, replay. No model is used.
    #[arg(long, conflicts_with_all = ["n_depth", "temp"])]
    micro: bool,
    /// Compare so many steps with counters in place of barriers with the same kernels and barriers, bit for bit.
    #[cfg(feature = "vulkan")]
    #[arg(long, value_name = "STEPS", conflicts_with_all = ["micro", "n_depth", "temp", "parallel", "file"])]
    check_counters: Option<usize>,
    /// With --check-counters: let waits fail, and see that the text is right all the same.
    #[cfg(feature = "vulkan")]
    #[arg(long, value_name = "FAULT", requires = "check_counters", value_enum)]
    counter_fault: Option<check::Fault>,
    #[command(flatten)]
    spec: SpecArgs,
    /// File with the text that is answered with --spec.
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with_all = ["micro", "parallel"])]
    file: Option<PathBuf>,
    /// Generate so many sequences at once and print llama-batched-bench's table, with the first lengths of -p and -n.
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', conflicts_with_all = ["n_depth", "micro"])]
    parallel: Vec<usize>,
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
    /// Tokens in the cache before each test starts.
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

/// What was measured.
struct Measured {
    test: Test,
    /// Tokens per second of each run.
    samples: Vec<f64>,
    /// Of generated tokens.
    decode: Option<Decode>,
}

/// What a generated token is made of and what it cost.
#[derive(Clone, Copy)]
struct Decode {
    /// Groups of dispatches that wait for each other.
    phases: u32,
    barriers: u32,
    /// Bytes fetched, by the average of cached rows.
    bytes: TokenBytes,
    /// What the device reads in a nanosecond when it does nothing else; `None` if it cannot say.
    read_bytes_per_ns: Option<f64>,
    /// Time on the processor for one token; `None` where the system does not say.
    cpu_us: Option<Cpu<f64>>,
    /// What the host did for the device in all timed runs; `None` where it is not counted.
    work: Option<HostWork>,
    /// Microseconds of a token for encoding and submission; `None` where they are not measured.
    host_us: Option<[f64; 2]>,
}

/// Measures a model, as llama-bench does.
pub fn run(args: &Args) -> Result<()> {
    let drafts = args.spec.kind()? != Spec::Off;
    anyhow::ensure!(drafts || args.file.is_none(), "-f is the text for --spec; add --spec ngram");
    let others = args.micro || !args.parallel.is_empty() || args.n_depth > 0;
    anyhow::ensure!(!(drafts && others), "--spec goes with neither --micro, --parallel nor -d");
    if drafts {
        return drafts::run(args);
    }
    #[cfg(feature = "vulkan")]
    if let Some(steps) = args.check_counters {
        return check::run(args, steps);
    }
    if args.micro {
        return micro::run(args.device.open()?, args.json);
    }
    if !args.parallel.is_empty() {
        return parallel::run(args);
    }
    let prompts = args.n_prompt.iter().map(|&tokens| Test::Prompt(tokens));
    let tests = prompts.chain(args.n_gen.iter().map(|&tokens| Test::Generate(tokens)));
    let tests: Vec<_> = tests.filter(|test| test.tokens() > 0).collect();
    let longest = tests.iter().map(|test| test.tokens()).max();
    let longest = longest.context("nothing to measure: -p and -n are both 0")?;
    let context = longest + args.n_depth;
    let gguf = args.name.open()?;
    let adapters = args.lora.for_all()?;
    let options = args.engine.options(Some(context));
    let devices = args.engine.layers.devices(&gguf, &adapters, &args.device, &options)?;
    let device = devices.last().clone();
    let generates = tests.iter().any(|test| matches!(test, Test::Generate(_)));
    // Before the weights take the memory. What two devices fetch has no share in the bandwidth of one.
    let measured = generates && matches!(devices, Devices::One(_));
    let bandwidth = measured.then(|| micro::read_bandwidth(&GraphExecutor::on(device.clone())));
    let bandwidth = bandwidth.and_then(Result::ok);
    let mut engine = model::load(&gguf, &adapters, devices, options)?;

    let names: Vec<String> = engine.shares()?.into_iter().rev().map(|share| share.device).collect();
    let about = About::new(args, &gguf, &engine, &names.join("+"));
    let mut table = (!args.json).then(|| Table::new(&about)).transpose()?;
    let mut objects = Vec::new();
    for test in tests {
        let mut bench = Bench { engine: &mut engine, device: &*device, args, bandwidth };
        let measured = bench.measure(test)?;
        match &mut table {
            Some(table) => table.row(&about, &measured)?,
            None => objects.push(about.object(&measured)),
        }
    }
    crate::stats::print_stall(&engine);
    match table {
        Some(table) => table.end(),
        None => out::json(&objects.into()),
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

/// Time on the processor: of all threads of the process, those of drivers included, and of the one
/// that measures, which hands work to a GPU and waits for it.
#[derive(Clone, Copy)]
struct Cpu<T> {
    all: T,
    own: T,
}

/// How long a device beside the host is kept busy before anything is measured: its clocks go up with work.
pub const WARM_UP: Duration = Duration::from_millis(300);

/// Everything a measurement needs.
struct Bench<'a> {
    engine: &'a mut Engine,
    device: &'a dyn Device,
    args: &'a Args,
    bandwidth: Option<f64>,
}

/// What one run, or all of them, took.
#[derive(Clone, Copy, Default)]
struct Cost {
    time: Duration,
    cpu: Option<Cpu<Duration>>,
    work: Option<HostWork>,
    host: Option<HostTimes>,
}

impl Bench<'_> {
    fn measure(&mut self, test: Test) -> Result<Measured> {
        self.warm_up(test)?;
        let runs = (0..self.args.repetitions).map(|_| self.once(test));
        let runs = runs.collect::<Result<Vec<Cost>>>()?;
        let rate = |run: &Cost| test.tokens() as f64 / run.time.as_secs_f64();
        let decode = match test {
            Test::Prompt(_) => None,
            Test::Generate(count) => self.decode(count, &runs)?,
        };
        Ok(Measured { test, samples: runs.iter().map(rate).collect(), decode })
    }

    /// Runs without being measured until kernels are compiled and clocks are up.
    fn warm_up(&mut self, test: Test) -> Result<()> {
        self.once(test)?;
        let started = Instant::now();
        while started.elapsed() < WARM_UP && self.device.host_is_far() {
            self.once(test)?;
        }
        Ok(())
    }

    /// One run. What the tokens are does not matter, but they are not all one: experts and rows of the
    /// embedding would be more in the caches than in real text.
    fn once(&mut self, test: Test) -> Result<Cost> {
        let engine = &mut *self.engine;
        let vocab = engine.shape().vocab as u64;
        let token = |i: usize| (i as u64).wrapping_mul(2_654_435_761) % vocab;
        let tokens: Vec<u32> = (1..=test.tokens()).map(|i| token(i) as u32).collect();
        engine.clear();
        if self.args.n_depth > 0 {
            let text: Vec<u32> = (1..=self.args.n_depth).map(|i| token(i) as u32).collect();
            engine.eval(&text)?;
        }
        let (work, host) = (self.device.host_work(), self.device.host_times());
        let (cpu, started) = (cpu_time(), Instant::now());
        match test {
            Test::Generate(count) if engine.feeds_back() => {
                let temperature = self.args.temp;
                let sampling = Sampling { temperature, min_p: 0.0, ..Sampling::default() };
                engine.generate(tokens[0], count, &sampling, &mut |_| true)?;
            }
            Test::Prompt(_) => {
                engine.eval(&tokens)?;
            }
            Test::Generate(_) => {
                for token in tokens {
                    engine.eval(&[token])?;
                }
            }
        }
        let time = started.elapsed();
        let cpu = cpu.zip(cpu_time()).map(|(before, after)| Cpu {
            all: after.all.saturating_sub(before.all),
            own: after.own.saturating_sub(before.own),
        });
        let work = work.zip(self.device.host_work()).map(|(before, after)| HostWork {
            encodings: after.encodings - before.encodings,
            allocations: after.allocations - before.allocations,
        });
        let host = host.zip(self.device.host_times()).map(|(before, after)| HostTimes {
            encoding: after.encoding.saturating_sub(before.encoding),
            submission: after.submission.saturating_sub(before.submission),
        });
        Ok(Cost { time, cpu, work, host })
    }

    /// What each of `count` generated tokens is made of and took in these runs.
    fn decode(&self, count: usize, runs: &[Cost]) -> Result<Option<Decode>> {
        let Some(stats) = self.engine.decode_stats() else { return Ok(None) };
        // The first token sees itself and what was there before, the last one all.
        let rows = self.args.n_depth + count.div_ceil(2);
        let tokens = (runs.len() * count) as f64;
        let us = |times: Duration| times.as_secs_f64() * 1e6 / tokens;
        let all = runs.iter().map(|run| run.cpu.map(|cpu| cpu.all)).sum::<Option<Duration>>();
        let own = runs.iter().map(|run| run.cpu.map(|cpu| cpu.own)).sum::<Option<Duration>>();
        let cpu_us = all.zip(own).map(|(all, own)| Cpu { all: us(all), own: us(own) });
        let work = runs.iter().map(|run| run.work).try_fold(HostWork::default(), |sum, run| {
            let run = run?;
            let encodings = sum.encodings + run.encodings;
            Some(HostWork { encodings, allocations: sum.allocations + run.allocations })
        });
        let host = |of: fn(HostTimes) -> Duration| {
            runs.iter().map(|run| run.host.map(of)).sum::<Option<Duration>>().map(us)
        };
        let host_us = host(|h| h.encoding).zip(host(|h| h.submission)).map(|(e, s)| [e, s]);
        Ok(Some(Decode {
            phases: stats.compile.groups,
            barriers: stats.compile.barriers,
            bytes: self.engine.token_bytes(rows)?,
            read_bytes_per_ns: self.bandwidth,
            cpu_us,
            work,
            host_us,
        }))
    }
}

/// Time this process and this thread have had on all cores.
fn cpu_time() -> Option<Cpu<Duration>> {
    #[cfg(unix)]
    {
        use rustix::time::{ClockId, clock_gettime};
        let all = clock_gettime(ClockId::ProcessCPUTime).try_into().ok()?;
        let own = clock_gettime(ClockId::ThreadCPUTime).try_into().ok()?;
        Some(Cpu { all, own })
    }
    #[cfg(not(unix))]
    None
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

    /// Share of the device's bandwidth that the bytes of these tokens make.
    fn bandwidth_share(&self) -> Option<f64> {
        let decode = self.decode?;
        let bytes_per_ns = decode.bytes.total() as f64 * self.mean() / 1e9;
        decode.read_bytes_per_ns.filter(|&read| read > 0.0).map(|read| bytes_per_ns / read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_are_those_of_a_sample() {
        let measured = |samples: &[f64]| Measured {
            test: Test::Prompt(1),
            samples: samples.into(),
            decode: None,
        };
        let spread = measured(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(spread.mean(), 2.5);
        assert!((spread.deviation() - (5.0_f64 / 3.0).sqrt()).abs() < 1e-12);
        assert_eq!(measured(&[7.0]).deviation(), 0.0);
    }

    #[test]
    fn the_share_is_that_of_the_bytes_in_a_second() {
        let decode = Decode {
            phases: 3,
            barriers: 3,
            bytes: TokenBytes { weights: 900_000, cache: 100_000 },
            read_bytes_per_ns: Some(4.0),
            cpu_us: None,
            work: None,
            host_us: None,
        };
        let measured = |decode| Measured {
            test: Test::Generate(2),
            samples: vec![1_000.0, 3_000.0],
            decode: Some(decode),
        };
        // 2,000 tokens of a megabyte are 2 GB a second.
        assert!((measured(decode).bandwidth_share().unwrap() - 0.5).abs() < 1e-12);
        for unknown in [None, Some(0.0)] {
            let decode = Decode { read_bytes_per_ns: unknown, ..decode };
            assert_eq!(measured(decode).bandwidth_share(), None);
        }
    }

    #[cfg(unix)]
    #[test]
    fn time_on_the_processor_grows_with_work() {
        let (before, started) = (cpu_time().unwrap(), Instant::now());
        let mut spent = (Duration::ZERO, Duration::ZERO);
        // A busy machine takes its time to give what is asked for.
        while spent.0.min(spent.1) < Duration::from_millis(1) {
            assert!(started.elapsed() < Duration::from_secs(20), "{spent:?}");
            let after = cpu_time().unwrap();
            spent = (after.all - before.all, after.own - before.own);
        }
    }
}
