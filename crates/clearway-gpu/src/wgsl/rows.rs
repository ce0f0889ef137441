//! Ops on rows: norms, softmax, rotary embedding, cache writes.

use clearway_graph::DType;

use super::elementwise::{self, GRID, MATH};
use super::planes::CHUNK;
use super::{Job, Kernel, Source, Target};
use crate::error::Result;

const SUBGROUPS: &str = include_str!("kernels/subgroups.wgsl");
const SUBGROUPS_ALONE: &str = include_str!("kernels/subgroups_alone.wgsl");
const NORM: &str = include_str!("kernels/norm.wgsl");
const NORM_OF_FEW: &str = include_str!("kernels/norm_of_few.wgsl");
const LAYER_NORM: &str = include_str!("kernels/layer_norm.wgsl");
const SOFTMAX: &str = include_str!("kernels/softmax.wgsl");
const CACHE: &str = include_str!("kernels/cache.wgsl");

/// Invocations of a workgroup that writes to a cache.
const CACHE_WIDTH: u32 = 256;

/// Operands of what is fused around a norm; each may be one row.
#[derive(Clone, Copy, Default)]
pub(super) struct Around {
    /// Is added before.
    pub(super) addend: Option<usize>,
    /// Is what the norm is multiplied by.
    pub(super) weight: Option<usize>,
    /// Is added behind.
    pub(super) residual: Option<usize>,
}

/// Root mean square norms, with what is fused around them. Fused or not, an element goes through the
/// same steps.
pub(super) fn norm(job: &Job<'_>, around: Around) -> Result<Kernel> {
    let Around { addend, weight, residual } = around;
    let mut job = job.clone();
    for operand in [addend, weight, residual].into_iter().flatten() {
        job = job.spread(operand)?;
    }
    let job = &job;
    let taken = match addend {
        None => "get_x(at_x(c))",
        Some(_) => "get_a(at_a(c)) + get_b(at_b(c))",
    };
    let kept = job
        .kind
        .spec()
        .is_some_and(|spec| spec.arity() == (job.operands.len() - 1, job.operands.len()));
    let keep = if kept { "put_sum(at_sum(c), v);" } else { "" };
    let (weight_of, weigh) = weight.map_or(("1.0", ""), |_| ("get_w(at_w(c))", " * w"));
    let (residual_of, join) = residual.map_or(("0.0", ""), |_| ("get_c(at_c(c))", " + r"));
    let steps = format!(
        "fn taken(c: vec4<u32>) -> f32 {{ return {taken}; }}
fn weight_of(c: vec4<u32>) -> f32 {{ return {weight_of}; }}
fn residual_of(c: vec4<u32>) -> f32 {{ return {residual_of}; }}
fn put(c: vec4<u32>, v: f32, factor: f32, w: f32, r: f32) {{
    let y = v * factor{weigh}{join};
    {keep}
    put_y(at_y(c), y);
}}\n"
    );
    let source = Source::new(job).body(&steps);
    Ok(match elements_of_few(job, weight) {
        Some(elements) => norm_of_few(job, source, weight, elements),
        None => on_rows(job, source, NORM),
    })
}

/// Rows up to which a norm waits for the dispatches before it and is counted.
const FEW_ROWS: usize = 64;
/// Elements of a row that an invocation has in registers, at most.
const MOST_ELEMENTS: u32 = 16;

/// How many elements of a row an invocation has, where a norm is counted. Its weight must be a binding of its own, since it
/// is read before the wait.
fn elements_of_few(job: &Job<'_>, weight: Option<usize>) -> Option<u32> {
    let target = job.target;
    let layout = job.layout(job.result());
    let width = target.row_width(layout.cols());
    let elements = (layout.cols() as u32).div_ceil(width);
    let alone = weight.is_none_or(|weight| {
        let shared = job.operands.iter().any(|operand| operand.same_as == Some(weight));
        job.operands[weight].same_as.is_none() && !shared
    });
    let few = layout.rows() <= FEW_ROWS && elements <= MOST_ELEMENTS;
    let whole = target.subgroup > 1 && width.is_multiple_of(target.subgroup);
    (target.counters && few && whole && alone).then_some(elements)
}

