//! `cargo xtask test`: everything that must hold, with the minutes it took.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::run::{self, Suite, cargo, step};
use crate::{root, seed, shaders, size, syncval};

/// Minutes for everything, on two cores.
const TOTAL_BUDGET: u32 = 30;

/// A part of the run with a budget of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    Build,
    Core,
    Ops,
    Golden,
    Race,
    Browser,
}

impl Part {
    const ALL: [Self; 6] =
        [Self::Build, Self::Core, Self::Ops, Self::Golden, Self::Race, Self::Browser];

    /// The part of this name on the command line.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.facts().0 == name)
    }

    /// Name on the command line, name in the table, minutes.
    const fn facts(self) -> (&'static str, &'static str, u32) {
        match self {
            Self::Build => ("build", "build and lint", 8),
            Self::Core => ("core", "core", 5),
            Self::Ops => ("ops", "op suite", 6),
            Self::Golden => ("golden", "golden", 4),
            Self::Race => ("race", "race checker", 3),
            Self::Browser => ("browser", "browser", 2),
        }
    }

    /// The part a test binary belongs to: by its name where that says so, else by its crate.
    fn of(suite: &Suite) -> Self {
        match suite.target.as_str() {
            target if target.starts_with("golden") => Self::Golden,
            target if target.starts_with("syncval") => Self::Race,
            target if target.starts_with("browser") => Self::Browser,
            _ if suite.package == "clearway_gpu" => Self::Ops,
            _ => Self::Core,
        }
    }

    /// What `cargo test` is told in order to run this part alone.
    const fn selection(self) -> &'static [&'static str] {
        match self {
            Self::Build | Self::Core => &["--workspace", "--exclude", "clearway-gpu"],
            Self::Ops => &["--package", "clearway-gpu"],
            Self::Golden => &["--workspace", "--test", "golden*"],
            Self::Race => &["--workspace", "--test", "syncval*"],
            Self::Browser => &["--workspace", "--test", "browser*"],
        }
    }
}

/// Runs everything, or one part; tells whether all of it held.
pub fn run(only: Option<Part>) -> Result<bool> {
    let root = root()?;
    let seed = seed()?;
    println!("CLEARWAY_SEED={seed}");
    need_component("rustfmt", "fmt")?;
    need_component("clippy", "clippy")?;

    let mut outcome = Outcome::default();
    let wants = |part| only.is_none_or(|only| only == part);
    if wants(Part::Build) {
        lint(&root, &mut outcome);
    }
    if wants(Part::Browser) {
        need_chromium();
    }
    need_vulkan();
    if only != Some(Part::Build) {
        let selection = only.map_or(&["--workspace"][..], Part::selection);
        test(&root, seed, selection, wants(Part::Golden), &mut outcome)?;
    }
    if wants(Part::Race) {
        race(&root, seed, &mut outcome)?;
    }
    for (part, example) in examples(&root)? {
        if wants(part) {
            let path = format!("examples/{example}");
            outcome.step(part, &format!("example {example}"), &mut built(&root, &path));
        }
    }
    println!("\n{}", size::summary(&root)?);
    outcome.print();
    Ok(outcome.failed == 0)
}

fn lint(root: &Path, outcome: &mut Outcome) {
    let everything = ["--workspace", "--all-targets", "--all-features"];
    outcome.step(Part::Build, "formatting", &mut cargo(root, &["fmt", "--all", "--check"]));
    let mut clippy = cargo(root, &["clippy"]);
    clippy.args(everything).args(["--", "--deny", "warnings"]);
    outcome.step(Part::Build, "clippy", &mut clippy);
    let mut docs = cargo(root, &["doc", "--workspace", "--no-deps", "--all-features"]);
    outcome.step(Part::Build, "docs", docs.env("RUSTDOCFLAGS", "--deny warnings"));
}

fn test(
    root: &Path,
    seed: u64,
    selection: &[&str],
    golden: bool,
    outcome: &mut Outcome,
) -> Result<()> {
    let command = |more: &[&str]| {
        let mut command = cargo(root, &["test", "--all-features", "--no-fail-fast"]);
        command.args(selection).args(more).env("CLEARWAY_SEED", seed.to_string());
        command
    };
    outcome.step(Part::Build, "build of tests", &mut command(&["--no-run"]));
    let mut tests = command(&[]);
    // Where a browser is missing the test then fails instead of saying that it was not run.
    tests.env("CLEARWAY_NEED_BROWSER", "1");
    if golden && let Some(model) = default_model(root, outcome) {
        tests.env("CLEARWAY_GOLDEN_MODEL", model);
    }
    let (suites, content) = run::tests("tests", &mut tests)?;
    let failed: u64 = suites.iter().map(|suite| suite.failed).sum();
    for suite in &suites {
        outcome.passed += suite.passed;
        outcome.failed += suite.failed;
        *outcome.times.entry(Part::of(suite)).or_default() += suite.time;
    }
    if !content && failed == 0 {
        // A binary that did not build, or that died before it could report.
        outcome.failed += 1;
        outcome.broken.push("cargo test".to_owned());
    }
    Ok(())
}

