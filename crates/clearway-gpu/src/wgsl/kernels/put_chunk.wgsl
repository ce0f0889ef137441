// The scale of a chunk, an f16, by the bits of its largest magnitude. No less than the least normal number; NaN where a number of
// the chunk is not finite or beyond 127 of the largest scale.
fn scale_of_$name(most: u32) -> u32 {
    let scale = pack2x16float(vec2<f32>(max(bitcast<f32>(most) / 127.0, 6.103515625e-5), 0.0)) & 0xffffu;
    return select(scale, 0x7e00u, most > 0x4afde040u);
}

// As integers, magnitudes have the same order, with infinity and NaN above all.
fn most_of_$name(v: vec4<f32>) -> u32 {
    let a = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    return max(max(a.x, a.y), max(a.z, a.w));
}

// Four elements from `i` on, rounded by the scale of their chunk.
fn put_quants_$name(i: u32, v: vec4<f32>, scale: u32) {
    let q = vec4<i32>(round(v * (1.0 / unpack2x16float(scale).x)));
    let packed = u32(q.x & 255) | (u32(q.y & 255) << 8u) | (u32(q.z & 255) << 16u) | (u32(q.w & 255) << 24u);
    atomicStore(&$array[(i + P.$name.place.x) / 4u], packed);
}

// The scale of the chunk that begins with element `i`.
fn put_scale_$name(i: u32, scale: u32) {
    let at = P.$name.place.y + i / 32u;
    atomicAnd(&$array[at / 2u], ~(0xffffu << (at % 2u * 16u)));
    atomicOr(&$array[at / 2u], scale << (at % 2u * 16u));
}

// A chunk that begins with element `i`.
fn put_chunk_$name(i: u32, values: array<vec4<f32>, 8>) {
    var v = values;
    var most = 0u;
    for (var n = 0u; n < 8u; n++) { most = max(most, most_of_$name(v[n])); }
    let scale = scale_of_$name(most);
    for (var n = 0u; n < 8u; n++) { put_quants_$name(i + 4u * n, v[n], scale); }
    put_scale_$name(i, scale);
}
