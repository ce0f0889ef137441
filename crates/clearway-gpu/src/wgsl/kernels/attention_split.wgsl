// Attention whose rows are shared by SPLITS workgroups: the parts are joined by the one that arrives last.

//# piece part
// What a query leaves for others: a row of sums, the largest score and the sum of weights.
const ENTRY = 64u * VALUE_CHUNKS + 2u;
var<workgroup> is_last: u32;
// How many workgroups have rows.
var<private> parts: u32;

// The rows of a workgroup, of those that its token sees. Parts are whole blocks.
fn part_of(split: u32, from_row: u32, end_row: u32) -> vec2<u32> {
    parts = 1u;
    if (from_row >= end_row) { return vec2<u32>(from_row, end_row); }
    let base = from_row / KEYS * KEYS;
    let span = (((end_row - base - 1u) / KEYS + 1u) - 1u) / SPLITS * KEYS + KEYS;
    parts = (end_row - base - 1u) / span + 1u;
    return vec2<u32>(max(from_row, base + split * span), min(end_row, base + (split + 1u) * span));
}

//# piece join
    if (split >= parts) { return; }
    if (parts > 1u) {
        let entry = ((unit * SPLITS + split) * QUERIES + own) * ENTRY;
        for (var i = 0u; i < 2u * VALUE_CHUNKS; i++) {
            for (var j = 0u; j < 4u; j++) { b_scratch[entry + (i * 8u + part) * 4u + j] = out[i][j]; }
        }
        if (part == 0u) {
            b_scratch[entry + ENTRY - 2u] = largest;
            b_scratch[entry + ENTRY - 1u] = sum;
        }
        storageBarrier();
        if (thread == 0u) { is_last = u32(atomicAdd(&b_tickets[unit], 1u) == parts - 1u); }
        workgroupBarrier();
        if (is_last == 0u) { return; }
        storageBarrier();
        let start = (unit * SPLITS * QUERIES + own) * ENTRY;
        largest = LEAST;
        for (var s = 0u; s < parts; s++) {
            largest = max(largest, b_scratch[start + s * QUERIES * ENTRY + ENTRY - 2u]);
        }
        sum = 0.0;
        for (var i = 0u; i < 2u * VALUE_CHUNKS; i++) { out[i] = vec4<f32>(); }
        for (var s = 0u; s < parts; s++) {
            let at = start + s * QUERIES * ENTRY;
            let factor = exp_of(b_scratch[at + ENTRY - 2u] - largest);
            sum = fma(b_scratch[at + ENTRY - 1u], factor, sum);
            for (var i = 0u; i < 2u * VALUE_CHUNKS; i++) {
                for (var j = 0u; j < 4u; j++) {
                    out[i][j] = fma(b_scratch[at + (i * 8u + part) * 4u + j], factor, out[i][j]);
                }
            }
        }
        if (thread == 0u) { atomicStore(&b_tickets[unit], 0u); }
    }
