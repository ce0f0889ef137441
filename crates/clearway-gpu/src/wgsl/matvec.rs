//! Products of few rows: one pass over the weights, as fast as memory gives them.

use clearway_graph::{CapturedOpKind as Kind, DType, Layout};

use super::chunks::load_chunk;
use super::planes::CHUNK;
use super::{Job, Kernel, Operand, Source, Target, View};

/// Rows of activations at most; more are the business of kernels that keep tiles of both sides.
pub(super) const MAX_COLS: usize = 8;
/// Bytes of workgroup memory for rounded activations.
const ACTIVATION_BYTES: u32 = 24 << 10;
/// Bytes a chunk of activations takes there: 32 quants, a scale and two sums.
const CHUNK_BYTES: u32 = 48;

/// What the text needs to know of a product.
struct Shape {
    inner: u32,
    outer: u32,
    cols: u32,
    /// Token and expert pairs, for experts.
    pairs: u32,
}

/// How lanes share the rows of weights.
struct Cut {
    workgroup: u32,
    team: u32,
    rows: u32,
}

/// The kernel for a product of few rows, if the weights lie so that there is one.
pub(super) fn lower(job: &Job<'_>) -> Option<Kernel> {
    let experts = job.kind == Kind::MatMulExperts;
    let (x, w) = (&job.operands[0], &job.operands[1]);
    let weights = &w.layout;
    let shape = Shape {
        inner: weights.cols() as u32,
        outer: weights.shape4()[2],
        cols: if experts { 1 } else { x.layout.rows() as u32 },
        pairs: if experts { job.operands[2].layout.elems() as u32 } else { 1 },
    };
    if shape.cols as usize > MAX_COLS || !w.is_aligned() || !weights.is_dense() {
        return None;
    }
    if shape.pairs > job.target.max_groups || job.target.subgroup < 8 {
        return None;
    }
    if w.in_planes() { blocks(job, &shape) } else { floats(job, &shape, x, w) }
}

fn blocks(job: &Job<'_>, shape: &Shape) -> Option<Kernel> {
    let chunks = shape.inner / CHUNK as u32;
    let chunk = load_chunk(job.operands[1].layout.dtype())?;
    let cut = cut(job.target, shape, chunks);
    let memory = ACTIVATION_BYTES.min(job.target.shared_bytes / 2);
    let tile = chunks.min(memory / (CHUNK_BYTES * shape.cols)).max(1);
    let source = Source::new(job).view(1, View::Quads).words_too(1);
    let source = common(source, job, shape, &cut).constant("TILE", tile).body(&chunk);
    Some(source.body(include_str!("kernels/matvec_blocks.wgsl")).build(groups(job, shape, &cut)))
}

fn floats(job: &Job<'_>, shape: &Shape, x: &Operand, w: &Operand) -> Option<Kernel> {
    let load = match w.layout.dtype() {
        DType::F32 => EIGHT_F32,
        DType::F16 => EIGHT_F16,
        DType::BF16 => EIGHT_BF16,
        _ => return None,
    };
    if !shape.inner.is_multiple_of(8) {
        return None;
    }
    let steps = shape.inner / 8;
    let cut = cut(job.target, shape, steps);
    let whole = steps / cut.team;
    let unroll = [4, 2].into_iter().find(|u| whole.is_multiple_of(*u) && whole > 0).unwrap_or(1);
    let quads = x.layout.dtype() == DType::F32 && x.is_aligned() && in_quads(&x.layout);
    let mut source = Source::new(job).view(1, View::Quads);
    if quads {
        source = source.view(0, View::Quads);
    }
    let source = common(source, job, shape, &cut)
        .constant("UNROLL", unroll)
        .body(load)
        .body(if quads { X_QUADS } else { X_ELEMENTS });
    Some(source.body(include_str!("kernels/matvec_floats.wgsl")).build(groups(job, shape, &cut)))
}

/// Whether every row starts at a multiple of four elements.
fn in_quads(layout: &Layout) -> bool {
    let (shape, strides) = (layout.shape4(), layout.strides4());
    (0..3).all(|d| shape[d] == 1 || strides[d].is_multiple_of(4))
}

fn common<'a>(source: Source<'a>, job: &Job<'_>, shape: &Shape, cut: &Cut) -> Source<'a> {
    let source = source
        .constant("K", shape.inner)
        .constant("N", shape.outer)
        .constant("COLS", shape.cols)
        .constant("WG", cut.workgroup)
        .constant("TEAM", cut.team)
        .constant("ROWS", cut.rows)
        .constant("WIDTH", job.target.max_groups);
    match job.kind {
        Kind::MatMulExperts if job.operands[0].layout.rank() == 3 => {
            source.body(EXPERTS).body("fn x_row(t: u32, r: u32) -> u32 { return row_x(r); }\n")
        }
        Kind::MatMulExperts => source
            .body(EXPERTS)
            .body("fn x_row(t: u32, r: u32) -> u32 { return row_x(r / P.ids.shape.w); }\n"),
        Kind::MatMulAdd => source.body(PLAIN).body(FINISH_ADD),
        _ => source.body(PLAIN).body(FINISH),
    }
}

