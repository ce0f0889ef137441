fn four_at(base: u32, j: u32) -> vec4<f32> {
    return scale_at(base) * vec4<f32>(unpack4xI8(word_at(base + 2u + j)));
}
