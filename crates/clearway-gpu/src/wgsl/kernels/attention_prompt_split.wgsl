// Attention of many tokens whose rows are shared by several workgroups: runs of SPAN rows are dealt in turns, so where a row goes
// depends on nothing but its number and theirs. Each workgroup leaves its sums in scratch, and the one that arrives last joins them.

//# piece part
// What a query leaves: sums, then the reference of its weights and their sum.
const ENTRY = HEAD / 4u + 1u;
var<workgroup> needed: u32;
var<workgroup> is_last: u32;

// Splits that have some of the rows that a token sees.
fn splits_of(token: u32, turns: u32) -> u32 {
    let seen = seen_by(token);
    if (seen.x >= seen.y) { return 0u; }
    let begin = seen.x / SPAN;
    let count = (seen.y - 1u) / SPAN - begin + 1u;
    if (count >= turns) { return (1u << turns) - 1u; }
    var bits = 0u;
    for (var i = 0u; i < count; i++) { bits |= 1u << ((begin + i) % turns); }
    return bits;
}

fn first_block(split: u32, turns: u32, row: u32) -> u32 {
    let span = row / SPAN;
    let own = span + (split + turns - span % turns) % turns;
    return max(row / KEYS * KEYS, own * SPAN);
}

fn next_block(block: u32, turns: u32) -> u32 {
    let next = block + KEYS;
    return select(next, next + (turns - 1u) * SPAN, next % SPAN == 0u);
}

//# piece needed
    // A bit for each split that has rows which the tile sees. Where it sees nothing, the first split writes zeros.
    let turns = count.z;
    var bits = 0u;
    for (var token = first / SHARE + lane; token <= last / SHARE; token += 32u) { bits |= splits_of(token, turns); }
    bits = subgroupOr(bits);
    if (lid == 0u) { needed = max(bits, 1u); }
    let splits = workgroupUniformLoad(&needed);
    if ((splits >> group.z & 1u) == 0u) { return; }

//# piece finish
    let alone = countOneBits(splits) == 1u;
    let factor = factor_of(weight, reference, kv_head * SHARE + query % SHARE);
    let at = query / SHARE * P.y.stride.y + (kv_head * SHARE + query % SHARE) * P.y.stride.z;
    let entry = ((tile * turns + group.z) * QUERIES + subgroup * 16u + lane / 2u) * ENTRY;
    //# for d in HEAD_TILES
    subgroupBarrier();
    coopStoreT(sum$d, &scores[mine], SCORE_ROW);
    subgroupBarrier();
    {
        let low = scores[own + 2u * half];
        let high = scores[own + 2u * half + 1u];
        if (!alone) {
            b_scratch[entry + 4u * $du + 2u * half] = low;
            b_scratch[entry + 4u * $du + 2u * half + 1u] = high;
        } else if (exists) {
            y_eight(at + 16u * $du + 8u * half, low * factor, high * factor);
        }
    }
    //# end
    if (alone) { return; }
    if (half == 0u) { b_scratch[entry + ENTRY - 1u] = vec4<f32>(reference, weight, 0.0, 0.0); }
    storageBarrier();
    if (lid == 0u) { is_last = u32(atomicAdd(&b_tickets[tile], 1u) == countOneBits(splits) - 1u); }
    workgroupBarrier();
    if (is_last == 0u) { return; }
    storageBarrier();
    for (var i = lid; i < QUERIES * EIGHTS; i += THREADS) {
        if (first + i / EIGHTS > last) { break; }
        let start = (tile * turns * QUERIES + i / EIGHTS) * ENTRY;
        var most = LEAST;
        for (var left = splits; left != 0u; left &= left - 1u) {
            most = max(most, b_scratch[start + countTrailingZeros(left) * QUERIES * ENTRY + ENTRY - 1u].x);
        }
        var low = vec4<f32>();
        var high = vec4<f32>();
        var all = 0.0;
        for (var left = splits; left != 0u; left &= left - 1u) {
            let at_split = start + countTrailingZeros(left) * QUERIES * ENTRY;
            let ends = b_scratch[at_split + ENTRY - 1u];
            let scale = exp2(ends.x - most);
            low += b_scratch[at_split + i % EIGHTS * 2u] * scale;
            high += b_scratch[at_split + i % EIGHTS * 2u + 1u] * scale;
            all += ends.y * scale;
        }
        let one = first + i / EIGHTS;
        let head = kv_head * SHARE + one % SHARE;
        let joint = factor_of(all, most, head);
        y_eight(one / SHARE * P.y.stride.y + head * P.y.stride.z + i % EIGHTS * 8u, low * joint, high * joint);
    }
    if (lid == 0u) { atomicStore(&b_tickets[tile], 0u); }
