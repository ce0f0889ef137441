//! Weights in planes, beyond products of few rows: embedding, and products of many rows in tiles.

use clearway_graph::Slot;

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
        .body(&taken(job.operands[0].rows))
        .body(&chunk_type(job.dtype(0))?)
        .body(&load_chunk(job.dtype(0), "w")?)
        .body(include_str!("kernels/gather_planes.wgsl"));
    let groups = chunks.div_ceil(job.target.width(64) as usize) as u64;
    Some(source.build(job.target.fold(groups)))
}

/// Which indices a kernel answers for, and what they are among its rows: those of its part of the
/// table; the first part answers for indices beyond the table too.
pub(super) fn taken(rows: Option<[u32; 2]>) -> String {
    match rows {
        None => "fn taken(id: u32, rows: u32) -> bool { return true; }
fn own(id: u32) -> u32 { return id; }\n"
            .into(),
        Some([first, all]) => format!(
            "fn taken(id: u32, rows: u32) -> bool {{
    return id - {first}u < rows || ({first}u == 0u && id >= {all}u);
}}
fn own(id: u32) -> u32 {{ return id - {first}u; }}\n"
        ),
    }
}

/// A product of many rows with weights in planes.
pub(super) fn matmul(job: &Job<'_>) -> Option<Kernel> {
    let w = &job.operands[1];
    if !w.in_planes() || !w.is_aligned() || job.target.max_invocations < 256 {
        return None;
    }
    let add = match job.slot(Slot::Addend) {
        Some(_) => ADD,
        None => "fn addend(t: u32, n: u32) -> f32 { return 0.0; }\n",
    };
    let source = Source::new(job)
        .view(1, View::Quads)
        .words_too(1)
        .body(add)
        .body(&chunk_type(job.dtype(1))?)
        .body(&load_chunk(job.dtype(1), "w")?)
        .body(include_str!("kernels/matmul_planes.wgsl"));
    let (rows, outer) = (job.operands[0].layout.rows(), w.layout.rows());
    let tiles = rows.div_ceil(TILE) as u64 * outer.div_ceil(TILE) as u64;
    Some(source.build(job.target.fold(tiles)))
}

const ADD: &str = include_str!("kernels/planar_add.wgsl");
