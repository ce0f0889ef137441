// Block weights: a chunk of 32 to SHARE invocations, which take 16 of it each if they are two.
const SHARE = THREADS / TILE_N;
// The chunks of two steps.
struct Fetched { first: Raw, second: Raw }

alias Places = u32;

// The first chunk of the row of an invocation.
fn weight_places(first: u32, n0: u32, lid: u32) -> Places {
    return (first + min(n0 + lid / SHARE, P.w.shape.z - 1u)) * (P.w.shape.w / 32u);
}

fn fetch_weights(at: Places, k: u32, inner: u32) -> Fetched {
    let chunk = at + k / 32u;
    // Behind the last column there is no second step.
    return Fetched(fetch_w(chunk), fetch_w(select(chunk, chunk + 1u, k + STEP < inner)));
}

fn stage_half(quants: vec4<u32>, scale: f32, least: f32, at: u32) {
    let a = vec4<f32>(unpack4xI8(quants.x)) * scale + least;
    let b = vec4<f32>(unpack4xI8(quants.y)) * scale + least;
    let c = vec4<f32>(unpack4xI8(quants.z)) * scale + least;
    let d = vec4<f32>(unpack4xI8(quants.w)) * scale + least;
    staged[at] = bitcast<vec4<f32>>(halves(a, b));
    staged[at + 1u] = bitcast<vec4<f32>>(halves(c, d));
}

fn stage_weights(fetched: Fetched, step: u32, place: Places, k: u32, slice: u32, lid: u32) {
    var raw = fetched.first;
    if (step == 1u) { raw = fetched.second; }
    let c = decode(raw, place + k / 32u);
    let at = slice + WEIGHTS + lid / SHARE * ROW;
    if (SHARE == 2u) {
        let second = lid % 2u == 1u;
        stage_half(select(c.lo, c.hi, second), select(c.d.x, c.d.y, second), select(c.m.x, c.m.y, second), at + lid % 2u * 2u);
    } else {
        stage_half(c.lo, c.d.x, c.m.x, at);
        stage_half(c.hi, c.d.y, c.m.y, at + 2u);
    }
}
