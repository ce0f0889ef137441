//! Products of many rows on 16x16 cooperative matrices.
//!
//! Matrices are variables of their own, written out by [`unroll`]: no compiler keeps an array of them in
//! registers reliably.

use clearway_graph::{DType, Layout, Product, Slot};

use super::chunks::{chunk_type, load_chunk};
use super::matvec::in_quads;
use super::planes::supports;
use super::template::unroll;
use super::{HALVES, Job, Kernel, Source, Target, View};

/// Columns of a step.
const STEP: usize = 32;

/// Tiles that lie below one another before the next to the right come.
const BAND: usize = 8;

/// How a workgroup cuts its part of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiling {
    /// Matrices of a subgroup: down, along the rows of activations, and right, along those of weights.
    matrices: [usize; 2],
    /// Subgroups of a workgroup, in the same directions.
    subgroups: [usize; 2],
}

impl Tiling {
    /// From the one that fetches least for each result to the one that makes most workgroups.
    const ALL: [Self; 3] = [
        Self { matrices: [4, 2], subgroups: [2, 4] },
        Self { matrices: [4, 2], subgroups: [2, 2] },
        Self { matrices: [2, 2], subgroups: [2, 2] },
    ];

    /// Results of a workgroup in each direction.
    const fn tile(self) -> [usize; 2] {
        [16 * self.matrices[0] * self.subgroups[0], 16 * self.matrices[1] * self.subgroups[1]]
    }

    const fn threads(self) -> usize {
        32 * self.subgroups[0] * self.subgroups[1]
    }

    /// Bytes of workgroup memory: two slices of rows that lie 16 bytes further apart than they are long.
    const fn bytes(self) -> usize {
        let [t, n] = self.tile();
        2 * (t + n) * (STEP / 8 + 1) * 16
    }

    /// Workgroups for a product.
    fn workgroups(self, rows: usize, outer: usize) -> u64 {
        let [t, n] = self.tile();
        rows.div_ceil(t) as u64 * outer.div_ceil(n) as u64
    }

    /// The largest tiles of which nearly every processor gets one, of those the device can hold.
    fn of(rows: usize, outer: usize, target: &Target) -> Option<Self> {
        let holds = |tiling: &Self| {
            tiling.threads() <= target.max_invocations as usize
                && tiling.bytes() <= target.shared_bytes as usize
        };
        let enough =
            |tiling: &Self| tiling.workgroups(rows, outer) * 8 >= u64::from(target.processors) * 7;
        let held = || Self::ALL.into_iter().filter(holds);
        held().find(enough).or(held().next_back())
    }
}

/// Whether there is a kernel for so many rows and weights like these, if those lie as they should.
pub(super) fn takes(target: &Target, rows: usize, w: &Layout) -> bool {
    let [_, _, outer, inner] = w.shape4();
    let readable = matches!(w.dtype(), DType::F16 | DType::BF16) || supports(w);
    target.cooperative
        && (inner as usize).is_multiple_of(STEP)
        && outer >= 64
        && w.is_dense()
        && readable
        && Tiling::of(rows, outer as usize, target).is_some()
}

