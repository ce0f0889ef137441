// Pairs of a row and an expert, by expert: a workgroup counts those of experts before its own, and then gives its own
// their places in the order of their numbers.
var<workgroup> before: atomic<u32>;
var<workgroup> subgroup_hits: array<u32, WIDTH>;

fn expert_of(pair: u32) -> u32 {
    let used = P.ids.shape.w;
    return min(get_ids(row_ids(pair / used) + pair % used), arg(0u));
}

@compute @workgroup_size(WIDTH)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
) {
    enter(index, id, count);
    let experts = arg(0u);
    let own = group;
    if (own > experts) { return; }
    let pairs = P.ids.shape.z * P.ids.shape.w;
    if (thread == 0u) { atomicStore(&before, 0u); }
    workgroupBarrier();
    var less = 0u;
    for (var pair = thread; pair < pairs; pair += WIDTH) {
        less += select(0u, 1u, expert_of(pair) < own);
    }
    atomicAdd(&before, less);
    workgroupBarrier();
    let start = atomicLoad(&before);
    if (thread == 0u) {
        put_order(own, start);
        if (own == experts) { put_order(experts + 1u, pairs); }
    }
    var next = experts + 2u + start;
    for (var first = 0u; first < pairs; first += WIDTH) {
        let pair = first + thread;
        let hit = select(0u, 1u, pair < pairs && expert_of(min(pair, pairs - 1u)) == own);
        let rank = subgroupExclusiveAdd(hit);
        let all = subgroupAdd(hit);
        if (lane == 0u) { subgroup_hits[subgroup] = all; }
        workgroupBarrier();
        var in_front = 0u;
        var hits = 0u;
        for (var i = 0u; i < subgroups; i++) {
            let of_subgroup = subgroup_hits[i];
            in_front += select(0u, of_subgroup, i < subgroup);
            hits += of_subgroup;
        }
        if (hit == 1u) { put_order(next + in_front + rank, pair); }
        next += hits;
        workgroupBarrier();
    }
}
