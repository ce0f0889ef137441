// Products with few rows: a subgroup for each element of the result, lanes over the inner extent.
// `x_row` and `w_row` say where the rows lie, `finish` stores the sum.
@compute @workgroup_size(WIDTH)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_size) lanes: u32,
) {
    enter(index, id, count);
    let outer = P.y.shape.w;
    let inner = P.x.shape.w;
    let parts = (outer - 1u) / ROWS + 1u;
    let row = group / parts;
    if (row >= P.y.shape.x * P.y.shape.y * P.y.shape.z) { return; }
    let x = x_row(row);
    let first = group % parts * ROWS;
    for (var i = subgroup; i < ROWS; i += subgroups) {
        let col = first + i;
        if (col >= outer) { break; }
        var sums = vec4<f32>();
        if (has_weights(row)) {
            let w = w_row(row, col);
            for (var k = 4u * lane; k < inner; k += 4u * lanes) {
                sums = fma(x_four(x, k, inner), w_four(w, k, inner), sums);
            }
        }
        let sum = subgroupAdd((sums.x + sums.y) + (sums.z + sums.w));
        if (lane == 0u) { finish(row, col, sum); }
    }
}
