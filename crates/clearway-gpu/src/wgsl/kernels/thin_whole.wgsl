// A workgroup has all columns: its sums are results.
fn leave(group: vec3<u32>, t: u32, n: u32, sum: f32, rows: u32, outer: u32) {
    let row = group.z * TILE_T + t;
    let col = group.x * TILE_N + n;
    if (row < rows && col < outer) { finish(row, col, sum); }
}

fn join(group: vec3<u32>, lid: u32, rows: u32, outer: u32) {}
