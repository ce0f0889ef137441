//! Causal grouped-query attention over a KV cache, for any number of tokens and any head size.

use clearway_graph::CapturedOpKind;

use super::elementwise::{GRID, MATH};
use super::template::piece;
use super::{Job, Kernel, Source};

const SEEN: &str = include_str!("kernels/attention_seen.wgsl");
const ATTENTION: &str = include_str!("kernels/attention.wgsl");
const SPLIT: &str = include_str!("kernels/attention_split.wgsl");

/// All rows are those of one workgroup.
const WHOLE: &str = "
fn part_of(split: u32, from_row: u32, end_row: u32) -> vec2<u32> { return vec2<u32>(from_row, end_row); }
";

/// Constant of the op: rows of a block.
const BLOCK: usize = 3;
/// Operand of the op: blocks of each sequence.
pub(super) const BLOCKS: usize = 5;

/// Queries of a workgroup, as in the text.
const QUERIES: u64 = 16;

/// Elements of a head in a chunk, as in the text.
const CHUNK: u32 = 64;

/// Rows of the cache in a block, as in the text, and fewest blocks that a workgroup should have.
const KEYS: u32 = 32;
const FEWEST_BLOCKS: u32 = 2;

/// Workgroups that share the rows of a tile at most.
const MOST_SPLITS: u64 = 64;

/// Workgroups for a processor, up to which rows are shared.
const GROUPS: u64 = 2;

pub(super) fn lower(job: &Job<'_>) -> Kernel {
    let ([_, tokens, heads, head], kv_heads) =
        (job.layout(0).shape4(), u64::from(job.layout(1).shape4()[2]));
    let queries = u64::from(tokens) * (u64::from(heads) / kv_heads);
    let units = queries.div_ceil(QUERIES) * kv_heads;
    let splits = splits(job, units);
    let value_chunks = (job.layout(2).cols() as u32).div_ceil(CHUNK);
    let source = with_sinks(with_cache(Source::new(job)), "start")
        .constant("CHUNKS", head.div_ceil(CHUNK))
        .constant("VALUE_CHUNKS", value_chunks)
        .constant("SPLITS", splits as u32)
        .body(GRID)
        .body(MATH);
    let (part, join) = match splits {
        1 => (WHOLE, ""),
        _ => (piece(SPLIT, "part").unwrap_or_default(), piece(SPLIT, "join").unwrap_or_default()),
    };
    let source = source.body(part).body(&ATTENTION.replace("    // JOIN\n", join));
    let entry = u64::from(CHUNK * value_chunks + 2) * 4;
    let source = match splits {
        1 => source,
        _ => source.scratch(units * splits * QUERIES * entry, units as u32),
    };
    source.build(job.target.fold(units * splits))
}

/// Workgroups that share the rows of each of so many tiles. Rows are shared where few tiles would leave the device idle, and where
/// a tile has one token, so that where a row goes depends on the position of that token alone.
fn splits(job: &Job<'_>, units: u64) -> u64 {
    let [_, _, heads, _] = job.layout(0).shape4();
    let kv_heads = job.layout(1).shape4()[2];
    let alone = u64::from(heads / kv_heads).is_multiple_of(QUERIES);
    let sinks = job.kind == CapturedOpKind::AttentionSinks;
    if !alone || sinks || !job.target.tickets || u32::try_from(units).is_err() {
        return 1;
    }
    let most = u64::from(rows_of(job).div_ceil(FEWEST_BLOCKS * KEYS)).min(MOST_SPLITS);
    (GROUPS * u64::from(job.target.processors) / units).clamp(1, most.max(1))
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

/// Whether heads of values are as large as those of keys.
pub(super) fn is_square(job: &Job<'_>) -> bool {
    job.layout(1).cols() == job.layout(2).cols()
}

/// Whether the cache lies in blocks.
pub(super) fn in_blocks(job: &Job<'_>) -> bool {
    job.params[BLOCK] > 0
}

/// Rows that a sequence can have.
pub(super) fn rows_of(job: &Job<'_>) -> u32 {
    match in_blocks(job) {
        true => job.layout(BLOCKS).cols() as u32 * job.params[BLOCK],
        false => job.layout(1).shape4()[1],
    }
}

/// About how many tokens of one sequence stand together.
pub(super) fn run(job: &Job<'_>) -> u32 {
    let tokens = job.layout(0).shape4()[1];
    if in_blocks(job) { tokens.div_ceil(job.layout(BLOCKS).rows() as u32) } else { tokens }
}
