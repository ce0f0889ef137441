fn extent() -> vec4<u32> { return P.y.shape; }
fn apply(c: vec4<u32>) {
    let picked = get_ids(c.z);
    if (!taken(picked, P.table.shape.z)) { return; }
    let id = own(picked);
    var value = 0.0;
    if (id < P.table.shape.z) { value = get_table(row_table(id) + c.w) * argf(0u); }
    put_y(row_y(c.z) + c.w, value);
}
