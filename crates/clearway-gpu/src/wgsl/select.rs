//! Ops that pick: rows by index, the largest elements, the best experts.
//!
//! Order: NaN first, then larger before smaller, of equals the lower index first.

use clearway_graph::DType;

use super::elementwise::{self, GRID, MATH};
use super::planar::taken;
use super::rows::subgroups;
use super::template::{front, piece};
use super::{Job, Kernel, Source, blocks};
use crate::ops::NO_INDEX;

const ORDER: &str = include_str!("kernels/order.wgsl");
const ARG_MAX: &str = include_str!("kernels/arg_max.wgsl");
const RANK: &str = include_str!("kernels/rank.wgsl");
const RADIX: &str = include_str!("kernels/radix.wgsl");
const TOP_K: &str = include_str!("kernels/top_k.wgsl");
const TOP_K_SHARED: &str = include_str!("kernels/top_k_shared.wgsl");
const EXPERT_ORDER: &str = include_str!("kernels/expert_order.wgsl");
const ROUTER_SHARES: &str = include_str!("kernels/router_shares.wgsl");
const ROUTER: &str = include_str!("kernels/router.wgsl");

/// Longest row whose elements count all that are before them.
const SHORT: u32 = 1024;

/// Elements of a longer row that are chosen at a time.
const CHOSEN: u32 = 512;

/// Workgroups that share rows, for each processor.
const SHARERS: u32 = 2;

/// Rows of a table; zeros where there is no such row.
pub(super) fn gather(job: &Job<'_>) -> Kernel {
    let elems = job.layout(2).elems() as u64;
    if job.dtype(0).is_quantised() && job.dtype(0) != DType::C8 {
        let apply = include_str!("kernels/gather_blocks.wgsl");
        let source = blocks::decoder(Source::new(job), job, 0).body(apply);
        return elementwise::each(job, source, elems / 4);
    }
    let apply = include_str!("kernels/gather.wgsl");
    let source = Source::new(job).body(&taken(job.operands[0].rows)).body(apply);
    elementwise::each(job, source, elems)
}

/// Several workgroups share a long row where there are fewer rows than processors.
pub(super) fn arg_max(job: &Job<'_>) -> Kernel {
    let x = job.layout(0);
    let (rows, cols) = (x.rows() as u64, x.cols() as u32);
    let width = job.target.row_width(x.cols());
    // Four loads of each invocation make a workgroup worth its ticket.
    let most = u64::from(SHARERS * job.target.processors) / rows.max(1);
    let splits = (cols / (4 * width)).min(u32::try_from(most).unwrap_or(u32::MAX));
    let splits = if job.target.tickets && splits > 1 { splits } else { 1 };
    let span = cols.div_ceil(splits).next_multiple_of(width);
    let splits = cols.div_ceil(span).max(1);
    let source = Source::new(job);
    let source = if splits > 1 { source.baked() } else { source };
    let source = source
        .constant("WIDTH", width)
        .constant("SPLITS", splits)
        .constant("SPAN", span)
        .constant("NO_INDEX", NO_INDEX)
        .body(GRID)
        .body(ORDER)
        .body(front(ARG_MAX));
    let part = if splits > 1 { "shared" } else { "whole" };
    let source = source.body(piece(ARG_MAX, part).unwrap_or_default());
    let entries = rows * u64::from(splits);
    let source = match splits {
        1 => source,
        _ => source.scratch_in_words(8 * entries, rows as u32),
    };
    source.build(job.target.fold(entries))
}

pub(super) fn top_k(job: &Job<'_>) -> Kernel {
    top_k_shared(job).unwrap_or_else(|| choose(job, Source::new(job), TOP_K))
}

/// Several workgroups to a row, if it is long and few of its elements are wanted.
fn top_k_shared(job: &Job<'_>) -> Option<Kernel> {
    /// Elements of a set: more make fewer sets to choose from, and more elements to read again.
    const SETS_OF: [u32; 2] = [16, 8];
    /// Sets that an invocation of the last workgroup looks after.
    const MOST_KEPT: u32 = 32;
    let x = job.layout(0);
    let (rows, cols, wanted) = (x.rows(), x.cols() as u32, job.layout(2).cols() as u32);
    let width = job.target.width(1024);
    if width < 16 {
        return None;
    }
    // Key, place and rank of each element of the chosen sets lie in workgroup memory.
    let room = (job.target.shared_bytes / 16).min(2048);
    let set = SETS_OF.into_iter().find(|set| wanted * 5 / 4 <= room / set)?;
    let span = width * set;
    let splits = cols.div_ceil(span);
    let sets = u64::from(splits) * u64::from(width);
    let scratch = 8 * sets * rows as u64;
    if !job.target.tickets || !(2..=MOST_KEPT).contains(&splits) || scratch > 1 << 26 {
        return None;
    }
    let source = Source::new(job)
        .baked()
        .scratch_in_words(scratch, u32::try_from(rows).ok()?)
        .constant("WIDTH", width)
        .constant("SPLITS", splits)
        .constant("SET", set)
        .constant("SPAN", span)
        .constant("KEPT", splits)
        .constant("WANTED", wanted)
        .constant("MOST_SETS", room / set)
        .body(GRID)
        .body(ORDER)
        .body(TOP_K_SHARED);
    Some(source.build(job.target.fold(rows as u64 * u64::from(splits))))
}

/// A workgroup for each expert, and one for ids beyond the last.
pub(super) fn expert_order(job: &Job<'_>) -> Kernel {
    let width = job.target.width(1024);
    let source = Source::new(job).constant("WIDTH", width).body(GRID).body(EXPERT_ORDER);
    source.build(job.target.fold(u64::from(job.params[0]) + 1))
}

pub(super) fn router(job: &Job<'_>) -> Kernel {
    let source = Source::new(job).body(MATH).body(subgroups(job.target));
    choose(job, source, &[ROUTER_SHARES, ROUTER].concat())
}

/// The same with groups. The bias is a part of the text: it may be left out.
pub(super) fn router_groups(job: &Job<'_>) -> Kernel {
    let x = job.layout(0);
    let with_bias = "fn bias_of(i: u32) -> f32 { return get_bias(i); }";
    let bias = if job.operands.len() == 4 {
        with_bias
    } else {
        "fn bias_of(i: u32) -> f32 { return 0.0; }"
    };
    Source::new(job)
        .constant("WIDTH", job.target.width(256))
        .constant("CAPACITY", SHORT)
        .body(MATH)
        .body(subgroups(job.target))
        .body(GRID)
        .body(ORDER)
        .body(bias)
        .body(ROUTER_SHARES)
        .body(include_str!("kernels/router_groups.wgsl"))
        .build(job.target.fold(x.rows() as u64))
}

/// A workgroup for each row of operand 0, with the choice that suits its length.
fn choose(job: &Job<'_>, source: Source<'_>, body: &str) -> Kernel {
    let x = job.layout(0);
    let short = x.cols() <= SHORT as usize;
    let (capacity, text, wanted) = if short { (SHORT, RANK, 256) } else { (CHOSEN, RADIX, 1024) };
    source
        .constant("WIDTH", job.target.width(wanted))
        .constant("CAPACITY", capacity)
        .body(GRID)
        .body(ORDER)
        .body(text)
        .body(body)
        .build(job.target.fold(x.rows() as u64))
}
