//! Running cargo and reading what its tests report.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// What one test binary, or the doc tests of one crate, reported.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Suite {
    /// Crate it belongs to, as cargo names its binary.
    pub package: String,
    /// `unittests`, `doc`, or the name of an integration test.
    pub target: String,
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// From its start to the start of the next.
    pub time: Duration,
    /// Random runs it printed: name and number of cases.
    pub counts: Vec<(String, u64)>,
    /// What it said it did not run.
    pub skips: Vec<Skip>,
    /// Further counts it printed for the closing lines.
    pub notes: Vec<String>,
}

/// A test that could not run, or only in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    /// What is missing.
    pub part: String,
    /// The test.
    pub test: String,
    /// Why it is missing.
    pub reason: String,
}

/// Cargo with these arguments, in the root of the repository.
pub fn cargo(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.current_dir(root).args(args);
    command
}

/// Prints the name of a step, runs it and tells whether it succeeded.
pub fn step(name: &str, command: &mut Command) -> bool {
    println!("\n== {name}");
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            println!("cannot start {}: {error}", command.get_program().display());
            false
        }
    }
}

/// Runs `cargo test`, passes its output on and collects what it reports. The flag tells whether
/// cargo itself was content.
pub fn tests(name: &str, command: &mut Command) -> Result<(Vec<Suite>, bool)> {
    let mut log = Log::default();
    // Colours would stand between us and the words.
    let content = lines(name, command.env("CARGO_TERM_COLOR", "never"), |line| {
        log.line(line, Instant::now());
    })?;
    Ok((log.finish(Instant::now()), content))
}

/// Runs a command, passes its output on and tells `each` every line of it; whether the command was content.
pub fn lines(name: &str, command: &mut Command, mut each: impl FnMut(&str)) -> Result<bool> {
    println!("\n== {name}");
    // One pipe for both streams: cargo names a binary on one and the binary reports on the other.
    let (reader, writer) = std::io::pipe()?;
    let errors = writer.try_clone()?;
    let command = command.stdout(writer).stderr(errors);
    let mut child = command
        .spawn()
        .with_context(|| format!("{name}: cannot start {}", command.get_program().display()))?;
    // The command holds our ends of the pipe, which would never end while they are open.
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut lines = BufReader::new(reader);
    let mut bytes = Vec::new();
    while lines.read_until(b'\n', &mut bytes)? > 0 {
        std::io::stdout().write_all(&bytes)?;
        each(&String::from_utf8_lossy(&bytes));
        bytes.clear();
    }
    Ok(child.wait()?.success())
}

/// Reads the output of `cargo test` line by line.
#[derive(Default)]
struct Log {
    suites: Vec<Suite>,
    started: Option<Instant>,
}

impl Log {
    fn line(&mut self, line: &str, now: Instant) {
        let line = line.trim();
        if let Some((package, target)) = self.heading(line) {
            self.close(now);
            self.started = Some(now);
            self.suites.push(Suite { package, target, ..Suite::default() });
            return;
        }
        let Some(suite) = self.suites.last_mut() else { return };
        if let Some(result) = line.strip_prefix("test result: ") {
            let number = |word: &str| {
                let before = result.split(word).next().filter(|before| before.len() < result.len());
                before.and_then(|text| text.trim().rsplit(' ').next()?.parse().ok()).unwrap_or(0)
            };
            suite.passed += number(" passed");
            suite.failed += number(" failed");
        } else if let Some(count) = random_run(line) {
            suite.counts.push(count);
        } else if let Some(skip) = skipped(line) {
            suite.skips.push(skip);
        } else if let Some((_, note)) = line.split_once("counted: ") {
            suite.notes.push(note.to_owned());
        }
    }

