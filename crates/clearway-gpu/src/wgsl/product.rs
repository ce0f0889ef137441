//! Products with weights of any type, read as the layout says.
//!
//! Few rows, and rows of experts: a subgroup to each element of the result. Many rows: tiles, or where those would be few, a
//! subgroup to 8 by 8 elements.

use clearway_graph::Slot;

use super::elementwise::GRID;
use super::matvec::in_quads;
use super::template::fill;
use super::{Job, Kernel, Source, View, blocks};
use crate::error::Result;

const DOT: &str = include_str!("kernels/dot.wgsl");
const TILED: &str = include_str!("kernels/tiled.wgsl");

/// Rows up to which each element of the result is summed on its own.
const FEW_ROWS: usize = 8;

const DOT_WIDTH: u32 = 256;

/// `y = x * w` transposed, with an addend if the op has one.
pub(super) fn matmul(job: &Job<'_>) -> Result<Kernel> {
    let addend = job.slot(Slot::Addend);
    let job = &addend.map_or_else(|| Ok(job.clone()), |addend| job.spread(addend))?;
    let add = addend.map_or("", |_| " + get_c(at_c(vec4<u32>(0u, 0u, row, col)))");
    let text = format!(
        "fn x_row(row: u32) -> u32 {{ return row_x(row); }}
fn has_weights(row: u32) -> bool {{ return true; }}
fn w_row(row: u32, col: u32) -> u32 {{ return row_w(col); }}
fn finish(row: u32, col: u32, sum: f32) {{ put_y(row_y(row) + col, sum{add}); }}\n"
    );
    let (rows, outer) = (job.layout(0).rows(), job.layout(1).rows());
    // 4 by 4 results to an invocation.
    let tile = if job.target.max_invocations >= 256 { 64 } else { 32 };
    let tiles = rows.div_ceil(tile) as u64 * outer.div_ceil(tile) as u64;
    let in_quads = |operand: &usize| in_quads(job, *operand);
    let floats = [0, 1].iter().all(in_quads) && job.layout(0).cols().is_multiple_of(4);
    if rows > FEW_ROWS && tiles < u64::from(job.target.processors) && floats {
        return Ok(narrow(job, &text, rows, outer));
    }
    let source = operands(Source::new(job), job).body(&text);
    if rows <= FEW_ROWS {
        return Ok(dot(job, source, rows, outer));
    }
    let source = source.constant("TILE", tile as u32).body(GRID).body(TILED);
    Ok(source.build(job.target.fold(tiles)))
}

/// Many rows of f32 with few rows of weights, such as those of a router.
fn narrow(job: &Job<'_>, text: &str, rows: usize, outer: usize) -> Kernel {
    let width = job.target.width(DOT_WIDTH);
    let subgroups = u64::from((width / job.target.subgroup.max(1)).max(1));
    let parts = rows.div_ceil(8) as u64 * outer.div_ceil(8) as u64;
    Source::new(job)
        .view(0, View::Quads)
        .view(1, View::Quads)
        .constant("WIDTH", width)
        .body(text)
        .body(GRID)
        .body(include_str!("kernels/narrow.wgsl"))
        .build(job.target.fold(parts.div_ceil(subgroups)))
}

/// A row of `x` serves all experts of its token, or each has one of its own.
pub(super) fn matmul_experts(job: &Job<'_>) -> Kernel {
    let used = job.layout(2).shape4()[3];
    let sharers = if job.layout(0).rank() == 2 { used } else { 1 };
    let text = include_str!("kernels/expert_rows.wgsl");
    let source = operands(Source::new(job).args(&[sharers]), job).body(text);
    let y = job.layout(job.result());
    dot(job, source, y.rows(), y.cols())
}

fn dot(job: &Job<'_>, source: Source<'_>, rows: usize, outer: usize) -> Kernel {
    let width = job.target.width(DOT_WIDTH);
    let per_group = (width / job.target.subgroup.max(1)).max(1);
    let groups = rows as u64 * outer.div_ceil(per_group as usize) as u64;
    source
        .constant("WIDTH", width)
        .constant("ROWS", per_group)
        .body(GRID)
        .body(DOT)
        .build(job.target.fold(groups))
}

/// Adds `x_four` and `w_four`: four elements of a row from element `k` on, zeros behind its end.
fn operands<'a>(source: Source<'a>, job: &Job<'_>) -> Source<'a> {
    if job.dtype(1).is_quantised() {
        // Rows are whole blocks: nothing is behind an end.
        let text = "fn x_four(x: u32, k: u32, inner: u32) -> vec4<f32> {
    let i = x + k;
    return vec4<f32>(get_x(i), get_x(i + 1u), get_x(i + 2u), get_x(i + 3u));
}
fn w_four(w: u32, k: u32, inner: u32) -> vec4<f32> { return element_four(w + k); }\n";
        return blocks::decoder(source, job, 1).body(text);
    }
    ["x", "w"].into_iter().fold(source, |source, name| {
        source.body(&fill(include_str!("kernels/product_four.wgsl"), &[("name", name)]))
    })
}
