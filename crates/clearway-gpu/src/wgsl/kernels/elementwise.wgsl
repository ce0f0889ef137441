// Calls `apply` with the coordinates of every element of `extent`.
@compute @workgroup_size(WIDTH)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    enter(index, id, count);
    let shape = extent();
    let total = shape.x * shape.y * shape.z * shape.w;
    let step = group_count * WIDTH;
    var e = group * WIDTH + thread;
    while (e < total) {
        var c = row_of(e / shape.w, shape);
        c.w = e % shape.w;
        apply(c);
        // The next one may be beyond 32 bits.
        if (step >= total - e) { break; }
        e += step;
    }
}
