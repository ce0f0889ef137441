//! What a run did: counts, times, what was skipped, and the closing lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use super::needs::Need;
use super::part::{Part, TOTAL_BUDGET};
use crate::run::{Skip, Suite, step};

/// What was run so far.
#[derive(Default)]
pub struct Outcome {
    /// Tests that ran and passed.
    pub passed: u64,
    /// Tests, and steps that are no tests.
    pub failed: u64,
    /// Tests and steps that did not run, or only in part, with the reason.
    skipped: BTreeSet<(String, String, String)>,
    /// What may be missing.
    allowed: Vec<Need>,
    /// Names of failed steps.
    broken: Vec<String>,
    /// Counts that tests print: cases with and without a kernel.
    notes: Vec<String>,
    times: BTreeMap<Part, Duration>,
}

impl Outcome {
    pub fn new(allowed: &[Need]) -> Self {
        Self { allowed: allowed.to_vec(), ..Self::default() }
    }

    /// Those of `needs` that may not be missing.
    pub fn demanded(&self, needs: &[Need]) -> Vec<Need> {
        needs.iter().copied().filter(|need| !self.allowed.contains(need)).collect()
    }

    /// Runs a step that is no test.
    pub fn step(&mut self, part: Part, name: &str, command: &mut Command) {
        let start = Instant::now();
        if !step(name, command) {
            self.fail(name);
        }
        self.spend(part, start.elapsed());
    }

    /// Counts a step as failed.
    pub fn fail(&mut self, name: &str) {
        self.failed += 1;
        self.broken.push(name.to_owned());
    }

    pub fn spend(&mut self, part: Part, time: Duration) {
        *self.times.entry(part).or_default() += time;
    }

    /// Something the run needs is missing: a failed step, unless that is allowed.
    pub fn missing(&mut self, need: Need, why: &str) {
        println!("{} is missing: {why}", need.name());
        if self.allowed.contains(&need) {
            let step = format!("what needs {}", need.name());
            self.skipped.insert((need.name().to_owned(), step, why.to_owned()));
        } else {
            self.fail(&format!("{} ({why})", need.name()));
            println!("run with `--allow-missing {}` to do without", need.name());
        }
    }

    /// Takes what test binaries reported.
    pub fn suites(&mut self, suites: &[Suite]) {
        for suite in suites {
            let skipped: BTreeSet<&str> = suite.skips.iter().map(|skip| &*skip.test).collect();
            // The harness counts a test that ended early as passed.
            self.passed += suite.passed.saturating_sub(skipped.len() as u64);
            self.failed += suite.failed;
            self.notes.extend(suite.notes.iter().cloned());
            self.spend(Part::of(suite), suite.time);
            for Skip { part, test, reason } in &suite.skips {
                let test = format!("{} {}: {test}", suite.package, suite.target);
                self.skipped.insert((part.clone(), test, reason.clone()));
            }
        }
    }

    /// Fails the run where tests skipped something that was needed: one that does not heed `CLEARWAY_NEED`
    /// would otherwise pass without having run.
    pub fn demand(&mut self, needs: &[Need]) {
        for need in self.demanded(needs) {
            if self.skipped.iter().any(|(part, ..)| part == need.name()) {
                self.fail(&format!("{} is needed and was skipped", need.name()));
            }
        }
    }

