//! Weights in planes, beyond products of few rows: embedding, and products of many rows in tiles.

use clearway_graph::CapturedOpKind as Kind;

use super::chunks::{chunk_type, load_chunk};
use super::planes::CHUNK;
use super::{Job, Kernel, Source, View};

/// Results a workgroup of the tiled product computes in each direction.
const TILE: usize = 64;

/// Rows of a table in planes, picked by index.
pub(super) fn gather(job: &Job<'_>) -> Option<Kernel> {
    // The op table calls it `table`; the text of the chunks calls weights `w`.
    let mut job = job.clone();
    job.operands[0].name = "w";
    if !job.operands[0].in_planes() || !job.operands[0].is_aligned() {
        return None;
    }
    let chunks = job.operands[0].layout.cols() / CHUNK * job.operands[1].layout.elems();
    let source = Source::new(&job)
        .view(0, View::Quads)
        .words_too(0)
        .constant("WG", job.target.width(64))
        .body(&chunk_type(job.dtype(0)))
        .body(&load_chunk(job.dtype(0), "w")?)
        .body(include_str!("kernels/gather_planes.wgsl"));
    let groups = chunks.div_ceil(job.target.width(64) as usize) as u64;
    Some(source.build(job.target.fold(groups)))
}

/// A product of many rows with weights in planes.
pub(super) fn matmul(job: &Job<'_>) -> Option<Kernel> {
    let w = &job.operands[1];
    if !w.in_planes() || !w.is_aligned() || job.target.max_invocations < 256 {
        return None;
    }
    let add = match job.kind {
        Kind::MatMulAdd => ADD,
        _ => "fn addend(t: u32, n: u32) -> f32 { return 0.0; }\n",
    };
    let source = Source::new(job)
        .view(1, View::Quads)
        .words_too(1)
        .body(add)
        .body(&chunk_type(job.dtype(1)))
        .body(&load_chunk(job.dtype(1), "w")?)
        .body(include_str!("kernels/matmul_planes.wgsl"));
    let (rows, outer) = (job.operands[0].layout.rows(), w.layout.rows());
    let tiles = rows.div_ceil(TILE) as u64 * outer.div_ceil(TILE) as u64;
    Some(source.build(job.target.fold(tiles)))
}

const ADD: &str = "
fn addend(t: u32, n: u32) -> f32 {
    let only = P.c.shape.x * P.c.shape.y * P.c.shape.z == 1u;
    return get_c(row_c(select(t, 0u, only)) + n);
}
";
