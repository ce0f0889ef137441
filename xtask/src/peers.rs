//! `cargo xtask peers`: llama.cpp and Clearway on the same file, side by side.
//!
//! llama.cpp is built from the `llama-cpp-2` crate by `tools/peers`, a package of its own, so that
//! nothing in the default build needs a C++ compiler. The two take turns, since the speed of a shared
//! machine changes from minute to minute: only numbers of one run are comparable.

mod matrix;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};

use self::matrix::Test;
use crate::root;
use crate::run::cargo;

/// Tokens of the prompt and tokens generated.
const PROMPT: usize = 128;
const GENERATED: usize = 64;

/// How often each program is run.
const ROUNDS: usize = 5;

/// What logits are compared after. Small ids, which every vocabulary has.
const TOKENS: &str = "3 91 17 17 60 5 42 8 77";

/// Largest mean error of logits of quantised files, as a part of the largest one: both programs quantise activations to 8
/// bits.
const QUANTISED_LIMIT: f64 = 0.02;

/// Largest error of any logit of a file whose weights are floats.
const FLOAT_LIMIT: f64 = 0.001;

/// Measures files, or compares their logits; without any, the default model, and for logits also a tiny
/// file of each family. Tells whether all logits agreed.
pub fn run(logits: bool, files: &[&str]) -> Result<bool> {
    let root = root()?;
    let programs = Programs::build(&root, logits)?;
    let mut files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
    if files.is_empty() {
        if logits {
            files.extend(programs.tiny_models()?);
        }
        let pulled = output(programs.clearway().args(["pull", "smollm2:135m"]))?;
        files.push(pulled.trim_end().into());
    }
    let peer = programs.peer_for(&files[0])?;
    println!("llama.cpp: {}", output(Command::new(&peer).arg("features"))?.trim());
    let mut agree = true;
    for file in &files {
        if logits {
            agree &= programs.compare_logits(&peer, file)?;
        } else {
            programs.compare_speed(&peer, file)?;
        }
    }
    Ok(agree)
}

/// Measures formats, lengths and sequences and prints the worst ratio first; with names of formats, only those.
pub fn matrix(rounds: usize, formats: &[&str]) -> Result<()> {
    matrix::run(&Programs::build(&root()?, false)?, rounds, formats)
}

/// The two programs, built for this machine.
struct Programs {
    root: PathBuf,
    target: PathBuf,
    clearway: PathBuf,
    threads: usize,
}

/// Tokens per second of one program, by round.
#[derive(Default)]
struct Speeds {
    prompt: Vec<f64>,
    generated: Vec<f64>,
}

impl Programs {
    /// Logits need no release build: what the tests run is built already.
    fn build(root: &Path, logits: bool) -> Result<Self> {
        need_packages()?;
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let target = root.join(target);
        let (mut build, folder) = match logits {
            true => (cargo(root, &["build", "--workspace", "--all-features"]), "debug"),
            false => (cargo(root, &["build", "--release", "--package", "clearway-cli"]), "release"),
        };
        ensure!(build.status()?.success(), "clearway did not build");
        let clearway = target.join(folder).join("clearway");
        let programs = Self { root: root.to_owned(), target, clearway, threads };
        programs.build_peer("peers", "")?;
        Ok(programs)
    }

    /// Builds llama.cpp with these flags for its compilers, beside others in the target folder.
    fn build_peer(&self, folder: &str, flags: &str) -> Result<PathBuf> {
        let target = self.target.join(folder);
        let manifest = "tools/peers/Cargo.toml";
        let mut build = cargo(&self.root, &["build", "--release", "--manifest-path", manifest]);
        build.env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", "-C target-cpu=native");
        if !flags.is_empty() {
            build.env("CFLAGS", flags).env("CXXFLAGS", flags);
        }
        println!("building llama.cpp, which takes some minutes the first time");
        ensure!(build.status()?.success(), "llama.cpp did not build");
        Ok(target.join("release/clearway-peers"))
    }

    fn clearway(&self) -> Command {
        Command::new(&self.clearway)
    }

    /// llama.cpp as it runs here. Some virtual machines name AMX among their instructions and do not
    /// let anyone use it; there it is built without.
    fn peer_for(&self, file: &Path) -> Result<PathBuf> {
        let peer = self.target.join("peers/release/clearway-peers");
        let tried = self.peer_speed(&peer, file, [16, 1, 0, 1])?;
        if !died_of_illegal_instruction(&tried) {
            ensure!(
                tried.status.success(),
                "llama.cpp: {}",
                String::from_utf8_lossy(&tried.stderr)
            );
            return Ok(peer);
        }
        println!("this machine does not run AMX, though it says so; llama.cpp is built without");
        self.build_peer("peers-no-amx", "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16")
    }

    /// Runs llama.cpp with tokens of the prompt, tokens generated, tokens in the cache before, and sequences.
    fn peer_speed(&self, peer: &Path, file: &Path, numbers: [usize; 4]) -> Result<Output> {
        let mut command = Command::new(peer);
        command.arg("speed").arg(file).arg(self.threads.to_string());
        command.args(numbers.map(|number| number.to_string()));
        command.output().context("llama.cpp cannot be started")
    }

