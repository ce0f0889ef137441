//! Products of a few rows on 16x16 cooperative matrices: each weight is fetched and decoded once for all of them.
//!
//! Columns are shared by several workgroups where there are few tiles, since memory has to be kept busy. What they leave
//! is added up through scratch.

use clearway_graph::{DType, Layout, Product};

use super::chunks::{chunk_type, load_chunk};
use super::planes::{CHUNK, supports};
use super::{HALVES, Job, Kernel, Source, Target, View, coop};

/// Rows of activations at least. Without matrices a row costs what it costs alone; here the first costs what sixteen do.
const LEAST_ROWS: usize = 5;
/// Rows at most, of weights of many rows and of few.
const MOST_ROWS_WIDE: usize = 192;
const MOST_ROWS_NARROW: usize = 384;
/// Rows of weights in the largest tile of products of many rows.
const LARGE_TILE: usize = 128;
/// Matrices along the rows of activations at most.
const MOST_DOWN: usize = 6;
/// Subgroups of a workgroup, and on devices with less workgroup memory.
const SUBGROUPS: [usize; 2] = [8, 4];
/// Chunks of a row that are staged at once.
const BLOCK: usize = 2;
/// Blocks that a workgroup takes at least.
const FEWEST_BLOCKS: usize = 3;
/// Workgroups that share columns at most.
const MOST_SPLITS: usize = 16;
/// What a workgroup adds up at once: quads of scratch that are under way.
const UNDER_WAY: usize = 8;

/// Whether there is a kernel for so many rows and weights like these, if those lie as they should.
pub(super) fn takes(target: &Target, rows: usize, w: &Layout) -> bool {
    let readable = matches!(w.dtype(), DType::F16 | DType::BF16) || supports(w);
    let tiling = Tiling::of(target, rows, w);
    target.cooperative
        && target.subgroup == 32
        && rows >= LEAST_ROWS
        && rows <= most_rows(target, w)
        && w.cols().is_multiple_of(CHUNK)
        && w.rows() >= 64
        && w.is_dense()
        && readable
        && bytes(tiling.matrices[0], tiling.matrices[1], tiling.subgroups)
            <= target.shared_bytes as usize
        && tiling.threads() <= target.max_invocations as usize
        && tiling.groups.iter().all(|&groups| groups <= target.max_groups)
}

/// Rows of activations up to which these weights are multiplied here. Above them large tiles take over: later where there are few
/// of those for each row of tiles, since columns are shared here and not there.
fn most_rows(target: &Target, w: &Layout) -> usize {
    let large_tiles = 2 * w.rows().div_ceil(LARGE_TILE);
    let enough = large_tiles * 8 >= target.processors as usize * 7;
    if enough { MOST_ROWS_WIDE } else { MOST_ROWS_NARROW }
}

/// The tiling of a product.
struct Tiling {
    /// Matrices of a subgroup along the rows of activations, and along those of weights.
    matrices: [usize; 2],
    /// Subgroups of a workgroup.
    subgroups: usize,
    /// Workgroups along weights, columns and activations.
    groups: [u32; 3],
}

impl Tiling {
    fn of(target: &Target, rows: usize, w: &Layout) -> Self {
        let processors = target.processors as usize;
        // Tiles of the same height, or nearly.
        let down = rows.div_ceil(16 * rows.div_ceil(16 * MOST_DOWN)).max(1);
        // Two matrices of weights share each matrix of activations that is loaded. Where there is one of those nothing is
        // gained, and where there are many they take the registers of other workgroups.
        let right = if down == 2 { 2 } else { 1 };
        let fits =
            |subgroups: &usize| bytes(down, right, *subgroups) <= target.shared_bytes as usize;
        let subgroups = SUBGROUPS.into_iter().find(fits).unwrap_or(SUBGROUPS[1]);
        let tiles = [rows.div_ceil(16 * down), w.rows().div_ceil(16 * right * subgroups)];
        let count = tiles[0] * tiles[1];
        let blocks = (w.cols() / CHUNK).div_ceil(BLOCK).max(1);
        // What is shared has to be added up, and the next product of the group keeps other processors busy.
        let wanted = match down {
            _ if count * (right + 1) > processors => 1,
            1 => 2 * processors / count,
            _ => processors / count,
        };
        let splits = wanted.clamp(1, (blocks / FEWEST_BLOCKS).clamp(1, MOST_SPLITS));
        // As many as have the same number of blocks, or nearly.
        let splits = blocks.div_ceil(blocks.div_ceil(splits));
        let groups = [tiles[1] as u32, splits as u32, tiles[0] as u32];
        Self { matrices: [down, right], subgroups, groups }
    }

    const fn threads(&self) -> usize {
        32 * self.subgroups
    }
}

/// Bytes of workgroup memory: two slices of activations, and weights.
const fn bytes(down: usize, right: usize, subgroups: usize) -> usize {
    16 * (2 * down + right * subgroups) * (4 * BLOCK + 1) * 16 + 16
}

/// The kernel, if device and weights allow one.
pub(super) fn lower(job: &Job<'_>) -> Option<Kernel> {
    let w = &job.operands[1];
    let rows = job.layout(0).rows();
    let fits = takes(job.target, rows, &w.layout) && w.is_aligned();
    if !fits || !job.kind.product().is_some_and(Product::is_basic) {
        return None;
    }
    let tiling = Tiling::of(job.target, rows, &w.layout);
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
    let (mut source, finish) = coop::with_finish(source);
    let [tiles_n, splits, tiles_t] = tiling.groups;
    let [down, right] = tiling.matrices;
    let tile = 256 * (down * right * tiling.subgroups) as u32;
    if splits > 1 {
        let tiles = u64::from(tiles_n) * u64::from(tiles_t);
        let bytes = 4 * tiles * u64::from(splits) * u64::from(tile);
        source = source
            .scratch_in_quads(bytes, tiles_n * tiles_t)
            .body(include_str!("kernels/thin_split.wgsl"));
    } else {
        source = source.body(include_str!("kernels/thin_whole.wgsl"));
    }
    let x_units = (down * 16 * BLOCK * 4).div_ceil(tiling.threads());
    let w_units = 16 * right * if w.in_planes() { BLOCK } else { 4 * BLOCK } / 32;
    let source = source
        .constant("TILE_T", 16 * down as u32)
        .constant("DOWN", down as u32)
        .constant("RIGHT", right as u32)
        .constant("SUBGROUPS", tiling.subgroups as u32)
        .constant("BLOCK", BLOCK as u32)
        .constant("SPLITS", splits)
        .constant("TOGETHER", (UNDER_WAY / splits as usize).max(1) as u32)
        .constant("CHUNKS", (w.layout.cols() / CHUNK) as u32)
        .constant("X_UNITS", x_units as u32)
        .constant("W_UNITS", w_units as u32)
        .body(coop::ROWS)
        .body(&finish)
        .body(HALVES)
        .body(activations)
        .body(include_str!("kernels/thin.wgsl"))
        .body(&weights);
    Some(source.build(tiling.groups))
}
