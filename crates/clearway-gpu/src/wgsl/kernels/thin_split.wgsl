// SPLITS workgroups share the columns. Each leaves its sums in scratch, and the one that arrives last adds them up in the
// order of the splits.
var<workgroup> is_last: u32;

fn tile_of(group: vec3<u32>) -> u32 { return group.z * ((P.w.shape.z - 1u) / TILE_N + 1u) + group.x; }

fn leave(group: vec3<u32>, t: u32, n: u32, sums: vec4<f32>, rows: u32, outer: u32) {
    let at = ((tile_of(group) * SPLITS + group.y) * TILE_T + t) * TILE_N + n;
    for (var j = 0u; j < 4u; j++) {
        b_scratch[at + j] = sums[j];
    }
}

fn join(group: vec3<u32>, lid: u32, rows: u32, outer: u32) {
    storageBarrier();
    let tile = tile_of(group);
    if (lid == 0u) {
        is_last = u32(atomicAdd(&b_tickets[tile], 1u) == SPLITS - 1u);
    }
    workgroupBarrier();
    if (is_last == 0u) { return; }
    storageBarrier();
    for (var i = lid; i < TILE_T * TILE_N; i += 32u * SUBGROUPS) {
        let row = group.z * TILE_T + i / TILE_N;
        let col = group.x * TILE_N + i % TILE_N;
        if (row < rows && col < outer) {
            // All are under way before the first is used.
            let at = tile * SPLITS * TILE_T * TILE_N + i;
            //# for s in SPLITS
            let part$s = b_scratch[at + $su * TILE_T * TILE_N];
            //# end
            var sum = 0.0;
            //# for s in SPLITS
            sum += part$s;
            //# end
            finish(row, col, sum);
        }
    }
    if (lid == 0u) {
        atomicStore(&b_tickets[tile], 0u);
    }
}
