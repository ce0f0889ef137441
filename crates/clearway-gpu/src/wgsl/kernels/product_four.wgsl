// Four elements of a row from column `k` on; zeros behind its end.
fn $name_four($name: u32, k: u32, inner: u32) -> vec4<f32> {
    let i = $name + k;
    if (k + 4u <= inner) {
        return vec4<f32>(get_$name(i), get_$name(i + 1u), get_$name(i + 2u), get_$name(i + 3u));
    }
    var four = vec4<f32>();
    for (var j = 0u; k + j < inner; j++) { four[j] = get_$name(i + j); }
    return four;
}
