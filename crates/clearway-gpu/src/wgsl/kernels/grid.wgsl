// Where an invocation stands. Grids are folded into y and z where a dimension is too short.
var<private> thread: u32;
var<private> group: u32;
var<private> group_count: u32;

fn enter(index: u32, id: vec3<u32>, count: vec3<u32>) {
    thread = index;
    group = id.x + count.x * (id.y + count.y * id.z);
    group_count = count.x * count.y * count.z;
}

// Coordinates of the first element of a row, which counts over all outer dimensions.
fn row_of(row: u32, shape: vec4<u32>) -> vec4<u32> {
    let q = row / shape.z;
    return vec4<u32>(q / shape.y, q % shape.y, row % shape.z, 0u);
}
