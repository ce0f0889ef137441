fn extent() -> vec4<u32> { return vec4<u32>(P.y.shape.xyz, P.y.shape.w / 4u); }
fn apply(c: vec4<u32>) {
    let first = vec4<u32>(c.xyz, 4u * c.w);
    let four = element_four(at_x(first));
    let to = at_y(first);
    for (var i = 0u; i < 4u; i++) { put_y(to + i * P.y.stride.w, four[i]); }
}
