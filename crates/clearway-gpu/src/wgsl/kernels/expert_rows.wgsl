fn x_row(row: u32) -> u32 { return row_x(row / arg(0u)); }
fn expert_of(row: u32) -> u32 {
    let used = P.ids.shape.w;
    return get_ids(row_ids(row / used) + row % used);
}
fn has_weights(row: u32) -> bool { return expert_of(row) < P.w.shape.y; }
fn w_row(row: u32, col: u32) -> u32 { return row_w(expert_of(row) * P.w.shape.z + col); }
fn finish(row: u32, col: u32, sum: f32) { put_y(row_y(row) + col, sum); }
