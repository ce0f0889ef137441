// Weights of 16 bits: eight at a time.
// Of two steps.
struct Fetched { first: array<vec4<u32>, W_UNITS>, second: array<vec4<u32>, W_UNITS> }

alias Places = array<u32, W_UNITS>;

fn weight_places(first: u32, n0: u32, lid: u32) -> Places {
    var at: Places;
    //# for e in W_UNITS
    at[$e] = (first + min(n0 + (lid + $eu * THREADS) / EIGHTS, P.w.shape.z - 1u)) * (P.w.shape.w / 8u) + lid % EIGHTS;
    //# end
    return at;
}

fn fetch_weights(at: Places, k: u32, inner: u32) -> Fetched {
    var fetched: Fetched;
    // Behind the last column there is no second step.
    let further = select(0u, EIGHTS, k + STEP < inner);
    //# for e in W_UNITS
    fetched.first[$e] = b_w[at[$e] + k / 8u];
    fetched.second[$e] = b_w[at[$e] + k / 8u + further];
    //# end
    return fetched;
}

fn stage_weights(fetched: Fetched, step: u32, place: Places, k: u32, slice: u32, lid: u32) {
    //# for e in W_UNITS
    {
        let unit = lid + $eu * THREADS;
        var bits = fetched.first[$e];
        if (step == 1u) { bits = fetched.second[$e]; }
        staged[slice + WEIGHTS + unit / EIGHTS * ROW + unit % EIGHTS] = bitcast<vec4<f32>>(w_halves(bits));
    }
    //# end
}
