//! `clearway plan`

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clearway::pack::{self, Effort, PackOptions, check, csv};
use clearway::place::{self, CostModel, FrontPoint};
use clearway::{CompileOptions, CompileStats, ComputeGraph};
use clearway_inspect::{peers, svg};
use serde_json::json;

use crate::out::{self, say};
use crate::shape::Step;

/// Arguments of `clearway plan`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:
  clearway plan A.1048576.csv --capacity 1048576 --threads 2
  clearway plan values.csv --heuristic -o placed.csv
  clearway plan --shape qwen3-30b-a3b --tokens 512
  clearway plan --shape qwen3-30b-a3b --tokens 512 --budget 50000000
  clearway plan --shape smollm2-135m --svg arena.svg",
    group = clap::ArgGroup::new("what").args(["file", "shape"]).required(true)
)]
pub struct Args {
    /// Values to place: `id,lower,upper,size`, live on [lower, upper).
    file: Option<PathBuf>,
    /// Bytes the result must fit into; the search stops when it does.
    #[arg(long, value_name = "N", conflicts_with = "shape")]
    capacity: Option<u64>,
    /// Seconds after which the search gives up.
    #[arg(long, value_name = "SECONDS", conflicts_with = "shape")]
    time_limit: Option<f64>,
    /// Threads of the search.
    #[arg(long, value_name = "T", default_value_t = 2)]
    threads: usize,
    /// Greedy orders and dives only: milliseconds.
    #[arg(long, conflicts_with = "shape")]
    heuristic: bool,
    /// Write the rows with an `offset` column.
    #[arg(short = 'o', value_name = "OUT.csv", conflicts_with = "shape")]
    output: Option<PathBuf>,
    /// Bytes the arena may have at most; groups are split until it fits, and the front is printed.
    #[arg(long, value_name = "BYTES", conflicts_with = "file")]
    budget: Option<u64>,
    /// Draw the arena over time.
    #[arg(long, value_name = "FILE.svg", conflicts_with = "file")]
    svg: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    step: Option<Step>,
}

/// Seconds of search where neither a capacity nor a limit ends it.
const DEFAULT_SECONDS: f64 = 60.0;

/// Places the rows of a file, or the values of a built-in shape.
pub fn run(args: &Args) -> Result<()> {
    match (&args.file, &args.step) {
        (Some(file), _) => plan_file(args, file),
        (None, Some(step)) => plan_shape(args, step),
        (None, None) => bail!("give a file or --shape"),
    }
}

fn plan_file(args: &Args, file: &PathBuf) -> Result<()> {
    let name = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    let table = csv::parse(&text).with_context(|| name.to_string())?;
    let started = Instant::now();
    let limit = Duration::try_from_secs_f64(args.time_limit.unwrap_or(DEFAULT_SECONDS))
        .context("--time-limit is not a number of seconds")?;
    let effort = match args.heuristic {
        true => Effort::Heuristic,
        false => Effort::Exact { node_budget: u64::MAX },
    };
    let options = PackOptions {
        effort,
        threads: args.threads,
        alignment: 1,
        capacity: args.capacity,
        deadline: started.checked_add(limit),
    };
    let packing = pack::pack(&table.items, &options).with_context(|| name.to_string())?;
    let seconds = started.elapsed().as_secs_f64();
    let checked = check(&table.items, &packing.offsets, args.capacity);
    if let Some(output) = &args.output {
        out::file(output, &table.write(&packing.offsets))?;
    }
    let ratio = packing.height as f64 / packing.lower_bound.max(1) as f64;
    if args.json {
        out::json(&json!({
            "height": packing.height,
            "lower_bound": packing.lower_bound,
            "capacity": args.capacity,
            "valid": checked.is_ok(),
            "complete": packing.complete,
            "seconds": seconds,
        }))?;
    } else {
        say!(
            "height {}  lower bound {}  ratio {ratio:.4}  {seconds:.3} s  ({}{})",
            packing.height,
            packing.lower_bound,
            packing.strategy,
            if packing.complete { "" } else { ", stopped before the end" },
        )?;
    }
    checked.map(|_| ()).with_context(|| name.to_string())
}

