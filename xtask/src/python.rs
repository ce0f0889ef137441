//! The Python package: the part `python` of the test command, and `cargo xtask ray`.
//!
//! The package that is tested is made of its Python files and of the library that cargo built, in a folder below the target
//! folder. `pip install ./python` makes the same with maturin.
//!
//! The package is a workspace of its own. There cargo would build every crate again, so the tests build it in `workspace`.

mod workspace;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::environment::{program, python};
use crate::run::{Skip, Suite, cargo, lines, step};

const TESTS: [&str; 2] = ["pytest==9.2.0", "numpy==2.4.6"];
const RAY: [&str; 2] = ["ray[data,serve]==2.60.0", "numpy==2.4.6"];
/// vLLM, whose wheel has the load generator for Ray Serve.
const VLLM: &str = "0.33.0";
/// Name of the package among suites.
pub const PACKAGE: &str = "clearway_python";
/// Rows of Ray Data in a full run, and in any.
pub const RAY_ROWS: u64 = 2000;
pub const LEAST_RAY_ROWS: u64 = 100;
/// Requests of each load of Ray Serve for a row of Ray Data, and at least.
const ROWS_OF_A_REQUEST: u64 = 10;
const LEAST_REQUESTS: u64 = 100;

/// Makes the environment of the tests; why it cannot be made.
pub fn missing(root: &Path) -> Option<String> {
    python(root, "package", &TESTS).err().map(|error| format!("{error:#}"))
}

/// Builds the native part.
pub fn build(root: &Path) -> Result<Command> {
    // All crates with all features and those of tests, as `cargo test` builds them.
    cargo_of_package(root, &["build", "--workspace", "--all-features", "--lib", "--test", "plan"])
}

/// Lints the native part.
pub fn clippy(root: &Path) -> Result<Command> {
    let mut command =
        cargo_of_package(root, &["clippy", "--workspace", "--all-targets", "--all-features"])?;
    command.args(["--", "--deny", "warnings"]);
    Ok(command)
}

/// Cargo in the workspace that has the package in it.
fn cargo_of_package(root: &Path, args: &[&str]) -> Result<Command> {
    let manifest = workspace::make(root, &target(root).join("python/workspace"))?;
    let mut command = cargo(root, args);
    command.arg("--manifest-path").arg(manifest);
    // As maturin does: a module has what it needs of Python from the program that loads it.
    command.env("CARGO_TARGET_DIR", target(root)).env("PYO3_BUILD_EXTENSION_MODULE", "1");
    Ok(command)
}

/// The tests of the package, which compare texts with those of the command line. What `demanded` names fails a test that
/// lacks it, which would otherwise be skipped.
///
/// # Errors
/// An environment that cannot be made, a package that was not built.
pub fn tests(root: &Path, demanded: &str) -> Result<Suite> {
    let mut command = Command::new(program(&python(root, "package", &TESTS)?, "python"));
    command.args(["-m", "pytest", "-q", "-rs", "--color=no", "--durations=5"]);
    command.args(["-p", "no:cacheprovider"]).arg(root.join("python/tests"));
    command.env("PYTHONPATH", package(root)?).current_dir(root);
    command.env("CLEARWAY_BIN", target(root).join("debug/clearway"));
    command.env("CLEARWAY_NEED", demanded);
    let start = Instant::now();
    let (package, target) = (PACKAGE.to_owned(), "pytest".to_owned());
    let mut suite = Suite { package, target, ..Suite::default() };
    let content = lines("Python package", &mut command, |line| read(line, &mut suite))?;
    if !content && suite.failed == 0 {
        // It died before it could report.
        suite.failed = 1;
    }
    Ok(Suite { time: start.elapsed(), ..suite })
}

/// Reads a line of pytest.
fn read(line: &str, suite: &mut Suite) {
    let line = line.trim();
    if let Some(count) = line.strip_prefix("counted: ") {
        suite.notes.push(format!("Python package: {count}"));
        let number = count.rsplit_once(": ").and_then(|(name, n)| Some((name, n.parse().ok()?)));
        suite.counts.extend(number.map(|(name, number)| (name.to_owned(), number)));
    } else if let Some((test, reason)) =
        line.strip_prefix("SKIPPED ").and_then(|rest| rest.split_once(": "))
    {
        let (part, test, reason) = ("pytest".to_owned(), test.to_owned(), reason.to_owned());
        suite.skips.push(Skip { part, test, reason });
        // Where suites are added up, a test that was skipped is taken from those that passed.
        suite.passed += 1;
    } else if let Some((counts, _)) = line.split_once(" in ").filter(|(_, time)| is_time(time)) {
        for count in counts.split(", ") {
            let Some((number, word)) = count.split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match word {
                "passed" => suite.passed += number,
                "failed" | "error" | "errors" => suite.failed += number,
                _ => {}
            }
        }
    }
}