    /// llama.cpp's tokens per second in one test.
    fn peer_speeds(&self, peer: &Path, file: &Path, test: Test) -> Result<f64> {
        let Test { prompt, generated, depth, sequences } = test;
        let found = self.peer_speed(peer, file, [prompt, generated, depth, sequences])?;
        ensure!(found.status.success(), "llama.cpp: {}", String::from_utf8_lossy(&found.stderr));
        let wanted = if generated > 0 { "tg " } else { "pp " };
        let printed = String::from_utf8_lossy(&found.stdout);
        let line = printed.lines().find_map(|line| line.strip_prefix(wanted));
        Ok(line.context("llama.cpp printed no speed")?.parse()?)
    }

    /// Our tokens per second in one test.
    fn clearway_speed_of(&self, file: &Path, test: Test) -> Result<f64> {
        let Test { prompt, generated, depth, sequences } = test;
        let mut bench = self.clearway();
        bench.args(["bench", "--device", "cpu", "--json", "-r", "1"]).arg("-m").arg(file);
        bench.args(["-t", &self.threads.to_string()]);
        bench.args(["-p", &prompt.to_string(), "-n", &generated.to_string()]);
        match sequences {
            1 => bench.args(["-d", &depth.to_string()]),
            _ => bench.args(["--parallel", &sequences.to_string()]),
        };
        let tests: serde_json::Value = serde_json::from_str(&output(&mut bench)?)?;
        let speed = &tests[0][if sequences > 1 { "s_tg" } else { "avg_ts" }];
        speed.as_f64().context("bench printed no speed")
    }

    fn compare_speed(&self, peer: &Path, file: &Path) -> Result<()> {
        let (mut ours, mut theirs) = (Speeds::default(), Speeds::default());
        for _ in 0..ROUNDS {
            let found = self.peer_speed(peer, file, [PROMPT, GENERATED, 0, 1])?;
            ensure!(
                found.status.success(),
                "llama.cpp: {}",
                String::from_utf8_lossy(&found.stderr)
            );
            for line in String::from_utf8_lossy(&found.stdout).lines() {
                match line.split_once(' ') {
                    Some(("pp", speed)) => theirs.prompt.push(speed.parse()?),
                    Some(("tg", speed)) => theirs.generated.push(speed.parse()?),
                    _ => bail!("llama.cpp printed `{line}`"),
                }
            }
            let (prompt, generated) = self.clearway_speed(file)?;
            ours.prompt.push(prompt);
            ours.generated.push(generated);
        }
        let name = file.file_name().unwrap_or_default().display();
        println!("\n{name}, {} threads, best of {ROUNDS} rounds, tokens per second", self.threads);
        println!(
            "{:<8}{:>12}{:>12}{:>9}{:>16}",
            "", "clearway", "llama.cpp", "ratio", "of each round"
        );
        let rows = [
            (format!("pp{PROMPT}"), ours.prompt, theirs.prompt),
            (format!("tg{GENERATED}"), ours.generated, theirs.generated),
        ];
        for (test, ours, theirs) in rows {
            let best = |speeds: &[f64]| speeds.iter().copied().fold(0.0, f64::max);
            let (us, them) = (best(&ours), best(&theirs));
            let mut ratios: Vec<f64> =
                ours.iter().zip(&theirs).map(|(us, them)| us / them).collect();
            ratios.sort_by(f64::total_cmp);
            let (low, high) = (ratios[0], ratios[ratios.len() - 1]);
            let ratio = us / them;
            println!(
                "{test:<8}{us:>12.1}{them:>12.1}{ratio:>9.2}{:>16}",
                format!("{low:.2}-{high:.2}")
            );
        }
        Ok(())
    }

    fn clearway_speed(&self, file: &Path) -> Result<(f64, f64)> {
        let mut bench = self.clearway();
        bench.args(["bench", "--device", "cpu", "--json", "-r", "1"]).arg("-m").arg(file);
        bench.args(["-t", &self.threads.to_string()]);
        bench.args(["-p", &PROMPT.to_string(), "-n", &GENERATED.to_string()]);
        let tests: serde_json::Value = serde_json::from_str(&output(&mut bench)?)?;
        let speed = |test: String| {
            let mut tests = tests.as_array().into_iter().flatten();
            let found = tests.find(|object| object["test"] == *test);
            found.and_then(|object| object["avg_ts"].as_f64()).context("bench printed no speed")
        };
        Ok((speed(format!("pp{PROMPT}"))?, speed(format!("tg{GENERATED}"))?))
    }

