// Element `i` of head `head` of a token, rotated; angles come from `rope.wgsl`.
fn rotated(token: u32, head: u32, i: u32) -> f32 {
    let pairs = arg(0u) / 2u;
    let own = get_x(at_x(vec4<u32>(0u, token, head, i)));
    if (i >= 2u * pairs) { return own; }
    let neighbours = arg(1u) == 0u;
    let pair = select(i % pairs, i / 2u, neighbours);
    let is_first = select(i < pairs, i % 2u == 0u, neighbours);
    let distance = select(pairs, 1u, neighbours);
    let turn = angle_of(pair, get_positions(token), get_factors(pair));
    let other = get_x(at_x(vec4<u32>(0u, token, head, select(i - distance, i + distance, is_first))));
    return select(fma(other, turn.x, own * turn.y), fma(own, turn.y, -(other * turn.x)), is_first);
}
