fn four_at(base: u32, j: u32) -> vec4<f32> {
    let low = (word_at(base + 6u + j % 16u) >> (j / 16u * 4u)) & 0x0f0f0f0fu;
    let q = low | fifths_of(word_at(base + 2u) >> j);
    return scale_at(base) * (bytes_of(q) - 16.0);
}
