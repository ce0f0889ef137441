//! One file: header, metadata and tensor table.
//!
//! ```text
//! "GGUF" | version u32 | tensors u64 | keys u64
//! keys    x { name string | type u32 | value }
//! tensors x { name string | dims u32 | dim u64 ... | type u32 | offset u64 }
//! padding to the alignment, then the data section; offsets count from its start
//! ```

use super::{
    cursor::Cursor,
    error::{GgufError, printable},
    metadata::Metadata,
    source::Source,
    tensor::TensorInfo,
};

/// Alignment where the file names none.
pub(super) const DEFAULT_ALIGNMENT: usize = 32;
/// Largest alignment accepted: a huge page, far more than any file uses.
pub(super) const MAX_ALIGNMENT: u64 = 1 << 21;
/// Key of the alignment.
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";

/// One file after all checks that need no other file.
#[derive(Debug)]
pub(super) struct Part {
    pub source: Source,
    pub version: u32,
    pub metadata: Metadata,
    pub tensors: Vec<TensorInfo>,
}

impl Part {
    pub fn read(source: Source) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(&source);
        let Head { version, metadata, tensors, alignment } = Head::read(&source, &mut cursor)?;
        let tensors = TensorInfo::read_table(&mut cursor, tensors, alignment)?;
        Ok(Self { source, version, metadata, tensors })
    }
}

/// Everything before the tensor table.
struct Head {
    version: u32,
    metadata: Metadata,
    tensors: u64,
    alignment: usize,
}

impl Head {
    fn read(source: &Source, cursor: &mut Cursor<'_>) -> Result<Self, GgufError> {
        let magic: [u8; 4] = cursor.array("the header")?;
        if magic != *b"GGUF" {
            return Err(GgufError::NotGguf { found: printable(&magic) });
        }
        let version = cursor.u32("the header")?;
        match version {
            2 | 3 => {}
            // The number in the other byte order; the magic is the same in both.
            _ if matches!(version.swap_bytes(), 1..=0xffff) => return Err(GgufError::BigEndian),
            _ => return Err(GgufError::Version { version }),
        }
        let tensors = cursor.u64("the header")?;
        let keys = cursor.u64("the header")?;
        let metadata = Metadata::read(source, cursor, keys)?;
        let alignment = match metadata.optional::<u64>(ALIGNMENT_KEY)? {
            Some(alignment) => check_alignment(alignment)?,
            None => DEFAULT_ALIGNMENT,
        };
        Ok(Self { version, metadata, tensors, alignment })
    }
}

/// The length of the file that begins with these bytes, by its own tables: without and with the padding that may end
/// it. `None` while the tables are incomplete.
#[cfg(feature = "fetch")]
pub(super) fn whole_bytes(beginning: Source) -> Result<Option<(u64, u64)>, GgufError> {
    let mut cursor = Cursor::new(&beginning);
    let tables = Head::read(&beginning, &mut cursor).and_then(|head| {
        let table = TensorInfo::read_entries(&mut cursor, head.tensors, head.alignment)?;
        Ok((head.alignment as u64, table))
    });
    let (alignment, table) = match tables {
        Ok(tables) => tables,
        // A count that the rest cannot hold may be one that more bytes can.
        Err(GgufError::Truncated { .. } | GgufError::Count { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let head = cursor.at() as u64;
    let end = table.iter().map(|tensor| tensor.end as u64).max().unwrap_or(0);
    // A file without tensors may end with its tables. Files end far below 2^63 bytes.
    let data = if table.is_empty() { head } else { head.next_multiple_of(alignment) };
    let end = data.saturating_add(end);
    Ok(Some((end, end.checked_next_multiple_of(alignment).unwrap_or(end))))
}

/// Accepts powers of two within reason.
pub(super) fn check_alignment(alignment: u64) -> Result<usize, GgufError> {
    if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
        Ok(alignment as usize)
    } else {
        Err(GgufError::Alignment { alignment, limit: MAX_ALIGNMENT })
    }
}
