// Workgroups in z are pairs of token and expert.
var<private> pair: u32;
struct Expert { first: u32, row: u32, chosen: bool }
fn expert_of(group: vec3<u32>) -> Expert {
    pair = group.z;
    let used = P.ids.shape.w;
    let id = get_ids(row_ids(group.z / used) + group.z % used);
    return Expert(min(id, P.w.shape.y - 1u) * P.w.shape.z, group.z, id < P.w.shape.y);
}
fn group_row(group: vec3<u32>) -> u32 { return group.x + group.y * WIDTH; }
