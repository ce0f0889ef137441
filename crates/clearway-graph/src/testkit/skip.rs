//! Tests that cannot run on this machine.
//!
//! A test that lacks a driver, a browser or a file says so in one line and ends:
//! `skipped: PART: TEST: REASON`. The line goes past the test harness, which would keep it to itself, so
//! that `cargo xtask test` can count it. Where `CLEARWAY_NEED` names the part (several are separated by
//! commas), the test fails instead.

use std::fmt::Display;
use std::io::Write;
use std::panic::Location;

/// Environment variable with the parts that may not be missing.
pub const NEED: &str = "CLEARWAY_NEED";

/// Says that the running test lacks a part of the machine.
///
/// # Panics
/// If [`NEED`] names the part.
#[track_caller]
pub fn skip(part: &str, reason: impl Display) {
    let reason = reason.to_string().replace('\n', " ");
    let need = std::env::var(NEED).unwrap_or_default();
    assert!(!is_needed(&need, part), "{part} is needed ({NEED}) and missing: {reason}");
    let thread = std::thread::current();
    // The harness names a thread after its test, unless it runs all of them in its own.
    let place = Location::caller();
    let test = match thread.name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => format!("{}:{}", place.file(), place.line()),
    };
    say(&format!("skipped: {part}: {test}: {reason}"));
}

/// Prints a line past the test harness.
pub fn say(line: &str) {
    // One write, so that no other line gets in between. Nobody listens if it fails.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

fn is_needed(need: &str, part: &str) -> bool {
    need.split(',').any(|needed| needed.trim() == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_needed_where_the_list_names_it() {
        for (need, part, expected) in [
            ("vulkan", "vulkan", true),
            ("golden, vulkan", "vulkan", true),
            ("golden,browser", "vulkan", false),
            ("vulkan2", "vulkan", false),
            ("", "vulkan", false),
        ] {
            assert_eq!(is_needed(need, part), expected, "{part} in {need:?}");
        }
    }
}
