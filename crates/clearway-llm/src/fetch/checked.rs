//! A file that is checked while it arrives.
//!
//! The hub says how long a file is and which SHA-256 it has. Where it leaves one of the two out, the file's own tables
//! say how long it must be: a body that is cut short is then noticed, and one that never ends is cut off before it
//! fills the disk.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{FetchError, space};
use crate::gguf::whole_bytes;

/// Bytes after which the tables are looked for first. They are looked for again whenever twice as much has come.
const FIRST_LOOK: u64 = 64 << 10;
/// Bytes by which the tables must end. Those of the largest vocabularies take some 10 MB.
const MAX_TABLE_BYTES: u64 = 64 << 20;

/// A file that is hashed while it is written.
pub(super) struct CheckedFile {
    file: File,
    path: PathBuf,
    /// What the file is called in messages.
    what: String,
    hash: Sha256,
    sha256: Option<String>,
    len: u64,
    expected: Option<u64>,
    tables: Tables,
}

/// What the file's own tables say about its length.
#[derive(Clone, Copy, PartialEq)]
enum Tables {
    /// Length and SHA-256 come from the hub.
    NotNeeded,
    /// They are looked for when so many bytes have come.
    At(u64),
    /// Length without and with the padding at the end.
    Say(u64, u64),
}

impl CheckedFile {
    /// An empty file that is to have so many bytes and this SHA-256, where these are known.
    pub fn create(
        path: &Path,
        what: &str,
        expected: Option<u64>,
        sha256: Option<&str>,
    ) -> Result<Self, FetchError> {
        let (path, what, sha256) = (path.to_owned(), what.to_owned(), sha256.map(str::to_owned));
        let tables = match (expected, &sha256) {
            (Some(_), Some(_)) => Tables::NotNeeded,
            _ => Tables::At(FIRST_LOOK),
        };
        let hash = Sha256::new();
        match File::create_new(&path) {
            Ok(file) => Ok(Self { file, path, what, hash, sha256, len: 0, expected, tables }),
            Err(error) => Err(FetchError::io(&path, expected, error)),
        }
    }

    /// Bytes so far.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Bytes there will be, where that is known.
    pub fn expected(&self) -> Option<u64> {
        match self.tables {
            Tables::Say(_, padded) => self.expected.or(Some(padded)),
            _ => self.expected,
        }
    }

    /// Learns the length from the server, unless it is known, and sees that there is room for the rest.
    pub fn expect(&mut self, bytes: Option<u64>) -> Result<(), FetchError> {
        self.expected = self.expected.or(bytes);
        self.check_space()
    }

    /// Adds bytes; more than are expected are an error, so that nobody can fill the disk.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), FetchError> {
        let len = self.len + bytes.len() as u64;
        if let Some(expected) = self.expected()
            && len > expected
        {
            return Err(self.damaged("length", "more".into(), format!("{expected} bytes")));
        }
        self.file.write_all(bytes).map_err(|error| self.failed(error))?;
        self.hash.update(bytes);
        self.len = len;
        match self.tables {
            Tables::At(look) if len >= look => self.look(),
            _ => Ok(()),
        }
    }

    /// Forgets everything written so far.
    pub fn restart(&mut self) -> Result<(), FetchError> {
        self.hash = Sha256::new();
        self.len = 0;
        if self.tables != Tables::NotNeeded {
            self.tables = Tables::At(FIRST_LOOK);
        }
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map(|_| ()).map_err(|error| self.failed(error))
    }

    /// Whether bytes are missing at the end.
    pub fn is_short(&mut self) -> Result<bool, FetchError> {
        if matches!(self.tables, Tables::At(_)) {
            self.look()?;
        }
        Ok(match (self.expected, self.tables) {
            (Some(expected), _) => self.len < expected,
            (None, Tables::Say(least, _)) => self.len < least,
            (None, tables) => tables != Tables::NotNeeded,
        })
    }

    /// Checks the whole and waits until the disk has it: a name must not outlive its bytes.
    pub fn finish(mut self) -> Result<(), FetchError> {
        let short = self.is_short()?;
        if let Some(expected) = self.expected()
            && (short || (self.expected.is_some() && self.len != expected))
        {
            let found = format!("{} bytes", self.len);
            return Err(self.damaged("length", found, format!("{expected} bytes")));
        }
        if short {
            return Err(self.no_model("it ends inside its tables".into()));
        }
        self.file.sync_all().map_err(|error| self.failed(error))?;
        let digest = std::mem::replace(&mut self.hash, Sha256::new()).finalize();
        let found: String = digest.iter().map(|b| format!("{b:02x}")).collect();
        match &self.sha256 {
            Some(expected) if !expected.eq_ignore_ascii_case(&found) => {
                Err(self.damaged("SHA-256", found, expected.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Asks the file's own tables how long it is.
    fn look(&mut self) -> Result<(), FetchError> {
        let Some((least, padded)) =
            whole_bytes(&self.path).map_err(|error| self.no_model(error.to_string()))?
        else {
            if self.len >= MAX_TABLE_BYTES {
                let message = format!("its tables take more than {MAX_TABLE_BYTES} bytes");
                return Err(self.no_model(message));
            }
            self.tables = Tables::At((2 * self.len).clamp(FIRST_LOOK, MAX_TABLE_BYTES));
            return Ok(());
        };
        self.tables = Tables::Say(least, padded);
        let announced = self.expected.unwrap_or(self.len.max(least));
        if !(least..=padded).contains(&announced) {
            let expected = format!("{least} bytes as its tables say");
            return Err(self.damaged("length", format!("{announced} bytes"), expected));
        }
        self.check_space()
    }

    fn check_space(&self) -> Result<(), FetchError> {
        let rest = self.expected().unwrap_or(0).saturating_sub(self.len);
        space::check(self.path.parent().unwrap_or(&self.path), rest)
    }

    fn damaged(&self, check: &'static str, found: String, expected: String) -> FetchError {
        FetchError::Damaged { what: self.what.clone(), check, found, expected }
    }

    fn no_model(&self, message: String) -> FetchError {
        FetchError::NoModel { what: self.what.clone(), message }
    }

    fn failed(&self, error: std::io::Error) -> FetchError {
        let folder = self.path.parent().unwrap_or(&self.path);
        FetchError::io(folder, self.expected, error)
    }
}
