fn four_at(base: u32, j: u32) -> vec4<f32> {
    let i = j / 32u;
    let q = (word_at(base + 8u + i * 16u + j % 16u) >> (j % 32u / 16u * 4u)) & 0x0f0f0f0fu;
    let low = (byte_at(base + 4u + i / 2u) >> (i % 2u * 4u)) & 15u;
    let high = ((byte_at(base + 2u) | (byte_at(base + 3u) << 8u)) >> (i * 2u)) & 3u;
    let scale = scale_at(base) * (f32(low | (high << 4u)) - 32.0);
    return scale * levels_of(q);
}
