//! Attention of single tokens over a long cache, split so that the whole device takes part.

use clearway_graph::{DType, Layout};

use super::attention::{in_blocks, is_square, rows_of, run, with_cache, with_sinks};
use super::elementwise::MATH;
use super::template::{fill, front, piece};
use super::{Job, Kernel, Source, View};

/// Rows of the cache a workgroup takes, or a multiple of it: with fewer than this many in all, nothing is left to join.
const SPLIT: u32 = 256;
/// Invocations of a workgroup at most.
const WORKGROUP: u32 = 512;
/// Tokens of one sequence at most: more are better off with queries in tiles.
const MAX_TOKENS: u32 = 4;
/// Workgroups for a processor, where many sequences divide the device among themselves.
const GROUPS: u32 = 4;
/// Workgroups that share the rows of one of many sequences, at least: some are longer than others.
const FEWEST_SPLITS: u32 = 4;

/// The kernel, if the cache lies so that there is one.
pub(super) fn lower(job: &Job<'_>) -> Option<Kernel> {
    let [_, tokens, heads, head] = job.layout(0).shape4();
    let [_, rows, kv_heads, _] = job.layout(1).shape4();
    let share = heads / kv_heads;
    let (team, subgroup) = (head / 8, job.target.subgroup);
    let fits = is_square(job)
        && head.is_multiple_of(8)
        && team.is_power_of_two()
        && team <= subgroup
        && subgroup.is_power_of_two()
        && run(job) <= MAX_TOKENS
        && tokens <= job.target.max_groups
        && share <= 8
        // A lane has scores of one query only.
        && share.next_power_of_two() <= team
        && job.target.tickets;
    let chunks = job.dtype(1) == DType::C8;
    // Scales are read by words, of which a head has whole ones.
    let lies = match chunks {
        true => head.is_multiple_of(64) && (1..=2).all(|cache| job.operands[cache].is_aligned()),
        false => (1..=2).all(|cache| is_in_eights(job, cache)),
    };
    if !fits || !lies {
        return None;
    }
    // What the subgroups leave for one another must fit.
    let part = share * (head + 2);
    let subgroups = (job.target.shared_bytes / 4 * 3 / (part * 4)).min(WORKGROUP / subgroup);
    let subgroups = 1 << subgroups.checked_ilog2()?;
    let workgroup = (subgroups * subgroup).min(job.target.max_invocations);
    let teams = workgroup / team;
    let pairs = tokens.checked_mul(kv_heads)?;
    let queries = tokens.checked_mul(heads)?;
    let splits = match in_blocks(job) {
        false => rows.div_ceil(SPLIT),
        true => {
            let most = rows_of(job).div_ceil(SPLIT);
            (GROUPS * job.target.processors / pairs).max(FEWEST_SPLITS).min(most)
        }
    };
    if !SPLIT.is_multiple_of(teams) || splits > job.target.max_groups {
        return None;
    }
    // Rows of 8 bits are half as long: more of them are under way, where registers are left.
    let few_bytes = chunks && share <= 2;
    // Splits up to which a workgroup for each query keeps the device busier than one for all that share a head, without
    // workgroups that long caches do not need.
    let few = (job.target.processors * 3 / 2 / queries).min((splits / share).max(1));
    let q = job.dtype(0) == DType::F32
        && job.operands[0].is_aligned()
        && job.layout(0).strides4()[1..3].iter().all(|stride| stride.is_multiple_of(4));
    let (view, eight) =
        if chunks { (View::Pairs, EIGHT_QUANTS) } else { (View::Quads, EIGHT_HALVES) };
    let source = Source::new(job).view(1, view).view(2, view);
    let source = if tokens == 1 { source.baked() } else { source };
    let source =
        if q { source.view(0, View::Quads).body(Q_QUADS) } else { source.body(Q_ELEMENTS) };
    let source = with_sinks(with_cache(source), "mean")
        .scratch(u64::from(pairs) * u64::from(splits * part) * 4, queries)
        .constant("HEAD", head)
        .constant("SHARE", share)
        .constant("FEW", few)
        .constant("SPLIT", SPLIT)
        .constant("MAX_SPLITS", splits)
        .constant("WG", workgroup)
        .constant("TEAM", team)
        .constant("SUBGROUP", subgroup)
        .body(MATH)
        .body(eight)
        .body(front(TEXT))
        .body(&attend(chunks, "one", 1, (SPLIT / teams).min(8), team)?)
        .body(&attend(
            chunks,
            "all",
            share,
            (SPLIT / teams).min(if few_bytes { 8 } else { 4 }),
            team,
        )?)
        .counted();
    Some(source.build([splits.max(few * share), kv_heads, tokens]))
}

