//! `clearway inspect`

use std::time::Instant;

use anyhow::Result;
use clearway::pipeline::Compiled;
use serde_json::json;

use super::print_json;
use crate::shape::{Step, Switches};

/// Arguments of `clearway inspect`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  clearway inspect --shape llama-8b
  clearway inspect --shape qwen3-30b-a3b --tokens 512 --json
  clearway inspect --shape smollm2-135m --no-fuse --list")]
pub struct Args {
    #[command(flatten)]
    step: Step,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Print the final list, with the reason of each barrier.
    #[arg(long, conflicts_with = "json")]
    list: bool,
    #[command(flatten)]
    switches: Switches,
}

/// Records, optimises, proves and prints.
pub fn run(args: &Args) -> Result<()> {
    let started = Instant::now();
    let recorded = args.step.record()?;
    let compiled = args.step.compile(&recorded, &args.switches.options())?;
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
        "shape": args.step.shape.name,
        "tokens": args.step.tokens,
        "recorded": stats.recorded,
        "dispatches": stats.dispatches,
        "groups": stats.groups,
        "barriers": stats.barriers,
        "longest_chain": stats.longest_chain,
        "false_barriers": stats.false_barriers,
        "fusions": stats.fusions,
        "moved": stats.moved,
        "arena_bytes": stats.arena_bytes,
        "arena_lower_bound": stats.arena_lower_bound,
        "seconds": seconds,
    })
}

fn print_summary(args: &Args, compiled: &Compiled, seconds: f64) {
    let stats = compiled.stats();
    let (shape, tokens) = (&args.step.shape, args.step.tokens);
    let plural = if tokens == 1 { "token" } else { "tokens" };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{}: {} layers, {:.2} G parameters, a step of {tokens} {plural}",
        shape.name,
        shape.layers,
        shape.parameters() as f64 / 1e9,
    );
    println!("  recorded        {:>8} dispatches", stats.recorded);
    println!("  fused           {:>8} pairs, {} dispatches left", stats.fusions, stats.dispatches);
    println!("  scheduled       {:>8} groups, longest chain {}", stats.groups, stats.longest_chain);
    println!("                  {:>8} dispatches moved earlier", stats.moved);
    println!(
        "  barriers        {:>8}, of them {} because memory is shared",
        stats.barriers, stats.false_barriers
    );
    println!(
        "  arena           {:>8.2} MiB, at least {:.2} are live at once",
        mib(stats.arena_bytes),
        mib(stats.arena_lower_bound)
    );
    println!("  proven: groups, value flow, replay; {:.1} ms in all", seconds * 1e3);
}
