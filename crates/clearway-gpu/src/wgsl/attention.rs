//! Causal grouped-query attention over a KV cache, for any number of tokens and any head size.

use super::elementwise::{GRID, MATH};
use super::{Job, Kernel, Source};

const ATTENTION: &str = include_str!("kernels/attention.wgsl");

/// Queries of a workgroup, as in the text.
const QUERIES: u64 = 16;

/// Elements of a head in a chunk, as in the text.
const CHUNK: u32 = 64;

pub(super) fn lower(job: &Job<'_>) -> Kernel {
    let ([_, tokens, heads, head], kv_heads) =
        (job.layout(0).shape4(), u64::from(job.layout(1).shape4()[2]));
    let queries = u64::from(tokens) * (u64::from(heads) / kv_heads);
    Source::new(job)
        .constant("CHUNKS", head.div_ceil(CHUNK))
        .body(GRID)
        .body(MATH)
        .body(ATTENTION)
        .build(job.target.fold(queries.div_ceil(QUERIES) * kv_heads))
}