/// The race checker in a system of its own, where that can be made.
fn race(root: &Path, seed: u64, outcome: &mut Outcome) -> Result<()> {
    let start = Instant::now();
    let prepared = syncval::prepare(root, seed)?;
    *outcome.times.entry(Part::Race).or_default() += start.elapsed();
    match prepared {
        Ok(mut command) => {
            outcome.step(Part::Race, "race checker", &mut command);
            outcome.step(Part::Race, "shaders", &mut shaders::command()?);
        }
        Err(why) => println!("\n== race checker\nskipped: {why}"),
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
    *outcome.times.entry(Part::Golden).or_default() += start.elapsed();
    match output {
        Ok(output) if output.status.success() => {
            let path = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
            println!("{path}");
            Some(path.into())
        }
        _ => {
            outcome.failed += 1;
            outcome.broken.push("default model".to_owned());
            None
        }
    }
}

/// Names of all examples, with the part each belongs to.
fn examples(root: &Path) -> Result<Vec<(Part, String)>> {
    let mut found = Vec::new();
    for krate in std::fs::read_dir(root.join("crates"))? {
        let krate = krate?;
        let part = if krate.file_name() == "clearway-gpu" { Part::Ops } else { Part::Core };
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
fn built(root: &Path, program: &str) -> Command {
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

/// Installs the browser of the browser tests where it is missing and where we may; they say themselves what to
/// do otherwise.
fn need_chromium() {
    let there = || {
        ["chromium", "chromium-browser", "google-chrome"]
            .iter()
            .any(|name| succeeds(name, &["--version"]))
    };
    need_package("chromium", there);
}

/// Installs a software Vulkan driver where there is none at all; tests say in one line what they skip
/// otherwise.
fn need_vulkan() {
    let drivers =
        |folder: &str| std::fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some());
    let there = || {
        std::env::var_os("VK_ICD_FILENAMES").is_some()
            || drivers("/usr/share/vulkan/icd.d")
            || drivers("/etc/vulkan/icd.d")
    };
    need_package("mesa-vulkan-drivers", there);
}

fn need_package(package: &str, there: impl Fn() -> bool) {
    if there() {
        return;
    }
    println!("installing {package}");
    let install = ["install", "--yes", package];
    let installed = succeeds("apt-get", &install)
        || (succeeds("apt-get", &["update"]) && succeeds("apt-get", &install));
    if !installed || !there() {
        println!(
            "{package} is missing and could not be installed: run `apt-get install {package}` as root"
        );
    }
}

fn succeeds(program: &str, args: &[&str]) -> bool {
    let output = Command::new(program).args(args).output();
    output.is_ok_and(|output| output.status.success())
}

/// What was run so far.
#[derive(Default)]
struct Outcome {
    passed: u64,
    /// Tests, and steps that are no tests.
    failed: u64,
    /// Names of failed steps.
    broken: Vec<String>,
    times: BTreeMap<Part, Duration>,
}

impl Outcome {
    /// Runs a step that is no test.
    fn step(&mut self, part: Part, name: &str, command: &mut Command) {
        let start = Instant::now();
        if !step(name, command) {
            self.failed += 1;
            self.broken.push(name.to_owned());
        }
        *self.times.entry(part).or_default() += start.elapsed();
    }

    fn print(&self) {
        println!("\n{:<16}{:>9}{:>9}", "part", "minutes", "budget");
        let line = |name: &str, time: Duration, budget: u32| {
            let minutes = time.as_secs_f64() / 60.0;
            let over = if minutes > f64::from(budget) { "  over budget" } else { "" };
            println!("{name:<16}{minutes:>9.1}{budget:>9}{over}");
        };
        for (part, &time) in &self.times {
            let (_, name, budget) = part.facts();
            line(name, time, budget);
        }
        line("total", self.times.values().sum(), TOTAL_BUDGET);
        if !self.broken.is_empty() {
            println!("\nfailed steps: {}", self.broken.join(", "));
        }
        println!("\n{} passed, {} failed", self.passed, self.failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_belongs_to_a_part_by_its_name_or_else_by_its_crate() {
        let part = |package: &str, target: &str| {
            let (package, target) = (package.to_owned(), target.to_owned());
            Part::of(&Suite { package, target, ..Suite::default() })
        };
        assert_eq!(part("clearway_graph", "properties"), Part::Core);
        assert_eq!(part("clearway_gpu", "op_suite"), Part::Ops);
        assert_eq!(part("clearway_gpu", "syncval"), Part::Race);
        assert_eq!(part("clearway_llm", "golden_logits"), Part::Golden);
        assert_eq!(part("clearway_llm", "browser"), Part::Browser);
    }

    #[test]
    fn every_part_has_a_name_and_the_budgets_fit_the_total() {
        for part in Part::ALL {
            assert_eq!(Part::by_name(part.facts().0), Some(part));
        }
        assert_eq!(Part::by_name("everything"), None);
        assert!(Part::ALL.iter().map(|part| part.facts().2).sum::<u32>() <= TOTAL_BUDGET);
    }

    #[test]
    fn a_step_that_cannot_start_is_a_failed_step() {
        let mut outcome = Outcome::default();
        outcome.step(Part::Core, "nothing", &mut Command::new("/nonexistent/program"));
        assert_eq!((outcome.failed, outcome.broken.as_slice()), (1, &["nothing".to_owned()][..]));
    }
}
