//! Files that appear whole or not at all.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

/// A file that has a temporary name beside its place until it is complete, and none after failure.
pub(super) struct PartialFile {
    file: File,
    temporary: PathBuf,
    place: PathBuf,
    complete: bool,
}

impl PartialFile {
    pub fn create(place: &Path) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let Some(file_name) = place.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file name"));
        };
        loop {
            let mut name = OsString::from(".");
            name.push(file_name);
            let no = NEXT.fetch_add(1, Ordering::Relaxed);
            name.push(format!(".{}-{no}.partial", std::process::id()));
            let temporary = place.with_file_name(name);
            match File::create_new(&temporary) {
                // Left by a process that was killed and had the same number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(file) => {
                    let place = place.to_owned();
                    return Ok(Self { file, temporary, place, complete: false });
                }
            }
        }
    }

    /// Gives the file its name, in place of a file that has it already.
    pub fn complete(mut self) -> io::Result<()> {
        std::fs::rename(&self.temporary, &self.place)?;
        self.complete = true;
        Ok(())
    }
}

impl Write for PartialFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.complete {
            // Nothing can be done about a failure here, and the first error is the one to report.
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}
