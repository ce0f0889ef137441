// Root mean square norms: `taken` gives an element of a row before it is divided, `put` stores what
// becomes of it, with the weight and the residual of the element. An invocation reads and writes the
// same elements in both passes, so results may take the place of inputs.
fn taken_or_zero(c: vec4<u32>, cols: u32) -> f32 {
    if (c.w < cols) { return taken(c); }
    return 0.0;
}

@compute @workgroup_size(WIDTH)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(subgroup_invocation_id) lane_id: u32,
    @builtin(subgroup_id) subgroup_id: u32,
    @builtin(num_subgroups) subgroup_count: u32,
) {
    enter(index, id, count);
    enter_subgroups(lane_id, subgroup_id, subgroup_count);
    let shape = P.y.shape;
    if (group >= shape.x * shape.y * shape.z) { return; }
    var c = row_of(group, shape);
    var squares = vec4<f32>();
    for (var col = thread; col < shape.w; col += 4u * WIDTH) {
        let cols = vec4<u32>(col) + vec4<u32>(0u, WIDTH, 2u * WIDTH, 3u * WIDTH);
        let v = vec4<f32>(
            taken_or_zero(vec4<u32>(c.xyz, cols.x), shape.w),
            taken_or_zero(vec4<u32>(c.xyz, cols.y), shape.w),
            taken_or_zero(vec4<u32>(c.xyz, cols.z), shape.w),
            taken_or_zero(vec4<u32>(c.xyz, cols.w), shape.w),
        );
        squares = fma(v, v, squares);
    }
    let sum = sum_of_all((squares.x + squares.y) + (squares.z + squares.w));
    let factor = inverseSqrt(sum / f32(shape.w) + argf(0u));
    for (c.w = thread; c.w < shape.w; c.w += WIDTH) {
        put(c, taken(c), factor, weight_of(c), residual_of(c));
    }
}
