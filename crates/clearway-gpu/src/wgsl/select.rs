//! Ops that pick: rows by index, the largest elements, the best experts.
//!
//! Order: NaN first, then larger before smaller, of equals the lower index first.

use super::elementwise::{self, GRID, MATH};
use super::planar::taken;
use super::rows::subgroups;
use super::{Job, Kernel, Source, blocks};
use crate::ops::NO_INDEX;

const ORDER: &str = include_str!("kernels/order.wgsl");
const ARG_MAX: &str = include_str!("kernels/arg_max.wgsl");
const RANK: &str = include_str!("kernels/rank.wgsl");
const RADIX: &str = include_str!("kernels/radix.wgsl");
const TOP_K: &str = include_str!("kernels/top_k.wgsl");
const EXPERT_ORDER: &str = include_str!("kernels/expert_order.wgsl");
const ROUTER: &str = include_str!("kernels/router.wgsl");

/// Longest row whose elements count all that are before them.
const SHORT: u32 = 1024;

/// Elements of a longer row that are chosen at a time.
const CHOSEN: u32 = 512;

/// Rows of a table; zeros where there is no such row.
pub(super) fn gather(job: &Job<'_>) -> Kernel {
    let elems = job.layout(2).elems() as u64;
    if job.dtype(0).is_quantised() {
        let apply = include_str!("kernels/gather_blocks.wgsl");
        let source = blocks::decoder(Source::new(job), job, 0).body(apply);
        return elementwise::each(job, source, elems / 4);
    }
    let apply = include_str!("kernels/gather.wgsl");
    let source = Source::new(job).body(&taken(job.operands[0].rows)).body(apply);
    elementwise::each(job, source, elems)
}

pub(super) fn arg_max(job: &Job<'_>) -> Kernel {
    let x = job.layout(0);
    Source::new(job)
        .constant("WIDTH", job.target.row_width(x.cols()))
        .constant("NO_INDEX", NO_INDEX)
        .body(GRID)
        .body(ORDER)
        .body(ARG_MAX)
        .build(job.target.fold(x.rows() as u64))
}

pub(super) fn top_k(job: &Job<'_>) -> Kernel {
    choose(job, Source::new(job), TOP_K)
}

/// A workgroup for each expert, and one for ids beyond the last.
pub(super) fn expert_order(job: &Job<'_>) -> Kernel {
    let width = job.target.width(1024);
    let source = Source::new(job).constant("WIDTH", width).body(GRID).body(EXPERT_ORDER);
    source.build(job.target.fold(u64::from(job.params[0]) + 1))
}

pub(super) fn router(job: &Job<'_>) -> Kernel {
    choose(job, Source::new(job).body(MATH).body(subgroups(job.target)), ROUTER)
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
