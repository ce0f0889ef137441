// Sums that wait for others of their unit: the rows of weights of UNIT_GROUPS workgroups side by side. `left` gives the sum
// of row `t` of activations and row `n` of weights, where `is_complete` says that the workgroup has all of its unit.

//# piece one
var<workgroup> kept: array<f32, COLS * SPAN>;
fn leave(t: u32, n: u32, v: f32) { kept[t * SPAN + n % SPAN] = v; }
fn left(t: u32, n: u32) -> f32 { return kept[t * SPAN + n % SPAN]; }
fn is_complete(place: u32, lid: u32) -> bool {
    workgroupBarrier();
    return true;
}

//# piece several
// Sums are left in scratch, and the workgroup that arrives last has them all.
var<workgroup> is_last: u32;
fn leave(t: u32, n: u32, v: f32) { b_scratch[t * OUTER + n] = v; }
fn left(t: u32, n: u32) -> f32 { return b_scratch[t * OUTER + n]; }
fn is_complete(place: u32, lid: u32) -> bool {
    storageBarrier();
    let unit = place / UNIT_GROUPS;
    if (lid == 0u) {
        is_last = u32(atomicAdd(&b_tickets[unit], 1u) == UNIT_GROUPS - 1u);
    }
    workgroupBarrier();
    if (is_last == 0u) { return false; }
    storageBarrier();
    if (lid == 0u) {
        atomicStore(&b_tickets[unit], 0u);
    }
    return true;
}
