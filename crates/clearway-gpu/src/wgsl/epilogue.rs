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
const ROUNDED: &str = "
const RESULT_CHUNKS = P.y.shape.w / 32u;
var<workgroup> results: array<f32, COLS * SPAN>;
fn close_quad(place: u32, t: u32, quad: u32, weight: vec4<f32>) {
    let chunk = place * (SPAN / 32u) + quad / 8u;
    if (chunk < RESULT_CHUNKS) {
        let i = t * SPAN + 4u * quad;
        let v = vec4<f32>(results[i], results[i + 1u], results[i + 2u], results[i + 3u]);
        let part = part_of(v);
        let r = round_quad(v * weight);
        let to = t * 8u * RESULT_CHUNKS + chunk;
        b_y[to + (quad % 8u) / 4u * RESULT_CHUNKS][quad % 4u] = r.quants;
        if (quad % 8u == 0u) {
            b_y[to + 2u * RESULT_CHUNKS] = bitcast<vec4<u32>>(vec4<f32>(r.scales.xyz, part));
        }
    }
}
";

/// The weight of the norm comes early: each lane has at most one quad.
const ONE_ROW: &str = "
fn close_early(place: u32, lid: u32) -> vec4<f32> {
    let n = place * SPAN + 4u * min(lid, SPAN / 4u - 1u);
    return weight_of(min(n, P.y.shape.w - 4u));
}
fn close_group(place: u32, lid: u32, weight: vec4<f32>) {
    workgroupBarrier();
    if (lid < SPAN / 4u) {
        close_quad(place, 0u, lid, weight);
    }
}
";

const FEW_ROWS: &str = "
fn close_early(place: u32, lid: u32) -> vec4<f32> { return vec4<f32>(); }
fn close_group(place: u32, lid: u32, weight: vec4<f32>) {
    workgroupBarrier();
    for (var i = lid; i < COLS * SPAN / 4u; i += WG) {
        let quad = i % (SPAN / 4u);
        let n = min(place * SPAN + 4u * quad, P.y.shape.w - 4u);
        close_quad(place, i / (SPAN / 4u), quad, weight_of(n));
    }
}
";

/// The row is to be divided by nothing.
const AS_IT_IS: &str = "
fn weight_of(n: u32) -> vec4<f32> { return vec4<f32>(1.0); }
fn part_of(v: vec4<f32>) -> f32 { return 1.0; }
";

/// The weight of the norm behind, and what a chunk adds to the mean square.
const NORMED: &str = "
fn weight_of(n: u32) -> vec4<f32> {
    return vec4<f32>(get_next(n), get_next(n + 1u), get_next(n + 2u), get_next(n + 3u));
}
fn part_of(v: vec4<f32>) -> f32 {
    var sum = dot(v, v);
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    sum += subgroupShuffleXor(sum, 4u);
    return sum / 32.0 + argf(0u);
}
";

const PLAIN: &str = "
struct Expert { first: u32, row: u32, chosen: bool }
fn expert_of(group: vec3<u32>) -> Expert { return Expert(0u, 0u, true); }
fn group_row(group: vec3<u32>) -> u32 { return group.x + group.y * WIDTH; }
fn x_row(t: u32, r: u32) -> u32 { return row_x(t); }
";

/// Workgroups in z are pairs of token and expert.
const EXPERTS: &str = "
struct Expert { first: u32, row: u32, chosen: bool }
fn expert_of(group: vec3<u32>) -> Expert {
    let used = P.ids.shape.w;
    let id = get_ids(row_ids(group.z / used) + group.z % used);
    return Expert(min(id, P.w.shape.y - 1u) * P.w.shape.z, group.z, id < P.w.shape.y);
}
fn group_row(group: vec3<u32>) -> u32 { return group.x + group.y * WIDTH; }
";

/// What a team can ask for before it has anything to compute, so that it need not wait for it at the end: for the
/// row of activations whose sums a lane will finish. `prepare` computes with it while weights are under way.
const EARLY: &str = "
struct Ends { sums: array<f32, ROWS>, gates: array<f32, ROWS> }
struct Early { extra: array<f32, ROWS>, row: u32, position: u32, factor: f32, turn: vec2<f32> }
// Whether each row of activations has a lane.
const LANE_EACH = COLS <= TEAM;
fn early(place: u32, team: u32, lane: u32) -> Early {
    let t = min(lane, COLS - 1u);
    var e: Early;
    for (var r = 0u; r < ROWS; r++) {
        if (EXTRA && LANE_EACH && has_row(place, team, r)) {
            e.extra[r] = extra_of(t, weight_row(place, team, r));
        }
    }
    e.row = cache_row(t);
    turn_early(place, team, t, &e);
    return e;
}
";

