// Reductions over a workgroup, for subgroups of any size. The order of a sum depends on nothing but
// the size, so that fused kernels and the plain ones they stand for give the same bits.
var<private> lane: u32;
var<private> wave: u32;
var<private> waves: u32;
var<workgroup> wave_sums: array<f32, WIDTH>;

fn enter_waves(lane_id: u32, wave_id: u32, count: u32) {
    lane = lane_id;
    wave = wave_id;
    waves = count;
}

fn sum_of_all(value: f32) -> f32 {
    let part = subgroupAdd(value);
    if (lane == 0u) { wave_sums[wave] = part; }
    workgroupBarrier();
    var sum = wave_sums[0];
    for (var i = 1u; i < waves; i++) { sum += wave_sums[i]; }
    workgroupBarrier();
    return sum;
}

fn max_of_all(value: f32) -> f32 {
    let part = subgroupMax(value);
    if (lane == 0u) { wave_sums[wave] = part; }
    workgroupBarrier();
    var largest = wave_sums[0];
    for (var i = 1u; i < waves; i++) { largest = max(largest, wave_sums[i]); }
    workgroupBarrier();
    return largest;
}
