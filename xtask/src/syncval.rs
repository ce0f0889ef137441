//! `cargo xtask syncval`: Khronos synchronization validation over real submissions.
//!
//! The layer of Debian 12 reports nothing between two dispatches; that of Debian 13 does. So the test
//! runs inside a Debian 13 tree with its software driver, made once and kept in the target folder.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::run::{cargo, step};
use crate::{root, seed};

/// Release the tree is made of.
const RELEASE: &str = "trixie";
/// What it holds beside the base system.
const PACKAGES: &str =
    "mesa-vulkan-drivers,vulkan-validationlayers,libvulkan1,vulkan-tools,spirv-tools";
/// Without the second the layer reports nothing between dispatches; without the third it falls silent
/// after ten messages of a kind, and the self-test would run into that.
const LAYER: [(&str, &str); 3] = [
    ("VK_LAYER_VALIDATE_SYNC", "1"),
    ("VK_LAYER_SYNCVAL_SHADER_ACCESSES_HEURISTIC", "1"),
    ("VK_LAYER_ENABLE_MESSAGE_LIMIT", "0"),
];

/// Makes the tree where that is possible and runs the race checker in it; tells whether all of it
/// held.
pub fn run() -> Result<bool> {
    let root = root()?;
    match tree(&root)? {
        Tree::Ready(tree) => check(&root, &tree, seed()?),
        Tree::Cannot(why) => bail!("the race checker cannot run here: {why}"),
    }
}

/// Makes the tree; gives the reason where that is not possible here.
pub fn missing(root: &Path) -> Result<Option<String>> {
    Ok(match tree(root)? {
        Tree::Ready(_) => None,
        Tree::Cannot(why) => Some(why),
    })
}

/// The command that runs the checker, or the reason why it cannot run here.
pub fn prepare(root: &Path, seed: u64) -> Result<Result<Command, String>> {
    Ok(match tree(root)? {
        Tree::Ready(tree) => Ok(command(root, &tree, seed)?),
        Tree::Cannot(why) => Err(why),
    })
}

/// The Debian 13 tree, or the reason why it cannot be made here.
pub enum Tree {
    Ready(PathBuf),
    Cannot(String),
}

fn check(root: &Path, tree: &Path, seed: u64) -> Result<bool> {
    println!("CLEARWAY_SEED={seed}");
    Ok(step("race checker", &mut command(root, tree, seed)?))
}

/// The checker inside the tree.
fn command(root: &Path, tree: &Path, seed: u64) -> Result<Command> {
    let binary = test_binary(root, "syncval")?;
    std::fs::copy(&binary, tree.join("tmp/syncval"))
        .with_context(|| format!("cannot copy {} into the tree", binary.display()))?;
    let mut command = Command::new("chroot");
    command.arg(tree).arg("/tmp/syncval");
    command.args(["--ignored", "--nocapture", "--test-threads=1"]);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/tmp");
    command.env("CLEARWAY_SEED", seed.to_string()).envs(LAYER);
    Ok(command)
}

/// Builds a test and tells where it lies.
pub fn test_binary(root: &Path, name: &str) -> Result<PathBuf> {
    // The features of the whole workspace, so that nothing is built twice in `cargo xtask test`.
    let mut build = cargo(root, &["test", "--workspace", "--all-features", "--test", name]);
    build.args(["--no-run", "--message-format=json-render-diagnostics"]).stderr(Stdio::inherit());
    let output = build.output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the test `{name}` does not build");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    executable(&text).with_context(|| format!("cargo names no test `{name}`"))
}

/// The program that cargo's messages name last.
fn executable(messages: &str) -> Option<PathBuf> {
    let (_, rest) = messages.rsplit_once("\"executable\":\"")?;
    Some(PathBuf::from(rest.split_once('"')?.0))
}

