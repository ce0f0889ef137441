// Reductions over a workgroup, for subgroups of any size. The order of a sum depends on nothing but
// the size, so that fused kernels and the plain ones they stand for give the same bits.
var<private> lane: u32;
var<private> subgroup: u32;
var<private> subgroups: u32;
var<workgroup> subgroup_sums: array<f32, WIDTH>;

fn enter_subgroups(lane_id: u32, subgroup_id: u32, count: u32) {
    lane = lane_id;
    subgroup = subgroup_id;
    subgroups = count;
}

fn sum_of_all(value: f32) -> f32 {
    let part = subgroupAdd(value);
    if (lane == 0u) { subgroup_sums[subgroup] = part; }
    workgroupBarrier();
    var sum = subgroup_sums[0];
    for (var i = 1u; i < subgroups; i++) { sum += subgroup_sums[i]; }
    workgroupBarrier();
    return sum;
}

fn max_of_all(value: f32) -> f32 {
    let part = subgroupMax(value);
    if (lane == 0u) { subgroup_sums[subgroup] = part; }
    workgroupBarrier();
    var largest = subgroup_sums[0];
    for (var i = 1u; i < subgroups; i++) { largest = max(largest, subgroup_sums[i]); }
    workgroupBarrier();
    return largest;
}
