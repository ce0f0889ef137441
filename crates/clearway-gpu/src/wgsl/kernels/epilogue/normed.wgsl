// The weight of the norm behind, and what a chunk adds to the mean square.
fn weight_of(n: u32) -> vec4<f32> {
    return vec4<f32>(get_next(n), get_next(n + 1u), get_next(n + 2u), get_next(n + 3u));
}
fn part_of(v: vec4<f32>) -> f32 {
    var sum = dot(v, v);
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    sum += subgroupShuffleXor(sum, 4u);
    return sum / 32.0 + argf(0u);
}
