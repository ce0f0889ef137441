fn four_at(base: u32, j: u32) -> vec4<f32> {
    let q = (word_at(base + 2u + j % 16u) >> (j / 16u * 4u)) & 0x0f0f0f0fu;
    return scale_at(base) * levels_of(q);
}
