//! Developer commands, run as `cargo xtask COMMAND`.

mod compare;
mod date;
mod deny;
mod dist;
#[cfg(test)]
mod documents;
mod environment;
mod fuzz;
mod peers;
mod python;
mod run;
mod serve;
mod shaders;
mod size;
mod soak;
mod syncval;
mod targets;
mod test;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use test::{Need, Part};

const USAGE: &str = "usage: cargo xtask COMMAND
  test [--part NAME] [--allow-missing NEED]...
                       formatting, lints, docs, tests and examples, with the minutes each part took
                       NAME: build, core, ops, wgpu, golden, race, browser, serve or python
                       NEED: vulkan, browser, race, golden, clients or python; what is missing and not named fails the run
  soak [--cases N]     the random suites with full counts (20000), an hour of fuzzing, serve-clients, and ray; writes
                       docs/soak.md
  compare OLD NEW [FILE...] [-- ARGUMENTS]
                       two builds of `clearway` in turns on the same files: medians of `bench` and their ratio
  peers [--logits] [FILE...]
                       Clearway and llama.cpp (built here) in turns on the same files: tokens per second
                       on the CPU, or with --logits how far their logits are apart
  peers --matrix [--rounds N] [FORMAT...]
                       the same for formats of a 1B shape, long prompts, a deep cache and a batch, the worst ratio first;
                       FORMAT `default` is the default model
  serve-clients [--seconds N]
                       `clearway serve` under the clients of others and behind routers, with ten minutes of schemathesis
  ray [--rows N]       the Python package on a Ray cluster of two nodes: rows of a killed worker, replicas under load
  dist                 a tar of the stripped program with licences, completions, manual page, systemd unit and
                       Containerfile, and its SHA-256, in the folder dist of the target folder
  syncval              graphs under Khronos synchronization validation, in a Debian 13 tree (needs root)
  shaders [--every]    the product's shaders under spirv-val, in the same tree (needs root); two of those that
                       differ in numbers alone, or every one
  size                 lines per source file

CLEARWAY_SEED=N repeats a run; without it every run has a new seed, which is printed.";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args[..] {
        ["test", ref options @ ..] => match test_options(options) {
            Ok((part, allowed)) => test::run(part, &allowed),
            Err(problem) => return usage(&problem),
        },
        ["soak"] => soak::run(soak::FULL_CASES),
        ["soak", "--cases", count] => match count.parse() {
            Ok(cases) if cases > 0 => soak::run(cases),
            _ => return usage(&format!("`{count}` is not a number of cases")),
        },
        ["compare", ref args @ ..] => compare::run(args),
        ["peers", "--logits", ref files @ ..] => peers::run(true, files),
        ["peers", "--matrix", "--rounds", rounds, ref formats @ ..] => match rounds.parse() {
            Ok(rounds) if rounds > 0 => peers::matrix(rounds, formats).map(|()| true),
            _ => return usage(&format!("`{rounds}` is not a number of rounds")),
        },
        ["peers", "--matrix", ref formats @ ..] => peers::matrix(3, formats).map(|()| true),
        ["peers", ref files @ ..] => peers::run(false, files),
        ["serve-clients"] => serve::run(serve::Extent::FULL),
        ["serve-clients", "--seconds", text] => match text.parse() {
            Ok(seconds) => serve::run(serve::Extent { seconds, ..serve::Extent::FULL }),
            _ => return usage(&format!("`{text}` is not a number of seconds")),
        },
        ["ray"] => python::ray(python::RAY_ROWS),
        ["ray", "--rows", rows] => match rows.parse() {
            Ok(rows) if rows >= python::LEAST_RAY_ROWS => python::ray(rows),
            _ => return usage(&format!("`{rows}` is not a number of rows from 100 on")),
        },
        ["dist"] => dist::run().map(|()| true),
        ["shaders"] => shaders::run(false),
        ["shaders", "--every"] => shaders::run(true),
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

/// The part to run and what may be missing.
fn test_options(mut options: &[&str]) -> Result<(Option<Part>, Vec<Need>), String> {
    let (mut part, mut allowed) = (None, Vec::new());
    while !options.is_empty() {
        options = match options {
            ["--part", name, rest @ ..] => {
                let found = Part::by_name(name).ok_or(format!("there is no part `{name}`"))?;
                part = Some(found);
                rest
            }
            ["--allow-missing", name, rest @ ..] => {
                let found = Need::by_name(name);
                allowed.push(found.ok_or(format!("nothing that tests need is named `{name}`"))?);
                rest
            }
            _ => return Err(format!("unknown arguments: {}", options.join(" "))),
        };
    }
    Ok((part, allowed))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_test_command() {
        let parsed = test_options(&["--allow-missing", "race", "--part", "ops"]);
        assert_eq!(parsed, Ok((Some(Part::Ops), vec![Need::Race])));
        let parsed = test_options(&["--allow-missing", "race", "--allow-missing", "vulkan"]);
        assert_eq!(parsed, Ok((None, vec![Need::Race, Need::Vulkan])));
        for wrong in [&["--part", "all"][..], &["--allow-missing", "ops"], &["--part"], &["x"]] {
            assert!(test_options(wrong).is_err(), "{wrong:?}");
        }
    }
}
