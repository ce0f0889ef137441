//! How kernels read a chunk of 32 weights from planes.
//!
//! In two steps, so that a kernel can have several chunks under way: what memory gives fits few
//! registers, and taking it apart waits for it.

use clearway_graph::DType;

/// Text shared by all operands of a type: what a chunk is, and how it is put together from what memory
/// gives (`Raw`).
///
/// The quants come as 8-bit integers, four to a word; weight `i` of the first half is
/// `d.x * q + m.x`, of the second `d.y * q + m.y`. `MINIMUM` says whether `m` is ever not zero,
/// `HALVES` whether the two halves ever differ.
pub(super) fn chunk_type(dtype: DType) -> Option<String> {
    let minimum = dtype != DType::Q8_0;
    let halves = matches!(dtype, DType::Q2_K | DType::Q3_K | DType::Q6_K);
    let Format { raw, decode, .. } = format_of(dtype)?;
    Some(format!(
        "{SHARED}const MINIMUM = {minimum};\nconst HALVES = {halves};
struct Raw {{ {raw} }}
fn decode(r: Raw, c: u32) -> Chunk {{
    {decode}
}}\n"
    ))
}

/// Text with the functions `fetch_NAME(c)` and `load_chunk_NAME(c)` for the operand of this name;
/// [`chunk_type`] comes first.
pub(super) fn load_chunk(dtype: DType, name: &str) -> Option<String> {
    let fetch = format_of(dtype)?.fetch;
    let two = if fetch.contains("two_$") { TWO } else { "" };
    let text = format!(
        "{two}fn fetch_$(c: u32) -> Raw {{ return Raw({fetch}); }}
fn load_chunk_$(c: u32) -> Chunk {{ return decode(fetch_$(c), c); }}\n"
    );
    Some(text.replace('$', name))
}

/// What memory holds of chunk `c` of operand `$`, and how it becomes a `Chunk`.
struct Format {
    raw: &'static str,
    fetch: &'static str,
    decode: &'static str,
}

fn format_of(dtype: DType) -> Option<Format> {
    let (raw, fetch, decode) = match dtype {
        DType::Q4_0 => (
            "q: vec4<u32>, s: u32",
            "b_$[c], s_$[P.$.place.y + c / 2u]",
            "return offset(nibbles(r.q), half_of(r.s, c), 8.0);",
        ),
        DType::Q4_1 => (
            "q: vec4<u32>, s: u32",
            "b_$[c], s_$[P.$.place.y + c]",
            "return affine(nibbles(r.q), unpack2x16float(r.s));",
        ),
        DType::Q5_0 => (
            "q: vec4<u32>, h: u32, s: u32",
            "b_$[c], s_$[P.$.place.y + c], s_$[P.$.place.z + c / 2u]",
            "return offset(fives(r.q, r.h), half_of(r.s, c), 16.0);",
        ),
        DType::Q5_1 => (
            "q: vec4<u32>, h: u32, s: u32",
            "b_$[c], s_$[P.$.place.y + c], s_$[P.$.place.z + c]",
            "return affine(fives(r.q, r.h), unpack2x16float(r.s));",
        ),
        DType::Q8_0 => (
            "lo: vec4<u32>, hi: vec4<u32>, s: u32",
            "b_$[2u * c], b_$[2u * c + 1u], s_$[P.$.place.y + c / 2u]",
            "return Chunk(r.lo, r.hi, vec2<f32>(half_of(r.s, c)), vec2<f32>(0.0));",
        ),
        DType::Q2_K => (
            "q: vec2<u32>, s: u32, d: u32",
            "two_$(P.$.place.x, c), s_$[P.$.place.y + c / 2u], s_$[P.$.place.z + c / 8u]",
            "let q = pairs(r.q);
    let s = word16(r.s, c);
    let dm = unpack2x16float(r.d);
    let scale = vec2<f32>(f32(s & 15u), f32((s >> 8u) & 15u));
    let low = vec2<f32>(f32((s >> 4u) & 15u), f32(s >> 12u));
    return Chunk(q.lo, q.hi, dm.x * scale, -dm.y * low);",
        ),
        DType::Q3_K => (
            "q: vec2<u32>, h: u32, s: u32, d: u32",
            "two_$(P.$.place.x, c), s_$[P.$.place.y + c], s_$[P.$.place.z + c / 2u], s_$[P.$.place.w + c / 16u]",
            "let q = with_high(pairs(r.q), ones(r.h), 2u);
    let s = word16(r.s, c);
    let scale = half_of(r.d, c / 8u) * (vec2<f32>(f32(s & 255u), f32(s >> 8u)) - 32.0);
    return Chunk(q.lo, q.hi, scale, -4.0 * scale);",
        ),
        DType::Q4_K => (
            "q: vec4<u32>, s: u32, d: u32",
            "b_$[c], s_$[P.$.place.y + c / 2u], s_$[P.$.place.z + c / 8u]",
            "return runs(nibbles(r.q), word16(r.s, c), unpack2x16float(r.d));",
        ),
        DType::Q5_K => (
            "q: vec4<u32>, h: u32, s: u32, d: u32",
            "b_$[c], s_$[P.$.place.y + c], s_$[P.$.place.z + c / 2u], s_$[P.$.place.w + c / 8u]",
            "return runs(fives(r.q, r.h), word16(r.s, c), unpack2x16float(r.d));",
        ),
        DType::Q6_K => (
            "q: vec4<u32>, h: vec2<u32>, s: u32, d: u32",
            "b_$[c], two_$(P.$.place.y, c), s_$[P.$.place.z + c / 2u], s_$[P.$.place.w + c / 16u]",
            "let q = with_high(nibbles(r.q), pairs(r.h), 4u);
    let s = bitcast<i32>(word16(r.s, c));
    let scale = half_of(r.d, c / 8u) * vec2<f32>(f32((s << 24u) >> 24u), f32((s << 16u) >> 24u));
    return Chunk(q.lo, q.hi, scale, -32.0 * scale);",
        ),
        _ => return None,
    };
    Some(Format { raw, fetch, decode })
}

