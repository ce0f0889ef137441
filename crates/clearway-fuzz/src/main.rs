//! The fuzz targets on the stable toolchain: `clearway-fuzz --seconds N` tries every target for so long.
//!
//! Each target runs in a process of its own, as many at a time as there are processors, so that a stack overflow, an
//! endless loop or memory without bound is the failure of one target, with the seed that repeats it.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clearway_fuzz::{TARGETS, Target, mutate, target};

const USAGE: &str =
    "usage: clearway-fuzz [--seconds N]    every target for N seconds (20), in parallel
       clearway-fuzz run TARGET [--seconds N]
       clearway-fuzz try TARGET FILE...    these inputs
       clearway-fuzz seeds FOLDER          write seeds and dictionaries, for libFuzzer

CLEARWAY_SEED=N repeats a run. An input that breaks a target is kept in fuzz/artifacts.";

/// Time that a process may take beyond its seconds before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);
/// Most memory a target may have had at once.
const MAX_MEMORY: u64 = 1 << 30;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let seconds = |text: &str| text.parse().ok().map(Duration::from_secs);
    let done = match args[..] {
        [] => all(Duration::from_secs(20)),
        ["--seconds", time] => match seconds(time) {
            Some(time) => all(time),
            None => return usage(),
        },
        ["run", name, "--seconds", time] => match (target(name), seconds(time)) {
            (Some(target), Some(time)) => one(target, time),
            _ => return usage(),
        },
        ["run", name] => match target(name) {
            Some(target) => one(target, Duration::from_secs(20)),
            None => return usage(),
        },
        ["try", name, ref files @ ..] => match target(name) {
            Some(target) => attempt(target, files),
            None => return usage(),
        },
        ["seeds", folder] => seeds(Path::new(folder)),
        _ => return usage(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("clearway-fuzz: {message}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// Every target in a process of its own.
fn all(time: Duration) -> Result<(), String> {
    let seed = seed();
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut waiting: Vec<&Target> = TARGETS.iter().rev().collect();
    let mut running: Vec<(&Target, Child, Instant)> = Vec::new();
    let mut failed = Vec::new();
    loop {
        while running.len() < processors
            && let Some(target) = waiting.pop()
        {
            let child = Command::new(&program)
                .args(["run", target.name, "--seconds", &time.as_secs().to_string()])
                .env("CLEARWAY_SEED", seed.to_string())
                .stdin(Stdio::null())
                .spawn()
                .map_err(|error| error.to_string())?;
            running.push((target, child, Instant::now()));
        }
        if running.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        running.retain_mut(|(target, child, started)| {
            let outcome = match child.try_wait() {
                Ok(Some(status)) if status.success() => return false,
                Ok(Some(status)) => status.to_string(),
                Ok(None) if started.elapsed() < time + PATIENCE => return true,
                Ok(None) => {
                    // A process that has just ended cannot be killed; either way it is waited for.
                    let _ = child.kill();
                    let _ = child.wait();
                    "it hangs".to_owned()
                }
                Err(error) => error.to_string(),
            };
            failed.push(format!("{} ({outcome})", target.name));
            false
        });
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("failed with CLEARWAY_SEED={seed}: {}", failed.join(", "))),
    }
}

fn one(target: &Target, time: Duration) -> Result<(), String> {
    let seed = seed();
    let name = target.name;
    match mutate::run(target, seed, time) {
        // In the form in which random tests say what they ran.
        Ok(cases) => println!("fuzz {name}: CLEARWAY_SEED={seed}, {cases} cases"),
        Err(found) => {
            let place = keep(name, &found.input);
            let (case, message) = (found.case, &found.message);
            return Err(format!("{name}: case {case} of CLEARWAY_SEED={seed}: {message}; {place}"));
        }
    }
    match peak() {
        Some(peak) if peak > MAX_MEMORY => Err(format!("{name} took {peak} bytes of memory")),
        _ => Ok(()),
    }
}

/// Writes an input down; says where.
fn keep(name: &str, input: &[u8]) -> String {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/artifacts"));
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(input);
    let path = folder.join(format!("{name}-{:016x}", hasher.finish()));
    match std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, input)) {
        Ok(()) => format!("the input is {}", path.display()),
        Err(error) => {
            format!("the input could not be kept ({error}): {:?}", input.escape_ascii().to_string())
        }
    }
}

fn attempt(target: &Target, files: &[&str]) -> Result<(), String> {
    for file in files {
        let input = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
        println!("{file}: {}", if (target.run)(&input) { "accepted" } else { "refused" });
    }
    Ok(())
}

/// Seeds in a folder for each target, and a dictionary beside each, as libFuzzer takes them.
fn seeds(folder: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    for target in &TARGETS {
        let corpus = folder.join(target.name);
        std::fs::create_dir_all(&corpus).map_err(failed)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            std::fs::write(corpus.join(format!("seed-{number}")), seed).map_err(failed)?;
        }
        let word = |word: &&[u8]| {
            let bytes: String = word.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("\"{bytes}\"\n")
        };
        let words: String = target.words.iter().map(word).collect();
        std::fs::write(folder.join(format!("{}.dict", target.name)), words).map_err(failed)?;
    }
    Ok(())
}

fn seed() -> u64 {
    let given = std::env::var("CLEARWAY_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| RandomState::new().build_hasher().finish())
}

/// Most memory this process had at once, where the system says.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}
