//! Products of many rows on 16x16 cooperative matrices.
//!
//! A workgroup is two subgroups, each with 64 by 64 results in 4 by 4 tiles. Activations go through
//! workgroup memory as f16; f16 weights are loaded from where they lie, others are decoded into
//! workgroup memory first. Tiles are variables of their own, unrolled here: no compiler keeps an array
//! of them in registers reliably.

use std::fmt::Write;

use clearway_graph::{CapturedOpKind as Kind, DType};

use super::chunks::{chunk_type, load_chunk};
use super::{Job, Kernel, Source, View};

/// Results of a subgroup in each direction.
const EDGE: usize = 64;
/// Subgroups of a workgroup.
const SUBGROUPS: usize = 2;
/// Tiles of a subgroup in each direction.
const TILES: usize = 4;

/// The kernel, if device and weights allow one.
pub(super) fn lower(job: &Job<'_>) -> Option<Kernel> {
    let w = &job.operands[1];
    let (rows, outer, inner) = (job.layout(0).rows(), w.layout.rows(), w.layout.cols());
    let fits = job.target.cooperative
        && job.target.subgroup == 32
        && inner.is_multiple_of(32)
        && outer >= EDGE
        && w.is_aligned()
        && w.layout.is_dense();
    if !fits || !matches!(job.kind, Kind::MatMul | Kind::MatMulAdd) {
        return None;
    }
    // Weights of 32 bits would lose half of theirs on the way.
    let direct = job.dtype(1) == DType::F16;
    let mut source = Source::new(job).enable("wgpu_cooperative_matrix");
    let weights = match job.dtype(1) {
        DType::F16 => String::new(),
        DType::BF16 => STAGE_FLOATS.to_owned(),
        _ if w.in_planes() => {
            source = source.view(1, View::Quads).words_too(1);
            chunk_type(job.dtype(1))? + &load_chunk(job.dtype(1), "w")? + STAGE_CHUNKS
        }
        _ => return None,
    };
    let add = match job.kind {
        Kind::MatMulAdd if job.layout(2).rows() == 1 => "get_c(row_c(0u) + n)",
        Kind::MatMulAdd => "get_c(row_c(t) + n)",
        _ => "0.0",
    };
    let source = source
        .body(&format!("fn addend(t: u32, n: u32) -> f32 {{ return {add}; }}\n"))
        .body(&weights)
        .body(if direct { "" } else { "var<workgroup> ws: array<f16, 128u * 32u>;\n" })
        .body(&body(direct));
    let tiles = rows.div_ceil(EDGE) as u64 * outer.div_ceil(EDGE * SUBGROUPS) as u64;
    Some(source.build(job.target.fold(tiles)))
}

/// Weights `n0 .. n0 + 128` of 32 columns from `k` on, into `ws`.
const STAGE_CHUNKS: &str = "
fn stage(n0: u32, k: u32, lid: u32) {
    for (var i = lid; i < 128u; i += 64u) {
        let c = load_chunk_w((min(n0 + i, P.w.shape.z - 1u) * P.w.shape.w + k) / 32u);
        for (var j = 0u; j < 16u; j++) {
            ws[i * 32u + j] = f16(c.d.x * quant(c.lo, j) + c.m.x);
            ws[i * 32u + 16u + j] = f16(c.d.y * quant(c.hi, j) + c.m.y);
        }
    }
}
";

const STAGE_FLOATS: &str = "
fn stage(n0: u32, k: u32, lid: u32) {
    for (var i = lid; i < 128u * 32u; i += 64u) {
        let n = min(n0 + i / 32u, P.w.shape.z - 1u);
        ws[i] = f16(get_w(n * P.w.shape.w + k + i % 32u));
    }
}
";

fn body(direct: bool) -> String {
    let mut text = String::from(
        "
var<workgroup> xs: array<f16, 64u * 32u>;
var<workgroup> ys: array<f32, 2u * 256u>;

@compute @workgroup_size(64)
fn main(
    @builtin(local_invocation_index) lid: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) size: vec3<u32>,
) {
    let inner = P.w.shape.w;
    let outer = P.w.shape.z;
    let rows = P.x.shape.x * P.x.shape.y * P.x.shape.z;
    let across = (outer + 127u) / 128u;
    let tile = group.x + size.x * (group.y + size.y * group.z);
    let t0 = tile / across * 64u;
    let n0 = tile % across * 128u;
    if (t0 >= rows) {
        return;
    }
    let wave = lid / 32u;
    let lane = lid % 32u;
    // The last subgroup may begin earlier, so that it ends with the weights; what another one has
    // computed it leaves alone.
    let own = n0 + wave * 64u;
    let begin = min(own, outer - 64u);
",
    );
    let tiles = || (0..TILES * TILES).map(|i| (i / TILES, i % TILES));
    for (i, j) in tiles() {
        let _ = writeln!(text, "    var c{i}{j} = coop_mat16x16<f32, C>();");
    }
    text.push_str(
        "    for (var k = 0u; k < inner; k += 32u) {
        for (var i = lid; i < 64u * 32u; i += 64u) {
            let t = min(t0 + i / 32u, rows - 1u);
            xs[i] = f16(get_x(row_x(t) + k + i % 32u));
        }
",
    );
    text.push_str(if direct { "" } else { "        stage(n0, k, lid);\n" });
    text.push_str("        workgroupBarrier();\n");
    for step in [0, 16] {
        for i in 0..TILES {
            let at = i * 16 * 32 + step;
            let _ = writeln!(
                text,
                "        let a{i}_{step} = coopLoadT<coop_mat16x16<f16, A>>(&xs[{at}u], 32u);"
            );
        }
        for j in 0..TILES {
            let load = if direct {
                format!("&b_w[(begin + {}u) * inner + k + {step}u], inner", j * 16)
            } else {
                format!("&ws[(begin - n0 + {}u) * 32u + {step}u], 32u", j * 16)
            };
            let _ = writeln!(
                text,
                "        let b{j}_{step} = coopLoad<coop_mat16x16<f16, B>>({load});"
            );
        }
        for (i, j) in tiles() {
            let _ = writeln!(
                text,
                "        c{i}{j} = coopMultiplyAdd(a{i}_{step}, b{j}_{step}, c{i}{j});"
            );
        }
    }
    text.push_str("        workgroupBarrier();\n    }\n");
    for (i, j) in tiles() {
        let _ = writeln!(
            text,
            "    coopStoreT(c{i}{j}, &ys[wave * 256u], 16u);
    workgroupBarrier();
    finish(t0 + {}u, begin + {}u, own, rows, wave, lane);
    workgroupBarrier();",
            i * 16,
            j * 16
        );
    }
    text.push_str(
        "}

fn finish(t0: u32, n0: u32, own: u32, rows: u32, wave: u32, lane: u32) {
    for (var i = lane; i < 256u; i += 32u) {
        let t = t0 + i / 16u;
        let n = n0 + i % 16u;
        if (t < rows && n >= own) {
            put_y(row_y(t) + n, ys[wave * 256u + i] + addend(t, n));
        }
    }
}
",
    );
    text
}
