//! `clearway bench`

#[cfg(feature = "vulkan")]
mod check;
mod drafts;
mod matrix;
mod measure;
pub mod micro;
mod parallel;
mod table;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clearway::GraphExecutor;
use clearway_llm::engine::Devices;

use crate::device::DeviceArgs;
use crate::lora::LoraArgs;
use crate::model::{self, EngineArgs, NameArgs};
use crate::out;
use crate::spec::{Spec, SpecArgs};
use measure::{Bench, Test, cpu_time};
use table::{About, Table};

/// Arguments of `clearway bench`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway bench
  clearway bench -m model.gguf -p 128,512 -n 0 -t 4
  clearway bench -m synthetic.gguf -r 3 --json
  clearway bench --micro --device vulkan
  clearway bench -m model.gguf -p 128 -n 128 --parallel 1,2,4,8,16
  clearway bench --spec ngram -n 256 --write-trace trace.json
  clearway bench -m random-8b.gguf --trace trace.json
  clearway bench -m model.gguf --device vulkan --check-counters 200000
  clearway bench --matrix --device vulkan --formats q4_0,q4_k_m,q8_0

ppN reads a prompt of N tokens, tgN generates N tokens one by one. Each is run to warm up, once
or on a GPU for at least 0.3 seconds, and then -r times; tokens per second are shown as mean and
standard deviation. On a GPU tokens are chosen and fed back on the device.

A generated token takes so many phases, each behind a barrier, fetches so many bytes (every weight
it uses once, and the rows of the cache it looks at, on average), which makes this share of the
bandwidth that a kernel that only reads has on the device, and costs so much time of all threads of
the process, those of the driver included.

With --spec a text is answered with drafts and without, -r times in turns: one whose answer quotes it
and one whose answer does not, or that of -f. Ratios are medians of pairs. --write-trace writes down how
drafts from the text itself fare; --trace repeats that with a model of random weights, which quotes nothing.

With --matrix files of random weights are made and measured one after another, each with an empty cache and with
4,096 tokens in it, or as many as -d says. Files lie in the folder of --folder and are gone afterwards.

With --check-counters nothing is measured but held against each other: sequences of 1,000 steps whose
workgroups wait for counters, and the same kernels with barriers. Tokens, logits and cache must have the
same bits and no wait may be in vain; the exit status says whether. The check does not ask whether the
device passed the test that decides about counters.")]
pub struct Args {
    #[command(flatten)]
    name: NameArgs,
    #[command(flatten)]
    lora: LoraArgs,
    #[command(flatten)]
    matrix: matrix::MatrixArgs,
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
    /// With --spec ngram: write down how drafts from the text itself fare at each place of the answers.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["micro", "parallel"])]
    write_trace: Option<PathBuf>,
    /// Let drafts fare as those of such a file did, with any model: prompts of random tokens, answers as long as its.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["micro", "parallel", "n_depth", "temp", "file", "spec", "draft", "write_trace"])]
    trace: Option<PathBuf>,
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

/// Measures a model, as llama-bench does.
pub fn run(args: &Args) -> Result<()> {
    let drafts = args.spec.kind()? != Spec::Off;
    anyhow::ensure!(drafts || args.file.is_none(), "-f is the text for --spec; add --spec ngram");
    anyhow::ensure!(
        drafts || args.write_trace.is_none(),
        "--write-trace is for answers with drafts; add --spec ngram"
    );
    if let Some(file) = &args.trace {
        return drafts::run_traces(args, file);
    }
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
    if args.matrix.matrix {
        return matrix::run(args);
    }
    let (tests, longest) = args.tests()?;
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
    let about = About::new(args, &gguf, &engine, &names.join("+"), args.n_depth);
    let mut table = (!args.json).then(|| Table::new(&about)).transpose()?;
    let mut objects = Vec::new();
    for test in tests {
        let measured = Bench {
            engine: &mut engine,
            device: &*device,
            bandwidth,
            depth: args.n_depth,
            temperature: args.temp,
            repetitions: args.repetitions,
        }
        .measure(test)?;
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

impl Args {
    /// What -p and -n ask for, and the tokens of the longest.
    fn tests(&self) -> Result<(Vec<Test>, usize)> {
        let prompts = self.n_prompt.iter().map(|&tokens| Test::Prompt(tokens));
        let tests = prompts.chain(self.n_gen.iter().map(|&tokens| Test::Generate(tokens)));
        let tests: Vec<_> = tests.filter(|test| test.tokens() > 0).collect();
        let longest = tests.iter().map(|test| test.tokens()).max();
        Ok((tests, longest.context("nothing to measure: -p and -n are both 0")?))
    }
}
