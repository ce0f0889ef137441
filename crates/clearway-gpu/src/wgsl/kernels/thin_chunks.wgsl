// Block weights: BLOCK lanes to a row, a chunk each. Two quants at a time become f16 without a conversion: 8 bits behind the
// leading one of 1024 are 1024 + q. Taking 1024 away is exact, so what is rounded is the result, and scale and minimum before it.
// Quants of a word come out as 0, 2, 1, 3: activations are staged in the same order.
const FLIP = select(0u, 0x80808080u, SIGNED);
const ZERO = select(1024.0, 1152.0, SIGNED);

alias Fetched = array<Raw, W_UNITS>;
alias Places = array<u32, W_UNITS>;

// The first chunk of each row of a lane.
fn weight_places(n0: u32, outer: u32, lane: u32) -> Places {
    var at: Places;
    //# for r in W_UNITS
    at[$r] = min(n0 + lane / BLOCK + 32u / BLOCK * $ru, outer - 1u) * CHUNKS;
    //# end
    return at;
}

fn fetch_weights(at: Places, c: u32, lane: u32) -> Fetched {
    let chunk = min(c + lane % BLOCK, CHUNKS - 1u);
    var w: Fetched;
    //# for r in W_UNITS
    w[$r] = fetch_w(at[$r] + chunk);
    //# end
    return w;
}

fn two(bytes: u32, d: vec2<f16>, m: vec2<f16>) -> u32 {
    let q = vec2<f16>(unpack2x16float((bytes & 0x00ff00ffu) | 0x64006400u)) - vec2<f16>(f16(ZERO));
    return pack2x16float(vec2<f32>(fma(q, d, m)));
}

// Four quants as f16.
fn four(quants: u32, d: vec2<f16>, m: vec2<f16>) -> vec2<u32> {
    let q = quants ^ FLIP;
    return vec2<u32>(two(q, d, m), two(q >> 8u, d, m));
}

fn stage_half(quants: vec4<u32>, d: f32, m: f32, at: u32) {
    let scale = vec2<f16>(f16(d));
    let least = vec2<f16>(f16(m));
    staged[at] = bitcast<vec4<f32>>(vec4<u32>(four(quants.x, scale, least), four(quants.y, scale, least)));
    staged[at + 1u] = bitcast<vec4<f32>>(vec4<u32>(four(quants.z, scale, least), four(quants.w, scale, least)));
}

// Eight activations in the order of quants.
fn in_order(x: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(
        (x.x & 0xffffu) | (x.y << 16u), (x.x >> 16u) | (x.y & 0xffff0000u),
        (x.z & 0xffffu) | (x.w << 16u), (x.z >> 16u) | (x.w & 0xffff0000u),
    );
}

fn stage_weights(w: Fetched, at: Places, c: u32, ws: u32, lane: u32) {
    let chunk = min(c + lane % BLOCK, CHUNKS - 1u);
    //# for r in W_UNITS
    let c$r = decode(w[$r], at[$r] + chunk);
    let to$r = ws + (lane / BLOCK + 32u / BLOCK * $ru) * ROW + lane % BLOCK * 4u;
    stage_half(c$r.lo, c$r.d.x, c$r.m.x, to$r);
    stage_half(c$r.hi, c$r.d.y, c$r.m.y, to$r + 2u);
    //# end
}
