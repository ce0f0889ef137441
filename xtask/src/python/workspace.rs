//! A workspace of the main crates and the Python package together, below the target folder.
//!
//! Cargo knows a crate by its path below the root of the workspace, its features, and those of all that it depends on. Folders here
//! have the names that they have in the main workspace, and the lock file has the same versions, so cargo takes what the
//! tests were built with. One more thing must agree: `xtask/Cargo.toml` asks of syn what the macros of pyo3 ask of it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Makes it and returns its manifest.
///
/// # Errors
/// Files that cannot be read or written, and systems without symbolic links.
pub fn make(root: &Path, folder: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(folder.join("python"))?;
    for name in ["crates", "xtask", "python/src"] {
        link(&root.join(name), &folder.join(name))
            .with_context(|| format!("no link to {name} in {}", folder.display()))?;
    }
    let [main, own] = ["", "python/"].map(|place| {
        let read = |name| {
            let path = root.join(format!("{place}{name}"));
            std::fs::read_to_string(&path).with_context(|| path.display().to_string())
        };
        Ok::<_, anyhow::Error>((read("Cargo.toml")?, read("Cargo.lock")?))
    });
    let ((main, main_lock), (own, own_lock)) = (main?, own?);
    let manifest = folder.join("Cargo.toml");
    put(&manifest, &with_member(&main)?)?;
    put(&folder.join("Cargo.lock"), &with_packages(&main_lock, &own_lock))?;
    put(&folder.join("python/Cargo.toml"), &as_member(&own))?;
    Ok(manifest)
}

/// The manifest of the main workspace with the package as a member.
fn with_member(manifest: &str) -> Result<String> {
    let lines = manifest.lines().map(|line| match line.split_once(" = ") {
        Some(("members", list)) => {
            Some(format!("members = {}, \"python\"]", list.strip_suffix(']')?))
        }
        Some(("exclude", _)) => Some(String::new()),
        _ => Some(line.to_owned()),
    });
    let lines: Option<Vec<String>> = lines.collect();
    Ok(lines.context("the members of the workspace are not on one line")?.join("\n") + "\n")
}

/// The manifest of the package without what only a root may have.
fn as_member(manifest: &str) -> String {
    let mut of_root = false;
    let kept = manifest.lines().filter(|line| {
        if line.starts_with('[') {
            of_root = line.starts_with("[workspace") || line.starts_with("[profile");
        }
        !of_root
    });
    kept.map(|line| format!("{line}\n")).collect()
}

/// A lock file with the packages of another that it does not name.
fn with_packages(lock: &str, other: &str) -> String {
    const HEAD: &str = "[[package]]\n";
    let name = |package: &str| package.lines().next().map(str::to_owned);
    let known: Vec<_> = lock.split(HEAD).skip(1).map(name).collect();
    let mut all = lock.trim_end().to_owned() + "\n";
    for package in other.split(HEAD).skip(1).filter(|package| !known.contains(&name(package))) {
        all += &format!("\n{HEAD}{}\n", package.trim_end());
    }
    all
}

/// Writes a file unless it is there.
fn put(path: &Path, text: &str) -> Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

#[cfg(unix)]
fn link(to: &Path, path: &Path) -> std::io::Result<()> {
    if std::fs::read_link(path).is_ok_and(|found| found == to) {
        return Ok(());
    }
    let _ = std::fs::remove_file(path);
    std::os::unix::fs::symlink(to, path)
}

#[cfg(not(unix))]
fn link(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_are_joined() {
        let main = "[workspace]\nmembers = [\"a\"]\nexclude = [\"python\"]\n[profile.dev]\n";
        let joined = with_member(main).unwrap();
        assert_eq!(joined, "[workspace]\nmembers = [\"a\", \"python\"]\n\n[profile.dev]\n");
        assert!(with_member("members = [\n").is_err());
        let own = "# why\n[workspace]\n\n[package]\nname = \"p\"\n[profile.dev]\nopt-level = 2\n[lints.rust]\n";
        assert_eq!(as_member(own), "# why\n[package]\nname = \"p\"\n[lints.rust]\n");
    }

    #[test]
    fn versions_are_those_of_the_main_workspace() {
        let main = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1\"\n";
        let own = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"2\"\n\n[[package]]\nname = \"b\"\nversion = \"3\"\n";
        assert_eq!(
            with_packages(main, own),
            format!("{main}\n[[package]]\nname = \"b\"\nversion = \"3\"\n")
        );
    }

    #[test]
    fn both_lock_files_have_the_same_versions() {
        // With others, the package would be tested with crates that it is not installed with.
        let root = crate::root().unwrap();
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
        let (main, own) = (read("Cargo.lock"), read("python/Cargo.lock"));
        let packages = |text: &str| -> Vec<(String, String)> {
            let lines = |package: &str| {
                let mut lines = package.lines().map(str::to_owned);
                Some((lines.next()?, lines.next()?))
            };
            text.split("[[package]]\n").skip(1).filter_map(lines).collect()
        };
        let main = packages(&main);
        for (name, version) in packages(&own) {
            let found: Vec<_> = main.iter().filter(|(other, _)| *other == name).collect();
            assert!(
                found.is_empty() || found.iter().any(|(_, other)| *other == version),
                "{name}: {version} in python/Cargo.lock, {found:?} in Cargo.lock: run `cargo update` in one of them"
            );
        }
    }
}
