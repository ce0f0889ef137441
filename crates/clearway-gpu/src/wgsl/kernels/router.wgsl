// Experts are chosen by their logits, of which all kinds of weight are rising functions.
var<private> row: u32;

fn get_input(i: u32) -> f32 { return get_logits(i); }

fn put_choice(rank: u32, col: u32, value: f32) {
    put_ids(row_ids(row) + rank, col);
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
    if (group >= P.logits.shape.z) { return; }
    row = group;
    let start = row_logits(row);
    let ids = row_ids(row);
    let cols = P.logits.shape.w;
    let used = P.ids.shape.w;
    choose(start, cols, used);
    storageBarrier();
    workgroupBarrier();
    weigh(row, start, ids, cols, used);
}
