//! The epilogue of a product of few rows: what it does with its sums, and which rows of weights a team takes for that.
//!
//! Kernels call `weight_row` and `has_row` for the rows of a team, `early` when they load their first weights,
//! `prepare` while these are under way, and `finish_team` once for each row of activations. Those that can give a
//! rounded result call `close_early` at the start, and all call `close_group` at the end.
//!
//! Where a sum is nothing without others, as those of a head that is normed, workgroups side by side are a unit: each
//! leaves its sums, and the one that has them all goes on with them in `close_group` ([`Unit`]).

use clearway_graph::{DType, Gate, Product, Slot};

use super::elementwise::MATH;
use super::planes::CHUNK;
use super::template::piece;
use super::{Job, MAX_BINDINGS, Source, View, rows};

/// Whether a team takes two rows of weights that belong together: those of a pair that is rotated.
pub(super) fn in_pairs(job: &Job<'_>) -> bool {
    job.slot(Slot::Factors).is_some() && job.slot(Slot::HeadNormWeight).is_none()
}

/// Workgroups side by side that have what goes together.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    /// Rows of weights of a workgroup.
    pub(super) span: u32,
    /// Rows of weights of the product.
    pub(super) outer: u32,
    pub(super) cols: u32,
    pub(super) workgroup: u32,
}

/// Elements of a head that is normed, of a product that does that.
pub(super) fn normed_head(job: &Job<'_>) -> Option<u32> {
    job.slot(Slot::HeadNormWeight).map(|_| head(job))
}

