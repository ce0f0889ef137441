// The f16 in bytes i and i + 1. By integers, since drivers may flush small ones when they convert.
fn scale_at(i: u32) -> f32 {
    let h = byte_at(i) | (byte_at(i + 1u) << 8u);
    let exponent = (h >> 10u) & 31u;
    let normal = bitcast<f32>(((exponent + 112u) << 23u) | ((h & 1023u) << 13u));
    let size = select(normal, f32(h & 1023u) * 5.9604645e-8, exponent == 0u);
    return select(size, -size, h >= 0x8000u);
}

// Four bytes as numbers.
fn bytes_of(word: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8(word));
}

// Bit 4 of each of four bytes, from four neighbouring bits.
fn fifths_of(bits: u32) -> u32 {
    return ((bits & 1u) << 4u) | ((bits & 2u) << 11u) | ((bits & 4u) << 18u) | ((bits & 8u) << 25u);
}

// The level of a nibble of IQ4_NL and IQ4_XS.
fn level_of(q: u32) -> f32 {
    let packed = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
    let word = packed[q / 4u];
    return f32(bitcast<i32>(word << (24u - q % 4u * 8u)) >> 24u);
}

fn levels_of(word: u32) -> vec4<f32> {
    let q = unpack4xU8(word);
    return vec4<f32>(level_of(q.x), level_of(q.y), level_of(q.z), level_of(q.w));
}