    /// Tiny files of every family, as the tests of the engine and of the families make them.
    fn tiny_models(&self) -> Result<Vec<PathBuf>> {
        let folder = self.target.join("tiny-models");
        for (target, name) in [("engine", "numpys_logits"), ("families", "decoders_give")] {
            let mut test =
                cargo(&self.root, &["test", "--workspace", "--all-features", "--test", target]);
            test.arg(name).env("CLEARWAY_TINY_MODELS", &folder);
            ensure!(test.status()?.success(), "the tiny models are not right");
        }
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&folder)? {
            files.push(entry?.path());
        }
        files.sort();
        Ok(files)
    }

    /// Prints how far the logits after the tokens are apart, read as a prompt and one by one; tells whether that is little.
    fn compare_logits(&self, peer: &Path, file: &Path) -> Result<bool> {
        let mut agree = true;
        for one_by_one in [false, true] {
            let theirs = self.peer_logits(peer, file, one_by_one)?;
            let ours = self.clearway_logits(file, one_by_one, theirs.len())?;
            let errors: Vec<f64> = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).collect();
            // A missing logit is NaN, which counts as infinite.
            let largest = |values: &[f64]| {
                values.iter().fold(
                    0.0,
                    |most: f64, v| if v.is_nan() { f64::INFINITY } else { most.max(v.abs()) },
                )
            };
            let (mean, worst) =
                (errors.iter().sum::<f64>() / errors.len() as f64, largest(&errors));
            let scale = largest(&theirs);
            let fits = match self.is_float(file)? {
                true => worst <= FLOAT_LIMIT,
                false => mean <= QUANTISED_LIMIT * scale,
            };
            agree &= fits;
            println!(
                "{}, {}: mean error {mean:.6}, worst {worst:.6}, largest logit {scale:.2}: {}",
                file.file_name().unwrap_or_default().display(),
                if one_by_one { "one by one" } else { "as a prompt" },
                if fits { "agree" } else { "DIFFER" },
            );
        }
        Ok(agree)
    }

    /// llama.cpp's logits after the tokens.
    fn peer_logits(&self, peer: &Path, file: &Path, one_by_one: bool) -> Result<Vec<f64>> {
        let mut peer = Command::new(peer);
        let at_once = if one_by_one { "1" } else { "512" };
        peer.arg("logits").arg(file).args([&self.threads.to_string(), at_once]);
        peer.args(TOKENS.split(' '));
        let printed = output(&mut peer)?;
        let line = printed.lines().last().context("llama.cpp printed no logits")?;
        Ok(line.split(' ').map(str::parse).collect::<std::result::Result<_, _>>()?)
    }

    /// Our logits after the tokens.
    fn clearway_logits(&self, file: &Path, one_by_one: bool, count: usize) -> Result<Vec<f64>> {
        let mut eval = self.clearway();
        eval.args(["eval", "--device", "cpu", "--json", "--cache-type", "f32", "--tokens", TOKENS]);
        eval.args(one_by_one.then_some("--one-by-one"));
        eval.arg("-m").arg(file).args(["--top", &count.to_string()]);
        let found: serde_json::Value = serde_json::from_str(&output(&mut eval)?)?;
        let mut logits = vec![f64::NAN; count];
        for pair in found["top"].as_array().context("eval printed no logits")? {
            let id = pair[0].as_u64().and_then(|id| usize::try_from(id).ok());
            let slot =
                id.and_then(|id| logits.get_mut(id)).context("llama.cpp has fewer logits")?;
            *slot = pair[1].as_f64().context("a logit is not a number")?;
        }
        Ok(logits)
    }

    /// Whether no tensor of a file is quantised.
    fn is_float(&self, file: &Path) -> Result<bool> {
        let shown = output(self.clearway().args(["show", "--json"]).arg(file))?;
        let shown: serde_json::Value = serde_json::from_str(&shown)?;
        let types = shown["tensors"].as_object().context("show printed no types")?;
        Ok(types.keys().all(|name| name == "F32"))
    }
}

#[cfg(unix)]
fn died_of_illegal_instruction(output: &Output) -> bool {
    use std::os::unix::process::ExitStatusExt;
    const SIGILL: i32 = 4;
    output.status.signal() == Some(SIGILL)
}

#[cfg(not(unix))]
fn died_of_illegal_instruction(_: &Output) -> bool {
    false
}

/// What a program prints.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_owned();
    let output =
        command.output().with_context(|| format!("{} cannot be started", name.display()))?;
    if !output.status.success() {
        bail!("{}: {}", name.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Makes sure that what builds llama.cpp is there.
fn need_packages() -> Result<()> {
    let runs = |program: &str| {
        let output = Command::new(program).arg("--version").output();
        output.is_ok_and(|output| output.status.success())
    };
    let has_libclang = || {
        let listed =
            Command::new("sh").args(["-c", "ls /usr/lib/llvm-*/lib/libclang*.so*"]).output();
        std::env::var_os("LIBCLANG_PATH").is_some() || listed.is_ok_and(|out| out.status.success())
    };
    let complete = || runs("cmake") && runs("c++") && has_libclang();
    if complete() {
        return Ok(());
    }
    println!("installing cmake, libclang-dev and g++");
    let install = ["install", "--yes", "--no-install-recommends", "cmake", "libclang-dev", "g++"];
    let installed = Command::new("apt-get").args(install).status();
    if installed.is_ok_and(|status| status.success()) && complete() {
        return Ok(());
    }
    bail!(
        "llama.cpp needs cmake, a C++ compiler and libclang: as root, run `apt-get install cmake libclang-dev g++`"
    )
}
