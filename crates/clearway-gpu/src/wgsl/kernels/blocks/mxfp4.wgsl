// Half the scale 2^(e - 127), as levels are doubled. Exponent 255 is NaN; devices may flush the
// subnormal numbers of 0 and 1 to zero.
fn exponent_at(i: u32) -> f32 {
    let e = byte_at(i);
    let bits = select((e - 1u) << 23u, 0x00200000u << (e & 1u), e < 2u);
    return bitcast<f32>(select(bits, 0x7fc00000u, e == 255u));
}

// Twice the 4-bit float of a nibble: a sign, two bits of exponent, one of mantissa.
fn float_of(q: u32) -> f32 {
    let packed = vec2<u32>(0x03020100u, 0x0c080604u);
    let size = f32((packed[q / 4u % 2u] >> (q % 4u * 8u)) & 255u);
    return select(size, -size, q >= 8u);
}

fn four_at(base: u32, j: u32) -> vec4<f32> {
    let q = unpack4xU8((word_at(base + 1u + j % 16u) >> (j / 16u * 4u)) & 0x0f0f0f0fu);
    return exponent_at(base) * vec4<f32>(float_of(q.x), float_of(q.y), float_of(q.z), float_of(q.w));
}
