//! Products of many rows on 16x16 cooperative matrices.
//!
//! A workgroup takes a tile of the result, its subgroups 32 by 32 of that each, in four matrices. Both
//! sides go through workgroup memory as f16, 32 columns at a time; what the next step needs is under way
//! while this one is multiplied. More matrices to a subgroup or more columns to a step cost registers, and
//! with them the subgroups that hide one another's latency. Matrices are variables of their own, unrolled
//! here: no compiler keeps an array of them in registers reliably.

use std::fmt::Write;

use clearway_graph::{DType, Product, Slot};

use super::chunks::{chunk_type, load_chunk};
use super::matvec::{X_ELEMENTS, X_QUADS, in_quads};
use super::{Job, Kernel, Source, Target, View};

/// Matrices of a subgroup in each direction.
const MATRICES: usize = 2;
/// Results of a subgroup in each direction.
const EDGE: usize = 16 * MATRICES;
/// Columns of a step, and the distance of rows in workgroup memory: 16 bytes further apart than they are
/// long, so that eight of them, 16 bytes each, come from all banks.
const STEP: usize = 32;
const PITCH: usize = STEP + 8;
/// Tiles of a result, as subgroups in each direction: from the one that fetches least for each number
/// to the one that makes most workgroups.
const TILES: [usize; 2] = [4, 2];

/// The kernel, if device and weights allow one.
pub(super) fn lower(job: &Job<'_>) -> Option<Kernel> {
    let w = &job.operands[1];
    let (rows, outer, inner) = (job.layout(0).rows(), w.layout.rows(), w.layout.cols());
    let fits = job.target.cooperative
        && inner.is_multiple_of(STEP)
        && outer >= 2 * EDGE
        && w.is_aligned()
        && w.layout.is_dense();
    if !fits || !job.kind.product().is_some_and(Product::is_basic) {
        return None;
    }
    let subgroups = cut(rows, outer, job.target)?;
    let mut source = Source::new(job).enable("wgpu_cooperative_matrix").view(1, View::Quads);
    // Weights of 32 bits would lose half of theirs on the way.
    let weights = match job.dtype(1) {
        DType::F16 => HALVES_F16.to_owned() + STAGE_HALVES,
        DType::BF16 => HALVES_BF16.to_owned() + STAGE_HALVES,
        _ if w.in_planes() => {
            source = source.words_too(1);
            chunk_type(job.dtype(1))? + &load_chunk(job.dtype(1), "w")? + STAGE_CHUNKS
        }
        _ => return None,
    };
    let quads = in_quads(job, 0);
    if quads {
        source = source.view(0, View::Quads);
    }
    let add = match job.slot(Slot::Addend) {
        Some(addend) if job.layout(addend).rows() == 1 => "get_c(row_c(0u) + n)",
        Some(_) => "get_c(row_c(t) + n)",
        None => "0.0",
    };
    let source = source
        .constant("TILE", (EDGE * subgroups) as u32)
        .constant("THREADS", threads(subgroups) as u32)
        .constant("STEP", STEP as u32)
        .constant("PITCH", PITCH as u32)
        .body(&format!("fn addend(t: u32, n: u32) -> f32 {{ return {add}; }}\n"))
        .body(if quads { X_QUADS } else { X_ELEMENTS })
        .body(include_str!("kernels/coop.wgsl"))
        .body(&weights)
        .body(&main(subgroups));
    Some(source.build(job.target.fold(tiles(rows, outer, subgroups))))
}

/// The largest tiles of which nearly every processor gets one, of those the device can hold.
fn cut(rows: usize, outer: usize, target: &Target) -> Option<usize> {
    let holds = |&subgroups: &usize| {
        let staged = 2 * 2 * EDGE * subgroups * PITCH;
        let bytes = staged + threads(subgroups) / 32 * 16 * 16 * 4;
        threads(subgroups) <= target.max_invocations as usize
            && bytes <= target.shared_bytes as usize
    };
    let enough = |&s: &usize| tiles(rows, outer, s) * 8 >= u64::from(target.processors) * 7;
    let held = || TILES.into_iter().filter(holds);
    held().find(enough).or(held().next_back())
}

fn threads(subgroups: usize) -> usize {
    32 * subgroups * subgroups
}

fn tiles(rows: usize, outer: usize, subgroups: usize) -> u64 {
    let edge = EDGE * subgroups;
    rows.div_ceil(edge) as u64 * outer.div_ceil(edge) as u64
}

