// Weights of 16 bits: 4 * BLOCK lanes to a row, 16 bytes each.
const LANES = 4u * BLOCK;

alias Fetched = array<vec4<u32>, W_UNITS>;
alias Places = array<u32, W_UNITS>;

// The first unit of 16 bytes of each row of a lane.
fn weight_places(n0: u32, outer: u32, lane: u32) -> Places {
    var at: Places;
    //# for r in W_UNITS
    at[$r] = min(n0 + lane / LANES + 32u / LANES * $ru, outer - 1u) * (4u * CHUNKS) + lane % 4u;
    //# end
    return at;
}

fn fetch_weights(at: Places, c: u32, lane: u32) -> Fetched {
    let chunk = min(c + lane % LANES / 4u, CHUNKS - 1u);
    var w: Fetched;
    //# for r in W_UNITS
    w[$r] = b_w[at[$r] + 4u * chunk];
    //# end
    return w;
}

fn stage_weights(w: Fetched, at: Places, c: u32, ws: u32, lane: u32) {
    let place = lane % LANES;
    //# for r in W_UNITS
    staged[ws + (lane / LANES + 32u / LANES * $ru) * ROW + place] = bitcast<vec4<f32>>(w_halves(w[$r]));
    //# end
}

// Eight activations in the order of weights.
fn in_order(x: vec4<u32>) -> vec4<u32> { return x; }
