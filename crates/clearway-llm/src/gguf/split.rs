//! Models split into several files, `NAME-00001-of-00003.gguf` and so on.
//!
//! Every part is a complete GGUF file with its own tensors; the first also has the model's
//! metadata. The keys `split.no` (from 0), `split.count` and `split.tensors.count` tie them
//! together. Opening any part opens all, and the numbers must agree everywhere.

use std::path::{Path, PathBuf};

use super::{error::GgufError, metadata::Metadata, part::Part, source::Source};

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// Most parts: names have five digits, and the keys are 16 bits wide.
const MAX_PARTS: u64 = 65_535;

/// What a part says about the split it belongs to.
struct Split {
    no: u64,
    count: u64,
    tensors: Option<u64>,
}

/// Opens a file and, where it belongs to a split model, all other parts, in order.
pub(super) fn open_all(path: &Path) -> Result<Vec<Part>, GgufError> {
    let in_file =
        |path: &Path, error| GgufError::InFile { path: path.to_owned(), error: Box::new(error) };
    let source =
        Source::map(path).map_err(|error| GgufError::Io { path: path.to_owned(), error })?;
    let part = Part::read(source).map_err(|e| in_file(path, e))?;
    let Some(split) = Split::of(&part.metadata).map_err(|e| in_file(path, e))? else {
        return Ok(vec![part]);
    };
    let (folder, prefix) = base_name(path, &split).map_err(|e| in_file(path, e))?;
    let mut given = Some(part);
    let mut parts = Vec::new();
    for no in 0..split.count {
        let path = folder.join(format!("{prefix}{}", suffix(no, split.count)));
        let part = match given.take_if(|_| no == split.no) {
            Some(part) => part,
            None => {
                let source = Source::map(&path).map_err(|error| GgufError::SplitMissing {
                    part: no + 1,
                    count: split.count,
                    path: path.clone(),
                    error,
                })?;
                Part::read(source).map_err(|e| in_file(&path, e))?
            }
        };
        check_part(&part, no, &split).map_err(|e| in_file(&path, e))?;
        parts.push(part);
    }
    check_total(&parts, &split)?;
    Ok(parts)
}

/// Checks that parts held in memory are one model, complete and in order.
pub(super) fn check_all(parts: &[Part]) -> Result<(), GgufError> {
    let split = match parts.first() {
        Some(first) => Split::of(&first.metadata)?,
        None => None,
    };
    let given = parts.len() as u64;
    let Some(split) = split else {
        return match given {
            1 => Ok(()),
            _ => Err(GgufError::SplitParts { count: 1, given }),
        };
    };
    if split.count != given {
        return Err(GgufError::SplitParts { count: split.count, given });
    }
    for (no, part) in (0..).zip(parts) {
        check_part(part, no, &split)?;
    }
    check_total(parts, &split)
}

impl Split {
    /// `None` for a file that is a model by itself.
    fn of(metadata: &Metadata) -> Result<Option<Self>, GgufError> {
        let no = metadata.optional(NO)?.unwrap_or(0);
        let count = metadata.optional(COUNT)?.unwrap_or(1).max(1);
        if count > MAX_PARTS || no >= count {
            return Err(GgufError::SplitNumbers { no, count, limit: MAX_PARTS });
        }
        Ok((count > 1).then_some(Self { no, count, tensors: metadata.optional(TENSORS)? }))
    }
}

/// Folder of a part, and its name without number and extension.
fn base_name(path: &Path, split: &Split) -> Result<(PathBuf, String), GgufError> {
    let expected = suffix(split.no, split.count);
    let name = path.file_name().and_then(|name| name.to_str());
    match name.and_then(|name| name.strip_suffix(&expected)) {
        Some(prefix) => Ok((path.parent().unwrap_or(Path::new("")).to_owned(), prefix.to_owned())),
        None => Err(GgufError::SplitName { part: split.no + 1, count: split.count, expected }),
    }
}

/// End of the name of part `no`, counted from 0 as in the metadata; names count from 1.
fn suffix(no: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", no + 1)
}

/// Compares what a part says with its place and with the part that was opened first.
fn check_part(part: &Part, no: u64, split: &Split) -> Result<(), GgufError> {
    let said = Split::of(&part.metadata)?;
    let (found_no, found_count, found_tensors) = match &said {
        Some(said) => (said.no, said.count, said.tensors),
        None => (0, 1, None),
    };
    let show = |n: Option<u64>| n.map_or("nothing".to_owned(), |n| n.to_string());
    for (key, found, expected) in [
        (COUNT, Some(found_count), Some(split.count)),
        (NO, Some(found_no), Some(no)),
        (TENSORS, found_tensors, split.tensors),
    ] {
        if found != expected {
            return Err(GgufError::SplitMismatch {
                part: no + 1,
                key,
                found: show(found),
                expected: show(expected),
            });
        }
    }
    Ok(())
}

fn check_total(parts: &[Part], split: &Split) -> Result<(), GgufError> {
    let found = parts.iter().map(|part| part.tensors.len() as u64).sum();
    match split.tensors {
        Some(expected) if expected != found => Err(GgufError::SplitTensors { expected, found }),
        _ => Ok(()),
    }
}
