fn wide(words: vec2<u32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4<u32>(words.x << 16u, words.x & 0xffff0000u, words.y << 16u, words.y & 0xffff0000u));
}
fn w_halves(bits: vec4<u32>) -> vec4<u32> { return halves(wide(bits.xy), wide(bits.zw)); }