/// Lanes to a row as long as each has something to do; more rows to a team only where that leaves
/// enough teams to keep the device busy.
fn cut(target: &Target, shape: &Shape, steps: u32) -> Cut {
    let team = steps.next_power_of_two().min(target.subgroup);
    let lanes = shape.outer * shape.pairs * team;
    let busy = target.processors * 1024;
    let rows = match lanes / busy {
        0..2 => 1,
        2..8 => 2,
        _ if shape.cols <= 2 => 4,
        _ => 2,
    };
    let workgroup = if lanes >= 2 * busy { 256 } else { 128 };
    let workgroup = workgroup.min(target.max_invocations).max(target.subgroup);
    Cut { workgroup, team, rows }
}

fn groups(job: &Job<'_>, shape: &Shape, cut: &Cut) -> [u32; 3] {
    let count = shape.outer.div_ceil(cut.workgroup / cut.team * cut.rows);
    let width = job.target.max_groups;
    [count.min(width), count.div_ceil(width), shape.pairs]
}

const PLAIN: &str = "
struct Expert { first: u32, row: u32, chosen: bool }
fn expert_of(group: vec3<u32>) -> Expert { return Expert(0u, 0u, true); }
fn group_row(group: vec3<u32>) -> u32 { return group.x + group.y * WIDTH; }
fn x_row(t: u32, r: u32) -> u32 { return row_x(t); }
";

const FINISH: &str = "
fn finish(t: u32, n: u32, sum: f32, expert: Expert) { put_y(row_y(t) + n, sum); }
";

const FINISH_ADD: &str = "
fn finish(t: u32, n: u32, sum: f32, expert: Expert) {
    let only = P.c.shape.x * P.c.shape.y * P.c.shape.z == 1u;
    put_y(row_y(t) + n, sum + get_c(row_c(select(t, 0u, only)) + n));
}
";

/// Workgroups in z are pairs of token and expert.
const EXPERTS: &str = "
struct Expert { first: u32, row: u32, chosen: bool }
fn expert_of(group: vec3<u32>) -> Expert {
    let used = P.ids.shape.w;
    let id = get_ids(row_ids(group.z / used) + group.z % used);
    return Expert(min(id, P.w.shape.y - 1u) * N, group.z, id < P.w.shape.y);
}
fn group_row(group: vec3<u32>) -> u32 { return group.x + group.y * WIDTH; }
fn finish(t: u32, n: u32, sum: f32, expert: Expert) {
    put_y(row_y(expert.row) + n, select(0.0, sum, expert.chosen));
}
";

const EIGHT_F32: &str = "
struct Eight { a: vec4<u32>, b: vec4<u32> }
fn load_eight(i: u32) -> Eight { return Eight(b_w[2u * i], b_w[2u * i + 1u]); }
fn values(e: Eight) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(bitcast<vec4<f32>>(e.a), bitcast<vec4<f32>>(e.b));
}
";

const EIGHT_F16: &str = "
alias Eight = vec4<u32>;
fn load_eight(i: u32) -> Eight { return b_w[i]; }
fn values(e: Eight) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(
        vec4<f32>(unpack2x16float(e.x), unpack2x16float(e.y)),
        vec4<f32>(unpack2x16float(e.z), unpack2x16float(e.w)),
    );
}
";

const EIGHT_BF16: &str = "
alias Eight = vec4<u32>;
fn load_eight(i: u32) -> Eight { return b_w[i]; }
fn values(e: Eight) -> array<vec4<f32>, 2> {
    let low = bitcast<vec4<f32>>(e << vec4<u32>(16u));
    let high = bitcast<vec4<f32>>(e & vec4<u32>(0xffff0000u));
    return array<vec4<f32>, 2>(
        vec4<f32>(low.x, high.x, low.y, high.y),
        vec4<f32>(low.z, high.z, low.w, high.w),
    );
}
";

const X_QUADS: &str = "
fn load_x(i: u32) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(bitcast<vec4<f32>>(b_x[i / 4u]), bitcast<vec4<f32>>(b_x[i / 4u + 1u]));
}
";

const X_ELEMENTS: &str = "
fn load_x(i: u32) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(
        vec4<f32>(get_x(i), get_x(i + 1u), get_x(i + 2u), get_x(i + 3u)),
        vec4<f32>(get_x(i + 4u), get_x(i + 5u), get_x(i + 6u), get_x(i + 7u)),
    );
}
";
