//! `cargo xtask test`: everything that must hold, with the minutes it took.
//!
//! What the tests need of the machine is looked for first, installed where it is missing and then demanded:
//! a test that could not run fails the run, unless `--allow-missing` names what it lacks.
//!
//! | module | what it does |
//! |---|---|
//! | `part` | parts of the run, their budgets, and what each of them needs |
//! | `needs` | looks for drivers and programs, and installs them |
//! | `outcome` | counts, times and the closing lines |

mod needs;
mod outcome;
mod part;

pub use needs::Need;
pub use part::Part;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Result, bail};

use crate::run::{self, cargo};
use crate::{deny, fuzz, python, root, seed, serve, shaders, size, syncval, targets};
use outcome::Outcome;

/// Runs everything, or one part, and does without what is `allowed` to be missing; tells whether all of it
/// held.
pub fn run(only: Option<Part>, allowed: &[Need]) -> Result<bool> {
    let root = root()?;
    let seed = seed()?;
    println!("CLEARWAY_SEED={seed}");
    let mut outcome = Outcome::new(allowed);
    let wanted = |part: &Part| only.is_none_or(|only| only == *part);
    let parts: Vec<Part> = Part::ALL.into_iter().filter(wanted).collect();
    let wants = |part| parts.contains(&part);
    let mut needs: Vec<Need> = parts.iter().flat_map(|part| part.needs()).copied().collect();
    needs.sort_unstable();
    needs.dedup();
    prepare(&root, &needs, &mut outcome)?;
    if outcome.failed > 0 {
        // Before minutes are spent on what cannot end well.
        print!("\n{}", outcome.text());
        return Ok(false);
    }

    if wants(Part::Build) {
        lint(&root, &mut outcome);
    }
    let mut model = None;
    if only != Some(Part::Build) {
        let selection = only.map_or(&["--workspace"][..], Part::selection);
        model = test(&root, seed, selection, &needs, &mut outcome)?;
    }
    if wants(Part::Core) {
        for (folder, what) in
            [("outside", "outside crate"), ("programs", "programs of the front pages")]
        {
            let mut tests = outside(&root, folder);
            tests.env("CLEARWAY_NEED", needs::variable(&outcome.demanded(&needs)));
            outcome.step(Part::Core, what, &mut tests);
        }
        let mut targets = fuzz::command(built(&root, "clearway-fuzz"), seed, fuzz::TEST_SECONDS);
        outcome.step(Part::Core, "fuzz targets", &mut targets);
    }
    if wants(Part::Race) {
        race(&root, seed, &mut outcome)?;
    }
    // That there is no model was said before.
    if wants(Part::Serve) && model.is_some() && outcome.demanded(&needs).contains(&Need::Clients) {
        serve::steps(&root, |name, command| outcome.step(Part::Serve, name, command))?;
    }
    if wants(Part::Python) && model.is_some() && outcome.demanded(&needs).contains(&Need::Python) {
        if wants(Part::Build) {
            // All else is linted by now.
            let mut clippy = python::clippy(&root)?;
            outcome.step(Part::Build, "clippy of the Python package", &mut clippy);
        }
        let mut build = python::build(&root)?;
        outcome.step(Part::Python, "build of the Python package", &mut build);
        let demanded = needs::variable(&outcome.demanded(&needs));
        outcome.suites(&[python::tests(&root, &demanded)?]);
    }
    for (part, example) in examples(&root)? {
        if !wants(part) {
            continue;
        }
        let mut command = built(&root, &format!("examples/{example}"));
        if part == Part::Golden {
            // That there is no model was said before.
            let Some(model) = &model else { continue };
            command.arg(model);
            let build = ["build", "--workspace", "--all-features", "--example", &example];
            outcome.step(Part::Build, &format!("build of {example}"), &mut cargo(&root, &build));
        }
        outcome.step(part, &format!("example {example}"), &mut command);
    }
    println!("\n{}", size::summary(&root)?);
    outcome.demand(&needs);
    print!("{}", outcome.text());
    Ok(outcome.failed == 0)
}