/// Whether text is pytest's way to write how long a run took: `1.20s`, or `83.10s (0:01:23)`.
fn is_time(text: &str) -> bool {
    let seconds = text.split(' ').next().and_then(|word| word.strip_suffix('s'));
    seconds.is_some_and(|seconds| seconds.parse::<f64>().is_ok())
}

/// Ray in a soak with so many cases of so many.
///
/// # Errors
/// An environment that cannot be made, a build that fails.
pub fn report(cases: u64, full: u64) -> Result<Suite> {
    let start = Instant::now();
    let rows = (RAY_ROWS * cases / full).max(LEAST_RAY_ROWS);
    let good = ray(rows)?;
    Ok(Suite {
        package: PACKAGE.to_owned(),
        target: "ray".to_owned(),
        failed: u64::from(!good),
        time: start.elapsed(),
        counts: vec![("rows of Ray Data".to_owned(), rows)],
        ..Suite::default()
    })
}

/// `cargo xtask ray`: rows and replicas on a cluster of two nodes; tells whether all came out as it should.
///
/// # Errors
/// An environment that cannot be made, a build that fails.
pub fn ray(rows: u64) -> Result<bool> {
    let root = crate::root()?;
    if !step("build of the Python package", &mut build(&root)?) {
        bail!("the build failed");
    }
    let folder = python(&root, "ray", &RAY)?;
    let load = vllm_rs(&root, &program(&folder, "python"))?;
    let package = package(&root)?;
    let script = |name: &str, count: u64| {
        let mut command = Command::new(program(&folder, "python"));
        command.arg(root.join("python/tests").join(name)).arg(count.to_string());
        command.env("PYTHONPATH", &package).current_dir(&folder);
        command
    };
    let data = step("Ray Data", &mut script("ray_data.py", rows));
    let requests = (rows / ROWS_OF_A_REQUEST).max(LEAST_REQUESTS);
    let serve = step("Ray Serve", script("ray_serve.py", requests).arg("--vllm-rs").arg(load));
    for (name, good) in [("Ray Data", data), ("Ray Serve", serve)] {
        println!("{name}: {}", if good { "as it should be" } else { "not as it should be" });
    }
    Ok(data && serve)
}

/// The load generator of vLLM, taken out of its wheel once and kept.
fn vllm_rs(root: &Path, python: &Path) -> Result<PathBuf> {
    let folder = target(root).join("python/vllm").join(VLLM);
    let load = folder.join("vllm-rs");
    if !load.is_file() {
        println!("installing the load generator of vllm=={VLLM}");
        let mut command = Command::new(python);
        command.arg(root.join("tools/serve/vllm_rs.py")).arg(&folder).arg(VLLM);
        if !command.status()?.success() {
            bail!("the load generator of vllm=={VLLM} cannot be installed");
        }
    }
    Ok(load)
}

fn target(root: &Path) -> PathBuf {
    root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// The folder with the package in it, made anew.
fn package(root: &Path) -> Result<PathBuf> {
    let folder = target(root).join("python").join("tested");
    let package = folder.join("clearway");
    if package.exists() {
        std::fs::remove_dir_all(&package)?;
    }
    std::fs::create_dir_all(&package)?;
    for file in std::fs::read_dir(root.join("python/clearway"))? {
        let path = file?.path();
        if let (Some(name), true) = (path.file_name(), path.is_file()) {
            std::fs::copy(&path, package.join(name))?;
        }
    }
    let (library, module) = match cfg!(target_os = "macos") {
        true => ("lib_clearway.dylib", "_clearway.abi3.so"),
        false => ("lib_clearway.so", "_clearway.abi3.so"),
    };
    let library = target(root).join("debug").join(library);
    std::fs::copy(&library, package.join(module))
        .with_context(|| format!("cannot copy {}", library.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(output: &str) -> Suite {
        let mut suite = Suite::default();
        output.lines().for_each(|line| read(line, &mut suite));
        suite
    }

    #[test]
    fn what_pytest_reports_is_read() {
        let found = suite(
            "..s.F   [100%]\n\
             counted: loads of a model in one process: 1000\n\
             SKIPPED [1] python/tests/test_concurrency.py:155: no /proc\n\
             FAILED python/tests/test_text.py::test_x - assert 1 == 2 in 3s\n\
             2 failed, 50 passed, 1 skipped, 3 warnings, 1 error in 83.10s (0:01:23)\n",
        );
        assert_eq!((found.passed, found.failed), (51, 3));
        assert_eq!(found.counts, [("loads of a model in one process".to_owned(), 1000)]);
        assert_eq!(found.notes, ["Python package: loads of a model in one process: 1000"]);
        let skip = &found.skips[0];
        assert_eq!((&*skip.part, &*skip.reason), ("pytest", "no /proc"));
        assert_eq!(skip.test, "[1] python/tests/test_concurrency.py:155");
    }

    #[test]
    fn other_lines_count_nothing() {
        let found = suite("3 passed in time\n12.00s call test_x\npassed 5 in 1.0s\n");
        assert_eq!(found, Suite::default());
    }
}
