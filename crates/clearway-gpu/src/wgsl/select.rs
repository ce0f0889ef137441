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
const ROUTER_SHARES: &str = include_str!("kernels/router_shares.wgsl");
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
