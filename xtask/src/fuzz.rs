//! The fuzz targets, as `clearway-fuzz` runs them on the stable toolchain.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::run::{Suite, random_run};

/// Seconds for each target in the test command.
pub const TEST_SECONDS: u64 = 20;
/// Seconds for each target in a full soak: with six targets an hour on two processors.
pub const SOAK_SECONDS: u64 = 1200;

/// Lets the built program try every target for so long.
pub fn command(mut program: Command, seed: u64, seconds: u64) -> Command {
    program.args(["--seconds", &seconds.to_string()]).env("CLEARWAY_SEED", seed.to_string());
    program
}

/// Runs the targets and adds what they report to that of the tests; tells whether all of them held.
pub fn report(targets: &mut Command, suites: &mut Vec<Suite>) -> Result<bool> {
    println!("\n== fuzz targets");
    let start = Instant::now();
    let output = targets.stderr(std::process::Stdio::inherit()).output();
    let output = output.context("clearway-fuzz cannot be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    print!("{text}");
    suites.push(Suite {
        package: "clearway_fuzz".to_owned(),
        target: "targets".to_owned(),
        failed: u64::from(!output.status.success()),
        time: start.elapsed(),
        counts: text.lines().filter_map(random_run).collect(),
        ..Suite::default()
    });
    Ok(output.status.success())
}

/// Seconds for each target in a soak with fewer or more cases than a full one.
pub const fn soak_seconds(cases: u64, full: u64) -> u64 {
    let seconds = SOAK_SECONDS * cases / full;
    if seconds == 0 { 1 } else { seconds }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_told_time_and_seed() {
        let command = command(Command::new("clearway-fuzz"), 7, TEST_SECONDS);
        let args: Vec<_> = command.get_args().collect();
        assert_eq!(args, ["--seconds", "20"]);
        let seed = command.get_envs().find(|(name, _)| *name == "CLEARWAY_SEED");
        assert_eq!(seed.and_then(|(_, seed)| seed?.to_str()), Some("7"));
    }

    #[test]
    fn a_full_soak_takes_an_hour_on_two_processors() {
        assert_eq!(soak_seconds(10_000, 10_000) * 6 / 2, 3600);
        assert_eq!((soak_seconds(100, 10_000), soak_seconds(1, 10_000)), (12, 1));
    }
}
