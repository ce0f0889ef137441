var<workgroup> keys: array<u32, WIDTH>;
var<workgroup> places: array<u32, WIDTH>;

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
    let shape = P.x.shape;
    if (group >= shape.z) { return; }
    let start = row_x(group);
    var best = 0u;
    var place = 0u;
    // Four loads under way; the last element again behind the end, where it changes nothing.
    for (var col = thread; col < shape.w; col += 4u * WIDTH) {
        let cols = min(vec4<u32>(col) + vec4<u32>(0u, WIDTH, 2u * WIDTH, 3u * WIDTH), vec4<u32>(shape.w - 1u));
        let four = vec4<u32>(
            key_of(get_x(start + cols.x)),
            key_of(get_x(start + cols.y)),
            key_of(get_x(start + cols.z)),
            key_of(get_x(start + cols.w)),
        );
        for (var i = 0u; i < 4u; i++) {
            if (four[i] > best) {
                best = four[i];
                place = cols[i];
            }
        }
    }
    let largest = subgroupMax(best);
    let first = subgroupMin(select(0xffffffffu, place, best == largest));
    if (lane == 0u) {
        keys[subgroup] = largest;
        places[subgroup] = first;
    }
    workgroupBarrier();
    if (thread != 0u) { return; }
    for (var i = 0u; i < subgroups; i++) {
        if (keys[i] > best || (keys[i] == best && places[i] < place)) {
            best = keys[i];
            place = places[i];
        }
    }
    let is_finite = best > KEY_MINUS_INFINITY && best < KEY_INFINITY;
    put_ids(at_ids(vec4<u32>(0u, 0u, 0u, group)), select(NO_INDEX, place, is_finite));
}
