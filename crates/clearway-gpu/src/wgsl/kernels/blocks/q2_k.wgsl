fn four_at(base: u32, j: u32) -> vec4<f32> {
    let q = (word_at(base + 16u + j / 128u * 32u + j % 32u) >> (j % 128u / 32u * 2u)) & 0x03030303u;
    let packed = byte_at(base + j / 16u);
    let scale = scale_at(base + 80u) * f32(packed & 15u);
    let low = scale_at(base + 82u) * f32(packed >> 4u);
    return fma(vec4<f32>(scale), bytes_of(q), vec4<f32>(-low));
}