    /// The closing lines. The last one is always the counts.
    pub fn text(&self) -> String {
        let mut out = format!("{:<16}{:>9}{:>9}\n", "part", "minutes", "budget");
        let mut line = |name: &str, time: Duration, budget: u32| {
            let minutes = time.as_secs_f64() / 60.0;
            let over = if minutes > f64::from(budget) { "  over budget" } else { "" };
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{name:<16}{minutes:>9.1}{budget:>9}{over}");
        };
        for (part, &time) in &self.times {
            let (_, name, budget) = part.facts();
            line(name, time, budget);
        }
        line("total", self.times.values().sum(), TOTAL_BUDGET);
        for note in &self.notes {
            let _ = writeln!(out, "{note}");
        }
        if !self.skipped.is_empty() {
            let _ = writeln!(out, "\nskipped, whole or in part:");
        }
        for (part, test, reason) in &self.skipped {
            let _ = writeln!(out, "  {part}: {test}: {reason}");
        }
        if !self.allowed.is_empty() {
            let names: Vec<&str> = self.allowed.iter().map(|need| need.name()).collect();
            let _ = writeln!(out, "\nallowed to be missing: {}", names.join(", "));
        }
        if !self.broken.is_empty() {
            let _ = writeln!(out, "\nfailed steps: {}", self.broken.join(", "));
        }
        let Self { passed, failed, skipped, .. } = self;
        let _ = writeln!(out, "\n{passed} passed, {failed} failed, {} skipped", skipped.len());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skip(part: &str, test: &str) -> Skip {
        let [part, test, reason] = [part, test, "no driver"].map(str::to_owned);
        Skip { part, test, reason }
    }

    fn suite(skips: Vec<Skip>) -> Suite {
        let (package, target) = ("clearway_gpu".to_owned(), "vulkan_ops".to_owned());
        Suite { package, target, passed: 5, skips, ..Suite::default() }
    }

    fn last_line(outcome: &Outcome) -> String {
        outcome.text().lines().last().unwrap_or_default().to_owned()
    }

    #[test]
    fn a_step_that_cannot_start_is_a_failed_step() {
        let mut outcome = Outcome::default();
        outcome.step(Part::Core, "nothing", &mut Command::new("/nonexistent/program"));
        assert_eq!((outcome.failed, outcome.broken.as_slice()), (1, &["nothing".to_owned()][..]));
    }

    #[test]
    fn a_skipped_test_is_counted_once_and_not_as_passed() {
        let mut outcome = Outcome::default();
        outcome.suites(&[suite(vec![
            skip("vulkan", "a"),
            skip("vulkan", "a"),
            skip("vulkan", "b"),
        ])]);
        assert_eq!(last_line(&outcome), "3 passed, 0 failed, 2 skipped");
        let text = outcome.text();
        assert!(text.contains("  vulkan: clearway_gpu vulkan_ops: a: no driver\n"), "{text}");
        assert_eq!(last_line(&Outcome::default()), "0 passed, 0 failed, 0 skipped");
    }

    #[test]
    fn what_is_needed_and_skipped_fails_the_run_unless_that_is_allowed() {
        let skipping = [suite(vec![skip("vulkan", "a")])];
        let mut outcome = Outcome::default();
        outcome.suites(&skipping);
        outcome.demand(&[Need::Browser]);
        assert_eq!(outcome.failed, 0, "nobody asked for it");
        outcome.demand(&Need::ALL);
        assert_eq!(outcome.failed, 1);
        let mut outcome = Outcome::new(&[Need::Vulkan]);
        outcome.suites(&skipping);
        outcome.demand(&Need::ALL);
        assert_eq!(last_line(&outcome), "4 passed, 0 failed, 1 skipped");
        assert!(outcome.text().contains("\nallowed to be missing: vulkan\n"), "{}", outcome.text());
    }

    #[test]
    fn what_is_missing_fails_the_run_and_says_why_unless_it_is_allowed() {
        let mut outcome = Outcome::default();
        outcome.missing(Need::Race, "needs root");
        assert_eq!(last_line(&outcome), "0 passed, 1 failed, 0 skipped");
        assert!(outcome.text().contains("failed steps: race (needs root)"), "{}", outcome.text());
        let mut outcome = Outcome::new(&[Need::Race]);
        outcome.missing(Need::Race, "needs root");
        assert_eq!(last_line(&outcome), "0 passed, 0 failed, 1 skipped");
        assert!(outcome.text().contains("race: what needs race: needs root"), "{}", outcome.text());
    }
}
