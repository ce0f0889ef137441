fn four_at(base: u32, j: u32) -> vec4<f32> {
    let q = (word_at(base + 16u + j / 64u * 32u + j % 32u) >> (j % 64u / 32u * 4u)) & 0x0f0f0f0fu;
    let factors = vec2<f32>(scale_at(base), scale_at(base + 2u)) * scale_min_at(base + 4u, j / 32u);
    return fma(vec4<f32>(factors.x), bytes_of(q), vec4<f32>(-factors.y));
}
