fn k_eight(i: u32) -> vec4<u32> {
    return bounded_halves(bitcast<vec4<f32>>(b_k[i / 4u]), bitcast<vec4<f32>>(b_k[i / 4u + 1u]));
}
fn v_eight(i: u32) -> vec4<u32> {
    return bounded_halves(bitcast<vec4<f32>>(b_v[i / 4u]), bitcast<vec4<f32>>(b_v[i / 4u + 1u]));
}
