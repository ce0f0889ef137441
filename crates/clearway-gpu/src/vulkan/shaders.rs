//! What tests of the compiled kernels need: SPIR-V without a device.

use super::guards::Guards;
use super::{pipeline, spirv};
use crate::lowering::prefetch;

/// Stands for what turns text into SPIR-V, in the names of what is kept on disk.
pub const COMPILER: u32 = pipeline::COMPILER;

/// The words a driver gets for this text; `checks` guards every index and loop.
///
/// # Errors
/// What is wrong with the text.
pub fn compile(source: &str, checks: bool) -> Result<Vec<u32>, String> {
    pipeline::to_spirv(source, &Guards::own(checks))
}

/// The words with the accesses and barriers that their memory model asks for.
///
/// # Errors
/// Why they cannot be repaired.
pub fn repair(words: Vec<u32>) -> Result<Vec<u32>, String> {
    spirv::repair(words).map_err(|error| error.to_string())
}

/// The text of the kernel that reads weights ahead, which no op stands for.
pub fn read_ahead() -> String {
    prefetch::reader(0, 4096).source
}
