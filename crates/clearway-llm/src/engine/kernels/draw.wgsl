// Draws one of the best tokens of each row. o0: their logits in order; o1: their ids; o2: rows of sampling data;
// o3: which of those; o4: the position of the token before; o5: the id that is drawn.
// The order of operations is written down in sampling.rs, where the host does the same.
// MOST and NO_INDEX are written in front.
const WIDTH = 64u;

// Of each of the best: its logit below the first, and what it weighs at temperature 1 and at that of the row; then the sums of
// all weights before it.
var<workgroup> below: array<f32, MOST>;
var<workgroup> weights: array<f32, MOST>;
var<workgroup> heated: array<f32, MOST>;
var<workgroup> kept_before: array<f32, MOST + 1u>;
var<workgroup> heated_before: array<f32, MOST + 1u>;
var<workgroup> used: atomic<u32>;
var<workgroup> chosen: atomic<u32>;

fn mix(words: vec4<u32>) -> vec4<u32> {
    var v = words;
    v.x += v.y * v.w;
    v.y += v.z * v.x;
    v.z += v.x * v.y;
    v.w += v.y * v.z;
    return v;
}

// 24 bits of a hash of seed and position.
fn share(row: u32, position: u32) -> f32 {
    let words = vec4<u32>(get_o2(row), get_o2(row + 1u), position, 0u);
    var v = mix(words * vec4<u32>(1664525u) + vec4<u32>(1013904223u));
    v = mix(v ^ (v >> vec4<u32>(16u)));
    return f32(v.x >> 8u) / 16777216.0;
}

@compute @workgroup_size(WIDTH)
fn main(@builtin(local_invocation_index) thread: u32, @builtin(workgroup_id) group: vec3<u32>) {
    let token = group.x;
    let row = row_o2(min(get_o3(token), P.o2.shape.z - 1u));
    let first = row_o0(token);
    let temperature = bitcast<f32>(get_o2(row + 2u));
    let top_p = bitcast<f32>(get_o2(row + 4u));
    let log_min_p = bitcast<f32>(get_o2(row + 5u));
    let count = clamp(get_o2(row + 3u), 1u, min(P.o0.shape.w, MOST));
    let best = get_o0(first);
    for (var i = thread; i < count; i += WIDTH) {
        let difference = get_o0(first + i) - best;
        below[i] = difference;
        weights[i] = exp(difference);
        heated[i] = 0.0;
        if (temperature > 0.0) { heated[i] = exp(difference / temperature); }
    }
    workgroupBarrier();
    // Sums in the order of the host's; everything else can be looked at side by side.
    if (thread == 0u) {
        var kept = 0.0;
        var sum = 0.0;
        for (var i = 0u; i < count; i++) {
            kept_before[i] = kept;
            heated_before[i] = sum;
            kept += weights[i];
            sum += heated[i];
        }
        kept_before[count] = kept;
        heated_before[count] = sum;
        atomicStore(&used, count);
    }
    workgroupBarrier();
    let total = kept_before[count];
    for (var i = thread; i < count; i += WIDTH) {
        if (i > 0u && (kept_before[i] >= top_p * total || below[i] < log_min_p)) { atomicMin(&used, i); }
    }
    workgroupBarrier();
    let candidates = atomicLoad(&used);
    if (thread == 0u) { atomicStore(&chosen, candidates - 1u); }
    workgroupBarrier();
    let goal = share(row, get_o4(token) + 1u) * heated_before[candidates];
    for (var i = thread; i < candidates; i += WIDTH) {
        if (heated_before[i + 1u] > goal) { atomicMin(&chosen, i); }
    }
    workgroupBarrier();
    if (thread != 0u) { return; }
    let is_finite = (bitcast<u32>(best) & 0x7f800000u) != 0x7f800000u;
    let place = select(0u, atomicLoad(&chosen), temperature > 0.0);
    put_o5(token, select(NO_INDEX, get_o1(row_o1(token) + place), is_finite));
}
