//! Products of a few rows on 16x16 cooperative matrices: each weight is fetched and decoded once for all of them.
//!
//! Columns are shared by several workgroups where there are few tiles, since memory has to be kept busy. What they leave
//! is added up through scratch.

use clearway_graph::{DType, Layout, Product, Slot};

use super::chunks::{chunk_type, load_chunk};
use super::matvec::MAX_COLS;
use super::planes::{CHUNK, supports};
use super::{HALVES, Job, Kernel, Source, Target, View, coop};

/// Rows of activations: fewer are the business of products without matrices, more that of large tiles.
pub(super) const ROWS: std::ops::RangeInclusive<usize> = MAX_COLS + 1..=96;
/// Subgroups of a workgroup.
const SUBGROUPS: usize = 4;
/// Matrices along the rows of activations at most.
const MOST_DOWN: usize = 4;
/// Workgroups for a processor that keep memory busy.
const BUSY: usize = 3;
/// Chunks of a row that are staged at once.
const BLOCK: usize = 4;
/// Blocks that a workgroup takes at least.
const FEWEST_BLOCKS: usize = 3;

/// Whether there is a kernel for so many rows and weights like these, if those lie as they should.
pub(super) fn takes(target: &Target, rows: usize, w: &Layout) -> bool {
    let readable = matches!(w.dtype(), DType::F16 | DType::BF16) || supports(w);
    let cut = Cut::of(target, rows, w);
    target.cooperative
        && target.subgroup == 32
        && ROWS.contains(&rows)
        && w.cols().is_multiple_of(CHUNK)
        && w.rows() >= 64
        && w.is_dense()
        && readable
        && cut.bytes() <= target.shared_bytes as usize
        && 32 * SUBGROUPS <= target.max_invocations as usize
        && cut.groups.iter().all(|&groups| groups <= target.max_groups)
}

/// How a product is cut.
struct Cut {
    /// Matrices of a tile along the rows of activations.
    down: usize,
    /// Workgroups along weights, columns and activations.
    groups: [u32; 3],
}

impl Cut {
    fn of(target: &Target, rows: usize, w: &Layout) -> Self {
        let down = rows.div_ceil(16).min(MOST_DOWN);
        let tiles = [rows.div_ceil(16 * down), w.rows().div_ceil(16 * SUBGROUPS)];
        let wanted = (BUSY * target.processors as usize).div_ceil(tiles[0] * tiles[1]);
        let blocks = (w.cols() / CHUNK).div_ceil(BLOCK).max(1);
        let splits = wanted.clamp(1, (blocks / FEWEST_BLOCKS).clamp(1, 16));
        // As many as have the same number of blocks, or nearly.
        let splits = blocks.div_ceil(blocks.div_ceil(splits));
        Self { down, groups: [tiles[1] as u32, splits as u32, tiles[0] as u32] }
    }

    /// Bytes of workgroup memory.
    fn bytes(&self) -> usize {
        16 * (self.down + SUBGROUPS) * (BLOCK * 5 + 1) * 16 + 16
    }
}

/// The kernel, if device and weights allow one.
pub(super) fn lower(job: &Job<'_>) -> Option<Kernel> {
    let w = &job.operands[1];
    let rows = job.layout(0).rows();
    let fits = takes(job.target, rows, &w.layout) && w.is_aligned();
    if !fits || !job.kind.product().is_some_and(Product::is_basic) {
        return None;
    }
    let cut = Cut::of(job.target, rows, &w.layout);
    let source = Source::new(job).enable("wgpu_cooperative_matrix").even_rows();
    let mut source = source.view(1, View::Quads);
    let weights = match job.dtype(1) {
        DType::F16 => coop::W_F16.to_owned() + include_str!("kernels/thin_halves.wgsl"),
        DType::BF16 => coop::W_BF16.to_owned() + include_str!("kernels/thin_halves.wgsl"),
        dtype if w.in_planes() => {
            source = source.words_too(1);
            let signed = format!("const SIGNED = {};\n", dtype == DType::Q8_0);
            let chunk = chunk_type(dtype)? + &load_chunk(dtype, "w")? + &signed;
            chunk + include_str!("kernels/thin_chunks.wgsl")
        }
        _ => return None,
    };
    let (activations, in_units) = coop::activations(job);
    if in_units {
        source = source.view(0, View::Quads);
    }
    let add = match job.slot(Slot::Addend) {
        Some(c) if job.layout(c).rows() == 1 => "get_c(n)",
        Some(_) => "get_c(row_c(t) + n)",
        None => "0.0",
    };
    let [tiles_n, splits, tiles_t] = cut.groups;
    let tile = 256 * (cut.down * SUBGROUPS) as u32;
    if splits > 1 {
        let tiles = u64::from(tiles_n) * u64::from(tiles_t);
        let bytes = 4 * tiles * u64::from(splits) * u64::from(tile);
        source =
            source.scratch(bytes, tiles_n * tiles_t).body(include_str!("kernels/thin_split.wgsl"));
    } else {
        source = source.body(include_str!("kernels/thin_whole.wgsl"));
    }
    let x_units = cut.down * 16 * BLOCK * 4 / (32 * SUBGROUPS);
    let w_units = 16 * if w.in_planes() { BLOCK } else { 4 * BLOCK } / 32;
    let source = source
        .constant("TILE_T", 16 * cut.down as u32)
        .constant("DOWN", cut.down as u32)
        .constant("SUBGROUPS", SUBGROUPS as u32)
        .constant("BLOCK", BLOCK as u32)
        .constant("SPLITS", splits)
        .constant("CHUNKS", (w.layout.cols() / CHUNK) as u32)
        .constant("X_UNITS", x_units as u32)
        .constant("W_UNITS", w_units as u32)
        .body(&format!(
            "fn finish(t: u32, n: u32, sum: f32) {{ put_y(row_y(t) + n, sum + {add}); }}\n"
        ))
        .body(HALVES)
        .body(activations)
        .body(include_str!("kernels/thin.wgsl"))
        .body(&weights);
    Some(source.build(cut.groups))
}