fn plan_shape(args: &Args, step: &Step) -> Result<()> {
    let recorded = step.record()?;
    let options = CompileOptions { budget: args.budget, ..CompileOptions::default() };
    // The budget's error comes before anything is printed.
    let compiled = step.compile(&recorded, &options)?;
    let scheduled = step.schedule(&recorded, &options)?;
    let front = match args.budget {
        Some(budget) => {
            let cost = CostModel::default();
            place::front(&scheduled, &options.place_options(), &cost, budget)?
        }
        None => Vec::new(),
    };
    if let Some(path) = &args.svg {
        draw(path, step, front.last(), &scheduled, &options)?;
    }
    // The others plan the same fused list in their own order.
    let mut fused = recorded;
    let device = crate::device::open("cpu", Some(1))?;
    fused.fuse(&mut clearway::KernelRegistry::new(), &*device)?;
    let report = Report {
        step,
        stats: *compiled.stats(),
        node_order: peers::node_order(&fused, options.align)?,
        free_list: peers::free_list(&fused, options.align)?,
        budget: args.budget,
        front,
    };
    if args.json {
        return out::json(&report.json());
    }
    report.print()
}

/// Writes the picture of the plan that was chosen.
fn draw(
    path: &Path,
    step: &Step,
    chosen: Option<&FrontPoint>,
    scheduled: &ComputeGraph,
    options: &CompileOptions,
) -> Result<()> {
    let (name, tokens) = (&step.shape.name, step.tokens);
    let plural = if tokens == 1 { "token" } else { "tokens" };
    let title = format!("{name}, {tokens} {plural}: the arena over the groups of one step");
    let picture = match chosen {
        Some(point) => svg(&point.graph, &point.plan, &title),
        None => {
            let plan = place::plan_with(scheduled, &options.place_options())?;
            svg(scheduled, &plan, &title)
        }
    };
    out::file(path, &picture)
}

/// What is printed about the plan of a shape.
struct Report<'a> {
    step: &'a Step,
    stats: CompileStats,
    node_order: peers::PeerPlan,
    free_list: peers::PeerPlan,
    budget: Option<u64>,
    front: Vec<FrontPoint>,
}

impl Report<'_> {
    fn json(&self) -> serde_json::Value {
        let Self { step, stats, node_order, free_list, budget, front } = self;
        let mut report = json!({
            "shape": step.shape.name,
            "tokens": step.tokens,
            "dispatches": stats.dispatches,
            "longest_chain": stats.longest_chain,
            "groups": stats.groups,
            "false_barriers": stats.false_barriers,
            "arena_bytes": stats.arena_bytes,
            "arena_lower_bound": stats.arena_lower_bound,
            "node_order": node_order,
            "free_list": free_list,
        });
        if let Some(budget) = budget {
            let point = |point: &FrontPoint| {
                json!({
                    "arena_bytes": point.bytes,
                    "groups": point.groups,
                    "estimated_ns": point.time_ns.round(),
                })
            };
            report["budget"] = json!(budget);
            report["front"] = front.iter().map(point).collect();
        }
        report
    }

    fn print(&self) -> Result<()> {
        let Self { step, stats, node_order, free_list, budget, front } = self;
        say!(
            "{}, {} tokens: {} dispatches, longest chain {}",
            step.shape.name,
            step.tokens,
            stats.dispatches,
            stats.longest_chain
        )?;
        say!("{:<34} {:>8} {:>15} {:>14}", "", "groups", "false barriers", "arena MiB")?;
        let row = |name: &str, groups: u32, false_barriers: u32, bytes: u64| {
            say!("{name:<34} {groups:>8} {false_barriers:>15} {:>14.3}", mib(bytes))
        };
        row("clearway (lives over groups)", stats.groups, stats.false_barriers, stats.arena_bytes)?;
        row("  most bytes live in a group", stats.groups, 0, stats.arena_lower_bound)?;
        let peer = |name, plan: &peers::PeerPlan| {
            row(name, plan.groups, plan.false_barriers, plan.arena_bytes)
        };
        peer("node order, first fit (as rlx)", node_order)?;
        peer("look-ahead, free list (as ggml)", free_list)?;
        if let Some(budget) = budget {
            say!("\nbytes against groups, down to a budget of {budget} bytes:")?;
            let head = ["arena bytes", "arena MiB", "groups", "estimated us"];
            say!("{:>14} {:>14} {:>8} {:>15}", head[0], head[1], head[2], head[3])?;
            for FrontPoint { bytes, groups, time_ns, .. } in front {
                say!("{bytes:>14} {:>14.3} {groups:>8} {:>15.1}", mib(*bytes), time_ns / 1e3)?;
            }
        }
        Ok(())
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
