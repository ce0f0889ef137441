//! What tests need of the machine: looked for, installed where that is allowed, and then demanded.
//!
//! Nothing counts as there because a variable is set or a file lies in its place: the Vulkan driver is asked
//! for a device, the browser for its version. Tests get the list in `CLEARWAY_NEED` and fail instead of
//! skipping.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::run::{self, Suite, cargo};

/// Something a test cannot run without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    Vulkan,
    Browser,
    Race,
    Golden,
    Clients,
    Python,
}

impl Need {
    pub const ALL: [Self; 6] =
        [Self::Vulkan, Self::Browser, Self::Race, Self::Golden, Self::Clients, Self::Python];

    /// Name on the command line, in `CLEARWAY_NEED` and in what tests print.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vulkan => "vulkan",
            Self::Browser => "browser",
            Self::Race => "race",
            Self::Golden => "golden",
            Self::Clients => "clients",
            Self::Python => "python",
        }
    }

    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|need| need.name() == name)
    }
}

/// The value of `CLEARWAY_NEED` for these.
pub fn variable(needs: &[Need]) -> String {
    needs.iter().map(|need| need.name()).collect::<Vec<_>>().join(",")
}

/// Looks for the browser, and installs it where it is missing. Gives the reason where it stays missing.
pub fn browser() -> Option<String> {
    let there = || {
        ["chromium", "chromium-browser", "google-chrome"]
            .iter()
            .any(|name| succeeds(name, &["--version"]))
    };
    need_package("chromium", there)
}

/// Opens a Vulkan device with a small test of its own, after installing a software driver where there is
/// none. Gives the reason where there is no device.
pub fn vulkan(root: &Path) -> Result<Option<String>> {
    // What the loader cannot find costs no build to know.
    let variable = |name| std::env::var(name).ok().map(|value| (name, value));
    let lists = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].into_iter().filter_map(variable);
    if std::env::var_os("VK_ADD_DRIVER_FILES").is_none()
        && let Some(why) = points_nowhere(&lists.collect::<Vec<_>>())
    {
        return Ok(Some(why));
    }
    let drivers =
        |folder: &str| std::fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some());
    let there = || {
        std::env::var_os("VK_ICD_FILENAMES").is_some()
            || std::env::var_os("VK_DRIVER_FILES").is_some()
            || drivers("/usr/share/vulkan/icd.d")
            || drivers("/etc/vulkan/icd.d")
    };
    if let Some(why) = need_package("mesa-vulkan-drivers", there) {
        return Ok(Some(why));
    }
    // The features of the whole workspace, so that nothing is built twice.
    let mut probe =
        cargo(root, &["test", "--workspace", "--all-features", "--test", "vulkan_probe"]);
    let (suites, content) = run::tests("Vulkan driver", probe.env_remove("CLEARWAY_NEED"))?;
    Ok(missing(&suites, content))
}

/// Why the probe opened no device.
fn missing(suites: &[Suite], content: bool) -> Option<String> {
    let skipped = suites.iter().flat_map(|suite| &suite.skips).next();
    let opened = content && suites.iter().any(|suite| suite.passed > 0);
    match skipped {
        Some(skip) => Some(skip.reason.clone()),
        None if opened => None,
        None => Some("the test that opens a device failed, see above".to_owned()),
    }
}

/// Why the loader can find no driver: each of these variables names neither a file nor a folder with one.
fn points_nowhere(lists: &[(&str, String)]) -> Option<String> {
    let manifest = |path: &Path| path.extension().is_some_and(|extension| extension == "json");
    let holds = |folder: &Path| {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        files.map(|file| file.path()).any(|path| manifest(&path))
    };
    let exists =
        |list: &str| list.split(':').map(Path::new).any(|path| path.is_file() || holds(path));
    if lists.is_empty() || lists.iter().any(|(_, list)| exists(list)) {
        return None;
    }
    let named: Vec<String> = lists.iter().map(|(name, list)| format!("{name}={list}")).collect();
    Some(format!("no such driver: {}", named.join(", ")))
}

/// Installs a package where what it brings is not there. Gives the reason where that does not help.
fn need_package(package: &str, there: impl Fn() -> bool) -> Option<String> {
    if there() {
        return None;
    }
    println!("installing {package}");
    let install = ["install", "--yes", package];
    let installed = succeeds("apt-get", &install)
        || (succeeds("apt-get", &["update"]) && succeeds("apt-get", &install));
    (!installed || !there()).then(|| {
        format!("{package} is missing and could not be installed: run `apt-get install {package}` as root")
    })
}

pub fn succeeds(program: &str, args: &[&str]) -> bool {
    let output = Command::new(program).args(args).output();
    output.is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Skip;

    #[test]
    fn needs_are_named_as_tests_name_them() {
        assert_eq!(variable(&Need::ALL), "vulkan,browser,race,golden,clients,python");
        for need in Need::ALL {
            assert_eq!(Need::by_name(need.name()), Some(need));
        }
        assert_eq!(Need::by_name("everything"), None);
    }

    #[test]
    fn a_variable_that_names_no_file_is_no_driver() {
        let list = |name: &'static str, value: &str| vec![(name, value.to_owned())];
        let here = std::env::current_exe().unwrap_or_default().display().to_string();
        let why = points_nowhere(&list("VK_ICD_FILENAMES", "/nonexistent/a.json:/nonexistent/b"));
        assert_eq!(
            why.as_deref(),
            Some("no such driver: VK_ICD_FILENAMES=/nonexistent/a.json:/nonexistent/b")
        );
        assert!(points_nowhere(&list("VK_ICD_FILENAMES", "")).is_some());
        let folder = env!("CARGO_MANIFEST_DIR");
        assert!(points_nowhere(&list("VK_DRIVER_FILES", folder)).is_some(), "no driver in there");
        assert_eq!(points_nowhere(&list("VK_DRIVER_FILES", &format!("/nonexistent:{here}"))), None);
        assert_eq!(points_nowhere(&[]), None);
    }

    #[test]
    fn only_a_probe_that_ran_finds_a_driver() {
        let passed = Suite { passed: 1, ..Suite::default() };
        assert_eq!(missing(std::slice::from_ref(&passed), true), None);
        assert!(missing(std::slice::from_ref(&passed), false).is_some());
        assert!(missing(&[], true).is_some(), "nothing ran");
        let text = |text: &str| text.to_owned();
        let skip = Skip { part: text("vulkan"), test: text("opens"), reason: text("no driver") };
        let skipped = Suite { skips: vec![skip], ..passed };
        assert_eq!(missing(&[skipped], true).as_deref(), Some("no driver"));
    }
}
