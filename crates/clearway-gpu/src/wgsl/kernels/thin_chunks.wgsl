// Block weights: BLOCK lanes to a row, a chunk each. Quants become floats without a conversion, which would take four
// times as long as other instructions: 8 bits behind the leading one of a float are 1 + q / 256, and a factor of 256 d with
// 256 d less added makes d q of it.
const FLIP = select(0u, 0x80808080u, SIGNED);
const BIAS = select(256.0, 384.0, SIGNED);

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

// Four quants as f16.
fn four(quants: u32, scale: f32, least: f32) -> vec2<u32> {
    let q = quants ^ FLIP;
    let bits = vec4<u32>(q << 15u, q << 7u, q >> 1u, q >> 9u) & vec4<u32>(0x7f8000u) | vec4<u32>(0x3f800000u);
    let v = fma(bitcast<vec4<f32>>(bits), vec4<f32>(scale), vec4<f32>(least));
    return vec2<u32>(pack2x16float(v.xy), pack2x16float(v.zw));
}

fn stage_half(quants: vec4<u32>, d: f32, m: f32, at: u32) {
    let scale = 256.0 * d;
    let least = m - BIAS * d;
    staged[at] = bitcast<vec4<f32>>(vec4<u32>(four(quants.x, scale, least), four(quants.y, scale, least)));
    staged[at + 1u] = bitcast<vec4<f32>>(vec4<u32>(four(quants.z, scale, least), four(quants.w, scale, least)));
}

fn stage_weights(w: Fetched, at: Places, c: u32, ws: u32, lane: u32) {
    let chunk = min(c + lane % BLOCK, CHUNKS - 1u);
    //# for r in W_UNITS
    let c$r = decode(w[$r], at[$r] + chunk);
    let to$r = ws + (lane / BLOCK + 32u / BLOCK * $ru) * ROW + lane % BLOCK * CHUNK;
    stage_half(c$r.lo, c$r.d.x, c$r.m.x, to$r);
    stage_half(c$r.hi, c$r.d.y, c$r.m.y, to$r + 2u);
    //# end
}