fn norm_of_few(job: &Job<'_>, source: Source<'_>, weight: Option<usize>, elements: u32) -> Kernel {
    let layout = job.layout(job.result());
    let width = job.target.row_width(layout.cols());
    let source = if layout.rows() == 1 { source.baked() } else { source };
    weight
        .into_iter()
        .fold(source, Source::early)
        .constant("WIDTH", width)
        .constant("WG", width)
        .constant("SUBGROUP", job.target.subgroup)
        .constant("ELEMENTS", elements)
        .body(GRID)
        .body(SUBGROUPS)
        .body(NORM_OF_FEW)
        .counted()
        .build([layout.rows() as u32, 1, 1])
}

pub(super) fn layer_norm(job: &Job<'_>) -> Kernel {
    on_rows(job, Source::new(job), LAYER_NORM)
}

pub(super) fn softmax(job: &Job<'_>) -> Kernel {
    on_rows(job, Source::new(job).body(MATH), SOFTMAX)
}

/// Sums and maxima over a workgroup.
pub(super) fn subgroups(target: &Target) -> &'static str {
    if target.subgroup > 1 { SUBGROUPS } else { SUBGROUPS_ALONE }
}

/// A workgroup for each row of the result.
fn on_rows(job: &Job<'_>, source: Source<'_>, body: &str) -> Kernel {
    let layout = job.layout(job.result());
    source
        .constant("WIDTH", job.target.row_width(layout.cols()))
        .body(GRID)
        .body(subgroups(job.target))
        .body(body)
        .build(job.target.fold(layout.rows() as u64))
}

pub(super) fn rope(job: &Job<'_>) -> Kernel {
    let apply = "fn put_result(c: vec4<u32>, v: f32) { put_y(at_y(c), v); }
fn extent() -> vec4<u32> { return vec4<u32>(P.x.shape.xyz, items()); }
fn apply(c: vec4<u32>) { rotate(c.y, c.z, c.w, c.y); }\n";
    let source = rotation(job).body(apply);
    elementwise::each(job, source, (job.layout(0).rows() * items(job)) as u64)
}

pub(super) fn rope_kv_write(job: &Job<'_>) -> Kernel {
    if is_rounded(job) {
        let text = "fn cache_row(token: u32) -> u32 { return get_kv_positions(token); }
fn element_of(token: u32, head: u32, i: u32) -> f32 { return rotated(token, head, i); }\n";
        let source = angles(Source::new(job), job, 0).body(include_str!("kernels/rotated.wgsl"));
        return chunks_to_cache(job, source.body(text));
    }
    let text = "fn put_result(c: vec4<u32>, v: f32) { put_cache(at_cache(c), v); }
fn head_items() -> u32 { return items(); }
fn cache_row(token: u32) -> u32 { return get_kv_positions(token); }
fn store_item(token: u32, head: u32, item: u32, row: u32) { rotate(token, head, item, row); }\n";
    let source = rotation(job).body(text);
    to_cache(job, source, items(job))
}

pub(super) fn kv_write(job: &Job<'_>) -> Kernel {
    if is_rounded(job) {
        let text = "fn cache_row(token: u32) -> u32 { return get_positions(token); }
fn element_of(token: u32, head: u32, i: u32) -> f32 { return get_x(at_x(vec4<u32>(0u, token, head, i))); }\n";
        return chunks_to_cache(job, Source::new(job).body(text));
    }
    let text = "fn head_items() -> u32 { return P.x.shape.w; }
fn cache_row(token: u32) -> u32 { return get_positions(token); }
fn store_item(token: u32, head: u32, item: u32, row: u32) {
    move_element(at_cache(vec4<u32>(0u, row, head, item)), at_x(vec4<u32>(0u, token, head, item)));
}\n";
    let source = Source::new(job).line(&job.mover("move_element", 0, 2)).body(text);
    to_cache(job, source, job.layout(0).cols())
}

