// Norms of few rows, as `norm.wgsl` has them and summed in the same order. A row is read once and stays in registers, ELEMENTS
// to an invocation. Weights are asked for before the wait, all else behind it at once.
fn work(lid: u32, id: vec3<u32>) {
    enter_subgroups(lid % SUBGROUP, lid / SUBGROUP, WG / SUBGROUP);
    let cols = P.y.shape.w;
    var c = row_of(id.x, P.y.shape);
    var weights: array<f32, ELEMENTS>;
    var looked = 0.0;
    for (var i = 0u; i < ELEMENTS; i++) {
        c.w = lid + i * WG;
        weights[i] = 0.0;
        if (c.w < cols) { weights[i] = weight_of(c); }
        looked += weights[i];
    }
    wait_for_inputs(lid, id, bitcast<u32>(looked));
    var values: array<f32, ELEMENTS>;
    var residuals: array<f32, ELEMENTS>;
    for (var i = 0u; i < ELEMENTS; i++) {
        c.w = lid + i * WG;
        values[i] = 0.0;
        residuals[i] = 0.0;
        if (c.w < cols) {
            values[i] = taken(c);
            residuals[i] = residual_of(c);
        }
    }
    var squares = vec4<f32>();
    for (var i = 0u; i < ELEMENTS; i++) {
        squares[i % 4u] = fma(values[i], values[i], squares[i % 4u]);
    }
    let sum = sum_of_all((squares.x + squares.y) + (squares.z + squares.w));
    let factor = inverseSqrt(sum / f32(cols) + argf(0u));
    for (var i = 0u; i < ELEMENTS; i++) {
        c.w = lid + i * WG;
        if (c.w < cols) { put(c, values[i], factor, weights[i], residuals[i]); }
    }
}
