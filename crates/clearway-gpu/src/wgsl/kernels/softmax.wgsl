// Masks have one matrix for all outer dimensions.
fn score(c: vec4<u32>) -> f32 {
    return fma(get_x(at_x(c)), argf(0u), get_mask(at_mask(vec4<u32>(0u, 0u, c.zw))));
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
    var largest = LEAST;
    for (c.w = thread; c.w < shape.w; c.w += WIDTH) { largest = max(largest, score(c)); }
    largest = max_of_all(largest);
    var sum = 0.0;
    for (c.w = thread; c.w < shape.w; c.w += WIDTH) { sum += exp_of(score(c) - largest); }
    sum = sum_of_all(sum);
    // Nothing is left of a row that is masked altogether.
    let divisor = select(sum, 1.0, sum == 0.0);
    for (c.w = thread; c.w < shape.w; c.w += WIDTH) {
        put_y(at_y(c), exp_of(score(c) - largest) / divisor);
    }
}