    /// The crate and target a line announces.
    fn heading(&self, line: &str) -> Option<(String, String)> {
        if let Some(package) = line.strip_prefix("Doc-tests ") {
            return Some((package.to_owned(), "doc".to_owned()));
        }
        let (target, binary) = line.strip_prefix("Running ")?.split_once(" (")?;
        if target.starts_with("unittests ") {
            let binary = Path::new(binary.strip_suffix(')')?).file_name()?.to_str()?;
            let package = binary.rsplit_once('-').map_or(binary, |(name, _hash)| name);
            return Some((package.to_owned(), "unittests".to_owned()));
        }
        // Cargo runs the unit tests of a crate before its integration tests.
        let package = self.suites.last().map(|suite| suite.package.clone()).unwrap_or_default();
        let target = Path::new(target).file_stem()?.to_str()?;
        Some((package, target.to_owned()))
    }

    fn close(&mut self, now: Instant) {
        if let (Some(suite), Some(started)) = (self.suites.last_mut(), self.started) {
            suite.time = now.duration_since(started);
        }
    }

    fn finish(mut self, now: Instant) -> Vec<Suite> {
        self.close(now);
        self.suites
    }
}

/// `NAME: CLEARWAY_SEED=S, N cases`, which random tests print when they start.
pub fn random_run(line: &str) -> Option<(String, u64)> {
    let (name, rest) = line.split_once(": CLEARWAY_SEED=")?;
    let cases = rest.split_once(", ")?.1.strip_suffix(" cases")?.parse().ok()?;
    Some((name.to_owned(), cases))
}

/// `skipped: PART: TEST: REASON`, perhaps behind the name of a test that the harness has begun to print.
fn skipped(line: &str) -> Option<Skip> {
    let (_, rest) = line.split_once("skipped: ")?;
    let mut words = rest.splitn(3, ": ").map(str::to_owned);
    Some(Skip { part: words.next()?, test: words.next()?, reason: words.next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "   Compiling clearway-graph v0.1.0
     Running unittests src/lib.rs (target/debug/deps/clearway_graph-fde0ef53deb08c31)
running 2 tests
skipped: vulkan: context::tests::opens: no driver: none found
test tests::closes ... skipped: browser: tests::closes: no chromium
ok
counted: op suite on cpu: 5 passed, 2 without a kernel
test result: ok. 57 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
     Running tests/properties.rs (target/debug/deps/properties-0a)
tracker equals its oracle: CLEARWAY_SEED=17, 1000 cases
test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.0s
     Running tests/silent.rs (target/debug/deps/silent-0b)
   Doc-tests clearway_graph
test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
";

    #[test]
    fn the_output_of_cargo_test_is_read_by_suite() {
        let mut log = Log::default();
        let start = Instant::now();
        for (seconds, line) in OUTPUT.lines().enumerate() {
            log.line(line, start + Duration::from_secs(seconds as u64));
        }
        let suites = log.finish(start + Duration::from_secs(20));
        let short =
            |s: &Suite| (s.package.clone(), s.target.clone(), s.passed, s.failed, s.time.as_secs());
        let expected = [
            ("clearway_graph", "unittests", 57, 0, 7),
            ("clearway_graph", "properties", 3, 2, 3),
            ("clearway_graph", "silent", 0, 0, 1),
            ("clearway_graph", "doc", 4, 0, 8),
        ];
        let expected = expected.map(|(p, t, a, b, c)| (p.to_owned(), t.to_owned(), a, b, c));
        assert_eq!(suites.iter().map(short).collect::<Vec<_>>(), expected);
        let counts = vec![("tracker equals its oracle".to_owned(), 1000)];
        assert_eq!(suites[1].counts, counts);
        let skip = |part: &str, test: &str, reason: &str| {
            let [part, test, reason] = [part, test, reason].map(str::to_owned);
            Skip { part, test, reason }
        };
        let skips = [
            skip("vulkan", "context::tests::opens", "no driver: none found"),
            skip("browser", "tests::closes", "no chromium"),
        ];
        assert_eq!(suites[0].skips, skips);
        assert_eq!(suites[0].notes, ["op suite on cpu: 5 passed, 2 without a kernel"]);
    }
}
