// The best elements of a short row: each counts those before it, which is its place in the order.
var<workgroup> row_keys: array<vec4<u32>, CAPACITY / 4u>;

fn choose(start: u32, cols: u32, wanted: u32) {
    // Keys behind the end are 0 and have higher indices, so they are before none.
    for (var q = thread; q < (cols + 3u) / 4u; q += WIDTH) {
        var four = vec4<u32>();
        for (var i = 0u; i < 4u; i++) {
            if (4u * q + i < cols) { four[i] = key_of(get_input(start + 4u * q + i)); }
        }
        row_keys[q] = four;
    }
    workgroupBarrier();
    for (var col = thread; col < cols; col += WIDTH) {
        let own = vec4<u32>(row_keys[col / 4u][col % 4u]);
        var before = vec4<u32>();
        for (var q = 0u; q < (cols + 3u) / 4u; q++) {
            let four = row_keys[q];
            let places = vec4<u32>(4u * q) + vec4<u32>(0u, 1u, 2u, 3u);
            let is_before = (four > own) | ((four == own) & (places < vec4<u32>(col)));
            before += select(vec4<u32>(), vec4<u32>(1u), is_before);
        }
        let rank = before.x + before.y + before.z + before.w;
        if (rank < wanted) { put_choice(rank, col, get_input(start + col)); }
    }
}
