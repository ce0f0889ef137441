//! Causal grouped-query attention over a KV cache, for any number of tokens and any head size.

use clearway_graph::DType;

use super::elementwise::{GRID, MATH};
use super::{Job, Kernel, Source, View};

const ATTENTION: &str = include_str!("kernels/attention.wgsl");

/// Queries of an invocation, and invocations that share them, each with another part of the heads.
const OWN: u32 = 2;
const SHARING: u32 = 8;
/// Invocations of a workgroup, rows of a block, quads of a chunk of a head with what keeps rows apart, as
/// in the text.
const THREADS: u32 = 128;
const KEYS: u32 = 32;
const PITCH: u32 = 17;
/// Elements of a head in a chunk, as in the text.
const CHUNK: u32 = 64;

pub(super) fn lower(job: &Job<'_>) -> Kernel {
    let ([_, tokens, heads, head], kv_heads) =
        (job.layout(0).shape4(), u64::from(job.layout(1).shape4()[2]));
    let queries = u64::from(tokens) * (u64::from(heads) / kv_heads);
    let tile = THREADS / SHARING * OWN;
    let chunks = head.div_ceil(CHUNK);
    let others = (KEYS * PITCH * 4 + tile * (KEYS + 1)) * 4;
    let fits = chunks * tile * PITCH * 16 + others <= job.target.shared_bytes;
    let mut source = Source::new(job);
    for (operand, name) in ["q", "k", "v"].into_iter().enumerate() {
        let text = match (job.dtype(operand), is_in_quads(job, operand)) {
            (DType::F32, true) => FOUR_WORDS,
            (DType::F16, true) => FOUR_HALVES,
            _ => FOUR_ELEMENTS,
        };
        if text != FOUR_ELEMENTS {
            source = source.view(operand, View::Quads);
        }
        source = source.body(&text.replace('$', name));
    }
    source
        .constant("CHUNKS", chunks)
        .constant("OWN", OWN)
        .constant("HELD", if fits { chunks } else { 1 })
        .body(GRID)
        .body(MATH)
        .body(ATTENTION)
        .build(job.target.fold(queries.div_ceil(u64::from(tile)) * kv_heads))
}

/// Whether every head lies at a multiple of 16 bytes and can be read four elements at a time.
fn is_in_quads(job: &Job<'_>, operand: usize) -> bool {
    let layout = job.layout(operand);
    let (shape, strides) = (layout.shape4(), layout.strides4());
    let quad = 16 / layout.dtype().block_bytes() as u32;
    job.operands[operand].is_aligned()
        && strides[3] == 1
        && shape[3].is_multiple_of(quad)
        && (1..3).all(|d| strides[d].is_multiple_of(quad))
}

/// Elements `d .. d + 4` of a head of operand `$` that starts at `at`; what is beyond the head is 0.
const FOUR_WORDS: &str = "
fn $_four(at: u32, d: u32, head: u32) -> vec4<f32> {
    if (d >= head) { return vec4<f32>(); }
    return bitcast<vec4<f32>>(b_$[(at + d) / 4u]);
}
";

const FOUR_HALVES: &str = "
fn $_four(at: u32, d: u32, head: u32) -> vec4<f32> {
    if (d >= head) { return vec4<f32>(); }
    let eight = b_$[(at + d) / 8u];
    let four = select(eight.xy, eight.zw, d % 8u >= 4u);
    return vec4<f32>(unpack2x16float(four.x), unpack2x16float(four.y));
}
";

const FOUR_ELEMENTS: &str = "
fn $_four(at: u32, d: u32, head: u32) -> vec4<f32> {
    var four = vec4<f32>();
    for (var i = 0u; i < 4u; i++) {
        if (d + i < head) { four[i] = get_$(at + d + i); }
    }
    return four;
}
";
