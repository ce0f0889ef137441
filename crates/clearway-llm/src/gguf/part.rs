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
        let metadata = Metadata::read(&source, &mut cursor, keys)?;
        let alignment = match metadata.optional::<u64>(ALIGNMENT_KEY)? {
            Some(alignment) => check_alignment(alignment)?,
            None => DEFAULT_ALIGNMENT,
        };
        let tensors = TensorInfo::read_table(&mut cursor, tensors, alignment)?;
        Ok(Self { source, version, metadata, tensors })
    }
}

/// Accepts powers of two within reason.
pub(super) fn check_alignment(alignment: u64) -> Result<usize, GgufError> {
    if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
        Ok(alignment as usize)
    } else {
        Err(GgufError::Alignment { alignment, limit: MAX_ALIGNMENT })
    }
}
