//! Attention of many tokens on 16x16 cooperative matrices.

use clearway_graph::DType;

use super::attention::{is_square, rows_of, with_cache, with_sinks};
use super::elementwise::MATH;
use super::template::piece;
use super::{HALVES, Job, Kernel, Source, View};

/// Head sizes there are kernels for.
const HEADS: std::ops::RangeInclusive<u32> = 64..=256;

/// Rows of the cache that a workgroup takes in a turn, where several share them.
const SPAN: u32 = 128;
/// Workgroups that share the rows of a tile at most, and workgroups for a processor up to which rows are shared.
const MOST_SPLITS: u32 = 16;
const GROUPS: u32 = 2;

/// How a workgroup goes through the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiling {
    /// Subgroups of a workgroup, with 16 queries each.
    subgroups: u32,
    /// Rows of the cache in a block.
    keys: u32,
    /// Blocks in workgroup memory: one that is computed, and perhaps one that is on its way.
    slices: u32,
}

impl Tiling {
    /// For small heads: more rows to a block, and more workgroups on a processor instead of a second slice.
    const SMALL: [Self; 2] =
        [Self { subgroups: 4, keys: 32, slices: 1 }, Self { subgroups: 2, keys: 16, slices: 1 }];
    /// For large heads, whose sums take most of the registers.
    const LARGE: [Self; 3] = [
        Self { subgroups: 4, keys: 16, slices: 2 },
        Self { subgroups: 4, keys: 16, slices: 1 },
        Self { subgroups: 2, keys: 16, slices: 1 },
    ];

    /// Bytes of workgroup memory for heads of this size.
    fn bytes(self, head: u32) -> u32 {
        let row = head / 8 + 1;
        let staged = (self.slices * 2 * self.keys * row).max(16 * self.subgroups * row);
        16 * (staged + 16 * self.subgroups * (self.keys / 4 + 1))
    }

    /// The first that the device can hold.
    fn of(job: &Job<'_>, head: u32) -> Option<Self> {
        let fits = |tiling: &Self| {
            tiling.bytes(head) <= job.target.shared_bytes
                && 32 * tiling.subgroups <= job.target.max_invocations
        };
        let tilings = if head <= 64 { Self::SMALL.iter() } else { Self::LARGE.iter() };
        tilings.copied().find(fits)
    }
}

/// The kernel, if device and cache allow one.
pub(super) fn lower(job: &Job<'_>) -> Option<Kernel> {
    let [_, tokens, heads, head] = job.layout(0).shape4();
    let kv_heads = job.layout(1).shape4()[2];
    let share = heads / kv_heads;
    let fits = job.target.cooperative
        && job.target.subgroup == 32
        && is_square(job)
        && HEADS.contains(&head)
        && head.is_multiple_of(16)
        && kv_heads <= job.target.max_groups;
    if !fits
        || ![0, 1, 2, job.operands.len() - 1].into_iter().all(|operand| is_in_quads(job, operand))
    {
        return None;
    }
    let tiling = Tiling::of(job, head)?;
    let tiles = (u64::from(tokens) * u64::from(share)).div_ceil(u64::from(16 * tiling.subgroups));
    let tiles = u32::try_from(tiles).ok().filter(|&tiles| tiles <= job.target.max_groups)?;
    let splits = splits(job, tiles * kv_heads);
    let y = job.operands.len() - 1;
    let mut source = with_sinks(with_cache(Source::new(job)), "factor")
        .enable("wgpu_cooperative_matrix")
        .constant("HEAD", head)
        .constant("SHARE", share)
        .constant("SUBGROUPS", tiling.subgroups)
        .constant("KEYS", tiling.keys)
        .constant("SLICES", tiling.slices)
        .body(MATH)
        .body(HALVES);
    for operand in [0, 1, 2, y] {
        source = source.view(operand, View::Quads);
    }
    source = source.body(if job.dtype(0) == DType::F16 { Q_F16 } else { Q_F32 });
    source = source.body(match job.dtype(y) {
        DType::F16 => Y_F16,
        DType::A16 => Y_A16,
        _ => Y_F32,
    });
    source = source.body(match job.dtype(1) {
        DType::F16 => CACHE_F16,
        DType::C8 => CACHE_C8,
        _ => CACHE_F32,
    });
    let text = match splits {
        1 => WHOLE,
        _ => {
            let queries = 16 * tiling.subgroups;
            let bytes = u64::from(tiles * kv_heads) * u64::from(splits * queries * (4 * head + 16));
            source = source.scratch_in_quads(bytes, tiles * kv_heads).constant("SPAN", SPAN);
            SPLIT
        }
    };
    let source = source
        .constant("HEAD_TILES", head / 16)
        .constant("KEY_TILES", tiling.keys / 16)
        .body(piece(text, "part")?)
        .body(
            &ATTENTION
                .replace("    // NEEDED\n", piece(text, "needed").unwrap_or_default())
                .replace("    // FINISH\n", piece(text, "finish")?),
        );
    Some(source.build([tiles, kv_heads, splits]))
}

/// Workgroups that share the rows of each of so many tiles: a few tiles would leave most of the device idle.
fn splits(job: &Job<'_>, tiles: u32) -> u32 {
    if !job.target.tickets {
        return 1;
    }
    let most = rows_of(job).div_ceil(SPAN).min(MOST_SPLITS);
    (GROUPS * job.target.processors / tiles).clamp(1, most.max(1))
}

const ATTENTION: &str = include_str!("kernels/attention_prompt.wgsl");
const WHOLE: &str = include_str!("kernels/attention_prompt_whole.wgsl");
const SPLIT: &str = include_str!("kernels/attention_prompt_split.wgsl");

/// Whether heads of an operand start at multiples of 16 bytes.
fn is_in_quads(job: &Job<'_>, operand: usize) -> bool {
    let unit = match job.dtype(operand) {
        DType::F32 => 4,
        DType::F16 => 8,
        DType::A16 | DType::C8 => 32,
        _ => return false,
    };
    let strides = job.layout(operand).strides4();
    job.operands[operand].is_aligned()
        && strides[3] == 1
        && strides[1..3].iter().all(|stride| stride.is_multiple_of(unit))
}

const Q_F32: &str = "
fn q_four(i: u32) -> vec4<f32> { return bitcast<vec4<f32>>(b_q[i / 4u]); }
";

const Q_F16: &str = include_str!("kernels/attention_prompt_q_f16.wgsl");

const Y_F32: &str = include_str!("kernels/attention_prompt_y_f32.wgsl");

const Y_F16: &str = "
fn y_eight(i: u32, low: vec4<f32>, high: vec4<f32>) { b_y[i / 8u] = bounded_halves(low, high); }
";

const Y_A16: &str = "
fn y_eight(i: u32, low: vec4<f32>, high: vec4<f32>) { b_y[i / 32u * 8u + i % 32u / 8u] = bounded_halves(low, high); }
";

const CACHE_F16: &str = "
fn k_eight(i: u32) -> vec4<u32> { return b_k[i / 8u]; }
fn v_eight(i: u32) -> vec4<u32> { return b_v[i / 8u]; }
";

const CACHE_C8: &str = include_str!("kernels/attention_prompt_cache_c8.wgsl");

const CACHE_F32: &str = include_str!("kernels/attention_prompt_cache_f32.wgsl");
