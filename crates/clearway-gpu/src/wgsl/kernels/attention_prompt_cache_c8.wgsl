fn eight_of(quad: vec4<u32>, second: bool, scales: u32, odd: bool) -> vec4<u32> {
    let quants = select(quad.xy, quad.zw, second);
    let scale = unpack2x16float(scales >> select(0u, 16u, odd)).x;
    return bounded_halves(vec4<f32>(unpack4xI8(quants.x)) * scale, vec4<f32>(unpack4xI8(quants.y)) * scale);
}
fn k_eight(i: u32) -> vec4<u32> {
    let at = P.k.place.y + i / 32u;
    return eight_of(b_k[i / 16u], i % 16u == 8u, b_k[at / 8u][at / 2u % 4u], at % 2u == 1u);
}
fn v_eight(i: u32) -> vec4<u32> {
    let at = P.v.place.y + i / 32u;
    return eight_of(b_v[i / 16u], i % 16u == 8u, b_v[at / 8u][at / 2u % 4u], at % 2u == 1u);
}
