//! `cargo xtask shaders`: every shader of the product under `spirv-val`.
//!
//! The validator of Debian 12 does not know cooperative matrices; that of Debian 13 does. So it runs in the
//! tree of the race checker. A test writes the shaders, and beside them some that are broken, which the
//! validator must report.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::root;
use crate::syncval::{self, Tree};

/// Where the shaders lie, seen from inside the tree.
const FOLDER: &str = "/tmp/shaders";
/// Fewer than this many shaders are not all of them.
const LEAST: usize = 1000;
/// Files that a shell validates one after another: the validator takes one at a time.
const BATCH: &str = "50";
/// Prints what the validator says about each file; silence is what is wanted.
const VALIDATE: &str = r#"for file; do
    said=$(spirv-val --target-env vulkan1.3 "$file" 2>&1) && [ -z "$said" ] || echo "$file: $said"
done"#;

/// This command as a step of another.
pub fn command() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("xtask has no path")?);
    command.arg("shaders");
    Ok(command)
}

/// Writes shaders and validates them; tells whether all of it held. Of shaders that differ in numbers alone
/// two are taken, unless `every` one is wanted.
pub fn run(every: bool) -> Result<bool> {
    let root = root()?;
    let tree = match syncval::tree(&root)? {
        Tree::Ready(tree) => tree,
        Tree::Cannot(why) => bail!("shaders cannot be validated here: {why}"),
    };
    let folder = tree.join(FOLDER.trim_start_matches('/'));
    syncval::remove(&folder)?;
    let mut writer = Command::new(syncval::test_binary(&root, "shaders")?);
    writer.args(["--ignored", "--nocapture", "all_shaders_are_written"]);
    if every {
        writer.env("CLEARWAY_SHADERS_EVERY", "1");
    }
    let written = writer.env("CLEARWAY_SHADERS", &folder).status();
    if !written.context("cannot start the test that writes shaders")?.success() {
        return Ok(false);
    }
    let start = Instant::now();
    let all = files(&folder.join("all"))?;
    let messages = validate(&tree, &format!("{FOLDER}/all"))?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{} modules: {} messages ({seconds:.1} s)", all.len(), messages.lines().count());
    println!("{}", messages.lines().take(40).collect::<Vec<_>>().join("\n"));
    let broken = files(&folder.join("broken"))?;
    let reported = validate(&tree, &format!("{FOLDER}/broken"))?;
    let missed = missed(&broken, &reported);
    println!("self-test: {} broken modules, {} not reported", broken.len(), missed.len());
    missed.iter().for_each(|name| println!("not reported: {name}"));
    let enough = all.len() >= LEAST && !broken.is_empty();
    if !enough {
        println!("{} modules are too few to be all", all.len());
    }
    let held = messages.is_empty() && missed.is_empty() && enough;
    if held {
        syncval::remove(&folder)?;
    }
    Ok(held)
}

/// What the validator says about the files of a folder in the tree.
fn validate(tree: &Path, folder: &str) -> Result<String> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).to_string();
    let all = format!(
        "find {folder} -name '*.spv' -print0 | xargs -0 -P {cores} -n {BATCH} sh -c \"$0\" sh"
    );
    let mut command = Command::new("chroot");
    command.arg(tree).args(["sh", "-c", &all, VALIDATE]);
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let output = command.output().context("cannot start the validator")?;
    if !output.status.success() {
        bail!("the validator cannot run: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn files(folder: &Path) -> Result<BTreeSet<String>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Files that no message names.
fn missed<'a>(files: &'a BTreeSet<String>, messages: &str) -> Vec<&'a String> {
    let named = |name: &String| messages.lines().any(|line| line.contains(&format!("/{name}: ")));
    files.iter().filter(|name| !named(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_no_message_names_is_missed() {
        let files: BTreeSet<String> = ["a.spv", "ab.spv"].map(str::to_owned).into();
        let said = "/tmp/shaders/broken/ab.spv: error: 3: wrong\n  %1 = OpLoad\n";
        assert_eq!(missed(&files, said), ["a.spv"]);
        assert_eq!(missed(&files, ""), ["a.spv", "ab.spv"]);
    }
}
