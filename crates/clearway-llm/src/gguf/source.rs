//! Where the bytes of a file live: mapped from disk, or in memory.

use std::{
    fmt,
    fs::File,
    io,
    ops::{Deref, Range},
    path::Path,
    sync::Arc,
};

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;

/// The bytes of one file; cheap to clone.
#[derive(Clone)]
pub(super) enum Source {
    /// Pages of a file, read when touched.
    Mapped(Arc<Mmap>),
    /// A copy in memory.
    Memory(Arc<[u8]>),
}

impl Source {
    /// Maps a file for reading.
    pub fn map(path: &Path) -> io::Result<Self> {
        // Asked before opening: opening a pipe for reading waits for its writer.
        let about = std::fs::metadata(path)?;
        if !about.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: the map is read-only and private to this process, which never writes to model
        // files in place. The rule that no one else changes or shortens the file while it is mapped
        // is the user's; it is stated at `Gguf::open`. The parser copes with changed contents: it
        // checks every access again.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self::Mapped(Arc::new(map)))
    }

    /// Lets go of the memory of mapped pages; they are read again when touched.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Self::Mapped(map) = self {
            // SAFETY: the map is of a file and never written, so dropped pages come back with the
            // same contents.
            let dropped = unsafe {
                map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len())
            };
            // A refusal costs memory and nothing else.
            let _ = dropped;
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

impl Deref for Source {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Memory(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Mapped(_) => "Mapped",
            Self::Memory(_) => "Memory",
        };
        write!(f, "{kind}({} bytes)", self.len())
    }
}
