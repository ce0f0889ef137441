struct Expert { first: u32, row: u32, chosen: bool }
fn expert_of(group: vec3<u32>) -> Expert { return Expert(0u, 0u, true); }
fn group_row(group: vec3<u32>) -> u32 { return group.x + group.y * WIDTH; }
fn x_row(t: u32, r: u32) -> u32 { return row_x(t); }
