//! `clearway inspect`

use std::convert::Infallible;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use clearway::pipeline::{Compiled, compile};
use clearway::{CompileError, CompileOptions, KernelRegistry};
use clearway_llm::model::{self, ModelShape, RecordOptions};
use serde_json::json;

use super::print_json;
use crate::device;

/// Arguments of `clearway inspect`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway inspect --shape llama-8b
  clearway inspect --shape qwen3-30b-a3b --tokens 512 --json
  clearway inspect --shape smollm2-135m --no-fuse --list")]
pub struct Args {
    /// Built-in shape, without weights.
    #[arg(long, value_name = "NAME", value_parser = parse_shape)]
    shape: ModelShape,
    /// Tokens of the step: 1 for decode, more for prefill.
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    tokens: u32,
    /// Rows of the KV cache; at least the tokens.
    #[arg(short = 'c', long = "ctx-size", value_name = "ROWS", default_value_t = 4096)]
    ctx_size: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Print the final list, with the reason of each barrier.
    #[arg(long, conflicts_with = "json")]
    list: bool,
    #[command(flatten)]
    switches: Switches,
}

/// Off switches, one for each optimisation.
#[derive(clap::Args)]
pub struct Switches {
    /// Keep every recorded op.
    #[arg(long, env = "CLEARWAY_NO_FUSE")]
    no_fuse: bool,
    /// Keep the recorded order.
    #[arg(long, env = "CLEARWAY_NO_REORDER")]
    no_reorder: bool,
    /// A barrier after every dispatch.
    #[arg(long, env = "CLEARWAY_NO_ELIDE")]
    no_elide: bool,
    /// Bytes of its own for every value.
    #[arg(long, env = "CLEARWAY_NO_REUSE")]
    no_reuse: bool,
}

impl Switches {
    /// The stages that are left on.
    pub fn options(&self) -> CompileOptions {
        let all = CompileOptions::default();
        CompileOptions {
            fuse: !self.no_fuse,
            reorder: all.reorder.filter(|_| !self.no_reorder),
            elide: !self.no_elide,
            reuse: !self.no_reuse,
            ..all
        }
    }
}

fn parse_shape(name: &str) -> Result<ModelShape> {
    model::builtin_shape(name).ok_or_else(|| {
        let names: Vec<_> = model::builtin_shapes().into_iter().map(|s| s.name).collect();
        anyhow!("no built-in shape `{name}`; there are {}", names.join(", "))
    })
}

/// Why a graph was not compiled; there is no device memory to run out of here.
struct Failed(CompileError);

impl From<CompileError> for Failed {
    fn from(error: CompileError) -> Self {
        Self(error)
    }
}

impl From<Infallible> for Failed {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Records, optimises, proves and prints.
pub fn run(args: &Args) -> Result<()> {
    let tokens = args.tokens as usize;
    let record = RecordOptions::new(tokens, tokens.max(args.ctx_size as usize));
    let started = Instant::now();
    let recorded = model::record(&args.shape, &record).context("recording failed")?;
    let device = device::open("cpu", Some(1))?;
    // Slabs get identities no external tensor has: nothing is allocated here.
    let first_slab = recorded.externals.len();
    let compiled = compile(
        &recorded.graph,
        &mut KernelRegistry::new(),
        &*device,
        &args.switches.options(),
        |plan| Ok::<_, Failed>((first_slab..).take(plan.slab_bytes().len()).collect()),
    )
    .map_err(|failed| failed.0)?;
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        return print_json(&summary(args, &compiled, seconds));
    }
    if args.list {
        print!("{}", compiled.graph().to_text());
    }
    print_summary(args, &compiled, seconds);
    Ok(())
}

fn summary(args: &Args, compiled: &Compiled, seconds: f64) -> serde_json::Value {
    let stats = compiled.stats();
    json!({
        "shape": args.shape.name,
        "tokens": args.tokens,
        "recorded": stats.recorded,
        "dispatches": stats.dispatches,
        "groups": stats.groups,
        "barriers": stats.barriers,
        "longest_chain": stats.longest_chain,
        "false_barriers": stats.false_barriers,
        "fusions": stats.fusions,
        "moved": stats.moved,
        "arena_bytes": stats.arena_bytes,
        "seconds": seconds,
    })
}

fn print_summary(args: &Args, compiled: &Compiled, seconds: f64) {
    let stats = compiled.stats();
    let shape = &args.shape;
    let plural = if args.tokens == 1 { "token" } else { "tokens" };
    println!(
        "{}: {} layers, {:.2} G parameters, a step of {} {plural}",
        shape.name,
        shape.layers,
        shape.parameters() as f64 / 1e9,
        args.tokens,
    );
    println!("  recorded        {:>8} dispatches", stats.recorded);
    println!("  fused           {:>8} pairs, {} dispatches left", stats.fusions, stats.dispatches);
    println!("  scheduled       {:>8} groups, longest chain {}", stats.groups, stats.longest_chain);
    println!("                  {:>8} dispatches moved earlier", stats.moved);
    println!(
        "  barriers        {:>8}, of them {} because memory is shared",
        stats.barriers, stats.false_barriers
    );
    println!("  arena           {:>8.2} MiB", stats.arena_bytes as f64 / f64::from(1 << 20));
    println!("  proven: groups, value flow, replay; {:.1} ms in all", seconds * 1e3);
}
