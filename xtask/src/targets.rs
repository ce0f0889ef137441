//! `cargo check` of the command line for other systems. Nothing is linked, so no SDK is needed; only targets that are
//! installed (`rustup target add NAME`) are checked, the others are named.

use std::path::Path;
use std::process::Command;

use crate::run::cargo;

/// Windows and Macs: what wgpu reaches through DX12 and Metal.
const TARGETS: [&str; 4] = [
    "x86_64-pc-windows-gnu",
    "x86_64-pc-windows-msvc",
    "aarch64-apple-darwin",
    "x86_64-apple-darwin",
];

/// A check for each target that is installed, with its name.
pub fn checks(root: &Path) -> Vec<(String, Command)> {
    let (here, missing) = split(&installed());
    if !missing.is_empty() {
        println!("\nnot installed, so not checked: {}", missing.join(", "));
    }
    let check = |target: &str| {
        let command = cargo(root, &["check", "--package", "clearway-cli", "--target", target]);
        (format!("check for {target}"), command)
    };
    here.into_iter().map(check).collect()
}

/// Our targets that are in the list of rustup, and those that are not.
fn split(installed: &str) -> (Vec<&'static str>, Vec<&'static str>) {
    TARGETS.into_iter().partition(|target| installed.lines().any(|line| line.trim() == *target))
}

/// What rustup lists; nothing where there is no rustup.
fn installed() -> String {
    let output = Command::new("rustup").args(["target", "list", "--installed"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_installed_targets_are_checked() {
        let (here, missing) = split("aarch64-apple-darwin\nx86_64-unknown-linux-gnu\n");
        assert_eq!(here, ["aarch64-apple-darwin"]);
        assert_eq!(missing.len(), 3);
        assert_eq!(split("").0, [""; 0]);
    }
}
