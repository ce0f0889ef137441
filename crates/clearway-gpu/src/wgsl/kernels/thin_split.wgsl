// SPLITS workgroups share the columns. Each leaves its sums in scratch, and the one that arrives last adds them up in the
// order of the splits.
var<workgroup> is_last: u32;

fn tile_of(group: vec3<u32>) -> u32 { return group.z * ((P.w.shape.z - 1u) / TILE_N + 1u) + group.x; }

fn leave(group: vec3<u32>, quad: u32, sums: vec4<f32>, rows: u32, outer: u32) {
    b_scratch[(tile_of(group) * SPLITS + group.y) * ALL + quad] = sums;
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
    for (var first = lid; first < ALL; first += THREADS * TOGETHER) {
        // All are under way before the first is used.
        //# for e in TOGETHER
        //# for s in SPLITS
        let part$e_$s = b_scratch[(tile * SPLITS + $su) * ALL + min(first + $eu * THREADS, ALL - 1u)];
        //# end
        //# end
        //# for e in TOGETHER
        var sum$e = vec4<f32>();
        //# for s in SPLITS
        sum$e += part$e_$s;
        //# end
        if (first + $eu * THREADS < ALL) {
            finish_quad(group, first + $eu * THREADS, sum$e, rows, outer);
        }
        //# end
    }
    if (lid == 0u) {
        atomicStore(&b_tickets[tile], 0u);
    }
}
