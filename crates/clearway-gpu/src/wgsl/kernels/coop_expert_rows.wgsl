// Rows of experts, as their order says.
var<workgroup> part: vec4<u32>;
// Whether the rows are those of an expert.
var<private> known: bool;
fn pair_of(slot: u32) -> u32 { return get_order(EXPERTS + 2u + slot); }
fn x_row(t: u32) -> u32 { return row_x(pair_of(t) / SHARERS); }
fn y_row(t: u32) -> u32 { return row_y(pair_of(t)); }
fn known_or_zero(y: vec4<f32>) -> vec4<f32> { return select(vec4<f32>(), y, known); }
