//! Ops on one element at a time: maps, sums, copies, fills, joins.

use clearway_graph::{DType, Map, MapInputs};

use super::{Job, Kernel, Source, View, blocks, template};
use crate::error::Result;
use crate::ops;

pub(super) const GRID: &str = include_str!("kernels/grid.wgsl");
pub(super) const MATH: &str = include_str!("kernels/math.wgsl");
const EACH: &str = include_str!("kernels/elementwise.wgsl");
const EIGHTS: &str = include_str!("kernels/elementwise_eights.wgsl");

/// Elements of a workgroup.
const WIDTH: u32 = 256;

/// Workgroups to a processor before invocations take several elements.
const PER_PROCESSOR: u64 = 64;

/// The extent over all elements of the result.
const OF_RESULT: &str = "fn extent() -> vec4<u32> { return P.y.shape; }\n";

/// An element-wise op. Operand `b` may be one row.
pub(super) fn map(job: &Job<'_>, map: Map) -> Result<Kernel> {
    let value = ops::map::row(map).wgsl;
    if in_eights(job) {
        return Ok(eights(job, map.inputs() != MapInputs::One, value));
    }
    Ok(match map.inputs() {
        MapInputs::One => {
            on_elements(job, &format!("let x = get_x(at_x(c)); put_y(at_y(c), {value});"))
        }
        MapInputs::Two => two(&job.spread(1)?, ["a", "b"], value),
        MapInputs::Gated => two(job, ["gate", "up"], value),
    })
}

fn two(job: &Job<'_>, [a, b]: [&str; 2], value: &str) -> Kernel {
    let load = format!("let a = get_{a}(at_{a}(c)); let b = get_{b}(at_{b}(c));");
    on_elements(job, &format!("{load} put_y(at_y(c), {value});"))
}

/// Elements that an invocation takes at once where operands allow it.
const EIGHT: u64 = 8;

/// Whether all operands lie in one piece, in units of eight elements that no two share, and there are enough for the device.
fn in_eights(job: &Job<'_>) -> bool {
    let result = job.layout(job.result());
    let whole = |dtype| match dtype {
        DType::F32 => Some(EIGHT),
        DType::A16 => Some(32),
        _ => None,
    };
    let enough = u64::from(job.target.processors.max(1)) * u64::from(WIDTH) * EIGHT;
    elems(job) >= enough
        && job.operands.iter().all(|operand| {
            let layout = &operand.layout;
            let in_place = operand.same_as.is_none_or(|first| job.dtype(first) == layout.dtype());
            whole(layout.dtype()).is_some_and(|unit| elems(job).is_multiple_of(unit))
                && layout.elems() == result.elems()
                && layout.is_dense()
                && operand.is_aligned()
                && in_place
        })
}

/// An element-wise op of dense operands, eight elements at a time.
fn eights(job: &Job<'_>, two: bool, value: &str) -> Kernel {
    let mut source = Source::new(job);
    let mut text = String::new();
    for (index, operand) in job.operands.iter().enumerate() {
        source = source.view(index, View::Quads);
        let array = job.operands[operand.same_as.unwrap_or(index)].name;
        let piece = match (job.dtype(index), index == job.result()) {
            (DType::F32, false) => "load floats",
            (DType::F32, true) => "store floats",
            (_, false) => "load halves",
            (_, true) => "store halves",
        };
        let name = match (index, two) {
            (0, true) => "a",
            (1, true) => "b",
            (0, false) => "x",
            _ => "y",
        };
        let piece = template::piece(EIGHTS, piece).unwrap_or_default();
        text.push_str(&template::fill(piece, &[("name", name), ("array", array)]));
    }
    let inputs = if two { "two inputs" } else { "one input" };
    let piece = template::piece(EIGHTS, inputs).unwrap_or_default();
    text.push_str(&template::fill(piece, &[("value", value)]));
    each(job, source.body(MATH).body(&text), elems(job) / EIGHT)
}

pub(super) fn fill(job: &Job<'_>) -> Kernel {
    on_elements(job, "put_y(at_y(c), argf(0u));")
}

/// Calls `apply`, which `source` has beside `extent`, for so many items.
pub(super) fn each(job: &Job<'_>, source: Source<'_>, items: u64) -> Kernel {
    let width = job.target.width(WIDTH);
    let groups = items.div_ceil(u64::from(width));
    let enough = u64::from(job.target.processors.max(1)) * PER_PROCESSOR;
    let groups = groups.min(enough.max(groups.div_ceil(4)));
    source.constant("WIDTH", width).body(GRID).body(EACH).build(job.target.fold(groups))
}

/// A kernel that does this at the coordinates `c` of every element of the result.
fn on_elements(job: &Job<'_>, body: &str) -> Kernel {
    let apply = format!("fn apply(c: vec4<u32>) {{ {body} }}\n");
    let source = Source::new(job).body(MATH).body(OF_RESULT).body(&apply);
    each(job, source, elems(job))
}

fn elems(job: &Job<'_>) -> u64 {
    job.layout(job.result()).elems() as u64
}

pub(super) fn copy(job: &Job<'_>) -> Kernel {
    if !job.dtype(0).is_quantised() {
        let apply = "fn apply(c: vec4<u32>) { move_element(at_y(c), at_x(c)); }\n";
        let source = Source::new(job).line(&job.mover("move_element", 0, 1));
        return each(job, source.body(OF_RESULT).body(apply), elems(job));
    }
    let apply = include_str!("kernels/copy_blocks.wgsl");
    let source = blocks::decoder(Source::new(job), job, 0).body(apply);
    each(job, source, elems(job) / 4)
}

pub(super) fn concat(job: &Job<'_>) -> Kernel {
    let apply = include_str!("kernels/concat.wgsl");
    let source = Source::new(job).line(&job.mover("move_first", 0, 2));
    let source = source.line(&job.mover("move_second", 1, 2));
    each(job, source.body(OF_RESULT).body(apply), elems(job))
}

/// Experts are added in the order of the router, and then what is behind them.
pub(super) fn expert_sum(job: &Job<'_>, behind: &str) -> Kernel {
    let text = format!(
        "var sum = 0.0;
    for (var slot = 0u; slot < P.weights.shape.w; slot++) {{
        let weight = get_weights(row_weights(c.z) + slot);
        sum = fma(weight, get_x(at_x(vec4<u32>(0u, c.z, slot, c.w))), sum);
    }}
    put_y(at_y(c), sum{behind});"
    );
    on_elements(job, &text)
}
