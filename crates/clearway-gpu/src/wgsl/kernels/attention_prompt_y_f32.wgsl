fn y_eight(i: u32, low: vec4<f32>, high: vec4<f32>) {
    b_y[i / 4u] = bitcast<vec4<u32>>(low);
    b_y[i / 4u + 1u] = bitcast<vec4<u32>>(high);
}
