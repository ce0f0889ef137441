// Where two tokens have one row the last one wins; a row beyond the cache is left out.
fn cache_row(t: u32) -> u32 { return get_kv_positions(t); }
fn store(t: u32, head: u32, i: u32, v: f32, row: u32) {
    var last = row < P.cache.shape.y;
    for (var later = t + 1u; later < COLS; later++) {
        last = last && cache_row(later) != row;
    }
    if (last) {
        put_cache(at_cache(vec4<u32>(0u, row, head, i)), v);
    }
}
