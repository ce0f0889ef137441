//! Causal grouped-query attention over a KV cache, for any number of tokens and any head size.

use clearway_graph::CapturedOpKind;

use super::elementwise::{GRID, MATH};
use super::template::piece;
use super::{Job, Kernel, Source};

const SEEN: &str = include_str!("kernels/attention_seen.wgsl");
const ATTENTION: &str = include_str!("kernels/attention.wgsl");

/// Constant of the op: rows of a block.
const BLOCK: usize = 3;
/// Operand of the op: blocks of each sequence.
pub(super) const BLOCKS: usize = 5;

/// Queries of a workgroup, as in the text.
const QUERIES: u64 = 16;

/// Elements of a head in a chunk, as in the text.
const CHUNK: u32 = 64;

pub(super) fn lower(job: &Job<'_>) -> Kernel {
    let ([_, tokens, heads, head], kv_heads) =
        (job.layout(0).shape4(), u64::from(job.layout(1).shape4()[2]));
    let queries = u64::from(tokens) * (u64::from(heads) / kv_heads);
    with_sinks(with_cache(Source::new(job)), "start")
        .constant("CHUNKS", head.div_ceil(CHUNK))
        .body(GRID)
        .body(MATH)
        .body(ATTENTION)
        .build(job.target.fold(queries.div_ceil(QUERIES) * kv_heads))
}

/// Adds what finds the rows that a token sees: in a cache that is one sequence, or through a table of blocks.
pub(super) fn with_cache<'a>(source: Source<'a>) -> Source<'a> {
    let job = source.job();
    let source = match in_blocks(job) {
        true => source
            .constant("BLOCK", job.params[BLOCK])
            .body(include_str!("kernels/attention_blocks.wgsl")),
        false => source.body(include_str!("kernels/attention_whole.wgsl")),
    };
    source.body(SEEN)
}

/// Adds what a part of a kernel does with sinks, or without them.
pub(super) fn with_sinks<'a>(source: Source<'a>, part: &str) -> Source<'a> {
    let text = match source.job().kind == CapturedOpKind::AttentionSinks {
        true => include_str!("kernels/attention_sinks.wgsl"),
        false => include_str!("kernels/attention_no_sinks.wgsl"),
    };
    source.body(piece(text, part).unwrap_or_default())
}

/// Whether the cache lies in blocks.
pub(super) fn in_blocks(job: &Job<'_>) -> bool {
    job.params[BLOCK] > 0
}

/// About how many tokens of one sequence stand together.
pub(super) fn run(job: &Job<'_>) -> u32 {
    let tokens = job.layout(0).shape4()[1];
    if in_blocks(job) { tokens.div_ceil(job.layout(BLOCKS).rows() as u32) } else { tokens }
}