/// Attention of `share` queries by teams of so many lanes, with so many rows of a team under way, over a cache of chunks or of f16.
fn attend(chunks: bool, name: &str, share: u32, unroll: u32, team: u32) -> Option<String> {
    let cache = match chunks {
        true => [
            ("raw", "vec2<u32>"),
            ("more_scales", MORE_SCALES),
            ("fetch_scales", FETCH_SCALES),
            ("of_key", " * scale_of(k_scales[i], lane)"),
            ("of_value", " * scale_of(v_scales[i], lane)"),
        ],
        false => [
            ("raw", "vec4<u32>"),
            ("more_scales", ""),
            ("fetch_scales", ""),
            ("of_key", ""),
            ("of_value", ""),
        ],
    };
    let scores = share.next_power_of_two() * unroll;
    let (per, copies) = ((scores / team).max(1), (team / scores).max(1));
    let mut folds = String::new();
    let (mut left, mut mask) = (scores, team / 2);
    while mask > 0 {
        let (half, lanes) = ((left / 2).to_string(), mask.to_string());
        let step = if left > 1 { "exchange" } else { "sum" };
        folds += &fill(piece(TEXT, step)?, &[("half", &*half), ("mask", &*lanes)]);
        left = (left / 2).max(1);
        mask /= 2;
    }
    let numbers = [("share", share), ("unroll", unroll), ("scores", scores)];
    let numbers = numbers.into_iter().chain([("per", per), ("copies", copies)]);
    let numbers: Vec<(&str, String)> = numbers.map(|(n, value)| (n, format!("{value}u"))).collect();
    let mut holes: Vec<(&str, &str)> = numbers.iter().map(|(n, value)| (*n, &**value)).collect();
    holes.extend([("name", name), ("folds", &*folds)]);
    Some(fill(&fill(piece(TEXT, "attend")?, &cache), &holes))
}

const MORE_SCALES: &str = "
        var k_scales: array<u32, $unroll>;
        var v_scales: array<u32, $unroll>;";

const FETCH_SCALES: &str = "
            k_scales[i] = scales_k(row * P.k.stride.y + kv_head * P.k.stride.z + lane * 8u);
            v_scales[i] = scales_v(row * P.v.stride.y + kv_head * P.v.stride.z + lane * 8u);";

const EIGHT_QUANTS: &str = include_str!("kernels/attention_decode_chunks.wgsl");

const EIGHT_HALVES: &str = "
fn eight(q: vec4<u32>) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(
        vec4<f32>(unpack2x16float(q.x), unpack2x16float(q.y)),
        vec4<f32>(unpack2x16float(q.z), unpack2x16float(q.w)),
    );
}
";

const TEXT: &str = include_str!("kernels/attention_decode.wgsl");

const Q_QUADS: &str = "
fn q_four(i: u32) -> vec4<f32> { return bitcast<vec4<f32>>(b_q[i / 4u]); }
";

const Q_ELEMENTS: &str = "
fn q_four(i: u32) -> vec4<f32> {
    return vec4<f32>(get_q(i), get_q(i + 1u), get_q(i + 2u), get_q(i + 3u));
}
";

/// Whether a cache is f16 with every head at a multiple of 16 bytes.
fn is_in_eights(job: &Job<'_>, operand: usize) -> bool {
    let layout: &Layout = job.layout(operand);
    let strides = layout.strides4();
    job.dtype(operand) == DType::F16
        && job.operands[operand].is_aligned()
        && strides[1].is_multiple_of(8)
        && strides[2].is_multiple_of(8)
}
