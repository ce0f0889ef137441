fn head_items() -> u32 { return P.x.shape.w / 32u; }
fn store_item(token: u32, head: u32, item: u32, row: u32) {
    var v: array<vec4<f32>, 8>;
    for (var n = 0u; n < 8u; n++) {
        let i = 32u * item + 4u * n;
        v[n] = vec4<f32>(
            element_of(token, head, i),
            element_of(token, head, i + 1u),
            element_of(token, head, i + 2u),
            element_of(token, head, i + 3u),
        );
    }
    put_chunk_cache(at_cache(vec4<u32>(0u, row, head, 32u * item)), v);
}
