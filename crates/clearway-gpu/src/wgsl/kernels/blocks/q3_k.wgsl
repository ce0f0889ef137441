fn four_at(base: u32, j: u32) -> vec4<f32> {
    let low = (word_at(base + 32u + j / 128u * 32u + j % 32u) >> (j % 128u / 32u * 2u)) & 0x03030303u;
    let high = (word_at(base + j % 32u) >> (j / 32u)) & 0x01010101u;
    let i = j / 16u;
    let scale_low = (byte_at(base + 96u + i % 8u) >> (i / 8u * 4u)) & 15u;
    let scale_high = (byte_at(base + 104u + i % 4u) >> (i / 4u * 2u)) & 3u;
    let scale = scale_at(base + 108u) * (f32(scale_low | (scale_high << 4u)) - 32.0);
    return scale * (bytes_of(low | (high << 2u)) - 4.0);
}
