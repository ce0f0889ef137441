//! Products of many rows on 16x16 cooperative matrices.
//!
//! Matrices are variables of their own, written out by [`super::template`]: no compiler keeps an array of them in
//! registers reliably.

use clearway_graph::{DType, Layout, Product, Slot};

use super::chunks::{chunk_type, load_chunk};
use super::matvec::in_quads;
use super::planes::supports;
use super::{HALVES, Job, Kernel, Source, Target, View};

/// Columns of a step.
const STEP: usize = 32;

/// Tiles that lie below one another before the next to the right come.
const BAND: usize = 4;

/// Rows from which on their number is in the text, if it is a multiple of half of this.
const LONG: usize = 512;

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

    /// For experts with so many rows each: the tallest tiles that such a number fills well, since every expert has one that
    /// is not full.
    fn of_experts(rows: usize, target: &Target) -> Option<Self> {
        let tall = Self { matrices: [4, 2], subgroups: [1, 4] };
        let low = Self { matrices: [2, 2], subgroups: [1, 4] };
        let all = if rows > 20 { [tall, low] } else { [low, tall] };
        all.into_iter().find(|tiling| tiling.is_held(target))
    }

    /// Whether a device can hold it.
    fn is_held(&self, target: &Target) -> bool {
        self.threads() <= target.max_invocations as usize
            && self.bytes() <= target.shared_bytes as usize
    }

    /// The largest tiles of which nearly every processor gets one, of those the device can hold.
    fn of(rows: usize, outer: usize, target: &Target) -> Option<Self> {
        let enough =
            |tiling: &Self| tiling.workgroups(rows, outer) * 8 >= u64::from(target.processors) * 7;
        let held = || Self::ALL.into_iter().filter(|tiling| tiling.is_held(target));
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

/// The kernel of a product, if device and weights allow one.
pub(super) fn lower(job: &Job<'_>) -> Option<Kernel> {
    if !job.kind.product().is_some_and(Product::is_basic) {
        return None;
    }
    let (rows, outer) = (job.layout(0).rows(), job.layout(1).rows());
    let tiling = Tiling::of(rows, outer, job.target)?;
    let part = Part {
        rows,
        text: include_str!("kernels/coop_rows.wgsl"),
        shared: ROWS.into(),
        groups: tiling.workgroups(rows, outer),
    };
    multiply(job, tiling, &part)
}

/// The kernel of a product with experts whose rows are in order, if device and weights allow one. Every expert has
/// whole tiles, and there is one more for ids of no expert.
pub(super) fn experts(job: &Job<'_>) -> Option<Kernel> {
    let &[_, experts, outer, _] = &job.layout(1).shape4();
    if job.operands.len() != 5 || job.target.subgroup != 32 {
        return None;
    }
    let pairs = job.layout(2).elems();
    let tiling = Tiling::of_experts(pairs / experts as usize, job.target)?;
    let tile = tiling.tile()[0];
    // So many tiles if all but one row of each expert's last are missing.
    let tiles = (pairs + (experts as usize + 1) * (tile - 1)) / tile;
    let sharers = if job.layout(0).rank() == 2 { job.layout(2).cols() } else { 1 };
    let shared = format!("const EXPERTS = {experts}u;\nconst SHARERS = {sharers}u;\n{EXPERTS}");
    let part = Part {
        rows: pairs,
        text: include_str!("kernels/coop_experts.wgsl"),
        shared,
        groups: tiles as u64 * (outer as usize).div_ceil(tiling.tile()[1]) as u64,
    };
    multiply(job, tiling, &part)
}

/// How workgroups find their rows.
struct Part {
    /// Rows in all.
    rows: usize,
    /// Text that finds those of a workgroup.
    text: &'static str,
    /// Text that says where rows lie.
    shared: String,
    groups: u64,
}

fn multiply(job: &Job<'_>, tiling: Tiling, part: &Part) -> Option<Kernel> {
    let w = &job.operands[1];
    if !takes(job.target, part.rows, &w.layout) || !w.is_aligned() {
        return None;
    }
    // With its shape in the text a loop needs fewer registers and instructions: 3 to 9 % of a prompt. Every number of rows in the
    // text is another kernel to compile, so only a few large ones are: those of full chunks of long prompts, and some between.
    let open: Vec<usize> = (0..job.operands.len()).filter(|&operand| operand != 1).collect();
    let even = open.iter().all(|&operand| job.operands[operand].rows_are_even());
    let source = Source::new(job).enable("wgpu_cooperative_matrix");
    let (source, rows) = match even {
        true if part.rows >= LONG && part.rows.is_multiple_of(LONG / 2) => {
            (source.even_rows().baked(), "P.x.shape.x * P.x.shape.y * P.x.shape.z")
        }
        true => (source.baked_but_rows(open), "U.x.shape.x * U.x.shape.y * U.x.shape.z"),
        false => (source.even_rows(), "P.x.shape.x * P.x.shape.y * P.x.shape.z"),
    };
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
    let (source, finish) = with_finish(source);
    let [tile_t, tile_n] = tiling.tile();
    let [down, right] = tiling.matrices;
    let units = |rows: usize| rows * (STEP / 8) / tiling.threads();
    let source = source
        .constant("TILE_T", tile_t as u32)
        .constant("TILE_N", tile_n as u32)
        .constant("THREADS", tiling.threads() as u32)
        .constant("STEP", STEP as u32)
        .constant("ACROSS", tiling.subgroups[1] as u32)
        .constant("DOWN", down as u32)
        .constant("RIGHT", right as u32)
        .constant("X_UNITS", units(tile_t) as u32)
        .constant("W_UNITS", units(tile_n) as u32)
        .constant("BAND", BAND as u32)
        .body(&part.shared)
        .body(&finish)
        .body(HALVES)
        .body(activations)
        .body(
            &include_str!("kernels/coop.wgsl")
                .replace("    // PART\n", &part.text.replace("ROWS", rows)),
        )
        .body(&weights);
    Some(source.build(job.target.fold(part.groups)))
}

/// How four sums become results: the source with the views that this needs, and the text of `finish`.
pub(super) fn with_finish(mut source: Source<'_>) -> (Source<'_>, String) {
    let job = source.job();
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
    let addend = format!("fn addend(t: u32, n: u32, outer: u32) -> vec4<f32> {{\n    {add}\n}}\n");
    (source, addend + finish)
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
    alone(job, y) && in_quads(job, y) && job.layout(y).cols().is_multiple_of(4)
}

/// Whether an operand shares its binding with no other.
fn alone(job: &Job<'_>, operand: usize) -> bool {
    job.operands[operand].same_as.is_none()
        && job.operands.iter().all(|other| other.same_as != Some(operand))
}

const FINISH_QUADS: &str = include_str!("kernels/coop_finish_quads.wgsl");

const FINISH_ELEMENTS: &str = include_str!("kernels/coop_finish_elements.wgsl");

/// Rows of a plain product.
pub(super) const ROWS: &str = "
fn x_row(t: u32) -> u32 { return row_x(t); }
fn y_row(t: u32) -> u32 { return row_y(t); }
fn known_or_zero(y: vec4<f32>) -> vec4<f32> { return y; }
";

/// Rows of experts, as their order says.
const EXPERTS: &str = include_str!("kernels/coop_expert_rows.wgsl");

pub(super) const W_F16: &str = "
fn w_halves(bits: vec4<u32>) -> vec4<u32> { return bits; }
";

pub(super) const W_BF16: &str = include_str!("kernels/coop_w_bf16.wgsl");
