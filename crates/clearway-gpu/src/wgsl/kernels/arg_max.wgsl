// The place of the largest element of each row. SPLITS workgroups share a row, SPAN elements each.
var<workgroup> keys: array<u32, WIDTH>;
var<workgroup> places: array<u32, WIDTH>;
var<private> lane: u32;
var<private> subgroup: u32;
var<private> subgroups: u32;
var<private> lanes: u32;

// The largest key of a subgroup and the first place that has it.
fn best_of_subgroup(best: vec2<u32>) -> vec2<u32> {
    let key = subgroupMax(best.x);
    return vec2<u32>(key, subgroupMin(select(0xffffffffu, best.y, best.x == key)));
}

// The same over the workgroup. Only the first subgroup has the result.
fn best_of_all(best: vec2<u32>) -> vec2<u32> {
    let own = best_of_subgroup(best);
    if (lane == 0u) {
        keys[subgroup] = own.x;
        places[subgroup] = own.y;
    }
    workgroupBarrier();
    var found = vec2<u32>(0u, 0xffffffffu);
    for (var i = lane; subgroup == 0u && i < subgroups; i += lanes) {
        if (keys[i] > found.x || (keys[i] == found.x && places[i] < found.y)) {
            found = vec2<u32>(keys[i], places[i]);
        }
    }
    return best_of_subgroup(found);
}

fn write(row: u32, best: vec2<u32>) {
    if (thread != 0u) { return; }
    let is_finite = best.x > KEY_MINUS_INFINITY && best.x < KEY_INFINITY;
    put_ids(at_ids(vec4<u32>(0u, 0u, 0u, row)), select(NO_INDEX, best.y, is_finite));
}

@compute @workgroup_size(WIDTH)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(subgroup_invocation_id) lane_id: u32,
    @builtin(subgroup_id) subgroup_id: u32,
    @builtin(num_subgroups) subgroup_count: u32,
    @builtin(subgroup_size) size: u32,
) {
    enter(index, id, count);
    lane = lane_id;
    subgroup = subgroup_id;
    subgroups = subgroup_count;
    lanes = size;
    let row = group / SPLITS;
    let split = group % SPLITS;
    if (row >= P.x.shape.z) { return; }
    let start = row_x(row);
    let end = min(P.x.shape.w, (split + 1u) * SPAN);
    var best = vec2<u32>();
    // Four loads under way; the last element again behind the end, where it changes nothing.
    for (var col = split * SPAN + thread; col < end; col += 4u * WIDTH) {
        let cols = min(vec4<u32>(col) + vec4<u32>(0u, WIDTH, 2u * WIDTH, 3u * WIDTH), vec4<u32>(end - 1u));
        let four = vec4<u32>(
            key_of(get_x(start + cols.x)),
            key_of(get_x(start + cols.y)),
            key_of(get_x(start + cols.z)),
            key_of(get_x(start + cols.w)),
        );
        for (var i = 0u; i < 4u; i++) {
            if (four[i] > best.x) { best = vec2<u32>(four[i], cols[i]); }
        }
    }
    join(row, split, best_of_all(best));
}

//# piece whole
fn join(row: u32, split: u32, best: vec2<u32>) { write(row, best); }

//# piece shared
var<workgroup> is_last: u32;

// The workgroup that arrives last joins what all have found.
fn join(row: u32, split: u32, best: vec2<u32>) {
    if (thread == 0u) {
        b_scratch[2u * (row * SPLITS + split)] = best.x;
        b_scratch[2u * (row * SPLITS + split) + 1u] = best.y;
    }
    storageBarrier();
    if (thread == 0u) { is_last = u32(atomicAdd(&b_tickets[row], 1u) == SPLITS - 1u); }
    workgroupBarrier();
    if (is_last == 0u) { return; }
    storageBarrier();
    var found = vec2<u32>(0u, 0xffffffffu);
    for (var i = thread; i < SPLITS; i += WIDTH) {
        let at = 2u * (row * SPLITS + i);
        // Later splits have later places.
        if (b_scratch[at] > found.x) { found = vec2<u32>(b_scratch[at], b_scratch[at + 1u]); }
    }
    write(row, best_of_all(found));
    if (thread == 0u) { atomicStore(&b_tickets[row], 0u); }
}
