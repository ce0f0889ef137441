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
    let cols = f32(shape.w);
    var sum = 0.0;
    for (c.w = thread; c.w < shape.w; c.w += WIDTH) { sum += get_x(at_x(c)); }
    let near = sum_of_all(sum) / cols;
    // The mean of what is left takes away the rounding of a mean far from zero.
    sum = 0.0;
    for (c.w = thread; c.w < shape.w; c.w += WIDTH) { sum += get_x(at_x(c)) - near; }
    let rest = sum_of_all(sum) / cols;
    sum = 0.0;
    for (c.w = thread; c.w < shape.w; c.w += WIDTH) {
        let d = (get_x(at_x(c)) - near) - rest;
        sum = fma(d, d, sum);
    }
    let factor = inverseSqrt(sum_of_all(sum) / cols + argf(0u));
    for (c.w = thread; c.w < shape.w; c.w += WIDTH) {
        let d = (get_x(at_x(c)) - near) - rest;
        put_y(at_y(c), fma(d * factor, get_w(c.w), get_b(c.w)));
    }
}
