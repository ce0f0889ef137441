//! How kernels read a chunk of 32 weights from planes.

use clearway_graph::DType;

/// Text shared by all types: what a chunk is, and how its parts are put together.
///
/// The quants come as 8-bit integers, four to a word; weight `i` of the first half is
/// `d.x * q + m.x`, of the second `d.y * q + m.y`. `MINIMUM` says whether `m` is ever not zero,
/// `HALVES` whether the two halves ever differ.
pub(super) fn chunk_type(dtype: DType) -> String {
    let minimum = dtype != DType::Q8_0;
    let halves = matches!(dtype, DType::Q2_K | DType::Q3_K | DType::Q6_K);
    format!("{SHARED}const MINIMUM = {minimum};\nconst HALVES = {halves};\n")
}

/// Text with the function `load_chunk_NAME(c)` for the operand of this name; [`chunk_type`] comes
/// first.
pub(super) fn load_chunk(dtype: DType, name: &str) -> Option<String> {
    let (low, scales) = match dtype {
        DType::Q4_0 => (NIBBLES, "let d = half_$(P.$.place.y, c);\n    return offset(q, d, 8.0);"),
        DType::Q4_1 => (NIBBLES, "return affine(q, unpack2x16float(s_$[P.$.place.y + c]));"),
        DType::Q5_0 => (FIVES, "let d = half_$(P.$.place.z, c);\n    return offset(q, d, 16.0);"),
        DType::Q5_1 => (FIVES, "return affine(q, unpack2x16float(s_$[P.$.place.z + c]));"),
        DType::Q8_0 => (BYTES, "return plain(q, half_$(P.$.place.y, c));"),
        DType::Q2_K => (
            "let q = pairs_$(P.$.place.x, c);",
            "let s = word16_$(P.$.place.y, c);
    let dm = unpack2x16float(s_$[P.$.place.z + c / 8u]);
    let scale = vec2<f32>(f32(s & 15u), f32((s >> 8u) & 15u));
    let low = vec2<f32>(f32((s >> 4u) & 15u), f32(s >> 12u));
    return Chunk(q.lo, q.hi, dm.x * scale, -dm.y * low);",
        ),
        DType::Q3_K => (
            "let two = pairs_$(P.$.place.x, c);
    let h = s_$[P.$.place.y + c];
    let q = Quants(two.lo | (ones_lo(h) << vec4<u32>(2u)), two.hi | (ones_hi(h) << vec4<u32>(2u)));",
            "let s = word16_$(P.$.place.z, c);
    let d = half_$(P.$.place.w, c / 8u);
    let scale = d * (vec2<f32>(f32(s & 255u), f32(s >> 8u)) - 32.0);
    return Chunk(q.lo, q.hi, scale, -4.0 * scale);",
        ),
        DType::Q4_K => (NIBBLES, "return runs(q, b_$[P.$.place.y / 4u + c / 8u], c % 8u);"),
        DType::Q5_K => (FIVES, "return runs(q, b_$[P.$.place.z / 4u + c / 8u], c % 8u);"),
        DType::Q6_K => (
            "let four = nibbles_$(c);
    let two = pairs_$(P.$.place.y, c);
    let q = Quants(four.lo | (two.lo << vec4<u32>(4u)), four.hi | (two.hi << vec4<u32>(4u)));",
            "let s = bitcast<i32>(word16_$(P.$.place.z, c));
    let d = half_$(P.$.place.w, c / 8u);
    let scale = d * vec2<f32>(f32((s << 24u) >> 24u), f32((s << 16u) >> 24u));
    return Chunk(q.lo, q.hi, scale, -32.0 * scale);",
        ),
        _ => return None,
    };
    let load = format!("fn load_chunk_$(c: u32) -> Chunk {{\n    {low}\n    {scales}\n}}\n");
    Some((MEMORY.to_owned() + &load).replace('$', name))
}

const NIBBLES: &str = "let q = nibbles_$(c);";
const BYTES: &str = "let q = Quants(b_$[2u * c], b_$[2u * c + 1u]);";
const FIVES: &str = "let four = nibbles_$(c);
    let h = s_$[P.$.place.y + c];
    let q = Quants(four.lo | (ones_lo(h) << vec4<u32>(4u)), four.hi | (ones_hi(h) << vec4<u32>(4u)));";

/// What looks at memory; `$` is the operand's name.
const MEMORY: &str = "
fn word16_$(plane: u32, i: u32) -> u32 { return (s_$[plane + i / 2u] >> (i % 2u * 16u)) & 0xffffu; }
fn half_$(plane: u32, i: u32) -> f32 { return unpack2x16float(word16_$(plane, i)).x; }
fn nibbles_$(c: u32) -> Quants {
    let q = b_$[c];
    return Quants(q & vec4<u32>(0x0f0f0f0fu), (q >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu));
}
fn pairs_$(plane: u32, c: u32) -> Quants {
    let at = plane + 2u * c;
    let by = vec4<u32>(0u, 2u, 4u, 6u);
    let mask = vec4<u32>(0x03030303u);
    return Quants((vec4<u32>(s_$[at]) >> by) & mask, (vec4<u32>(s_$[at + 1u]) >> by) & mask);
}
";

const SHARED: &str = "
struct Quants { lo: vec4<u32>, hi: vec4<u32> }
struct Chunk { lo: vec4<u32>, hi: vec4<u32>, d: vec2<f32>, m: vec2<f32> }
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
// Scale and minimum of run `run`, 12 bits of the last three words.
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
// Byte `j` of 16 as a signed number: those of Q8_0 have a sign, all others stay below 128.
fn quant(words: vec4<u32>, j: u32) -> f32 {
    return f32(bitcast<i32>(words[j / 4u] << (24u - j % 4u * 8u)) >> 24u);
}
";
