// Reductions over a workgroup for devices without subgroups: halves are joined in workgroup memory until one value is left.
// One after another, 256 parts of a sum would be off by several units in the last place. WIDTH is a power of two.
var<workgroup> joined: array<f32, WIDTH>;

fn enter_subgroups(lane_id: u32, subgroup_id: u32, count: u32) {}

fn sum_of_all(value: f32) -> f32 {
    joined[thread] = value;
    workgroupBarrier();
    for (var step = WIDTH / 2u; step > 0u; step /= 2u) {
        if (thread < step) { joined[thread] += joined[thread + step]; }
        workgroupBarrier();
    }
    let sum = joined[0];
    workgroupBarrier();
    return sum;
}

fn max_of_all(value: f32) -> f32 {
    joined[thread] = value;
    workgroupBarrier();
    for (var step = WIDTH / 2u; step > 0u; step /= 2u) {
        if (thread < step) { joined[thread] = max(joined[thread], joined[thread + step]); }
        workgroupBarrier();
    }
    let largest = joined[0];
    workgroupBarrier();
    return largest;
}
