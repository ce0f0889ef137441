fn extent() -> vec4<u32> { return vec4<u32>(P.y.shape.xyz, P.y.shape.w / 4u); }
fn apply(c: vec4<u32>) {
    let id = get_ids(c.z);
    var four = vec4<f32>();
    if (id < P.table.shape.z) { four = element_four(row_table(id) + 4u * c.w) * argf(0u); }
    let to = row_y(c.z) + 4u * c.w;
    for (var i = 0u; i < 4u; i++) { put_y(to + i, four[i]); }
}
