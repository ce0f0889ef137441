
// Rows of a table in planes: one invocation to a chunk. An index beyond the table gives zeros.
@compute @workgroup_size(WG)
fn main(
    @builtin(local_invocation_index) lid: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) size: vec3<u32>,
) {
    let chunks = P.w.shape.w / 32u;
    let i = (group.x + size.x * (group.y + size.y * group.z)) * WG + lid;
    let token = i / chunks;
    if (token >= P.ids.shape.w) {
        return;
    }
    let picked = get_ids(token * P.ids.stride.w);
    if (!taken(picked, P.w.shape.z)) {
        return;
    }
    let id = own(picked);
    let known = id < P.w.shape.z;
    let c = load_chunk_w(select(0u, id, known) * chunks + i % chunks);
    let scale = argf(0u);
    let to = row_y(token) + i % chunks * 32u;
    for (var j = 0u; j < 16u; j++) {
        put_y(to + j, select(0.0, (c.d.x * quant(c.lo, j) + c.m.x) * scale, known));
        put_y(to + 16u + j, select(0.0, (c.d.y * quant(c.hi, j) + c.m.y) * scale, known));
    }
}