/// Installs what the run needs and tells the outcome what is still missing, up to the first that may not be.
/// The golden model waits until our own program, which fetches it, is built.
fn prepare(root: &Path, needs: &[Need], outcome: &mut Outcome) -> Result<()> {
    need_component("rustfmt", "fmt")?;
    need_component("clippy", "clippy")?;
    for &need in needs {
        let start = Instant::now();
        let (part, missing) = match need {
            Need::Vulkan => (Part::Build, needs::vulkan(root)?),
            Need::Browser => (Part::Browser, needs::browser()),
            Need::Race => (Part::Race, syncval::missing(root)?),
            Need::Clients => (Part::Build, serve::missing(root)),
            Need::Python => (Part::Build, python::missing(root)),
            Need::Golden => continue,
        };
        outcome.spend(part, start.elapsed());
        if let Some(why) = missing {
            outcome.missing(need, &why);
        }
        if outcome.failed > 0 {
            break;
        }
    }
    Ok(())
}

/// Features that the library crates are also checked with, beside all of them together.
const FEATURES: [(&str, &[&str]); 3] = [
    ("check without features", &[]),
    ("check with Vulkan alone", &["--features", "vulkan"]),
    ("check with wgpu alone", &["--features", "wgpu"]),
];

fn lint(root: &Path, outcome: &mut Outcome) {
    let everything = ["--workspace", "--all-targets", "--all-features"];
    outcome.step(Part::Build, "formatting", &mut cargo(root, &["fmt", "--all", "--check"]));
    let own = ["fmt", "--check", "--manifest-path", "python/Cargo.toml"];
    outcome.step(Part::Build, "formatting of the Python package", &mut cargo(root, &own));
    dependencies(root, outcome);
    let mut clippy = cargo(root, &["clippy"]);
    clippy.args(everything).args(["--", "--deny", "warnings"]);
    outcome.step(Part::Build, "clippy", &mut clippy);
    for (what, features) in FEATURES {
        let mut check = cargo(root, &["check", "--no-default-features"]);
        check.args(
            ["clearway-gpu", "clearway", "clearway-llm", "clearway-cli"].map(|c| format!("-p{c}")),
        );
        outcome.step(Part::Build, what, check.args(features));
    }
    for (what, mut check) in targets::checks(root) {
        outcome.step(Part::Build, &what, &mut check);
    }
    let mut docs = cargo(root, &["doc", "--workspace", "--no-deps", "--all-features"]);
    outcome.step(Part::Build, "docs", docs.env("RUSTDOCFLAGS", "--deny warnings"));
}

/// Licences, duplicates and sources of what we build with.
fn dependencies(root: &Path, outcome: &mut Outcome) {
    let start = Instant::now();
    println!("\n== dependencies");
    match deny::check(root) {
        Ok(true) => {}
        Ok(false) => outcome.fail("dependencies"),
        Err(error) => {
            println!("{error:#}");
            outcome.fail("dependencies");
        }
    }
    outcome.spend(Part::Build, start.elapsed());
    if needs::succeeds("cargo", &["deny", "--version"]) {
        let mut command = cargo(root, &["deny", "check", "licenses", "bans", "sources"]);
        outcome.step(Part::Build, "cargo deny", &mut command);
    }
}

