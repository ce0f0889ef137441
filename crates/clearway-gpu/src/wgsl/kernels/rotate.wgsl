// Rotation of heads that lie in memory; angles come from `rope.wgsl`.

// Items of a head: pairs that turn, then elements that stay.
fn items() -> u32 {
    return P.x.shape.w - arg(0u) / 2u;
}

// Item `item` of head `head` of a token, rotated, to the same place of a row.
fn rotate(token: u32, head: u32, item: u32, row: u32) {
    let pairs = arg(0u) / 2u;
    if (item >= pairs) {
        let col = item + pairs;
        let origin = vec4<u32>(0u, token, head, col);
        put_result(vec4<u32>(0u, row, head, col), get_x(at_x(origin)));
        return;
    }
    let neighbours = arg(1u) == 0u;
    let first = select(item, 2u * item, neighbours);
    let second = select(item + pairs, 2u * item + 1u, neighbours);
    let turn = angle_of(item, get_positions(token), get_factors(item));
    let a = get_x(at_x(vec4<u32>(0u, token, head, first)));
    let b = get_x(at_x(vec4<u32>(0u, token, head, second)));
    put_result(vec4<u32>(0u, row, head, first), fma(a, turn.y, -(b * turn.x)));
    put_result(vec4<u32>(0u, row, head, second), fma(a, turn.x, b * turn.y));
}
