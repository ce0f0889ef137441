// Writes each token to its row of the cache, by `store_item(token, head, item, row)`. Where two tokens
// have one row the last one wins; a row beyond the cache is left out.
var<workgroup> followed: array<u32, WIDTH>;

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
    let shape = P.x.shape;
    let item_count = head_items();
    let total = shape.z * item_count;
    let parts = (total - 1u) / WIDTH + 1u;
    let token = group / parts;
    if (token >= shape.y) { return; }
    let row = cache_row(token);
    var found = false;
    for (var later = token + 1u + thread; later < shape.y; later += WIDTH) {
        found = found || cache_row(later) == row;
    }
    let repeated = subgroupAny(found);
    if (lane_id == 0u) { followed[subgroup_id] = select(0u, 1u, repeated); }
    workgroupBarrier();
    var last = true;
    for (var i = 0u; i < subgroup_count; i++) { last = last && followed[i] == 0u; }
    let e = group % parts * WIDTH + thread;
    if (last && row < P.cache.shape.y && e < total) {
        store_item(token, e / item_count, e % item_count, row);
    }
}
