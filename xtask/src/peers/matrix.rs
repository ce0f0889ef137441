//! `cargo xtask peers --matrix`: formats, lengths and numbers of sequences, the worst ratio on top.
//!
//! Files of the 1B shape with random weights are made by `clearway synth` below the target folder; the default model has
//! the long prompts, the deep cache and the batch. Speed does not depend on what the weights are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{Programs, output};

/// Formats of the 1B shape: those that people download, then their neighbours.
const FORMATS: [&str; 14] = [
    "q4_k_m", "q5_k_m", "q6_k", "q8_0", "q4_0", "iq4_xs", "f16", "q4_1", "q5_0", "q5_1", "iq4_nl",
    "q2_k", "q3_k_m", "bf16",
];

/// One line of the table.
#[derive(Clone, Copy)]
pub(super) struct Test {
    /// Tokens of the prompt; 0 for none.
    pub(super) prompt: usize,
    /// Tokens generated for each sequence; 0 for none.
    pub(super) generated: usize,
    /// Tokens in the cache before either.
    pub(super) depth: usize,
    /// Sequences that generate at once. More than one have a prompt each, which is not timed.
    pub(super) sequences: usize,
}

impl Test {
    const fn prompt(tokens: usize) -> Self {
        Self { prompt: tokens, generated: 0, depth: 0, sequences: 1 }
    }

    const fn generate(tokens: usize, depth: usize) -> Self {
        Self { prompt: 0, generated: tokens, depth, sequences: 1 }
    }

    fn name(&self) -> String {
        let name = match self.generated {
            0 => format!("pp{}", self.prompt),
            tokens => format!("tg{tokens}"),
        };
        match (self.depth, self.sequences) {
            (0, 1) => name,
            (0, sequences) => format!("{name} x {sequences}"),
            (depth, _) => format!("{name} at {depth}"),
        }
    }
}

/// Of each format.
const OF_FORMATS: [Test; 2] = [Test::prompt(128), Test::generate(32, 0)];
/// Of the default model.
const OF_DEFAULT: [Test; 6] = [
    Test::prompt(128),
    Test::prompt(512),
    Test::prompt(4096),
    Test::generate(64, 0),
    Test::generate(32, 4000),
    Test { prompt: 64, generated: 64, depth: 0, sequences: 4 },
];

/// Speeds of both, by round.
struct Line {
    file: String,
    test: String,
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

impl Line {
    /// Median of the ratios of the rounds: both programs of a round see the same machine.
    fn ratio(&self) -> f64 {
        let ratios = self.ours.iter().zip(&self.theirs).map(|(us, them)| us / them);
        median(ratios.collect())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
    values.get(low).zip(values.get(high)).map_or(f64::NAN, |(low, high)| (low + high) / 2.0)
}

/// Name of the default model among those of formats.
const DEFAULT: &str = "default";

/// Measures all of it, or only formats whose names are given, and the default model if it is among them.
pub(super) fn run(programs: &Programs, rounds: usize, formats: &[&str]) -> Result<()> {
    for format in formats {
        let known = FORMATS.contains(format) || *format == DEFAULT;
        ensure!(known, "`{format}` is none of {}, {DEFAULT}", FORMATS.join(", "));
    }
    let default =
        PathBuf::from(output(programs.clearway().args(["pull", "smollm2:135m"]))?.trim_end());
    let peer = programs.peer_for(&default)?;
    let chosen = FORMATS.iter().filter(|format| formats.is_empty() || formats.contains(format));
    let mut lines = Vec::new();
    for format in chosen {
        let file = synthesised(programs, format)?;
        for test in OF_FORMATS {
            lines.push(measure(programs, &peer, &file, test, rounds)?);
        }
    }
    if formats.is_empty() || formats.contains(&DEFAULT) {
        for test in OF_DEFAULT {
            lines.push(measure(programs, &peer, &default, test, rounds)?);
        }
    }
    lines.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
    println!("\n{} threads, medians of {rounds} rounds, tokens per second", programs.threads);
    println!("| ratio | test | file | Clearway | llama.cpp | ratios of the rounds |");
    println!("|---|---|---|---|---|---|");
    for line in &lines {
        let ratios: Vec<String> = line
            .ours
            .iter()
            .zip(&line.theirs)
            .map(|(us, them)| format!("{:.2}", us / them))
            .collect();
        println!(
            "| {:.2} | {} | {} | {:.1} | {:.1} | {} |",
            line.ratio(),
            line.test,
            line.file,
            median(line.ours.clone()),
            median(line.theirs.clone()),
            ratios.join(", "),
        );
    }
    Ok(())
}

fn measure(
    programs: &Programs,
    peer: &Path,
    file: &Path,
    test: Test,
    rounds: usize,
) -> Result<Line> {
    let name = file.file_stem().unwrap_or_default().display().to_string();
    let mut line = Line { file: name, test: test.name(), ours: vec![], theirs: vec![] };
    for _ in 0..rounds {
        let theirs = programs.peer_speeds(peer, file, test)?;
        line.theirs.push(theirs);
        line.ours.push(programs.clearway_speed_of(file, test)?);
    }
    println!("{}, {}: {:.2}", line.file, line.test, line.ratio());
    Ok(line)
}

/// The 1B shape in a format, made once.
fn synthesised(programs: &Programs, format: &str) -> Result<PathBuf> {
    let folder = programs.target.join("peer-models");
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("{} cannot be made", folder.display()))?;
    let file = folder.join(format!("llama-1b-{format}.gguf"));
    if !file.exists() {
        let made = folder.join(format!("{format}.part"));
        output(programs.clearway().args(["synth", "llama-1b", format]).arg(&made))?;
        std::fs::rename(&made, &file)?;
    }
    Ok(file)
}
