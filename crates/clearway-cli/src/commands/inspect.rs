//! `clearway inspect`

mod source;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clearway::{
    CompileOptions, Device, Executable, GpuError, GraphExecutor, KernelRegistry, KernelStatistics,
};
use clearway_inspect::{INDEX, InspectError, InspectOptions, Kernels, Report};
use clearway_llm::fetch::ModelName;
use clearway_llm::model::ModelShape;

use crate::device::{self, DeviceArgs, DeviceName};
use crate::out;
use crate::shape::{self, Switches};
use crate::vulkan::Counters;
use source::Source;

/// Arguments of `clearway inspect`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway inspect --shape llama-8b
  clearway inspect --shape qwen3-30b-a3b --tokens 512 --html page.html
  clearway inspect -m model.gguf --measure --html page.html --trace trace.json
  clearway inspect --shape smollm2-135m --no-fuse --list
  clearway inspect --shape llama-8b --parallel 8 --html page.html
  clearway inspect --shape llama-8b --device vulkan --kernels llama-8b-wgsl
  clearway inspect --shape llama-8b --tokens 512 --device vulkan --measure --statistics
The page opens in any browser, the trace in the Perfetto UI (https://ui.perfetto.dev).")]
pub struct Args {
    /// Model: a GGUF file, smollm2:135m, or hf:USER/REPO[:FILE].
    #[arg(short = 'm', long = "model", value_name = "MODEL", env = "CLEARWAY_MODEL",
          default_value_t = ModelName::default())]
    model: ModelName,
    /// Built-in shape instead, without weights.
    #[arg(long, value_name = "NAME", value_parser = shape::parse)]
    shape: Option<ModelShape>,
    /// Tokens of the step: 1 for decode, more for prefill.
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    tokens: u32,
    /// Decode step of so many sequences instead, a token of each, with a cache in blocks as `serve` has it.
    #[arg(long, value_name = "N", conflicts_with = "tokens", value_parser = clap::value_parser!(u32).range(1..=1024))]
    parallel: Option<u32>,
    /// Rows of the KV cache, with --parallel of each sequence; at least the tokens. A measured step stands at its end.
    #[arg(short = 'c', long = "ctx-size", value_name = "ROWS", default_value_t = 4096)]
    ctx_size: u32,
    /// Plan for this device, with its kernels and its alignment; without it for the CPU's kernels, with
    /// --measure for the fastest device, and with --kernels for a GPU or, where there is none, for a default one.
    #[arg(long, value_name = "D", env = "CLEARWAY_DEVICE")]
    device: Option<DeviceName>,
    /// Threads of the CPU; all cores without it.
    #[arg(short = 't', long, value_name = "THREADS", env = "CLEARWAY_THREADS",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Run the step on the device and show its times; a shape has weights of zeros.
    #[arg(long)]
    measure: bool,
    /// With --measure: let workgroups wait for counters whatever the test of the device says, for tests on software drivers.
    #[arg(long, hide = true, requires = "measure")]
    force_counters: bool,
    /// With --measure: print what the driver says of each compiled kernel: registers, spills, memory.
    #[arg(long, requires = "measure", conflicts_with = "json")]
    statistics: bool,
    /// Write the page.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a trace for the Perfetto UI.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the WGSL of every dispatch into a folder: a file for each distinct kernel, with bindings and
    /// workgroups on top, and index.txt with all dispatches.
    #[arg(long, value_name = "DIR")]
    kernels: Option<PathBuf>,
    /// Print one JSON object, with the lists behind the page.
    #[arg(long)]
    json: bool,
    /// Write the JSON object to a file.
    #[arg(short = 'o', value_name = "FILE", requires = "json")]
    output: Option<PathBuf>,
    /// Print the summary; without another form it is printed anyway.
    #[arg(long)]
    text: bool,
    /// Print the final list, with the reason of each barrier.
    #[arg(long, conflicts_with = "json")]
    list: bool,
    #[command(flatten)]
    switches: Switches,
}

