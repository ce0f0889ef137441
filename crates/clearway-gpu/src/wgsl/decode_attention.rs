//! Attention of single tokens over a long cache, split so that the whole device takes part.

use clearway_graph::{DType, Layout};

use super::elementwise::MATH;
use super::{Job, Kernel, Source, View};

/// Rows of the cache a workgroup takes.
const SPLIT: u32 = 64;
/// Invocations of a workgroup.
const WORKGROUP: u32 = 128;
/// Tokens at most: more are better off with queries in tiles.
const MAX_TOKENS: u32 = 4;

/// The kernel, if the cache lies so that there is one.
pub(super) fn lower(job: &Job<'_>) -> Option<Kernel> {
    let [_, tokens, heads, head] = job.layout(0).shape4();
    let [_, rows, kv_heads, _] = job.layout(1).shape4();
    let share = heads / kv_heads;
    let team = head / 8;
    let fits = head.is_multiple_of(8)
        && team.is_power_of_two()
        && team <= job.target.subgroup
        && tokens <= MAX_TOKENS
        && share <= 8
        && WORKGROUP <= job.target.max_invocations;
    if !fits || !(1..=2).all(|cache| is_in_eights(job, cache)) {
        return None;
    }
    let teams = WORKGROUP / team;
    let part = share * (head + 2);
    let splits = rows.div_ceil(SPLIT);
    if teams * part * 4 + 16 > job.target.shared_bytes
        || !SPLIT.is_multiple_of(teams)
        || splits > job.target.max_groups
    {
        return None;
    }
    let pairs = tokens * kv_heads;
    let source = Source::new(job)
        .view(1, View::Quads)
        .view(2, View::Quads)
        .scratch(u64::from(pairs * splits * part) * 4, pairs)
        .constant("HEAD", head)
        .constant("SHARE", share)
        .constant("SPLIT", SPLIT)
        .constant("MAX_SPLITS", splits)
        .constant("WG", WORKGROUP)
        .constant("TEAM", team)
        .body(MATH)
        .body(include_str!("kernels/attention_decode.wgsl"));
    Some(source.build([splits, kv_heads, tokens]))
}

/// Whether a cache is f16 with every head at a multiple of 16 bytes.
fn is_in_eights(job: &Job<'_>, operand: usize) -> bool {
    let layout: &Layout = job.layout(operand);
    let strides = layout.strides4();
    job.dtype(operand) == DType::F16
        && job.operands[operand].is_aligned()
        && strides[1].is_multiple_of(8)
        && strides[2].is_multiple_of(8)
}
