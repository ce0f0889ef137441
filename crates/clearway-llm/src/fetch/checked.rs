//! A file whose length and SHA-256 are known before it arrives.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::FetchError;

/// A file that is hashed while it is written.
pub(super) struct CheckedFile {
    file: File,
    path: PathBuf,
    hash: Sha256,
    len: u64,
    expected: Option<u64>,
}

impl CheckedFile {
    /// An empty file that is to have `expected` bytes.
    pub fn create(path: &Path, expected: Option<u64>) -> Result<Self, FetchError> {
        let path = path.to_owned();
        match File::create_new(&path) {
            Ok(file) => Ok(Self { file, path, hash: Sha256::new(), len: 0, expected }),
            Err(error) => Err(FetchError::io(&path, expected.unwrap_or(0), error)),
        }
    }

    /// Bytes so far.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Bytes there will be, where that is known.
    pub const fn expected(&self) -> Option<u64> {
        self.expected
    }

    /// Learns the length from somebody else; what was known before stays.
    pub fn expect(&mut self, bytes: Option<u64>) {
        self.expected = self.expected.or(bytes);
    }

    /// Adds bytes; more than are expected are an error, so that nobody can fill the disk.
    pub fn write(&mut self, bytes: &[u8], what: &str) -> Result<(), FetchError> {
        let len = self.len + bytes.len() as u64;
        if let Some(expected) = self.expected
            && len > expected
        {
            let found = "more".to_owned();
            return Err(FetchError::Damaged {
                what: what.to_owned(),
                check: "length",
                found,
                expected: format!("{expected} bytes"),
            });
        }
        self.file.write_all(bytes).map_err(|error| self.failed(error))?;
        self.hash.update(bytes);
        self.len = len;
        Ok(())
    }

    /// Forgets everything written so far.
    pub fn restart(&mut self) -> Result<(), FetchError> {
        self.hash = Sha256::new();
        self.len = 0;
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map(|_| ()).map_err(|error| self.failed(error))
    }

    /// Checks the whole and waits until the disk has it: a name must not outlive its bytes.
    pub fn finish(self, what: &str, sha256: Option<&str>) -> Result<(), FetchError> {
        let damaged = |check, found: String, expected: String| {
            Err(FetchError::Damaged { what: what.to_owned(), check, found, expected })
        };
        if let Some(expected) = self.expected
            && self.len != expected
        {
            let found = format!("{} bytes", self.len);
            return damaged("length", found, format!("{expected} bytes"));
        }
        self.file.sync_all().map_err(|error| self.failed(error))?;
        let found: String = self.hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        match sha256 {
            Some(expected) if !expected.eq_ignore_ascii_case(&found) => {
                damaged("SHA-256", found, expected.to_owned())
            }
            _ => Ok(()),
        }
    }

    fn failed(&self, error: std::io::Error) -> FetchError {
        let folder = self.path.parent().unwrap_or(&self.path);
        FetchError::io(folder, self.expected.unwrap_or(0), error)
    }
}
