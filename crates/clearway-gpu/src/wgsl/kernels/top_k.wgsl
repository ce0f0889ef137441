var<private> row: u32;

fn get_input(i: u32) -> f32 { return get_x(i); }

fn put_choice(rank: u32, col: u32, value: f32) {
    put_values(row_values(row) + rank, value);
    put_ids(row_ids(row) + rank, col);
}

@compute @workgroup_size(WIDTH)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    enter(index, id, count);
    if (group >= P.x.shape.z) { return; }
    row = group;
    choose(row_x(row), P.x.shape.w, P.ids.shape.w);
}
