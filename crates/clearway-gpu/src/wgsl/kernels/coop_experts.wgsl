    // Each expert has whole tiles. A lane looks at one expert, and the first whose tiles reach beyond this one has it.
    let wanted = tile / across;
    let n0 = tile % across * TILE_N;
    if (lid == 0u) { part = vec4<u32>(); }
    workgroupBarrier();
    if (lid < 32u) {
        var done = 0u;
        for (var first = 0u; first <= EXPERTS; first += 32u) {
            let expert = first + lid;
            let from_slot = get_order(min(expert, EXPERTS));
            let to_slot = get_order(min(expert, EXPERTS) + 1u);
            let tiles = select(0u, (to_slot - from_slot + TILE_T - 1u) / TILE_T, expert <= EXPERTS);
            let reach = done + subgroupInclusiveAdd(tiles);
            if (wanted < reach && wanted >= reach - tiles) {
                part = vec4<u32>(from_slot + (wanted - (reach - tiles)) * TILE_T, to_slot, expert, 1u);
            }
            done += subgroupAdd(tiles);
        }
    }
    let found = workgroupUniformLoad(&part);
    if (found.w == 0u) {
        return;
    }
    let t0 = found.x;
    let end = found.y;
    known = found.z < EXPERTS;
    let w_first = min(found.z, EXPERTS - 1u) * outer;
