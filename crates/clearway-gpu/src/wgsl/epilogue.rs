//! The epilogue of a product of few rows: what it does with its sums, and which rows of weights a team takes for that.
//!
//! Kernels call `weight_row` and `has_row` for the rows of a team, `early` when they load their first weights,
//! `prepare` while these are under way, and `finish_team` once for each row of activations. Those that can give a
//! rounded result call `close_early` at the start and `close_group` at the end.

use clearway_graph::{DType, Gate, Product, Slot};

use super::elementwise::MATH;
use super::{Job, Source, View, rows};

/// Whether a team takes two rows of weights that belong together: those of a pair that is rotated.
pub(super) fn in_pairs(job: &Job<'_>) -> bool {
    job.slot(Slot::Factors).is_some()
}

/// Adds the functions for a product that is not of experts.
pub(super) fn plain<'a>(source: Source<'a>, job: &Job<'_>) -> Source<'a> {
    let source = source.body(PLAIN).body(MATH).body(EARLY).body(&extra(job));
    match job.slot(Slot::Cache) {
        None if in_pairs(job) => rotated(source, job).body(NO_CACHE).body(TO_RESULT),
        Some(_) if in_pairs(job) => rotated(source, job).body(TO_CACHE),
        Some(_) => source
            .body(ANY_ROWS)
            .body(TO_CACHE)
            .constant("HEAD", head(job))
            .body(&finish(&format!("store(t, n / HEAD, n % HEAD, {}, row)", value(job)))),
        None => source.body(ANY_ROWS).body(NO_CACHE).body(&one_by_one(job)),
    }
}

/// Adds the functions for a product of experts; `x_row` says which activations a pair of token and
/// expert has.
pub(super) fn experts<'a>(source: Source<'a>, job: &Job<'_>) -> Source<'a> {
    let x_row = match job.layout(0).rank() {
        3 => "row_x(r)",
        _ => "row_x(r / P.ids.shape.w)",
    };
    source
        .body(EXPERTS)
        .body(EARLY)
        .body(&extra(job))
        .body(&format!("fn x_row(t: u32, r: u32) -> u32 {{ return {x_row}; }}\n"))
        .body(ANY_ROWS)
        .body(NO_CACHE)
        .body(&finish("put_y(row_y(expert.row) + n, select(0.0, sum, expert.chosen))"))
}

/// What a product makes of a sum, of the one with its second weights and of the extra operand.
fn value(job: &Job<'_>) -> String {
    let product = job.kind.product();
    match product.map_or(Gate::None, Product::gate) {
        Gate::Weights(activation) => format!("{}(sum) * other", activation.name()),
        Gate::Operand(activation) => format!("{}(sum) * extra", activation.name()),
        Gate::Ungated(activation) => format!("{}(sum)", activation.name()),
        Gate::None if job.slot(Slot::Addend).is_some() => "sum + extra".into(),
        Gate::None => "sum".into(),
    }
}

/// A sum goes to its element of the result.
fn one_by_one(job: &Job<'_>) -> String {
    let value = value(job);
    match (rounds(job), job.slot(Slot::Sum)) {
        (true, None) => finish(&format!("results[t * SPAN + n % SPAN] = {value}")),
        (true, Some(_)) => finish(&format!(
            "let value = {value};
    put_sum(row_sum(t) + n, value);
    results[t * SPAN + n % SPAN] = value"
        )),
        (false, _) => finish(&format!("put_y(row_y(t) + n, {value})")),
    }
}

/// What becomes of a sum of row `t` of activations and row `n` of weights.
fn finish(what: &str) -> String {
    format!(
        "fn finish(t: u32, n: u32, sum: f32, other: f32, extra: f32, row: u32, expert: Expert) {{
    {what};
}}\n"
    )
}

