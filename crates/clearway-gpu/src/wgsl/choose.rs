//! The fastest kernel for a job.

use clearway_graph::CapturedOpKind as Kind;

use super::{Job, Kernel, coop, decode_attention, lower as general, matvec, planar};
use crate::error::Result;

/// The kernel for an op call: one made for its case, or the general one.
///
/// # Errors
/// As the general kernel: an op that is not in the table, or weights in planes that no kernel reads.
pub fn lower(job: &Job<'_>) -> Result<Kernel> {
    let special = match job.kind {
        Kind::MatMul | Kind::MatMulAdd => {
            matvec::lower(job).or_else(|| coop::lower(job)).or_else(|| planar::matmul(job))
        }
        Kind::MatMulExperts => matvec::lower(job),
        Kind::Gather => planar::gather(job),
        Kind::Attention => decode_attention::lower(job),
        _ => None,
    };
    special.map_or_else(|| general::lower(job), Ok)
}
