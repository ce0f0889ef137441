//! How kernels read a chunk of 32 weights from planes.

use clearway_graph::DType;

/// Text with the function `load_chunk(c)` for weights `w` in planes of this type.
///
/// The quants come as 8-bit integers, four to a word; weight `i` of the first half is
/// `d.x * q + m.x`, of the second `d.y * q + m.y`. `MINIMUM` says whether `m` is ever not zero,
/// `HALVES` whether the two halves ever differ.
pub(super) fn load_chunk(dtype: DType) -> Option<String> {
    let (low, scales) = match dtype {
        DType::Q4_0 => (NIBBLES, "let d = half(P.w.place.y, c); return offset(q, d, 8.0);"),
        DType::Q4_1 => (NIBBLES, "return affine(q, unpack2x16float(s_w[P.w.place.y + c]));"),
        DType::Q5_0 => (FIVES, "let d = half(P.w.place.z, c); return offset(q, d, 16.0);"),
        DType::Q5_1 => (FIVES, "return affine(q, unpack2x16float(s_w[P.w.place.z + c]));"),
        DType::Q8_0 => (BYTES, "return plain(q, half(P.w.place.y, c));"),
        DType::Q2_K => (
            "let q = pairs(P.w.place.x, c);",
            "let s = word16(P.w.place.y, c);
    let dm = unpack2x16float(s_w[P.w.place.z + c / 8u]);
    let scale = vec2<f32>(f32(s & 15u), f32((s >> 8u) & 15u));
    let low = vec2<f32>(f32((s >> 4u) & 15u), f32(s >> 12u));
    return Chunk(q.lo, q.hi, dm.x * scale, -dm.y * low);",
        ),
        DType::Q3_K => (
            "let two = pairs(P.w.place.x, c);
    let h = s_w[P.w.place.y + c];
    let q = Quants(two.lo | (ones_lo(h) << vec4<u32>(2u)), two.hi | (ones_hi(h) << vec4<u32>(2u)));",
            "let s = word16(P.w.place.z, c);
    let d = half(P.w.place.w, c / 8u);
    let scale = d * (vec2<f32>(f32(s & 255u), f32(s >> 8u)) - 32.0);
    return Chunk(q.lo, q.hi, scale, -4.0 * scale);",
        ),
        DType::Q4_K => (NIBBLES, "return runs(q, b_w[P.w.place.y / 4u + c / 8u], c % 8u);"),
        DType::Q5_K => (FIVES, "return runs(q, b_w[P.w.place.z / 4u + c / 8u], c % 8u);"),
        DType::Q6_K => (
            "let four = nibbles(c);
    let two = pairs(P.w.place.y, c);
    let q = Quants(four.lo | (two.lo << vec4<u32>(4u)), four.hi | (two.hi << vec4<u32>(4u)));",
            "let s = bitcast<i32>(word16(P.w.place.z, c));
    let d = half(P.w.place.w, c / 8u);
    let scale = d * vec2<f32>(f32((s << 24u) >> 24u), f32((s << 16u) >> 24u));
    return Chunk(q.lo, q.hi, scale, -32.0 * scale);",
        ),
        _ => return None,
    };
    let minimum = dtype != DType::Q8_0;
    let halves = matches!(dtype, DType::Q2_K | DType::Q3_K | DType::Q6_K);
    Some(format!(
        "{SHARED}const MINIMUM = {minimum};\nconst HALVES = {halves};
fn load_chunk(c: u32) -> Chunk {{\n    {low}\n    {scales}\n}}\n"
    ))
}

const NIBBLES: &str = "let q = nibbles(c);";
const BYTES: &str = "let q = Quants(b_w[2u * c], b_w[2u * c + 1u]);";
const FIVES: &str = "let four = nibbles(c);
    let h = s_w[P.w.place.y + c];
    let q = Quants(four.lo | (ones_lo(h) << vec4<u32>(4u)), four.hi | (ones_hi(h) << vec4<u32>(4u)));";

const SHARED: &str = "
struct Quants { lo: vec4<u32>, hi: vec4<u32> }
struct Chunk { lo: vec4<u32>, hi: vec4<u32>, d: vec2<f32>, m: vec2<f32> }
fn word16(plane: u32, i: u32) -> u32 { return (s_w[plane + i / 2u] >> (i % 2u * 16u)) & 0xffffu; }
fn half(plane: u32, i: u32) -> f32 { return unpack2x16float(word16(plane, i)).x; }
fn nibbles(c: u32) -> Quants {
    let q = b_w[c];
    return Quants(q & vec4<u32>(0x0f0f0f0fu), (q >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu));
}
fn pairs(plane: u32, c: u32) -> Quants {
    let at = plane + 2u * c;
    let by = vec4<u32>(0u, 2u, 4u, 6u);
    let mask = vec4<u32>(0x03030303u);
    return Quants((vec4<u32>(s_w[at]) >> by) & mask, (vec4<u32>(s_w[at + 1u]) >> by) & mask);
}
fn ones_lo(h: u32) -> vec4<u32> {
    return (vec4<u32>(h) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(0x01010101u);
}
fn ones_hi(h: u32) -> vec4<u32> {
    return (vec4<u32>(h) >> vec4<u32>(4u, 5u, 6u, 7u)) & vec4<u32>(0x01010101u);
}
fn plain(q: Quants, d: f32) -> Chunk { return Chunk(q.lo, q.hi, vec2<f32>(d), vec2<f32>(0.0)); }
fn offset(q: Quants, d: f32, zero: f32) -> Chunk {
    return Chunk(q.lo, q.hi, vec2<f32>(d), vec2<f32>(-zero * d));
}
fn affine(q: Quants, dm: vec2<f32>) -> Chunk {
    return Chunk(q.lo, q.hi, dm.xx, dm.yy);
}
fn runs(q: Quants, s: vec4<u32>, run: u32) -> Chunk {
    let dm = unpack2x16float(s.x);
    let bit = 12u * run;
    let first = select(select(s.w, s.z, bit < 64u), s.y, bit < 32u);
    let second = select(s.w, s.z, bit < 32u);
    let at = bit % 32u;
    let both = first >> at;
    let six = select(both, both | (second << (32u - max(at, 1u))), at > 20u);
    let scale = dm.x * f32(six & 63u);
    let low = dm.y * f32((six >> 6u) & 63u);
    return Chunk(q.lo, q.hi, vec2<f32>(scale), vec2<f32>(-low));
}
";
