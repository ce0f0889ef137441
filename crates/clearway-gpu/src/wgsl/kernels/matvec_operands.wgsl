// What products of few rows read: rows and the weight of a norm as they lie, and eight float weights at a time.
// `$operand` is the name of the weights.

//# piece wait
var word = 0u;
for (var i = 0u; COUNTED && i < UNROLL * ROWS; i++) {
    word ^= word_of(w[i]);
    if (GATED) {
        word ^= word_of(u[i]);
    }
}
wait_for_inputs(lid, group, word);

//# piece norm weight in quads
fn norm_weight(k: u32) -> vec4<f32> { return bitcast<vec4<f32>>(b_g[k / 4u]); }

//# piece norm weight by elements
fn norm_weight(k: u32) -> vec4<f32> {
    return vec4<f32>(get_g(k), get_g(k + 1u), get_g(k + 2u), get_g(k + 3u));
}

//# piece no norm
fn norm_weight(k: u32) -> vec4<f32> { return vec4<f32>(1.0); }

//# piece rows in quads
fn x_four(i: u32) -> vec4<f32> { return bitcast<vec4<f32>>(x_quad(i / 4u)); }

//# piece quads from memory
fn stage_x(lid: u32) {}
fn x_quad(i: u32) -> vec4<u32> { return b_x[i]; }

//# piece quads from workgroup memory
// What another dispatch has just written does not come from the cache of a processor, so teams share what the workgroup loads.
var<workgroup> staged_x: array<vec4<u32>, X_QUADS>;
fn stage_x(lid: u32) {
    // All loads under way before the first is stored.
    const TURNS = (X_QUADS - 1u) / WG + 1u;
    var loaded: array<vec4<u32>, TURNS>;
    for (var i = 0u; i < TURNS; i++) {
        loaded[i] = b_x[min(lid + i * WG, X_QUADS - 1u)];
    }
    for (var i = 0u; i < TURNS; i++) {
        if (lid + i * WG < X_QUADS) {
            staged_x[lid + i * WG] = loaded[i];
        }
    }
    workgroupBarrier();
}
fn x_quad(i: u32) -> vec4<u32> { return staged_x[i]; }

//# piece rows by elements
fn stage_x(lid: u32) {}
fn x_four(i: u32) -> vec4<f32> {
    return vec4<f32>(get_x(i), get_x(i + 1u), get_x(i + 2u), get_x(i + 3u));
}

//# piece f32
struct Eight { a: vec4<u32>, b: vec4<u32> }
fn word_of(e: Eight) -> u32 { return e.a.x; }
fn values(e: Eight) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(bitcast<vec4<f32>>(e.a), bitcast<vec4<f32>>(e.b));
}

//# piece f16
alias Eight = vec4<u32>;
fn word_of(e: Eight) -> u32 { return e.x; }
fn values(e: Eight) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(
        vec4<f32>(unpack2x16float(e.x), unpack2x16float(e.y)),
        vec4<f32>(unpack2x16float(e.z), unpack2x16float(e.w)),
    );
}

//# piece bf16
alias Eight = vec4<u32>;
fn word_of(e: Eight) -> u32 { return e.x; }
fn values(e: Eight) -> array<vec4<f32>, 2> {
    let low = bitcast<vec4<f32>>(e << vec4<u32>(16u));
    let high = bitcast<vec4<f32>>(e & vec4<u32>(0xffff0000u));
    return array<vec4<f32>, 2>(
        vec4<f32>(low.x, high.x, low.y, high.y),
        vec4<f32>(low.z, high.z, low.w, high.w),
    );
}

//# piece f32 operand
fn load_eight_$operand(i: u32) -> Eight { return Eight(b_$operand[2u * i], b_$operand[2u * i + 1u]); }

//# piece 16 bits operand
fn load_eight_$operand(i: u32) -> Eight { return b_$operand[i]; }

//# piece no second weights
fn fetch_u(c: u32) -> Raw { return fetch_w(c); }

//# piece no second float weights
fn load_eight_u(i: u32) -> Eight { return load_eight_w(i); }
