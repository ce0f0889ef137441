// Products of many rows with few rows of weights, both f32, of which tiles would be too few for the processors of a device. A
// subgroup takes 8 rows by 8 rows of weights, and its lanes divide the inner extent.
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
    let rows = P.y.shape.x * P.y.shape.y * P.y.shape.z;
    let outer = P.y.shape.w;
    let inner = P.x.shape.w;
    let across = (outer - 1u) / 8u + 1u;
    let part = group * subgroups + subgroup;
    let row = part / across * 8u;
    let col = part % across * 8u;
    //# for t in 8
    let x$t = row_x(min(row + $tu, rows - 1u)) / 4u;
    let w$t = row_w(min(col + $tu, outer - 1u)) / 4u;
    //# for n in 8
    var sum$t$n = 0.0;
    //# end
    //# end
    for (var k = lane; k < inner / 4u; k += lanes) {
        //# for n in 8
        let b$n = bitcast<vec4<f32>>(b_w[w$n + k]);
        //# end
        //# for t in 8
        let a$t = bitcast<vec4<f32>>(b_x[x$t + k]);
        //# for n in 8
        sum$t$n += dot(a$t, b$n);
        //# end
        //# end
    }
    //# for t in 8
    //# for n in 8
    sum$t$n = subgroupAdd(sum$t$n);
    if (lane == ($tu * 8u + $nu) % lanes && row + $tu < rows && col + $nu < outer) {
        finish(row + $tu, col + $nu, sum$t$n);
    }
    //# end
    //# end
}