/// Runs the tests; returns the file of the default model where they need it.
fn test(
    root: &Path,
    seed: u64,
    selection: &[&str],
    needs: &[Need],
    outcome: &mut Outcome,
) -> Result<Option<PathBuf>> {
    let command = |more: &[&str]| {
        let mut command = cargo(root, &["test", "--all-features", "--no-fail-fast"]);
        command.args(selection).args(more).env("CLEARWAY_SEED", seed.to_string());
        command
    };
    outcome.step(Part::Build, "build of tests", &mut command(&["--no-run"]));
    let mut tests = command(&[]);
    tests.env("CLEARWAY_NEED", needs::variable(&outcome.demanded(needs)));
    let needed = needs.contains(&Need::Golden);
    let model = needed.then(|| default_model(root, outcome)).flatten();
    if let Some(model) = &model {
        tests.env("CLEARWAY_GOLDEN_MODEL", model);
    }
    let (suites, content) = run::tests("tests", &mut tests)?;
    outcome.suites(&suites);
    if !content && suites.iter().all(|suite| suite.failed == 0) {
        // A binary that did not build, or that died before it could report.
        outcome.fail("cargo test");
    }
    Ok(model)
}

/// The tests of a crate outside the workspace, which has the public API only and no unsafe code. What it
/// shares with ours is not built again.
fn outside(root: &Path, folder: &str) -> Command {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let mut command = cargo(root, &["test", "--locked", "--manifest-path"]);
    command.arg(format!("tools/{folder}/Cargo.toml")).env("CARGO_TARGET_DIR", root.join(target));
    command
}

/// The race checker in a system of its own, where that could be made.
fn race(root: &Path, seed: u64, outcome: &mut Outcome) -> Result<()> {
    let start = Instant::now();
    let prepared = syncval::prepare(root, seed)?;
    outcome.spend(Part::Race, start.elapsed());
    // Why it cannot run was said before.
    if let Ok(mut command) = prepared {
        outcome.step(Part::Race, "race checker", &mut command);
        outcome.step(Part::Race, "shaders", &mut shaders::command()?);
    }
    Ok(())
}

/// The file of the default model, which the golden tests run; fetched unless it is in the cache.
fn default_model(root: &Path, outcome: &mut Outcome) -> Option<PathBuf> {
    const NAME: &str = "smollm2:135m";
    let start = Instant::now();
    println!("\n== default model");
    let mut pull = built(root, "clearway");
    let output = pull.args(["pull", NAME]).stderr(Stdio::inherit()).output();
    outcome.spend(Part::Golden, start.elapsed());
    match output {
        Ok(output) if output.status.success() => {
            let path = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
            println!("{path}");
            Some(path.into())
        }
        _ => {
            outcome.missing(Need::Golden, "the default model could not be fetched");
            None
        }
    }
}

/// Names of all examples, with the part each belongs to. Those of `clearway-llm` take a model.
fn examples(root: &Path) -> Result<Vec<(Part, String)>> {
    let mut found = Vec::new();
    for krate in std::fs::read_dir(root.join("crates"))? {
        let krate = krate?;
        let part = match krate.file_name().to_str() {
            Some("clearway-gpu") => Part::Ops,
            Some("clearway-llm") => Part::Golden,
            _ => Part::Core,
        };
        let Ok(files) = std::fs::read_dir(krate.path().join("examples")) else { continue };
        for file in files {
            let path = file?.path();
            let is_source = path.extension().is_some_and(|extension| extension == "rs");
            let name = path.file_stem().filter(|_| is_source).and_then(|stem| stem.to_str());
            found.extend(name.map(|name| (part, name.to_owned())));
        }
    }
    found.sort();
    Ok(found)
}

/// A program as `cargo test` has built it: `cargo run` would resolve features for one crate alone
/// and build everything again.
pub fn built(root: &Path, program: &str) -> Command {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let mut command = Command::new(root.join(target).join("debug").join(program));
    command.current_dir(root);
    command
}

/// Makes sure that a component of the Rust toolchain is there.
fn need_component(component: &str, subcommand: &str) -> Result<()> {
    let works = || {
        let output = Command::new("cargo").args([subcommand, "--version"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    if works() {
        return Ok(());
    }
    println!("installing {component}");
    let added = Command::new("rustup").args(["component", "add", component]).status();
    if added.is_ok_and(|status| status.success()) && works() {
        return Ok(());
    }
    bail!(
        "{component} is missing: run `rustup component add {component}`, or install it with the package that brought cargo"
    )
}
