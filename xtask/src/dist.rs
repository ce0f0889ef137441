//! `cargo xtask dist`: a tar of the program with all that a package of a system wants beside it, and its SHA-256.
//!
//! The tar depends on the sources and the toolchain alone: names are sorted, times and owners are fixed.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::run::{cargo, step};

/// Files of the repository that go into the tar, and where.
const FILES: [(&str, &str); 6] = [
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("README.md", "README.md"),
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("tools/dist/clearway.service", "lib/systemd/system/clearway.service"),
    ("tools/dist/Containerfile", "Containerfile"),
];

/// Shells that the tar has completions for, and the files they look for.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/clearway"),
    ("zsh", "share/zsh/site-functions/_clearway"),
    ("fish", "share/fish/vendor_completions.d/clearway.fish"),
];

/// Builds the program and packs it.
pub fn run() -> Result<()> {
    let root = crate::root()?;
    let target = root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()));
    let mut build = cargo(&root, &["build", "--release", "--locked", "--package", "clearway-cli"]);
    build.env("CARGO_PROFILE_RELEASE_STRIP", "symbols").env("CARGO_PROFILE_RELEASE_DEBUG", "none");
    if !step("stripped program", &mut build) {
        bail!("the build failed");
    }
    let program = target.join("release/clearway");
    let version = printed(Command::new(&program).arg("--version"))?;
    let version = String::from_utf8_lossy(&version);
    let version = version.trim().rsplit(' ').next().unwrap_or("0").to_owned();
    let machine = std::env::consts::ARCH;
    let name = format!("clearway-{version}-{machine}-{}", std::env::consts::OS);
    let dist = target.join("dist");
    let folder = dist.join(&name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    put(&folder, "bin/clearway", &std::fs::read(&program)?)?;
    executable(&folder.join("bin/clearway"))?;
    for (source, place) in FILES {
        put(&folder, place, &std::fs::read(root.join(source)).context(source)?)?;
    }
    for (shell, place) in SHELLS {
        put(&folder, place, &printed(Command::new(&program).args(["completions", shell]))?)?;
    }
    put(&folder, "share/man/man1/clearway.1", &printed(Command::new(&program).arg("man"))?)?;
    put(&folder, "THIRD-PARTY.md", third_party(&root)?.as_bytes())?;
    let archive = pack(&dist, &name)?;
    let sum = printed(Command::new("sha256sum").arg(&archive).current_dir(&dist))?;
    put(&dist, &format!("{archive}.sha256"), &sum)?;
    let bytes = std::fs::metadata(dist.join(&archive))?.len();
    println!("{} ({:.1} MB)", dist.join(&archive).display(), bytes as f64 / 1e6);
    print!("{}", String::from_utf8_lossy(&sum));
    Ok(())
}

fn put(folder: &Path, place: &str, bytes: &[u8]) -> Result<()> {
    let path = folder.join(place);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn printed(command: &mut Command) -> Result<Vec<u8>> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

/// Packs a folder so that equal files give equal bytes.
fn pack(dist: &Path, name: &str) -> Result<String> {
    let archive = format!("{name}.tar.gz");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(["--mtime=2000-01-01", "--use-compress-program=gzip --no-name --best", "--file"]);
    printed(tar.arg(&archive).arg(name).current_dir(dist))?;
    Ok(archive)
}

#[cfg(unix)]
fn executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?)
}

#[cfg(not(unix))]
fn executable(_: &Path) -> Result<()> {
    Ok(())
}

/// A package of the program, as `cargo metadata` describes it.
#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    repository: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// The crates that the program is made of, with their licences and the text of each.
fn third_party(root: &Path) -> Result<String> {
    let listed = printed(&mut cargo(
        root,
        &[
            "tree",
            "--locked",
            "--package",
            "clearway-cli",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ],
    ))?;
    let listed = String::from_utf8_lossy(&listed).into_owned();
    let used = |package: &Package| {
        let line = format!("{} v{}", package.name, package.version);
        listed.lines().any(|found| {
            found == line || found.strip_prefix(&line).is_some_and(|rest| rest.starts_with(' '))
        })
    };
    let metadata = printed(&mut cargo(root, &["metadata", "--locked", "--format-version", "1"]))?;
    let mut metadata: Metadata = serde_json::from_slice(&metadata)?;
    metadata.packages.retain(|package| package.source.is_some() && used(package));
    metadata.packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    let mut text = String::from(
        "# Crates in this program\n\n| crate | version | licence | source |\n|---|---|---|---|\n",
    );
    for Package { name, version, license, repository, .. } in &metadata.packages {
        let [license, repository] = [license, repository].map(|part| part.as_deref().unwrap_or(""));
        writeln!(text, "| {name} | {version} | {license} | {repository} |")?;
    }
    for package in &metadata.packages {
        let Some(folder) = package.manifest_path.parent() else { continue };
        for (file, licence) in licences(folder)? {
            writeln!(
                text,
                "\n## {} {}: {file}\n\n```text\n{}\n```",
                package.name,
                package.version,
                licence.trim_end()
            )?;
        }
    }
    Ok(text)
}

/// Texts of licences in a folder, by the names of their files.
fn licences(folder: &Path) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(folder)? {
        let path = file?.path();
        let name =
            path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let upper = name.to_uppercase();
        let is_text = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"]
            .iter()
            .any(|word| upper.starts_with(word));
        if is_text && path.is_file() {
            found.push((name, String::from_utf8_lossy(&std::fs::read(&path)?).into_owned()));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_found_by_the_names_of_their_files() {
        let root = crate::root().unwrap();
        let names: Vec<String> =
            licences(&root).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["LICENSE-APACHE", "LICENSE-MIT"]);
    }

    #[test]
    fn every_file_of_the_tar_is_there() {
        let root = crate::root().unwrap();
        for (source, _) in FILES {
            assert!(root.join(source).is_file(), "{source}");
        }
    }
}