/// Adds the functions for a product that is not of experts.
pub(super) fn plain<'a>(source: Source<'a>, job: &Job<'_>) -> Source<'a> {
    let source = source.body(PLAIN).body(MATH).body(EARLY).body(&extra(job));
    if job.slot(Slot::HeadNormWeight).is_some() {
        let source = source.body(ANY_ROWS);
        let source = match job.slot(Slot::Cache) {
            Some(_) => source.body(TO_CACHE),
            None => source.body(NO_CACHE).body(TO_RESULT),
        };
        return source.body(&finish("leave(t, n, sum)"));
    }
    match job.slot(Slot::Cache) {
        None if in_pairs(job) => rotated(source, job).body(NO_CACHE).body(TO_RESULT),
        Some(_) if in_pairs(job) => rotated(source, job).body(to_cache(job)),
        Some(_) => source
            .body(ANY_ROWS)
            .body(to_cache(job))
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
        .body(MATH)
        .body(EARLY)
        .body(&extra(job))
        .body(&format!("fn x_row(t: u32, r: u32) -> u32 {{ return {x_row}; }}\n"))
        .body(ANY_ROWS)
        .body(NO_CACHE)
        .body(&finish(&format!(
            "put_y(row_y(expert.row) + n, select(0.0, {}, expert.chosen))",
            value(job)
        )))
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
    let text = if job.slot(Slot::Up).is_some() && job.slot(Slot::Ids).is_some() {
        "get_up(row_up(pair) + n)"
    } else if job.slot(Slot::Up).is_some() {
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

/// Elements of a row that a workgroup must have to write whole chunks of a cache; `None` where it writes elements. Of heads
/// whose first half turns with the second, a chunk of each.
pub(super) fn cache_span(job: &Job<'_>) -> Option<u32> {
    let cache = job.slot(Slot::Cache)?;
    let chunk = CHUNK as u32;
    let span = if in_halves(job) { 2 * chunk } else { chunk };
    (job.dtype(cache) == DType::C8).then_some(span)
}

/// Whether the first half of a head turns with the second.
fn in_halves(job: &Job<'_>) -> bool {
    let first = job.kind.product().map_or(0, Product::rope_params);
    in_pairs(job) && job.params[first + 1] == 1
}

/// Whether a product that turns heads of this size by these constants has whole chunks of a cache to itself.
pub(super) fn turns_in_chunks(head: usize, rotation: &[u32]) -> bool {
    rotation[1] == 0 || (rotation[0] as usize == head && head.is_multiple_of(2 * CHUNK))
}

/// What becomes of an element of a head.
fn to_cache(job: &Job<'_>) -> &'static str {
    match cache_span(job) {
        None => TO_CACHE,
        Some(_) if in_halves(job) => TO_HALF_HEADS,
        Some(_) => TO_CHUNKS,
    }
}

/// Adds what a workgroup does when all of its teams are done, and what it asks for early for that.
pub(super) fn close<'a>(source: Source<'a>, job: &Job<'_>, unit: Unit) -> Option<Source<'a>> {
    if cache_span(job).is_some() {
        return Some(source.body(CLOSE_CHUNKS));
    }
    if let Some(head) = normed_head(job) {
        return norm_heads(source, job, unit, head);
    }
    Some(match (rounds(job), job.slot(Slot::NextNormWeight)) {
        (false, _) => source.body(NOTHING),
        (true, next) => {
            let weight = if next.is_some() { NORMED } else { AS_IT_IS };
            let rows = if job.layout(0).rows() == 1 { ONE_ROW } else { FEW_ROWS };
            source.view(job.result(), View::Quads).body(weight).body(ROUNDED).body(rows)
        }
    })
}

/// Adds the norm of heads and what is behind it. A workgroup has whole heads, or a part of one.
fn norm_heads<'a>(source: Source<'a>, job: &Job<'_>, unit: Unit, head: u32) -> Option<Source<'a>> {
    let Unit { span, outer, cols, workgroup } = unit;
    let groups = (head / span).max(1);
    let source = source
        .constant("HEADS", outer / head)
        .constant("UNIT_GROUPS", groups)
        .constant("UNIT_HEADS", (span / head).max(1))
        .constant("LANES_OF_HEAD", workgroup.min(job.target.subgroup));
    let source = match groups {
        1 => source.body(piece(UNITS, "one")?),
        // Workgroups cannot leave anything for one another.
        _ if !job.target.tickets => return None,
        _ => {
            let source = source.scratch(4 * u64::from(cols * outer), outer / head);
            if source.storage() > MAX_BINDINGS {
                return None;
            }
            source.constant("OUTER", outer).body(piece(UNITS, "several")?)
        }
    };
    let param = job.kind.product().map_or(0, Product::head_norm_param);
    let eps = format!("fn head_eps() -> f32 {{ return argf({param}u); }}\n");
    let source = source.body(&eps).body(piece(HEAD_NORM, "norm")?);
    Some(match job.slot(Slot::Factors) {
        Some(_) => turns(source, job).body(piece(HEAD_NORM, "turned")?),
        None => source.constant("HEAD", head).body(piece(HEAD_NORM, "as it is")?),
    })
}

fn rotated<'a>(source: Source<'a>, job: &Job<'_>) -> Source<'a> {
    turns(source, job).body(PAIRS)
}

/// Adds the pairs of a head and how far they turn.
fn turns<'a>(source: Source<'a>, job: &Job<'_>) -> Source<'a> {
    let first = job.kind.product().map_or(0, Product::rope_params);
    rows::angles(source, job, first)
        .constant("HEAD", head(job))
        .constant("TURNED", job.params[first] / 2)
        .line(&format!("const NEIGHBOURS = {};", job.params[first + 1] == 0))
        .body(PAIR)
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

/// Which elements of a head turn together.
const PAIR: &str = include_str!("kernels/epilogue/pair.wgsl");

/// Sums that wait for others.
const UNITS: &str = include_str!("kernels/epilogue/units.wgsl");

const HEAD_NORM: &str = include_str!("kernels/epilogue/head_norm.wgsl");

/// A pair of elements of a head to a team: TURNED of them turn, the others stay as they are.
const PAIRS: &str = include_str!("kernels/epilogue/pairs.wgsl");

const TO_RESULT: &str = "
fn store(t: u32, head: u32, i: u32, v: f32, row: u32) { put_y(at_y(vec4<u32>(0u, t, head, i)), v); }
";

/// The workgroup has elements side by side.
const TO_CHUNKS: &str = "
fn cache_row(t: u32) -> u32 { return get_kv_positions(t); }
fn local(head: u32, i: u32) -> u32 { return (head * HEAD + i) % SPAN; }
fn first_of(place: u32, chunk: u32) -> u32 { return place * SPAN + 32u * chunk; }
";

/// The workgroup has a chunk of the first half of a head, and the one that turns with it.
const TO_HALF_HEADS: &str = "
fn cache_row(t: u32) -> u32 { return get_kv_positions(t); }
fn local(head: u32, i: u32) -> u32 { return i / (HEAD / 2u) * 32u + i % 32u; }
fn first_of(place: u32, chunk: u32) -> u32 {
    return 32u * place / (HEAD / 2u) * HEAD + 32u * place % (HEAD / 2u) + chunk * (HEAD / 2u);
}
";

const CLOSE_CHUNKS: &str = include_str!("kernels/epilogue/cache_chunks.wgsl");

/// Where two tokens have one row the last one wins; a row beyond the cache is left out.
const TO_CACHE: &str = include_str!("kernels/epilogue/to_cache.wgsl");
