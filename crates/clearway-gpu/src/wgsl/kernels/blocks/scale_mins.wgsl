// Scale and minimum of sub-block i, 6 bits each, packed as in Q4_K and Q5_K.
fn scale_min_at(base: u32, i: u32) -> vec2<f32> {
    let k = i % 4u;
    let scales = byte_at(base + k);
    let mins = byte_at(base + 4u + k);
    let both = byte_at(base + 8u + k);
    let low = vec2<u32>(scales & 63u, mins & 63u);
    let high = vec2<u32>((both & 15u) | ((scales >> 6u) << 4u), (both >> 4u) | ((mins >> 6u) << 4u));
    return vec2<f32>(select(low, high, i >= 4u));
}
