// The workgroup has SPAN elements of each row of heads, whole chunks. Eight lanes share a chunk, so that they stay together.
// `first_of` says which element of the row its chunks begin with, `local` where an element is kept.
var<workgroup> kept: array<f32, COLS * SPAN>;
fn store(t: u32, head: u32, i: u32, v: f32, row: u32) { kept[t * SPAN + local(head, i)] = v; }
// The row of the cache for the first quad of a lane is asked for early.
fn close_early(place: u32, lid: u32) -> vec4<f32> {
    return vec4<f32>(bitcast<f32>(cache_row(min(lid / (SPAN / 4u), COLS - 1u))));
}
fn close_group(place: u32, lid: u32, early_row: vec4<f32>) {
    workgroupBarrier();
    for (var i = lid; i < COLS * SPAN / 4u; i += WG) {
        let t = i / (SPAN / 4u);
        let quad = i % (SPAN / 4u);
        var row = bitcast<u32>(early_row.x);
        if (i != lid) {
            row = cache_row(t);
        }
        // Where two tokens have one row the last one wins; a row beyond the cache is left out.
        var last = row < P.cache.shape.y;
        for (var later = t + 1u; later < COLS; later++) {
            last = last && cache_row(later) != row;
        }
        let first = first_of(place, quad / 8u);
        let at = 4u * i;
        let v = vec4<f32>(kept[at], kept[at + 1u], kept[at + 2u], kept[at + 3u]);
        var most = most_of_cache(v);
        most = max(most, subgroupShuffleXor(most, 1u));
        most = max(most, subgroupShuffleXor(most, 2u));
        most = max(most, subgroupShuffleXor(most, 4u));
        if (last && first < P.w.shape.z) {
            let to = at_cache(vec4<u32>(0u, row, first / HEAD, first % HEAD));
            let scale = scale_of_cache(most);
            put_quants_cache(to + 4u * (quad % 8u), v, scale);
            if (quad % 8u == 0u) {
                put_scale_cache(to, scale);
            }
        }
    }
}
