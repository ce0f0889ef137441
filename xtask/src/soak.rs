//! `cargo xtask soak`: the random suites with their full counts. The last result is kept in
//! `docs/soak.md`.

use std::fmt::Write;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::run::{self, Suite, cargo};
use crate::{date, fuzz, python, root, seed, serve, test};

/// Cases of a property test. Suites whose single case is dear take a fixed share of it.
pub const FULL_CASES: u64 = 20_000;

/// Runs all tests with `cases` cases and writes the result down; tells whether all of it held.
pub fn run(cases: u64) -> Result<bool> {
    let root = root()?;
    let seed = seed()?;
    println!("CLEARWAY_SEED={seed}");
    let mut command = cargo(&root, &["test", "--workspace", "--all-features", "--no-fail-fast"]);
    // Tests that pass are heard only if asked: they print the cases they ran.
    command.args(["--lib", "--bins", "--tests", "--", "--show-output"]);
    command.env("CLEARWAY_SEED", seed.to_string()).env("CLEARWAY_CASES", cases.to_string());
    let start = Instant::now();
    let (mut suites, mut content) = run::tests("soak", &mut command)?;
    let seconds = fuzz::soak_seconds(cases, FULL_CASES);
    let mut targets = fuzz::command(test::built(&root, "clearway-fuzz"), seed, seconds);
    content &= fuzz::report(&mut targets, &mut suites)?;
    let clients = serve::report(&root, serve::Extent::share(cases, FULL_CASES))?;
    content &= clients.failed == 0;
    suites.push(clients);
    let ray = python::report(cases, FULL_CASES)?;
    content &= ray.failed == 0;
    suites.push(ray);
    let report =
        Report { cases, seed, commit: commit(), seconds: start.elapsed().as_secs(), content };
    let told = |suite: &&Suite| !suite.counts.is_empty() || suite.failed > 0;
    let text = report.text(&suites.iter().filter(told).collect::<Vec<_>>());
    let path = root.join("docs/soak.md");
    std::fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("\n{text}");
    Ok(content)
}

struct Report {
    cases: u64,
    seed: u64,
    commit: String,
    seconds: u64,
    content: bool,
}

impl Report {
    fn text(&self, suites: &[&Suite]) -> String {
        let mut out = String::from("# Last soak\n\n");
        let Self { cases, seed, commit, seconds, content } = self;
        let result = if *content { "all passed" } else { "FAILED" };
        let date = date::today();
        let lines = [
            format!("`cargo xtask soak --cases {cases}`: **{result}**\n"),
            format!("- date: {date}"),
            format!("- commit: {commit}"),
            format!("- seed: `CLEARWAY_SEED={seed}`"),
            format!("- seconds: {seconds}, build included\n"),
            "| suite | seconds of the suite | result | random run | cases |".to_owned(),
            "|---|---|---|---|---|".to_owned(),
        ];
        out.push_str(&lines.join("\n"));
        out.push('\n');
        for suite in suites {
            let name = format!("{} {}", suite.package, suite.target);
            let result = if suite.failed == 0 { "passed" } else { "FAILED" };
            let seconds = suite.time.as_secs_f64();
            let mut row = |run: &str, cases: &str| {
                // Writing to a string cannot fail.
                let _ = writeln!(out, "| {name} | {seconds:.1} | {result} | {run} | {cases} |");
            };
            match suite.counts.as_slice() {
                [] => row("none", ""),
                counts => counts.iter().for_each(|(run, cases)| row(run, &cases.to_string())),
            }
        }
        out
    }
}

/// The commit that was tested, and whether the files differ from it.
fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|o| o.status.success());
        output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    match git(&["status", "--porcelain", "--", ":!docs/soak.md"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit}, with changes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_holds_seed_counts_and_the_result_of_each_suite() {
        let suite = |failed| Suite {
            package: "clearway_graph".to_owned(),
            target: "properties".to_owned(),
            failed,
            counts: vec![("tracker".to_owned(), 10_000)],
            ..Suite::default()
        };
        let (good, bad) = (suite(0), suite(1));
        let other = Suite { counts: Vec::new(), ..suite(1) };
        let commit = "abc".to_owned();
        let report = Report { cases: 10_000, seed: 17, commit, seconds: 3, content: false };
        let text = report.text(&[&good, &bad, &other]);
        for part in [
            "**FAILED**",
            "CLEARWAY_SEED=17",
            "| clearway_graph properties | 0.0 | passed | tracker | 10000 |",
            "| clearway_graph properties | 0.0 | FAILED | tracker | 10000 |",
            "| clearway_graph properties | 0.0 | FAILED | none |  |",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
