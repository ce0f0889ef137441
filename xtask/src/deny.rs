//! Licences, duplicates and sources of all dependencies, held against `deny.toml`.
//!
//! The file is cargo-deny's. That program compiles as many crates as Clearway itself, which the test command
//! has no time for; so the three checks are made here, on what `cargo metadata` says of every lock file in the
//! repository. Fields of the file that are not in [`Policy`] are cargo-deny's alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::run::cargo;

/// Prints what is wrong; tells whether nothing is.
pub fn check(root: &Path) -> Result<bool> {
    let path = root.join("deny.toml");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let policy: Policy = toml::from_str(&text).context("deny.toml")?;
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    for manifest in manifests(root) {
        let packages = packages(root, &manifest)?;
        let name = manifest.strip_prefix(root).unwrap_or(&manifest).display();
        println!("{name}: {} packages", packages.len());
        let found = policy.check(&packages, &mut used);
        wrong.extend(found.into_iter().map(|fault| format!("{name}: {fault}")));
    }
    wrong.extend(policy.unused(&used));
    wrong.iter().for_each(|fault| println!("{fault}"));
    Ok(wrong.is_empty())
}

/// Manifests with a lock file: that of the workspace and those outside it.
fn manifests(root: &Path) -> Vec<PathBuf> {
    let tools = std::fs::read_dir(root.join("tools")).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = tools.map(|entry| entry.path()).collect();
    folders.sort();
    folders.insert(0, root.join("python"));
    folders.insert(0, root.join("fuzz"));
    folders.insert(0, root.to_owned());
    folders.retain(|folder| folder.join("Cargo.lock").is_file());
    folders.iter().map(|folder| folder.join("Cargo.toml")).collect()
}

/// A package in a lock file.
#[derive(Clone, Debug, Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// Where it comes from; nothing for our own.
    source: Option<String>,
}

fn packages(root: &Path, manifest: &Path) -> Result<Vec<Package>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    let mut command = cargo(root, &["metadata", "--format-version", "1", "--all-features"]);
    let output = command.arg("--locked").arg("--manifest-path").arg(manifest).output()?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    Ok(metadata.packages)
}

/// What `deny.toml` says, as far as it is checked here.
#[derive(Deserialize)]
struct Policy {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Bans {
    #[serde(default)]
    skip: Vec<Skipped>,
}

#[derive(Deserialize)]
struct Skipped {
    /// `NAME@VERSION`, the version perhaps in part.
    #[serde(rename = "crate")]
    spec: String,
}

impl Skipped {
    fn covers(&self, name: &str, version: &str) -> bool {
        let Some((own, start)) = self.spec.split_once('@') else { return self.spec == name };
        let rest = version.strip_prefix(start);
        own == name && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: BTreeSet<String>,
    #[serde(default)]
    allow_git: BTreeSet<String>,
}

impl Policy {
    /// What is wrong with these packages. Entries of the file that something matched are noted in `used`.
    fn check(&self, packages: &[Package], used: &mut BTreeSet<String>) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for package in packages {
            let Package { name, version, source, .. } = package;
            // Our own packages have no source.
            if let Some(source) = source {
                wrong.extend(self.license(package).map(|why| format!("{name} {version}: {why}")));
                if !self.sources.allow(source) {
                    wrong.push(format!("{name} {version}: comes from {source}"));
                }
            }
            versions.entry(name).or_default().insert(version);
        }
        for (name, versions) in versions.iter_mut().filter(|(_, versions)| versions.len() > 1) {
            for skip in &self.bans.skip {
                let before = versions.len();
                versions.retain(|version| !skip.covers(name, version));
                if versions.len() < before {
                    used.insert(skip.spec.clone());
                }
            }
            if versions.len() > 1 {
                let list: Vec<&str> = versions.iter().copied().collect();
                wrong.push(format!("{name}: several versions, {}", list.join(" and ")));
            }
        }
        wrong
    }

    /// Why the licence of a package is not allowed.
    fn license(&self, package: &Package) -> Option<String> {
        let Some(text) = &package.license else { return Some("names no licence".to_owned()) };
        let expression = match spdx::Expression::parse_mode(text, spdx::ParseMode::LAX) {
            Ok(expression) => expression,
            Err(error) => return Some(format!("`{text}` is no licence: {}", error.reason)),
        };
        let exceptions = self.licenses.exceptions.iter().filter(|e| e.name == package.name);
        let lists: Vec<&BTreeSet<String>> =
            exceptions.map(|e| &e.allow).chain([&self.licenses.allow]).collect();
        let allowed = expression.evaluate(|license| {
            let license = license.to_string();
            lists.iter().any(|list| list.contains(&license))
        });
        (!allowed).then(|| format!("`{text}` is not allowed"))
    }

