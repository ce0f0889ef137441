//! `cargo xtask compare`: two builds of the command line in turns on the same files.
//!
//! Both binaries run `bench` again and again, one after the other, so that a machine that becomes slower or faster
//! meanwhile does the same to both. What is printed is the median of all samples of each test, and their ratio.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Rounds, and samples of each test in a round: nine samples of each binary.
const ROUNDS: usize = 3;
const SAMPLES: usize = 3;

/// Tokens per second by test.
type Samples = BTreeMap<String, Vec<f64>>;

/// Runs `OLD NEW [FILE...] [-- BENCH_ARGUMENTS]`; without a file, the default model.
pub fn run(args: &[&str]) -> Result<bool> {
    let [old, new, rest @ ..] = args else {
        bail!(
            "two binaries are needed: cargo xtask compare OLD NEW [FILE...] [-- ARGUMENTS of bench]"
        )
    };
    let (files, more) = match rest.iter().position(|arg| *arg == "--") {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, &[][..]),
    };
    let models: Vec<Option<&str>> = match files {
        [] => vec![None],
        files => files.iter().map(|&file| Some(file)).collect(),
    };
    println!("median of {} samples each, tokens per second", ROUNDS * SAMPLES);
    println!(
        "{:<28}{:<12}{:>12}{:>12}{:>9}{:>9}",
        "model", "test", "old", "new", "new/old", "spread"
    );
    for model in models {
        let (mut before, mut after) = (Samples::new(), Samples::new());
        for _ in 0..ROUNDS {
            sample(old, model, more, &mut before)?;
            sample(new, model, more, &mut after)?;
        }
        let name = model.map_or("default", |file| file.rsplit('/').next().unwrap_or(file));
        for (test, old) in &before {
            let Some(new) = after.get(test) else { bail!("{new} has no test {test}") };
            let (old_median, new_median) = (median(old), median(new));
            println!(
                "{name:<28}{test:<12}{old_median:>12.1}{new_median:>12.1}{:>9.3}{:>8.1}%",
                new_median / old_median,
                100.0 * spread(old).max(spread(new))
            );
        }
    }
    Ok(true)
}

/// Runs one binary once and adds what it measured.
fn sample(binary: &str, model: Option<&str>, more: &[&str], to: &mut Samples) -> Result<()> {
    let mut command = Command::new(binary);
    command.args(["bench", "--json", "-r", &SAMPLES.to_string()]);
    command.args(model.into_iter().flat_map(|file| ["-m", file])).args(more);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot start {binary}"))?;
    if !output.status.success() {
        bail!("{binary} bench ended with {}", output.status);
    }
    let tests: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{binary} bench printed no JSON"))?;
    for test in tests.as_array().into_iter().flatten() {
        let name = test["test"].as_str().context("a test has no name")?;
        let samples = test["samples_ts"].as_array().context("a test has no samples")?;
        to.entry(name.to_owned()).or_default().extend(samples.iter().filter_map(Value::as_f64));
    }
    Ok(())
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

/// Distance of the quartiles as a part of the median: differences below it mean nothing.
fn spread(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count => (sorted[3 * count / 4] - sorted[count / 4]) / median(samples),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quartiles_ignore_outliers() {
        let samples = [10.0, 11.0, 9.0, 10.5, 1000.0, 9.5, 10.2, 9.8, 10.1];
        assert_eq!(median(&samples), 10.1);
        assert_eq!(median(&[1.0, 2.0]), 1.5);
        assert!((spread(&samples) - (10.5 - 9.8) / 10.1).abs() < 1e-9);
    }

    #[test]
    fn a_binary_that_fails_is_an_error() {
        assert!(run(&["/nonexistent/old", "/nonexistent/new"]).is_err());
        assert!(run(&["only-one"]).is_err());
    }
}