/// Records, optimises, proves, measures where asked, and writes every form that was asked for.
pub fn run(args: &Args) -> Result<()> {
    let source = Source::open(args)?;
    let named = match (args.device, args.measure) {
        (None, false) if args.kernels.is_some() => Some(device::for_kernels()),
        (None, false) => None,
        (name, _) => {
            let device = name.unwrap_or(DeviceName::Auto);
            let mut device = DeviceArgs::new(device, args.threads);
            device.statistics = args.statistics;
            Some(match args.force_counters {
                true => device.open_counting(Counters::Always)?,
                false => device.open()?,
            })
        }
    };
    let step = source.record(args, named.as_deref())?;
    let any = DeviceName::Cpu.open(Some(1))?;
    let mut compile = args.switches.options();
    if let Some(device) = &named {
        compile.align = device.info().arena_align;
        compile.slab_rule = device.info().slab_rule;
    }
    let options = InspectOptions {
        compile,
        buffers: step.externals().iter().map(|e| (e.view.buf_id, e.name.clone())).collect(),
        ..InspectOptions::default()
    };
    let device = named.as_ref().unwrap_or(&any);
    let mut report =
        clearway_inspect::inspect(step.graph(), &mut KernelRegistry::new(), &**device, &options)?;
    report.name = source.title(args);
    report.shape = Some(source.shape().name.clone());
    report.tokens = Some(args.parallel.unwrap_or(args.tokens));
    report.device = named.as_ref().map(|device| device.info().name.clone());
    if args.measure {
        let executor = GraphExecutor::on(device.clone());
        let buffers = source.bind(&step, &**device, args)?;
        let mut executable = executor.compile(step.graph(), &buffers, &compile)?;
        let times = clearway_inspect::measure(&executor, &mut executable)
            .with_context(|| format!("cannot measure on {}", device.info().name))?;
        report.attach(&times)?;
        let counted = executor.compile(
            step.graph(),
            &buffers,
            &CompileOptions { counters: true, ..compile },
        )?;
        attach_waits(&mut report, &**device, counted, executable)?;
    }
    if args.statistics {
        print_statistics(&**device)?;
    }
    // For a list that was planned for the CPU they are those of the default target.
    if args.html.is_some() || args.json || args.kernels.is_some() {
        let compiled = source::compile_only(step.graph(), &**device, &compile)?;
        let target = device.wgsl_target().unwrap_or_default();
        let kernels = clearway_inspect::kernels(
            compiled.graph(),
            &KernelRegistry::new(),
            &target,
            &options.buffers,
        );
        report.attach_kernels(&kernels);
        if let Some(folder) = &args.kernels {
            write_kernels(folder, &kernels)?;
        }
    }
    write_forms(args, &report)?;
    if args.list {
        let compiled = source::compile_only(step.graph(), &**device, &compile)?;
        out::text(&compiled.graph().to_text())?;
    }
    Ok(())
}

/// Measures the same list with counters in place of barriers, or says why there are none.
fn attach_waits(
    report: &mut Report,
    device: &dyn Device,
    mut counted: Executable,
    mut barriers: Executable,
) -> Result<()> {
    if let Some(reason) = device.without_counters() {
        report.no_waits = Some(reason.to_owned());
        return Ok(());
    }
    match clearway_inspect::measure_waits(&mut counted, &mut barriers) {
        Ok(times) => report.attach_waits(&times)?,
        Err(InspectError::Run(
            error @ clearway::Error::Gpu(GpuError::NoWaits { .. } | GpuError::Stalled { .. }),
        )) => report.no_waits = Some(error.to_string()),
        Err(error) => return Err(error).context("cannot measure waits"),
    }
    Ok(())
}

/// A line for each kernel. Names of the numbers are the driver's.
fn print_statistics(device: &dyn Device) -> Result<()> {
    let found = device.kernel_statistics();
    if found.iter().all(|kernel| kernel.values.is_empty()) {
        let name = &device.info().name;
        bail!("the driver of {name} says nothing about kernels; drop --statistics");
    }
    for KernelStatistics { kernel, source, values } in found {
        // What tells kernels of one op apart is in the constants at the top of their text.
        let constant = |name: &&str| {
            let (_, rest) = source.split_once(&format!("const {name} = "))?;
            Some(format!("{name}={}", rest.split(['u', ';']).next()?))
        };
        let names = ["TILE_T", "TILE_N", "THREADS", "HEAD", "KEYS", "WIDTH", "WG"];
        let constants: Vec<String> = names.iter().filter_map(constant).collect();
        let values: Vec<String> =
            values.iter().map(|(name, value)| format!("{name} {value}")).collect();
        out::text(&format!("{kernel} {}: {}\n", constants.join(" "), values.join(", ")))?;
    }
    Ok(())
}

/// Texts of an earlier run under other names would look like kernels of this list, so they are removed.
fn write_kernels(folder: &Path, kernels: &Kernels) -> Result<()> {
    let failed = |what: &str| format!("cannot {what} {}", folder.display());
    fs::create_dir_all(folder).with_context(|| failed("make the folder"))?;
    if folder.join(INDEX).is_file() {
        for entry in fs::read_dir(folder).with_context(|| failed("read the folder"))? {
            let path = entry.with_context(|| failed("read the folder"))?.path();
            if path.extension().is_some_and(|extension| extension == "wgsl") {
                fs::remove_file(&path)
                    .with_context(|| format!("cannot remove {}", path.display()))?;
            }
        }
    }
    kernels.files().iter().try_for_each(|(name, text)| out::file(&folder.join(name), text))
}

fn write_forms(args: &Args, report: &Report) -> Result<()> {
    if let Some(path) = &args.html {
        out::file(path, &report.to_html()?)?;
    }
    if let Some(path) = &args.trace {
        out::file(path, &report.to_trace()?)?;
    }
    match &args.output {
        Some(path) if args.json => out::file(path, &report.to_json()?)?,
        _ if args.json => out::json_text(&report.to_json()?)?,
        _ => {}
    }
    let asked = args.html.is_some()
        || args.trace.is_some()
        || args.kernels.is_some()
        || args.json
        || args.list;
    if args.text || !asked {
        out::text(&report.to_text())?;
    }
    Ok(())
}
