fn apply(c: vec4<u32>) {
    let first = P.a.shape.w;
    if (c.w < first) {
        move_first(at_y(c), at_a(c));
    } else {
        move_second(at_y(c), at_b(vec4<u32>(c.xyz, c.w - first)));
    }
}
