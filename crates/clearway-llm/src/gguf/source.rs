//! Where the bytes of a file live: mapped from disk, or in memory.

use std::{
    fmt,
    fs::File,
    io,
    ops::{Deref, Range},
    path::Path,
    sync::{Arc, OnceLock},
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
    /// Computed from another when it is first read.
    Made(Arc<Made>),
}

/// Bytes that are computed when they are first read, and then kept.
pub(super) struct Made {
    bytes: OnceLock<Vec<u8>>,
    len: usize,
    make: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
}

impl Made {
    /// As many bytes as `make` will give; where it gives others, they are cut or filled with zeros.
    pub fn new(len: usize, make: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> Self {
        Self { bytes: OnceLock::new(), len, make: Box::new(make) }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get_or_init(|| {
            let mut bytes = (self.make)();
            bytes.resize(self.len, 0);
            bytes
        })
    }
}

impl Source {
    /// Whether it is a file's own.
    pub fn is_file(&self) -> bool {
        !matches!(self, Self::Made(_))
    }

    /// Maps a file for reading.
    pub fn map(path: &Path) -> io::Result<Self> {
        // Asked before opening: opening a pipe for reading waits for its writer.
        let about = std::fs::metadata(path)?;
        if !about.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        // SAFETY: nobody may change or shorten the file while it is mapped. In this process that is so:
        // the map is read-only, and a model file is written under another name and renamed. Of other
        // processes only the person who runs the program can say so, which `Gguf::open` tells them. If
        // one changes bytes all the same, the parser reads other numbers and checks each of them; if one
        // shortens the file, the system ends this process (SIGBUS).
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self::Mapped(Arc::new(map)))
    }

    /// Lets go of the memory of mapped pages; they are read again when touched.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Self::Mapped(map) = self {
            // SAFETY: `DontNeed` may change what the pages hold only where they were written. `Source::map`
            // made the map, read-only and of a file, so they come back with the contents of the file.
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
            Self::Made(made) => made.bytes(),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, len) = match self {
            Self::Mapped(map) => ("Mapped", map.len()),
            Self::Memory(bytes) => ("Memory", bytes.len()),
            Self::Made(made) => ("Made", made.len),
        };
        write!(f, "{kind}({len} bytes)")
    }
}