/// Whether the cache holds chunks of 8 bits.
fn is_rounded(job: &Job<'_>) -> bool {
    job.dtype(job.result()) == DType::C8
}

/// As [`to_cache`], an invocation to a chunk of what `element_of` gives.
fn chunks_to_cache(job: &Job<'_>, source: Source<'_>) -> Kernel {
    let source = source.body(include_str!("kernels/cache_chunks.wgsl"));
    to_cache(job, source, job.layout(0).cols() / CHUNK)
}

/// Workgroups for each token, as many as its heads with so many items need.
fn to_cache(job: &Job<'_>, source: Source<'_>, items: usize) -> Kernel {
    let width = job.target.width(CACHE_WIDTH);
    let shape = job.layout(0).shape4();
    let parts = (u64::from(shape[2]) * items as u64).div_ceil(u64::from(width));
    let groups = job.target.fold(parts * u64::from(shape[1]));
    source.constant("WIDTH", width).body(GRID).body(CACHE).build(groups)
}

fn rotation<'a>(job: &'a Job<'a>) -> Source<'a> {
    angles(Source::new(job), job, 0).body(include_str!("kernels/rotate.wgsl"))
}

/// Adds the function `angle_of(pair, position)`; the constants of the rotation are those of the op from
/// `first` on.
pub(super) fn angles<'a>(source: Source<'a>, job: &Job<'_>, first: usize) -> Source<'a> {
    let pairs = (job.params[first] / 2).max(1);
    let bits = u32::BITS - (pairs - 1).leading_zeros();
    let turns = turns(&job.params[first..], bits);
    // What is written into the text need not be waited for, and loops of known length need not be loops.
    let (source, parts, length) = match source.is_baked() {
        true => {
            let case = |(k, [high, low]): (usize, &[u32; 2])| {
                let words = format!("vec2<u32>({high}u, {low}u)");
                format!("        case {k}u: {{ return bitcast<vec2<f32>>({words}); }}\n")
            };
            let cases: String = turns.iter().enumerate().map(case).collect();
            let rest = "        default: { return vec2<f32>(); }\n";
            (source, format!("    switch k {{\n{cases}{rest}    }}\n"), format!("{bits}u"))
        }
        false => {
            // Behind the constants of the rotation.
            let (high, low) = (first + 5, first + 6);
            let parts = format!("return vec2<f32>(argf({high}u + 2u * k), argf({low}u + 2u * k));");
            let length = "32u - countLeadingZeros(pair)".into();
            (source.args(turns.as_flattened()), parts, length)
        }
    };
    let magnitude = match source.is_baked() {
        true => format!("bitcast<f32>({}u)", job.params[first + 4]),
        false => format!("argf({}u)", first + 4),
    };
    let source = source
        .body(&format!("fn magnitude() -> f32 {{ return {magnitude}; }}\n"))
        .body(&format!("fn parts(k: u32) -> vec2<f32> {{\n{parts}}}\n"))
        .body(&format!("fn bits_of(pair: u32) -> u32 {{ return {length}; }}\n"));
    source.body(include_str!("kernels/rope.wgsl"))
}

/// Items of a head: pairs that turn, and elements that stay.
fn items(job: &Job<'_>) -> usize {
    job.layout(0).cols() - job.params[0] as usize / 2
}

/// Frequencies for the kernel, which cannot compute them as exactly: the turns of pair 0 from one
/// position to the next, and the ratios of frequencies of pairs that are a power of two apart, for `bits`
/// of their number; each in two parts, the second what rounding took from the first.
fn turns(params: &[u32], bits: u32) -> Vec<[u32; 2]> {
    let (dims, base, scale) = (params[0], f32::from_bits(params[2]), f32::from_bits(params[3]));
    let ratio = |pairs: i32| f64::from(base).powf(-2.0 * f64::from(pairs).exp2() / f64::from(dims));
    let first = f64::from(scale) / std::f64::consts::TAU;
    std::iter::once(first)
        .chain((0..bits as i32).map(ratio))
        .map(|value| {
            let high = value as f32;
            [high.to_bits(), ((value - f64::from(high)) as f32).to_bits()]
        })
        .collect()
}
