//! Where Clearway keeps what can be had again: fetched models, compiled kernels, what tuning found.
//!
//! One rule for all of them:
//!
//! 1. the folder that `CLEARWAY_CACHE` names;
//! 2. else `clearway` in the platform's cache folder: `XDG_CACHE_HOME` or `~/.cache`, on macOS `~/Library/Caches`, on
//!    Windows `LOCALAPPDATA`.
//!
//! Variables that are empty do not count. A relative `CLEARWAY_CACHE` is taken from the current folder; a relative
//! `XDG_CACHE_HOME` is ignored, as its specification says.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// The variable that names the folder.
const VARIABLE: &str = "CLEARWAY_CACHE";

/// Why there is no cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheFolderError {
    /// The platform does not say where caches go.
    #[error("no cache folder: the home folder is not known; set {VARIABLE} to a folder")]
    Unknown,
    /// The folder cannot be made, read or written.
    #[error("cache folder: {path}: {error}; {VARIABLE} names another folder", path = path.display())]
    Refused {
        /// Where it happened.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// The folder, which need not exist.
///
/// # Errors
/// [`CacheFolderError::Unknown`].
pub fn cache_folder() -> Result<PathBuf, CacheFolderError> {
    let folder = locate(|name| std::env::var_os(name), std::env::home_dir())?;
    let refused = |error| CacheFolderError::Refused { path: folder.clone(), error };
    std::path::absolute(&folder).map_err(refused)
}

/// Makes the folder, or one inside it, and sees that files can be written there.
///
/// # Errors
/// [`CacheFolderError::Refused`].
pub fn make_cache_folder(folder: &Path) -> Result<(), CacheFolderError> {
    let probe = folder.join(format!(".probe-{}", std::process::id()));
    let made = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&probe, []))
        .and_then(|()| std::fs::remove_file(&probe));
    made.map_err(|error| CacheFolderError::Refused { path: folder.to_owned(), error })
}

/// The rule, for an environment and a home folder.
fn locate(
    variable: impl Fn(&str) -> Option<OsString>,
    home: Option<PathBuf>,
) -> Result<PathBuf, CacheFolderError> {
    let named = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = named(VARIABLE) {
        return Ok(folder);
    }
    let home = |folder: &str| {
        home.as_ref().filter(|home| home.is_absolute()).map(|home| home.join(folder))
    };
    let platform = if cfg!(windows) {
        named("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        home("Library/Caches")
    } else {
        named("XDG_CACHE_HOME").filter(|xdg| xdg.is_absolute()).or_else(|| home(".cache"))
    };
    platform.map(|folder| folder.join("clearway")).ok_or(CacheFolderError::Unknown)
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_rule() {
        type Variables = [(&'static str, &'static str)];
        let cases: [(&Variables, Option<&str>, Option<&str>); 9] = [
            (&[("CLEARWAY_CACHE", "/c"), ("XDG_CACHE_HOME", "/x")], Some("/h"), Some("/c")),
            (&[("CLEARWAY_CACHE", "c")], Some("/h"), Some("c")),
            (&[("CLEARWAY_CACHE", ""), ("XDG_CACHE_HOME", "/x")], None, Some("/x/clearway")),
            (&[("XDG_CACHE_HOME", "x")], Some("/h"), Some("/h/.cache/clearway")),
            (&[("XDG_CACHE_HOME", "")], Some("/h"), Some("/h/.cache/clearway")),
            (&[("LOCALAPPDATA", "/l")], Some("/h"), Some("/h/.cache/clearway")),
            (&[("LOCALAPPDATA", "/l")], None, None),
            (&[], Some("h"), None),
            (&[], None, None),
        ];
        for (variables, home, expected) in cases {
            let value = |name: &str| {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| value.into())
            };
            let found = locate(value, home.map(PathBuf::from)).ok();
            assert_eq!(found, expected.map(PathBuf::from), "{variables:?}, home {home:?}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named_with_what_to_do() {
        let file = std::env::temp_dir().join(format!("clearway-no-folder-{}", std::process::id()));
        std::fs::write(&file, "a file").unwrap();
        let error = make_cache_folder(&file.join("models")).unwrap_err().to_string();
        std::fs::remove_file(&file).unwrap();
        assert!(
            error.contains("clearway-no-folder") && error.contains("CLEARWAY_CACHE"),
            "{error}"
        );
    }
}
