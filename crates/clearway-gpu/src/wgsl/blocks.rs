//! Block formats as files have them: text that decodes four weights at a time.
//!
//! Products within a block are exact in f32 but for the last, so the weights have the bits that the
//! reference decoder gives them.

use clearway_graph::DType;

use super::{Job, Source};

const COMMON: &str = include_str!("kernels/blocks/common.wgsl");
const SCALE_MINS: &str = include_str!("kernels/blocks/scale_mins.wgsl");

/// Adds `element_four(i)`: four elements of a block operand from element `i` on, a multiple of four.
pub(super) fn decoder<'a>(source: Source<'a>, job: &Job<'_>, operand: usize) -> Source<'a> {
    let (name, dtype) = (job.operands[operand].name, job.dtype(operand));
    let (elems, bytes) = (dtype.block_elems(), dtype.block_bytes());
    let access = format!(
        "fn byte_at(i: u32) -> u32 {{ return byte_{name}(i); }}
fn word_at(i: u32) -> u32 {{ return word_{name}(i); }}\n"
    );
    let element = format!(
        "fn element_four(i: u32) -> vec4<f32> {{ return four_at(i / {elems}u * {bytes}u, i % {elems}u); }}\n"
    );
    let source = source.body(&access).body(COMMON);
    let source = match dtype {
        DType::Q4_K | DType::Q5_K => source.body(SCALE_MINS),
        _ => source,
    };
    source.body(block_text(dtype)).body(&element)
}

/// Text of `four_at(base, j)`: four weights of the block at byte `base`, from weight `j` on.
fn block_text(dtype: DType) -> &'static str {
    match dtype {
        DType::Q4_0 => include_str!("kernels/blocks/q4_0.wgsl"),
        DType::Q4_1 => include_str!("kernels/blocks/q4_1.wgsl"),
        DType::Q5_0 => include_str!("kernels/blocks/q5_0.wgsl"),
        DType::Q5_1 => include_str!("kernels/blocks/q5_1.wgsl"),
        DType::Q8_0 => include_str!("kernels/blocks/q8_0.wgsl"),
        DType::Q2_K => include_str!("kernels/blocks/q2_k.wgsl"),
        DType::Q3_K => include_str!("kernels/blocks/q3_k.wgsl"),
        DType::Q4_K => include_str!("kernels/blocks/q4_k.wgsl"),
        DType::Q5_K => include_str!("kernels/blocks/q5_k.wgsl"),
        DType::Q6_K => include_str!("kernels/blocks/q6_k.wgsl"),
        DType::IQ4_NL => include_str!("kernels/blocks/iq4_nl.wgsl"),
        DType::IQ4_XS => include_str!("kernels/blocks/iq4_xs.wgsl"),
        DType::MXFP4 => include_str!("kernels/blocks/mxfp4.wgsl"),
        DType::F32 | DType::F16 | DType::BF16 | DType::U32 | DType::A8 | DType::A16 | DType::C8 => {
            ""
        }
    }
}
