//! Developer commands, run as `cargo xtask COMMAND`.

mod date;
mod peers;
mod run;
mod shaders;
mod size;
mod soak;
mod syncval;
mod test;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

const USAGE: &str = "usage: cargo xtask COMMAND
  test [--part NAME]   formatting, lints, docs, tests and examples, with the minutes each part took
                       NAME: build, core, ops, golden, race or browser
  soak [--cases N]     the random suites with full counts (10000); writes docs/soak.md
  peers [--logits] [FILE...]
                       Clearway and llama.cpp (built here) in turns on the same files: tokens per second
                       on the CPU, or with --logits how far their logits are apart
  syncval              graphs under Khronos synchronization validation, in a Debian 13 tree (needs root)
  shaders              every shader under spirv-val, in the same tree (needs root)
  size                 lines per source file

CLEARWAY_SEED=N repeats a run; without it every run has a new seed, which is printed.";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args[..] {
        ["test"] => test::run(None),
        ["test", "--part", name] => match test::Part::by_name(name) {
            Some(part) => test::run(Some(part)),
            None => return usage(&format!("there is no part `{name}`")),
        },
        ["soak"] => soak::run(soak::FULL_CASES),
        ["soak", "--cases", count] => match count.parse() {
            Ok(cases) if cases > 0 => soak::run(cases),
            _ => return usage(&format!("`{count}` is not a number of cases")),
        },
        ["peers", "--logits", ref files @ ..] => peers::run(true, files),
        ["peers", ref files @ ..] => peers::run(false, files),
        ["shaders"] => shaders::run(),
        ["syncval"] => syncval::run(),
        ["size"] => size::run().map(|()| true),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [] => return usage("a command is needed"),
        _ => return usage(&format!("unknown arguments: {}", args.join(" "))),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("xtask: {problem}\n\n{USAGE}");
    ExitCode::from(2)
}

/// Root of the repository.
fn root() -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.parent().context("xtask lies in the root of the repository")?;
    Ok(root.to_owned())
}

/// The seed of this run: that of `CLEARWAY_SEED`, or a new one.
fn seed() -> Result<u64> {
    match std::env::var("CLEARWAY_SEED") {
        Ok(text) => text.parse().with_context(|| format!("CLEARWAY_SEED={text} is not a number")),
        Err(_) => {
            use std::hash::{BuildHasher, Hasher};
            Ok(std::collections::hash_map::RandomState::new().build_hasher().finish())
        }
    }
}