/// Block weights: a chunk of 32 to several invocations.
const STAGE_CHUNKS: &str = "
const SHARE = THREADS / TILE;
const WORDS = 8u / SHARE;
alias Fetched = Raw;
fn chunk_at(n0: u32, k: u32, lid: u32) -> u32 {
    return (min(n0 + lid / SHARE, P.w.shape.z - 1u) * P.w.shape.w + k) / 32u;
}
fn fetch_weights(n0: u32, k: u32, lid: u32) -> Fetched {
    return fetch_w(chunk_at(n0, k, lid));
}
fn stage_weights(fetched: Fetched, n0: u32, k: u32, lid: u32) {
    let c = decode(fetched, chunk_at(n0, k, lid));
    let part = lid % SHARE;
    let second = part >= SHARE / 2u;
    let quants = select(c.lo, c.hi, second);
    let scale = select(c.d.x, c.d.y, second);
    let least = select(c.m.x, c.m.y, second);
    for (var j = 0u; j < WORDS; j++) {
        let word = quants[part % (SHARE / 2u) * WORDS + j];
        let at = WEIGHTS + lid / SHARE * PITCH + (part * WORDS + j) * 4u;
        put_four(at, vec4<f32>(unpack4xI8(word)) * scale + least);
    }
}
";

/// Floats of 16 bits: eight at a time.
const STAGE_HALVES: &str = "
const EACH = TILE * STEP / 8u / THREADS;
alias Fetched = array<vec4<u32>, EACH>;
fn fetch_weights(n0: u32, k: u32, lid: u32) -> Fetched {
    var fetched: Fetched;
    for (var e = 0u; e < EACH; e++) {
        let i = lid + e * THREADS;
        let n = min(n0 + i / (STEP / 8u), P.w.shape.z - 1u);
        fetched[e] = b_w[(n * P.w.shape.w + k) / 8u + i % (STEP / 8u)];
    }
    return fetched;
}
fn stage_weights(fetched: Fetched, n0: u32, k: u32, lid: u32) {
    for (var e = 0u; e < EACH; e++) {
        let i = lid + e * THREADS;
        let at = WEIGHTS + i / (STEP / 8u) * PITCH + i % (STEP / 8u) * 8u;
        put_four(at, vec4<f32>(halves(fetched[e].x), halves(fetched[e].y)));
        put_four(at + 4u, vec4<f32>(halves(fetched[e].z), halves(fetched[e].w)));
    }
}
";

const HALVES_F16: &str = "
fn halves(word: u32) -> vec2<f32> { return unpack2x16float(word); }
";

const HALVES_BF16: &str = "
fn halves(word: u32) -> vec2<f32> {
    return vec2<f32>(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u));
}
";

/// The function that is unrolled over matrices.
fn main(subgroups: usize) -> String {
    let matrices = || (0..MATRICES * MATRICES).map(|i| (i / MATRICES, i % MATRICES));
    let mut text = format!(
        "
@compute @workgroup_size(THREADS)
fn main(
    @builtin(local_invocation_index) lid: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) size: vec3<u32>,
) {{
    let inner = P.w.shape.w;
    let outer = P.w.shape.z;
    let rows = P.x.shape.x * P.x.shape.y * P.x.shape.z;
    let across = (outer + TILE - 1u) / TILE;
    let tile = group.x + size.x * (group.y + size.y * group.z);
    let t0 = tile / across * TILE;
    let n0 = tile % across * TILE;
    if (t0 >= rows) {{
        return;
    }}
    let wave = lid / 32u;
    let t_in = wave / {subgroups}u * {EDGE}u;
    let n_in = wave % {subgroups}u * {EDGE}u;
"
    );
    for (i, j) in matrices() {
        let _ = writeln!(text, "    var c{i}{j} = coop_mat16x16<f32, C>();");
    }
    text.push_str(
        "    var x = fetch_x(t0, rows, 0u, lid);
    var w = fetch_weights(n0, 0u, lid);
    for (var k = 0u; k < inner; k += STEP) {
        stage_x(x, lid);
        stage_weights(w, n0, k, lid);
        workgroupBarrier();
        // The last step is fetched once more, for nothing.
        let next = min(k + STEP, inner - STEP);
        x = fetch_x(t0, rows, next, lid);
        w = fetch_weights(n0, next, lid);
",
    );
    for s in (0..STEP).step_by(16) {
        for i in 0..MATRICES {
            let at = |row: &str| format!("&staged[({row} + {}u) * PITCH + {s}u], PITCH", i * 16);
            let (a, b) = (at("t_in"), at("TILE + n_in"));
            let _ = writeln!(
                text,
                "        let a{i}_{s} = coopLoadT<coop_mat16x16<f16, A>>({a});
        let b{i}_{s} = coopLoad<coop_mat16x16<f16, B>>({b});"
            );
        }
        for (i, j) in matrices() {
            let _ =
                writeln!(text, "        c{i}{j} = coopMultiplyAdd(a{i}_{s}, b{j}_{s}, c{i}{j});");
        }
    }
    text.push_str("        workgroupBarrier();\n    }\n");
    for (i, j) in matrices() {
        let _ = writeln!(
            text,
            "    coopStoreT(c{i}{j}, &ys[wave * 256u], 16u);
    workgroupBarrier();
    finish(t0 + t_in + {}u, n0 + n_in + {}u, rows, outer, lid);
    workgroupBarrier();",
            i * 16,
            j * 16
        );
    }
    text.push_str("}\n");
    text
}