/// Two words of a chunk in a plane of operand `$`.
const TWO: &str = "
fn two_$(plane: u32, c: u32) -> vec2<u32> {
    return vec2<u32>(s_$[plane + 2u * c], s_$[plane + 2u * c + 1u]);
}
";

const SHARED: &str = "
struct Quants { lo: vec4<u32>, hi: vec4<u32> }
struct Chunk { lo: vec4<u32>, hi: vec4<u32>, d: vec2<f32>, m: vec2<f32> }
fn word16(word: u32, i: u32) -> u32 { return (word >> (i % 2u * 16u)) & 0xffffu; }
fn half_of(word: u32, i: u32) -> f32 { return unpack2x16float(word16(word, i)).x; }
fn nibbles(q: vec4<u32>) -> Quants {
    return Quants(q & vec4<u32>(0x0f0f0f0fu), (q >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu));
}
fn pairs(q: vec2<u32>) -> Quants {
    let by = vec4<u32>(0u, 2u, 4u, 6u);
    let mask = vec4<u32>(0x03030303u);
    return Quants((vec4<u32>(q.x) >> by) & mask, (vec4<u32>(q.y) >> by) & mask);
}
fn ones(h: u32) -> Quants {
    let mask = vec4<u32>(0x01010101u);
    return Quants((vec4<u32>(h) >> vec4<u32>(0u, 1u, 2u, 3u)) & mask, (vec4<u32>(h) >> vec4<u32>(4u, 5u, 6u, 7u)) & mask);
}
fn with_high(low: Quants, high: Quants, bits: u32) -> Quants {
    return Quants(low.lo | (high.lo << vec4<u32>(bits)), low.hi | (high.hi << vec4<u32>(bits)));
}
fn fives(q: vec4<u32>, h: u32) -> Quants { return with_high(nibbles(q), ones(h), 4u); }
fn offset(q: Quants, d: f32, zero: f32) -> Chunk {
    return Chunk(q.lo, q.hi, vec2<f32>(d), vec2<f32>(-zero * d));
}
fn affine(q: Quants, dm: vec2<f32>) -> Chunk {
    return Chunk(q.lo, q.hi, dm.xx, dm.yy);
}
// A byte of scale and one of minimum, times those of the block.
fn runs(q: Quants, s: u32, dm: vec2<f32>) -> Chunk {
    return Chunk(q.lo, q.hi, vec2<f32>(dm.x * f32(s & 255u)), vec2<f32>(-(dm.y * f32(s >> 8u))));
}
// Byte `j` of 16 as a signed number: those of Q8_0 have a sign, all others stay below 128.
fn quant(words: vec4<u32>, j: u32) -> f32 {
    return f32(bitcast<i32>(words[j / 4u] << (24u - j % 4u * 8u)) >> 24u);
}
";
