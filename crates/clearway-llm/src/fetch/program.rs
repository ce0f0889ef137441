//! Other programs, started so that nothing in the user's current folder takes part.
//!
//! The current folder may be one that was just downloaded. A program must not be found there (an empty or relative
//! entry of the search path means the current folder), must not run there (Python and others load code from where they
//! run), and must not read what the user types.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A command for a program of the search path, which will run in `folder`; `None` if there is no such program.
pub(super) fn command(program: &str, folder: &Path) -> Option<Command> {
    let path = find(program, &std::env::var_os("PATH")?)?;
    let mut command = Command::new(path);
    command.current_dir(folder).stdin(Stdio::null());
    Some(command)
}

/// The program in the absolute folders of a search path.
fn find(program: &str, search_path: &OsStr) -> Option<PathBuf> {
    let name = format!("{program}{}", std::env::consts::EXE_SUFFIX);
    let folders = std::env::split_paths(search_path).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join(&name)).find(|path| is_program(path))
}

#[cfg(unix)]
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(path: &Path) -> bool {
    path.is_file()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn programs_come_from_absolute_folders_only() {
        let shell = find("sh", OsStr::new("/nonexistent:/bin")).unwrap();
        assert_eq!(shell, Path::new("/bin/sh"));
        for path in ["", ":", ".", "bin", "./bin:../bin", "/nonexistent"] {
            assert_eq!(find("sh", OsStr::new(path)), None, "{path:?}");
        }
        assert_eq!(find("passwd", OsStr::new("/etc")), None, "a file that cannot be run");
    }
}
