fn finish(t: u32, n: u32, outer: u32, y: vec4<f32>) {
    if (n >= outer) { return; }
    b_y[(y_row(t) + n) / 4u] = bitcast<vec4<u32>>(known_or_zero(y) + addend(t, n, outer));
}
