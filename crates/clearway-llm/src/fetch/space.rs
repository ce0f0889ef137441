//! Room on the disk, asked for before something large is written.

use std::path::Path;

use super::FetchError;
use super::error::outside_working_folder;

/// An error if a folder has less room than `wanted` bytes.
pub(super) fn check(folder: &Path, wanted: u64) -> Result<(), FetchError> {
    match free(folder) {
        Some(free) if free < wanted => Err(FetchError::DiskFull {
            path: outside_working_folder(folder).to_owned(),
            wanted: Some(wanted),
            free: Some(free),
        }),
        _ => Ok(()),
    }
}

/// Bytes that this user may still write to the disk of a folder, where the system says.
#[cfg(unix)]
fn free(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

#[cfg(not(unix))]
fn free(_folder: &Path) -> Option<u64> {
    None
}
