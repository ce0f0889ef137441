// How kernels read a chunk of 32 weights from planes. `chunks.rs` puts the pieces together: `shared`, then for a
// type what memory holds of a chunk (`Raw`) and how it becomes a `Chunk`, then for each operand how it is fetched.
// `$operand` is the operand's name. Place x, y, z, w of an operand are where its planes start.

//# piece shared
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

//# piece two words of a chunk in a plane
fn two_$operand(plane: u32, c: u32) -> vec2<u32> {
    return vec2<u32>(s_$operand[plane + 2u * c], s_$operand[plane + 2u * c + 1u]);
}

//# piece q4_0
struct Raw { q: vec4<u32>, s: u32 }
fn decode(r: Raw, c: u32) -> Chunk {
    return offset(nibbles(r.q), half_of(r.s, c), 8.0);
}

//# piece q4_0 operand
fn fetch_$operand(c: u32) -> Raw {
    return Raw(b_$operand[c], s_$operand[P.$operand.place.y + c / 2u]);
}

//# piece q4_1
struct Raw { q: vec4<u32>, s: u32 }
fn decode(r: Raw, c: u32) -> Chunk {
    return affine(nibbles(r.q), unpack2x16float(r.s));
}

//# piece q4_1 operand
fn fetch_$operand(c: u32) -> Raw {
    return Raw(b_$operand[c], s_$operand[P.$operand.place.y + c]);
}

//# piece q5_0
struct Raw { q: vec4<u32>, h: u32, s: u32 }
fn decode(r: Raw, c: u32) -> Chunk {
    return offset(fives(r.q, r.h), half_of(r.s, c), 16.0);
}

//# piece q5_0 operand
fn fetch_$operand(c: u32) -> Raw {
    return Raw(b_$operand[c], s_$operand[P.$operand.place.y + c], s_$operand[P.$operand.place.z + c / 2u]);
}

//# piece q5_1
struct Raw { q: vec4<u32>, h: u32, s: u32 }
fn decode(r: Raw, c: u32) -> Chunk {
    return affine(fives(r.q, r.h), unpack2x16float(r.s));
}

//# piece q5_1 operand
fn fetch_$operand(c: u32) -> Raw {
    return Raw(b_$operand[c], s_$operand[P.$operand.place.y + c], s_$operand[P.$operand.place.z + c]);
}

//# piece q8_0
struct Raw { lo: vec4<u32>, hi: vec4<u32>, s: u32 }
fn decode(r: Raw, c: u32) -> Chunk {
    return Chunk(r.lo, r.hi, vec2<f32>(half_of(r.s, c)), vec2<f32>(0.0));
}

//# piece q8_0 operand
fn fetch_$operand(c: u32) -> Raw {
    return Raw(b_$operand[2u * c], b_$operand[2u * c + 1u], s_$operand[P.$operand.place.y + c / 2u]);
}

//# piece q2_k
struct Raw { q: vec2<u32>, s: u32, d: u32 }
fn decode(r: Raw, c: u32) -> Chunk {
    let q = pairs(r.q);
    let s = word16(r.s, c);
    let dm = unpack2x16float(r.d);
    let scale = vec2<f32>(f32(s & 15u), f32((s >> 8u) & 15u));
    let low = vec2<f32>(f32((s >> 4u) & 15u), f32(s >> 12u));
    return Chunk(q.lo, q.hi, dm.x * scale, -dm.y * low);
}

//# piece q2_k operand
fn fetch_$operand(c: u32) -> Raw {
    return Raw(two_$operand(P.$operand.place.x, c), s_$operand[P.$operand.place.y + c / 2u], s_$operand[P.$operand.place.z + c / 8u]);
}

//# piece q3_k
struct Raw { q: vec2<u32>, h: u32, s: u32, d: u32 }
fn decode(r: Raw, c: u32) -> Chunk {
    let q = with_high(pairs(r.q), ones(r.h), 2u);
    let s = word16(r.s, c);
    let scale = half_of(r.d, c / 8u) * (vec2<f32>(f32(s & 255u), f32(s >> 8u)) - 32.0);
    return Chunk(q.lo, q.hi, scale, -4.0 * scale);
}

//# piece q3_k operand
fn fetch_$operand(c: u32) -> Raw {
    return Raw(two_$operand(P.$operand.place.x, c), s_$operand[P.$operand.place.y + c], s_$operand[P.$operand.place.z + c / 2u], s_$operand[P.$operand.place.w + c / 16u]);
}

//# piece q4_k
struct Raw { q: vec4<u32>, s: u32, d: u32 }
fn decode(r: Raw, c: u32) -> Chunk {
    return runs(nibbles(r.q), word16(r.s, c), unpack2x16float(r.d));
}

//# piece q4_k operand
fn fetch_$operand(c: u32) -> Raw {
    return Raw(b_$operand[c], s_$operand[P.$operand.place.y + c / 2u], s_$operand[P.$operand.place.z + c / 8u]);
}

//# piece q5_k
struct Raw { q: vec4<u32>, h: u32, s: u32, d: u32 }
fn decode(r: Raw, c: u32) -> Chunk {
    return runs(fives(r.q, r.h), word16(r.s, c), unpack2x16float(r.d));
}

//# piece q5_k operand
fn fetch_$operand(c: u32) -> Raw {
    return Raw(b_$operand[c], s_$operand[P.$operand.place.y + c], s_$operand[P.$operand.place.z + c / 2u], s_$operand[P.$operand.place.w + c / 8u]);
}

//# piece q6_k
struct Raw { q: vec4<u32>, h: vec2<u32>, s: u32, d: u32 }
fn decode(r: Raw, c: u32) -> Chunk {
    let q = with_high(nibbles(r.q), pairs(r.h), 4u);
    let s = bitcast<i32>(word16(r.s, c));
    let scale = half_of(r.d, c / 8u) * vec2<f32>(f32((s << 24u) >> 24u), f32((s << 16u) >> 24u));
    return Chunk(q.lo, q.hi, scale, -32.0 * scale);
}

//# piece q6_k operand
fn fetch_$operand(c: u32) -> Raw {
    return Raw(b_$operand[c], two_$operand(P.$operand.place.y, c), s_$operand[P.$operand.place.z + c / 2u], s_$operand[P.$operand.place.w + c / 16u]);
}

//# piece any operand
fn load_chunk_$operand(c: u32) -> Chunk { return decode(fetch_$operand(c), c); }
