// Draws one of the best tokens of each row. o0: their logits in order; o1: their ids; o2: rows of sampling data;
// o3: which of those; o4: the position of the token before; o5: the id that is drawn.
// The order of operations is written down in sampling.rs, where the host does the same.
// MOST and NO_INDEX are written in front.
const WIDTH = 64u;

var<workgroup> weights: array<f32, MOST>;
var<workgroup> heated: array<f32, MOST>;

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
    let count = clamp(get_o2(row + 3u), 1u, min(P.o0.shape.w, MOST));
    let best = get_o0(first);
    for (var i = thread; i < count; i += WIDTH) {
        let below = get_o0(first + i) - best;
        weights[i] = exp(below);
        heated[i] = 0.0;
        if (temperature > 0.0) { heated[i] = exp(below / temperature); }
    }
    workgroupBarrier();
    if (thread != 0u) { return; }
    if ((bitcast<u32>(best) & 0x7f800000u) == 0x7f800000u) {
        put_o5(token, NO_INDEX);
        return;
    }
    if (!(temperature > 0.0)) {
        put_o5(token, get_o1(row_o1(token)));
        return;
    }
    let top_p = bitcast<f32>(get_o2(row + 4u));
    let log_min_p = bitcast<f32>(get_o2(row + 5u));
    var total = 0.0;
    for (var i = 0u; i < count; i++) { total += weights[i]; }
    var kept = 0.0;
    var sum = 0.0;
    var used = 0u;
    for (; used < count; used++) {
        if (used > 0u && (kept >= top_p * total || get_o0(first + used) - best < log_min_p)) { break; }
        kept += weights[used];
        sum += heated[used];
    }
    let goal = share(row, get_o4(token) + 1u) * sum;
    var running = 0.0;
    var chosen = used - 1u;
    for (var i = 0u; i < used; i++) {
        running += heated[i];
        if (running > goal) { chosen = i; break; }
    }
    put_o5(token, get_o1(row_o1(token) + chosen));
}