const NO_CACHE: &str = "
fn cache_row(t: u32) -> u32 { return 0u; }
";

const ANY_ROWS: &str = "
fn weight_row(place: u32, team: u32, r: u32) -> u32 { return place * SPAN + r * TEAMS + team; }
fn has_row(place: u32, team: u32, r: u32) -> bool {
    let i = r * TEAMS + team;
    return i < SPAN && place * SPAN + i < P.w.shape.z;
}
fn turn_early(place: u32, team: u32, t: u32, e: ptr<function, Early>) {}
fn prepare(place: u32, team: u32, e: ptr<function, Early>) {}
fn finish_team(t: u32, place: u32, team: u32, ends: ptr<function, Ends>, e: ptr<function, Early>, expert: Expert) {
    for (var r = 0u; r < ROWS; r++) {
        if (has_row(place, team, r)) {
            let n = weight_row(place, team, r);
            var extra = (*e).extra[r];
            if (!LANE_EACH) {
                extra = extra_of(t, n);
            }
            finish(t, n, (*ends).sums[r], (*ends).gates[r], extra, (*e).row, expert);
        }
    }
}
";

/// A pair of elements of a head to a team: TURNED of them turn, the others stay as they are.
const PAIRS: &str = "
fn element(pair: u32, r: u32) -> u32 {
    return select(2u * pair + r, pair + r * TURNED, pair < TURNED && !NEIGHBOURS);
}
fn pair_of(place: u32, team: u32) -> u32 { return (place * TEAMS + team) % (HEAD / 2u); }
fn head_of(place: u32, team: u32) -> u32 { return (place * TEAMS + team) / (HEAD / 2u); }
fn weight_row(place: u32, team: u32, r: u32) -> u32 {
    return head_of(place, team) * HEAD + element(pair_of(place, team), r);
}
fn has_row(place: u32, team: u32, r: u32) -> bool {
    return (place * TEAMS + team) * 2u < P.w.shape.z;
}
fn turn_early(place: u32, team: u32, t: u32, e: ptr<function, Early>) {
    (*e).position = get_positions(t);
    (*e).factor = get_factors(min(pair_of(place, team), TURNED - 1u));
}
// Sine and cosine.
fn prepare(place: u32, team: u32, e: ptr<function, Early>) {
    let pair = pair_of(place, team);
    (*e).turn = vec2<f32>(0.0, 1.0);
    if (pair < TURNED) {
        (*e).turn = angle_of(pair, (*e).position, (*e).factor);
    }
}
fn finish_team(t: u32, place: u32, team: u32, ends: ptr<function, Ends>, e: ptr<function, Early>, expert: Expert) {
    if (!has_row(place, team, 0u)) {
        return;
    }
    var a = (*ends).sums[0];
    var b = (*ends).sums[1];
    if (EXTRA) {
        a += (*e).extra[0];
        b += (*e).extra[1];
    }
    let pair = pair_of(place, team);
    let head = head_of(place, team);
    let turned = pair < TURNED;
    let turn = (*e).turn;
    store(t, head, element(pair, 0u), select(a, fma(a, turn.y, -(b * turn.x)), turned), (*e).row);
    store(t, head, element(pair, 1u), select(b, fma(a, turn.x, b * turn.y), turned), (*e).row);
}
";

const TO_RESULT: &str = "
fn store(t: u32, head: u32, i: u32, v: f32, row: u32) { put_y(at_y(vec4<u32>(0u, t, head, i)), v); }
";

/// Where two tokens have one row the last one wins; a row beyond the cache is left out.
const TO_CACHE: &str = "
fn cache_row(t: u32) -> u32 { return get_kv_positions(t); }
fn store(t: u32, head: u32, i: u32, v: f32, row: u32) {
    var last = row < P.cache.shape.y;
    for (var later = t + 1u; later < COLS; later++) {
        last = last && cache_row(later) != row;
    }
    if (last) {
        put_cache(at_cache(vec4<u32>(0u, row, head, i)), v);
    }
}
";