/// The operand that a sum meets at the end, if there is one.
fn extra(job: &Job<'_>) -> String {
    let text = if job.slot(Slot::Up).is_some() {
        "get_up(row_up(t) + n)"
    } else if let Some(c) = job.slot(Slot::Addend) {
        if job.layout(c).rows() == 1 { "get_c(n)" } else { "get_c(row_c(t) + n)" }
    } else {
        return "const EXTRA = false;\nfn extra_of(t: u32, n: u32) -> f32 { return 0.0; }\n".into();
    };
    format!("const EXTRA = true;\nfn extra_of(t: u32, n: u32) -> f32 {{ return {text}; }}\n")
}

/// Whether the result is to be rounded for the product that reads it.
pub(super) fn rounds(job: &Job<'_>) -> bool {
    job.dtype(job.result()) == DType::A8
}

/// Adds what a workgroup does when all of its teams are done, and what it asks for early for that.
pub(super) fn close<'a>(source: Source<'a>, job: &Job<'_>) -> Source<'a> {
    match (rounds(job), job.slot(Slot::NextNormWeight)) {
        (false, _) => source.body(NOTHING),
        (true, next) => {
            let weight = if next.is_some() { NORMED } else { AS_IT_IS };
            let rows = if job.layout(0).rows() == 1 { ONE_ROW } else { FEW_ROWS };
            source.view(job.result(), View::Quads).body(weight).body(ROUNDED).body(rows)
        }
    }
}

fn rotated<'a>(source: Source<'a>, job: &Job<'_>) -> Source<'a> {
    let first = job.kind.product().map_or(0, Product::rope_params);
    rows::angles(source, job, first)
        .constant("HEAD", head(job))
        .constant("TURNED", job.params[first] / 2)
        .line(&format!("const NEIGHBOURS = {};", job.params[first + 1] == 0))
        .body(PAIRS)
}

/// Elements of a head.
fn head(job: &Job<'_>) -> u32 {
    job.operands.last().map_or(1, |result| result.layout.cols() as u32)
}

const NOTHING: &str = "
fn close_early(place: u32, lid: u32) -> vec4<f32> { return vec4<f32>(); }
fn close_group(place: u32, lid: u32, weight: vec4<f32>) {}
";

/// The workgroup has SPAN elements of each row of the result, whole chunks. Eight lanes share a chunk, so that they stay
/// together.
const ROUNDED: &str = include_str!("kernels/epilogue/quantised.wgsl");

/// The weight of the norm comes early: each lane has at most one quad.
const ONE_ROW: &str = include_str!("kernels/epilogue/quantised_row.wgsl");

const FEW_ROWS: &str = include_str!("kernels/epilogue/quantised_rows.wgsl");

/// The row is to be divided by nothing.
const AS_IT_IS: &str = "
fn weight_of(n: u32) -> vec4<f32> { return vec4<f32>(1.0); }
fn part_of(v: vec4<f32>) -> f32 { return 1.0; }
";

/// The weight of the norm behind, and what a chunk adds to the mean square.
const NORMED: &str = include_str!("kernels/epilogue/normed.wgsl");

const PLAIN: &str = include_str!("kernels/epilogue/plain.wgsl");

/// Workgroups in z are pairs of token and expert.
const EXPERTS: &str = include_str!("kernels/epilogue/experts.wgsl");

/// What a team can ask for before it has anything to compute, so that it need not wait for it at the end: for the
/// row of activations whose sums a lane will finish. `prepare` computes with it while weights are under way.
const EARLY: &str = include_str!("kernels/epilogue/early.wgsl");

const NO_CACHE: &str = "
fn cache_row(t: u32) -> u32 { return 0u; }
";

const ANY_ROWS: &str = include_str!("kernels/epilogue/any_rows.wgsl");

/// A pair of elements of a head to a team: TURNED of them turn, the others stay as they are.
const PAIRS: &str = include_str!("kernels/epilogue/pairs.wgsl");

const TO_RESULT: &str = "
fn store(t: u32, head: u32, i: u32, v: f32, row: u32) { put_y(at_y(vec4<u32>(0u, t, head, i)), v); }
";

/// Where two tokens have one row the last one wins; a row beyond the cache is left out.
const TO_CACHE: &str = include_str!("kernels/epilogue/to_cache.wgsl");
