//! What a product of few rows does with its sums, and which rows of weights a team takes for that.
//!
//! Kernels call `weight_row` and `has_row` for the rows of a team, `prepare` before they wait for weights,
//! and `finish_team` once for each row of activations.

use super::elementwise::MATH;
use super::{Job, Source, rows};

/// Whether a team takes two rows of weights that belong together: those of a pair that is rotated.
pub(super) fn in_pairs(job: &Job<'_>) -> bool {
    job.find("factors").is_some()
}

/// Adds the functions for a product that is not of experts.
pub(super) fn plain<'a>(source: Source<'a>, job: &Job<'_>) -> Source<'a> {
    let source = source.body(PLAIN).body(MATH);
    match job.find("cache") {
        None if in_pairs(job) => rotated(source, job).body(TO_RESULT),
        Some(_) if in_pairs(job) => {
            rotated(source, job).body(&TO_CACHE.replace("$positions", "kv_positions"))
        }
        Some(_) => source
            .body(ANY_ROWS)
            .body(&TO_CACHE.replace("$positions", "positions"))
            .constant("HEAD", head(job))
            .body("fn finish(t: u32, n: u32, sum: f32, other: f32, expert: Expert) { store(t, n / HEAD, n % HEAD, sum); }\n"),
        None => source.body(ANY_ROWS).body(&one_by_one(job)),
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
        .body(&format!("fn x_row(t: u32, r: u32) -> u32 {{ return {x_row}; }}\n"))
        .body(ANY_ROWS)
}

/// A sum goes to its element of the result.
fn one_by_one(job: &Job<'_>) -> String {
    let name = crate::ops::spec(job.kind).map_or("", |spec| spec.name);
    let activation = if name.contains("gelu") { "gelu" } else { "silu" };
    let value = if job.find("u").is_some() {
        format!("{activation}(sum) * other")
    } else if job.find("up").is_some() {
        format!("{activation}(sum) * get_up(row_up(t) + n)")
    } else if let Some(c) = job.find("c") {
        let row = if job.layout(c).rows() == 1 { "0u" } else { "t" };
        format!("sum + get_c(row_c({row}) + n)")
    } else {
        "sum".into()
    };
    format!(
        "fn finish(t: u32, n: u32, sum: f32, other: f32, expert: Expert) {{ put_y(row_y(t) + n, {value}); }}\n"
    )
}

fn rotated<'a>(source: Source<'a>, job: &Job<'_>) -> Source<'a> {
    // The constant of the norm stands before those of the rotation.
    let first = 1;
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
fn finish(t: u32, n: u32, sum: f32, other: f32, expert: Expert) {
    put_y(row_y(expert.row) + n, select(0.0, sum, expert.chosen));
}
";

const ANY_ROWS: &str = "
struct Ends { sums: array<f32, ROWS>, gates: array<f32, ROWS> }
fn weight_row(place: u32, team: u32, r: u32) -> u32 { return place * SPAN + r * TEAMS + team; }
fn has_row(place: u32, team: u32, r: u32) -> bool {
    let i = r * TEAMS + team;
    return i < SPAN && place * SPAN + i < P.w.shape.z;
}
fn prepare(place: u32, team: u32, lane: u32) -> vec2<f32> { return vec2<f32>(); }
fn finish_team(t: u32, place: u32, team: u32, ends: ptr<function, Ends>, prepared: vec2<f32>, expert: Expert) {
    for (var r = 0u; r < ROWS; r++) {
        if (has_row(place, team, r)) {
            finish(t, weight_row(place, team, r), (*ends).sums[r], (*ends).gates[r], expert);
        }
    }
}
";

/// A pair of elements of a head to a team: TURNED of them turn, the others stay as they are.
const PAIRS: &str = "
struct Ends { sums: array<f32, ROWS>, gates: array<f32, ROWS> }
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
// Sine and cosine for the token whose sums this lane will finish.
fn prepare(place: u32, team: u32, lane: u32) -> vec2<f32> {
    let pair = pair_of(place, team);
    if (pair >= TURNED) {
        return vec2<f32>(0.0, 1.0);
    }
    return angle_of(pair, get_positions(min(lane, COLS - 1u)));
}
fn finish_team(t: u32, place: u32, team: u32, ends: ptr<function, Ends>, prepared: vec2<f32>, expert: Expert) {
    if (!has_row(place, team, 0u)) {
        return;
    }
    let a = (*ends).sums[0];
    let b = (*ends).sums[1];
    let pair = pair_of(place, team);
    let head = head_of(place, team);
    let turned = pair < TURNED;
    store(t, head, element(pair, 0u), select(a, fma(a, prepared.y, -(b * prepared.x)), turned));
    store(t, head, element(pair, 1u), select(b, fma(a, prepared.x, b * prepared.y), turned));
}
";

const TO_RESULT: &str = "
fn store(t: u32, head: u32, i: u32, v: f32) { put_y(at_y(vec4<u32>(0u, t, head, i)), v); }
";

/// Where two tokens have one row the last one wins; a row beyond the cache is left out.
const TO_CACHE: &str = "
fn store(t: u32, head: u32, i: u32, v: f32) {
    let row = get_$positions(t);
    var last = row < P.cache.shape.y;
    for (var later = t + 1u; later < COLS; later++) {
        last = last && get_$positions(later) != row;
    }
    if (last) {
        put_cache(at_cache(vec4<u32>(0u, row, head, i)), v);
    }
}
";