    /// Entries that excuse nothing: what they were for is gone.
    fn unused(&self, used: &BTreeSet<String>) -> Vec<String> {
        let unused = self.bans.skip.iter().filter(|skip| !used.contains(&skip.spec));
        unused.map(|skip| format!("deny.toml: there is no second {}", skip.spec)).collect()
    }
}

impl Sources {
    fn allow(&self, source: &str) -> bool {
        match source.split_once('+') {
            Some(("registry" | "sparse", address)) => self.allow_registry.contains(address),
            Some(("git", address)) => {
                let address = address.split(['?', '#']).next().unwrap_or(address);
                self.allow_git.contains(address)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"
        [licenses]
        allow = ["MIT", "Apache-2.0 WITH LLVM-exception"]
        exceptions = [{ crate = "data", allow = ["CDLA-Permissive-2.0"] }]
        [bans]
        multiple-versions = "deny"
        skip = [{ crate = "old@0.2", reason = "another needs it" }]
        [sources]
        allow-registry = ["https://registry.example/index"]
        allow-git = ["https://git.example/ours"]
    "#;

    fn package(name: &str, version: &str, license: &str) -> Package {
        let [name, version] = [name, version].map(str::to_owned);
        let source = Some("registry+https://registry.example/index".to_owned());
        Package { name, version, license: Some(license.to_owned()), source }
    }

    fn check(packages: &[Package]) -> (Vec<String>, Vec<String>) {
        let policy: Policy = toml::from_str(POLICY).unwrap();
        let mut used = BTreeSet::new();
        let wrong = policy.check(packages, &mut used);
        (wrong, policy.unused(&used))
    }

    #[test]
    fn licences_are_read_as_expressions() {
        for (license, allowed) in [
            ("MIT", true),
            ("MIT/GPL-3.0", true),
            ("GPL-3.0-only OR MIT", true),
            ("GPL-3.0-only AND MIT", false),
            ("GPL-3.0-only", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0", false),
            ("CDLA-Permissive-2.0", false),
            ("no licence at all", false),
        ] {
            let (wrong, _) = check(&[package("a", "1.0.0", license)]);
            assert_eq!(wrong.is_empty(), allowed, "{license}: {wrong:?}");
        }
        assert!(check(&[package("data", "1.0.0", "CDLA-Permissive-2.0")]).0.is_empty());
        let silent = Package { license: None, ..package("a", "1.0.0", "") };
        assert_eq!(check(std::slice::from_ref(&silent)).0, ["a 1.0.0: names no licence"]);
        let own = Package { source: None, ..silent };
        assert!(check(&[own]).0.is_empty(), "our own packages are ours to judge");
    }

    #[test]
    fn a_second_version_is_a_fault_unless_it_is_named() {
        let two = |name: &str, one: &str, other: &str| {
            [package(name, one, "MIT"), package(name, other, "MIT")]
        };
        assert_eq!(
            check(&two("new", "1.0.0", "2.0.0")).0,
            ["new: several versions, 1.0.0 and 2.0.0"]
        );
        assert_eq!(check(&two("old", "0.2.7", "0.3.0")), (Vec::new(), Vec::new()));
        assert_eq!(check(&two("old", "0.20.0", "0.3.0")).0.len(), 1, "0.20 is not 0.2");
        let (_, unused) = check(&[package("old", "0.2.7", "MIT")]);
        assert_eq!(unused, ["deny.toml: there is no second old@0.2"]);
    }

    #[test]
    fn packages_come_from_places_that_are_named() {
        for (source, allowed) in [
            ("registry+https://registry.example/index", true),
            ("registry+https://elsewhere.example/index", false),
            ("git+https://git.example/ours?branch=main#0a1b", true),
            ("git+https://git.example/theirs#0a1b", false),
            ("path", false),
        ] {
            let one = Package { source: Some(source.to_owned()), ..package("a", "1.0.0", "MIT") };
            assert_eq!(check(&[one]).0.is_empty(), allowed, "{source}");
        }
    }
}
