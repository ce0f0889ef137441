fn four_at(base: u32, j: u32) -> vec4<f32> {
    let low = (word_at(base + j / 128u * 64u + j % 64u) >> (j % 128u / 64u * 4u)) & 0x0f0f0f0fu;
    let high = (word_at(base + 128u + j / 128u * 32u + j % 32u) >> (j % 128u / 32u * 2u)) & 0x03030303u;
    let level = bitcast<i32>(byte_at(base + 192u + j / 16u) << 24u) >> 24u;
    let scale = scale_at(base + 208u) * f32(level);
    return scale * (bytes_of(low | (high << 4u)) - 32.0);
}
