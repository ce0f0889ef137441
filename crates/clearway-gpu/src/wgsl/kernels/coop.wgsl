
// What a product on cooperative matrices does besides multiplying.
// Constants: TILE by TILE results of a workgroup, THREADS, STEP (columns at a time), PITCH (of rows).
const FOURS = TILE * STEP / 4u / THREADS;
// Rows of activations, then from WEIGHTS on rows of weights.
const WEIGHTS = TILE * PITCH;
var<workgroup> staged: array<f16, 2u * TILE * PITCH>;
var<workgroup> ys: array<f32, THREADS / 32u * 256u>;

fn put_four(at: u32, four: vec4<f32>) {
    let half = vec4<f16>(four);
    staged[at] = half.x;
    staged[at + 1u] = half.y;
    staged[at + 2u] = half.z;
    staged[at + 3u] = half.w;
}

fn fetch_x(t0: u32, rows: u32, k: u32, lid: u32) -> array<vec4<f32>, FOURS> {
    var x: array<vec4<f32>, FOURS>;
    for (var e = 0u; e < FOURS; e++) {
        let i = lid + e * THREADS;
        let t = min(t0 + i / (STEP / 4u), rows - 1u);
        x[e] = x_four(row_x(t) + k + i % (STEP / 4u) * 4u);
    }
    return x;
}

fn stage_x(x: array<vec4<f32>, FOURS>, lid: u32) {
    for (var e = 0u; e < FOURS; e++) {
        let i = lid + e * THREADS;
        put_four(i / (STEP / 4u) * PITCH + i % (STEP / 4u) * 4u, x[e]);
    }
}

// A matrix of results, as its subgroup left it in workgroup memory.
fn finish(t0: u32, n0: u32, rows: u32, outer: u32, lid: u32) {
    for (var i = lid % 32u; i < 256u; i += 32u) {
        let t = t0 + i / 16u;
        let n = n0 + i % 16u;
        if (t < rows && n < outer) {
            put_y(row_y(t) + n, ys[lid / 32u * 256u + i] + addend(t, n));
        }
    }
}