/// The kernel, if device and weights allow one.
pub(super) fn lower(job: &Job<'_>) -> Option<Kernel> {
    let w = &job.operands[1];
    let (rows, outer) = (job.layout(0).rows(), w.layout.rows());
    let fits = takes(job.target, rows, &w.layout) && w.is_aligned();
    if !fits || !job.kind.product().is_some_and(Product::is_basic) {
        return None;
    }
    let tiling = Tiling::of(rows, outer, job.target)?;
    let source = Source::new(job).enable("wgpu_cooperative_matrix").even_rows();
    let mut source = source.view(1, View::Quads);
    // Weights of 32 bits would lose half of theirs on the way.
    let weights = match job.dtype(1) {
        DType::F16 => W_F16.to_owned() + include_str!("kernels/coop_halves.wgsl"),
        DType::BF16 => W_BF16.to_owned() + include_str!("kernels/coop_halves.wgsl"),
        _ if w.in_planes() => {
            source = source.words_too(1);
            let chunk = chunk_type(job.dtype(1))? + &load_chunk(job.dtype(1), "w")?;
            chunk + include_str!("kernels/coop_chunks.wgsl")
        }
        _ => return None,
    };
    let (activations, in_units) = activations(job);
    if in_units {
        source = source.view(0, View::Quads);
    }
    let last = job.operands.len() - 1;
    let mut finish = FINISH_ELEMENTS;
    if last_in_quads(job, last) {
        source = source.view(last, View::Quads);
        finish = FINISH_QUADS;
    }
    let add = match job.slot(Slot::Addend) {
        // Of what is no multiple of four, the last would be read beyond the end.
        Some(c) if finish == FINISH_QUADS && in_quads(job, c) && alone(job, c) => {
            source = source.view(c, View::Quads);
            let row = if job.layout(c).rows() == 1 { "0u" } else { "row_c(t)" };
            format!("return bitcast<vec4<f32>>(b_c[({row} + n) / 4u]);")
        }
        Some(c) => {
            let row = if job.layout(c).rows() == 1 { "row_c(0u)" } else { "row_c(t)" };
            format!(
                "let c = {row} + n;
    var four = vec4<f32>();
    for (var i = 0u; i < min(4u, outer - min(n, outer)); i++) {{ four[i] = get_c(c + i); }}
    return four;"
            )
        }
        None => "return vec4<f32>();".into(),
    };
    let [tile_t, tile_n] = tiling.tile();
    let [down, right] = tiling.matrices;
    let units = |rows: usize| rows * (STEP / 8) / tiling.threads();
    let bounds =
        [("DOWN", down), ("RIGHT", right), ("X_UNITS", units(tile_t)), ("W_UNITS", units(tile_n))];
    let source = source
        .constant("TILE_T", tile_t as u32)
        .constant("TILE_N", tile_n as u32)
        .constant("THREADS", tiling.threads() as u32)
        .constant("STEP", STEP as u32)
        .constant("ACROSS", tiling.subgroups[1] as u32)
        .constant("DOWN", down as u32)
        .constant("RIGHT", right as u32)
        .constant("X_UNITS", units(tile_t) as u32)
        .constant("BAND", BAND as u32)
        .body(&format!("fn addend(t: u32, n: u32, outer: u32) -> vec4<f32> {{\n    {add}\n}}\n"))
        .body(HALVES)
        .body(finish)
        .body(&unroll(activations, &bounds))
        .body(&unroll(include_str!("kernels/coop.wgsl"), &bounds))
        .body(&unroll(&weights, &bounds));
    Some(source.build(job.target.fold(tiling.workgroups(rows, outer))))
}

/// How activations are read, and whether that is 16 bytes at a time.
pub(super) fn activations(job: &Job<'_>) -> (&'static str, bool) {
    let layout = job.layout(0);
    let (shape, strides) = (layout.shape4(), layout.strides4());
    let eights = job.operands[0].is_aligned()
        && (0..3).all(|d| shape[d] == 1 || strides[d].is_multiple_of(8));
    match job.dtype(0) {
        DType::F16 if eights => (include_str!("kernels/coop_x_f16.wgsl"), true),
        DType::A16 if job.operands[0].is_aligned() => {
            (include_str!("kernels/coop_x_a16.wgsl"), true)
        }
        _ if in_quads(job, 0) => (include_str!("kernels/coop_x_f32.wgsl"), true),
        _ => (include_str!("kernels/coop_x.wgsl"), false),
    }
}

/// Whether results can be written four at a time: alone in their memory, every row at a multiple of 16 bytes.
fn last_in_quads(job: &Job<'_>, y: usize) -> bool {
    alone(job, y) && in_quads(job, y) && job.layout(1).rows().is_multiple_of(4)
}

/// Whether an operand shares its binding with no other.
fn alone(job: &Job<'_>, operand: usize) -> bool {
    job.operands[operand].same_as.is_none()
        && job.operands.iter().all(|other| other.same_as != Some(operand))
}

const FINISH_QUADS: &str = "
fn finish(t: u32, n: u32, outer: u32, y: vec4<f32>) {
    if (n >= outer) { return; }
    b_y[(row_y(t) + n) / 4u] = bitcast<vec4<u32>>(y + addend(t, n, outer));
}
";

const FINISH_ELEMENTS: &str = "
fn finish(t: u32, n: u32, outer: u32, y: vec4<f32>) {
    let sums = y + addend(t, n, outer);
    for (var i = 0u; i < min(4u, outer - min(n, outer)); i++) {
        put_y(row_y(t) + n + i, sums[i]);
    }
}
";

pub(super) const W_F16: &str = "
fn w_halves(bits: vec4<u32>) -> vec4<u32> { return bits; }
";

pub(super) const W_BF16: &str = "
fn wide(words: vec2<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(words.x << 16u, words.x & 0xffff0000u, words.y << 16u, words.y & 0xffff0000u));
}
fn w_halves(bits: vec4<u32>) -> vec4<u32> { return halves(wide(bits.xy), wide(bits.zw)); }
";
