//! A read position in the bytes of a file that cannot leave them.
//!
//! Everything the parser knows about lengths passes through here, so this is the one place where a
//! number from the file is compared with what the file can hold.

use super::error::{GgufError, printable};

/// Position in a file's bytes.
#[derive(Clone)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes before the position.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Bytes after the position.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The bytes between an earlier position and this one.
    pub fn since(&self, start: usize) -> &'a [u8] {
        self.bytes.get(start..self.at).unwrap_or_default()
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let taken = usize::try_from(len)
            .ok()
            .and_then(|len| self.at.checked_add(len))
            .and_then(|end| self.bytes.get(self.at..end));
        let Some(taken) = taken else {
            return Err(GgufError::Truncated {
                what,
                at: self.at as u64,
                need: len,
                len: self.bytes.len() as u64,
            });
        };
        self.at += taken.len();
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A number of items of at least `min_bytes` each; refused when they cannot follow.
    pub fn count(&mut self, what: &'static str, min_bytes: usize) -> Result<u64, GgufError> {
        let count = self.u64(what)?;
        self.check_count(count, what, min_bytes)?;
        Ok(count)
    }

    /// Refuses a number of items that the rest of the file cannot hold.
    pub fn check_count(
        &self,
        count: u64,
        what: &'static str,
        min_bytes: usize,
    ) -> Result<(), GgufError> {
        let remaining = self.remaining() as u64;
        if count > remaining / min_bytes as u64 {
            return Err(GgufError::Count { what, count, remaining });
        }
        Ok(())
    }

    /// As [`check_count`](Self::check_count), for tables whose entries are kept in memory: these take several times the
    /// bytes that they have in the file.
    pub fn check_table(
        &self,
        count: u64,
        what: &'static str,
        min_bytes: usize,
        limit: u64,
    ) -> Result<(), GgufError> {
        self.check_count(count, what, min_bytes)?;
        if count > limit {
            return Err(GgufError::TooMany { what, count, limit });
        }
        Ok(())
    }

    /// A string: its length in eight bytes, then its bytes.
    pub fn string(&mut self, what: &'static str) -> Result<&'a [u8], GgufError> {
        let len = self.u64(what)?;
        self.take(len, what)
    }

    /// A key or a tensor name: a string of limited length that must be UTF-8.
    pub fn name(&mut self, what: &'static str, limit: u64) -> Result<&'a str, GgufError> {
        let at = self.at as u64;
        let len = self.u64(what)?;
        // The length check comes first: of a wrong length, "the file ends" says less.
        if len > limit {
            return Err(GgufError::TooLong { what, at, len, limit });
        }
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes).map_err(|_| GgufError::NameNotUtf8 {
            what,
            at,
            text: printable(bytes),
        })
    }
}