/// The tree of an earlier run, or a new one.
pub fn tree(root: &Path) -> Result<Tree> {
    if !succeeds(Command::new("sh").args(["-c", "test $(id -u) = 0"])) {
        let why = "making a Debian 13 tree and running in it needs root";
        return Ok(Tree::Cannot(why.to_owned()));
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = root.join(target).join("syncval");
    let tree = folder.join(tree_name());
    if tree.exists() {
        return Ok(Tree::Ready(tree));
    }
    let Some(mirror) = mirror() else {
        let why = "the system's apt sources name no Debian mirror to make the Debian 13 tree from";
        return Ok(Tree::Cannot(why.to_owned()));
    };
    if !succeeds(Command::new("mmdebstrap").arg("--version")) && !install("mmdebstrap") {
        return Ok(Tree::Cannot("mmdebstrap is missing and could not be installed".to_owned()));
    }
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    // A tree that is half made has another name, so it is never taken for a whole one.
    let part = folder.join(format!("{}.part", tree_name()));
    remove(&part)?;
    println!("making a Debian 13 tree from {mirror}");
    let start = Instant::now();
    let output = Command::new("mmdebstrap")
        .args(["--variant=minbase", "--quiet", &format!("--include={PACKAGES}"), RELEASE])
        .arg(&part)
        .arg(format!("deb {mirror} {RELEASE} main"))
        .output()
        .context("cannot start mmdebstrap")?;
    if !output.status.success() {
        remove(&part)?;
        let mut why = "mmdebstrap failed".to_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        if let Some(line) = errors.lines().rev().find(|line| !line.trim().is_empty()) {
            // Writing to a string cannot fail.
            let _ = write!(why, ": {}", line.trim());
        }
        return Ok(Tree::Cannot(why));
    }
    std::fs::rename(&part, &tree).context("cannot name the tree")?;
    println!("made in {:.0} s", start.elapsed().as_secs_f64());
    Ok(Tree::Ready(tree))
}

/// Names release and packages, so that a tree that lacks one is not taken for this one.
fn tree_name() -> String {
    let hash = PACKAGES.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{RELEASE}-{:08x}", hash >> 32)
}

/// Removes a folder if it is there.
pub fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn install(package: &str) -> bool {
    println!("installing {package}");
    let install = || succeeds(Command::new("apt-get").args(["install", "--yes", package]));
    install() || (succeeds(Command::new("apt-get").arg("update")) && install())
}

/// The Debian mirror of the system's own apt sources.
fn mirror() -> Option<String> {
    let release = std::fs::read_to_string("/etc/os-release").ok()?;
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    let codename = codename.trim_matches('"');
    let folder = std::fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.path()).collect();
    files.sort();
    files.insert(0, "/etc/apt/sources.list".into());
    let debian = release.lines().any(|line| line == "ID=debian");
    let texts = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    texts.filter(|_| debian).find_map(|text| mirror_in(&text, codename))
}

/// The mirror that a file of apt sources, old or new style, names for the main suite of a release.
fn mirror_in(text: &str, codename: &str) -> Option<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let mut uri = None;
    for line in lines {
        let mut words = line.split_whitespace();
        match words.next() {
            None => uri = None,
            Some("deb") => {
                // Options in brackets stand before the mirror.
                let mut words = words.skip_while(|word| !word.contains("://"));
                if let (Some(mirror), Some(suite)) = (words.next(), words.next())
                    && suite == codename
                {
                    return Some(mirror.to_owned());
                }
            }
            Some("URIs:") => uri = words.next(),
            Some("Suites:") => {
                if let Some(mirror) = uri.filter(|_| words.any(|suite| suite == codename)) {
                    return Some(mirror.to_owned());
                }
            }
            Some(_) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_that_of_the_main_suite() {
        let old = "# deb http://comment bookworm main
deb http://security.example/debian-security bookworm-security main
deb [signed-by=/k.gpg arch=amd64] http://mirror.example/debian bookworm main contrib
deb http://other.example/ stable main";
        assert_eq!(mirror_in(old, "bookworm").as_deref(), Some("http://mirror.example/debian"));
        let new = "Types: deb
URIs: http://security.example/debian-security
Suites: bookworm-security

Types: deb
# an older place
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
";
        assert_eq!(mirror_in(new, "bookworm").as_deref(), Some("http://mirror.example/debian"));
        assert_eq!(mirror_in(new, "noble"), None);
    }

    #[test]
    fn the_program_is_the_last_that_cargo_names() {
        let messages = r#"{"executable":null,"fresh":true}
{"reason":"compiler-artifact","executable":"/a/target/debug/deps/syncval-0a","fresh":true}
{"reason":"build-finished","success":true}"#;
        let expected = PathBuf::from("/a/target/debug/deps/syncval-0a");
        assert_eq!(executable(messages), Some(expected));
        assert_eq!(executable(r#"{"executable":null}"#), None);
    }
}
