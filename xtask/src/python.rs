//! The Python package: the part `python` of the test command, and `cargo xtask ray`.
//!
//! The package that is tested is made of its Python files and of the library that cargo built, in a folder below the target
//! folder. `pip install ./python` makes the same with maturin.
//!
//! The package is a workspace of its own. There cargo would build every crate again, so the tests build it in `workspace`.

mod workspace;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::environment::{program, python};
use crate::run::{cargo, step};

const TESTS: [&str; 2] = ["pytest==9.2.0", "numpy==2.4.6"];
const RAY: [&str; 2] = ["ray[data,serve]==2.60.0", "numpy==2.4.6"];

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

/// The tests of the package, which compare texts with those of the command line.
pub fn tests(root: &Path) -> Result<Command> {
    let mut command = Command::new(program(&python(root, "package", &TESTS)?, "python"));
    command.args(["-m", "pytest", "-q", "--durations=5", "-p", "no:cacheprovider"]);
    command.arg(root.join("python/tests")).env("PYTHONPATH", package(root)?);
    command.env("CLEARWAY_BIN", target(root).join("debug/clearway")).current_dir(root);
    // A test that would be skipped for want of something fails instead.
    command.env("CLEARWAY_NEED", "vulkan,golden,python");
    Ok(command)
}

/// `cargo xtask ray`: rows and replicas on a cluster of two nodes; tells whether all came out as it should.
pub fn ray(rows: usize) -> Result<bool> {
    let root = crate::root()?;
    let folder = python(&root, "ray", &RAY)?;
    if !step("build of the Python package", &mut build(&root)?) {
        bail!("the build failed");
    }
    let mut good = true;
    for (name, script) in [("Ray Data", "ray_data.py"), ("Ray Serve", "ray_serve.py")] {
        let mut command = Command::new(program(&folder, "python"));
        command.arg(root.join("python/tests").join(script)).arg(rows.to_string());
        command.env("PYTHONPATH", package(&root)?).current_dir(&folder);
        good &= step(name, &mut command);
    }
    Ok(good)
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
