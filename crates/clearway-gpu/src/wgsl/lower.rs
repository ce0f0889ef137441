//! Which kernel computes an op.

use super::{Job, Kernel};
use crate::error::{GpuError, Result};

/// The kernel for a job.
///
/// # Errors
/// [`GpuError::UnknownKernel`] for an op that has none.
pub fn lower(job: &Job<'_>) -> Result<Kernel> {
    Err(GpuError::UnknownKernel { kernel: format!("{:?}", job.kind) })
}
