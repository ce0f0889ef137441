// A workgroup has all columns: its sums are results.
fn leave(group: vec3<u32>, t: u32, n: u32, sums: vec4<f32>, rows: u32, outer: u32) {
    let row = group.z * TILE_T + t;
    let col = group.x * TILE_N + n;
    for (var j = 0u; j < 4u; j++) {
        if (row < rows && col + j < outer) { finish(row, col + j, sums[j]); }
    }
}

fn join(group: vec3<u32>, lid: u32, rows: u32, outer: u32) {}
