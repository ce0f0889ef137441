// The norm of each head, and what is done with heads behind it. LANES_OF_HEAD lanes side by side take a head of a row.
// Constants: HEAD, HEADS, UNIT_HEADS (heads of a unit), LANES_OF_HEAD.

//# piece norm
fn close_early(place: u32, lid: u32) -> vec4<f32> { return vec4<f32>(); }
fn close_group(place: u32, lid: u32, weight: vec4<f32>) {
    if (!is_complete(place, lid)) {
        return;
    }
    let first = place / UNIT_GROUPS * UNIT_HEADS;
    let count = COLS * min(UNIT_HEADS, HEADS - first);
    let lane = lid % LANES_OF_HEAD;
    for (var i = lid / LANES_OF_HEAD; i < count; i += WG / LANES_OF_HEAD) {
        let t = i % COLS;
        let head = first + i / COLS;
        var squares = 0.0;
        for (var e = lane; e < HEAD; e += LANES_OF_HEAD) {
            let v = left(t, head * HEAD + e);
            squares = fma(v, v, squares);
        }
        for (var step = LANES_OF_HEAD / 2u; step > 0u; step /= 2u) {
            squares += subgroupShuffleXor(squares, step);
        }
        put_head(t, head, lane, inverseSqrt(squares / f32(HEAD) + head_eps()));
    }
}
fn normed(t: u32, head: u32, i: u32, factor: f32) -> f32 {
    return left(t, head * HEAD + i) * factor * get_h(i);
}

//# piece as it is
fn put_head(t: u32, head: u32, lane: u32, factor: f32) {
    let row = cache_row(t);
    for (var i = lane; i < HEAD; i += LANES_OF_HEAD) {
        store(t, head, i, normed(t, head, i, factor), row);
    }
}

//# piece turned
fn put_head(t: u32, head: u32, lane: u32, factor: f32) {
    let row = cache_row(t);
    let position = get_positions(t);
    for (var pair = lane; pair < HEAD / 2u; pair += LANES_OF_HEAD) {
        let a = normed(t, head, element(pair, 0u), factor);
        let b = normed(t, head, element(pair, 1u), factor);
        var turn = vec2<f32>(0.0, 1.0);
        if (pair < TURNED) {
            turn = angle_of(pair, position, get_factors(pair));
        }
        let turned = pair < TURNED;
        store(t, head, element(pair, 0u), select(a, fma(a, turn.y, -(b * turn.x)), turned), row);
        store(t, head, element(pair, 1u), select(b, fma(a, turn.x, b * turn.y), turned), row);
    }
}
