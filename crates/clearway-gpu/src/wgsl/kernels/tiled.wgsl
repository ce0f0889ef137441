// Products with many rows: tiles of both operands go through workgroup memory, 4 by 4 results to an
// invocation.
const DEPTH = 16u;
const QUADS = TILE / 4u;
// One more than a tile is wide, against conflicts of banks.
const PITCH = QUADS + 1u;
var<workgroup> xs: array<vec4<f32>, DEPTH * PITCH>;
var<workgroup> ws: array<vec4<f32>, DEPTH * PITCH>;

@compute @workgroup_size(QUADS * QUADS)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
) {
    enter(index, id, count);
    let rows = P.y.shape.z;
    let outer = P.y.shape.w;
    let inner = P.x.shape.w;
    let across = (outer - 1u) / TILE + 1u;
    let first_row = group / across * TILE;
    let first_col = group % across * TILE;
    if (first_row >= rows) { return; }
    var sums = array<vec4<f32>, 4>();
    for (var start = 0u; start < inner; start += DEPTH) {
        for (var i = thread; i < TILE * DEPTH / 4u; i += QUADS * QUADS) {
            let line = i / (DEPTH / 4u);
            let depth = i % (DEPTH / 4u) * 4u;
            let k = start + depth;
            var x = vec4<f32>();
            var w = vec4<f32>();
            if (first_row + line < rows && k < inner) { x = x_four(x_row(first_row + line), k, inner); }
            if (first_col + line < outer && k < inner) { w = w_four(w_row(0u, first_col + line), k, inner); }
            for (var d = 0u; d < 4u; d++) {
                let at = (depth + d) * PITCH + line / 4u;
                xs[at][line % 4u] = x[d];
                ws[at][line % 4u] = w[d];
            }
        }
        workgroupBarrier();
        // A sum for each step: fewer roundings of the large one.
        var parts = array<vec4<f32>, 4>();
        for (var k = 0u; k < DEPTH; k++) {
            let x = xs[k * PITCH + thread / QUADS];
            let w = ws[k * PITCH + thread % QUADS];
            parts[0] = fma(vec4<f32>(x.x), w, parts[0]);
            parts[1] = fma(vec4<f32>(x.y), w, parts[1]);
            parts[2] = fma(vec4<f32>(x.z), w, parts[2]);
            parts[3] = fma(vec4<f32>(x.w), w, parts[3]);
        }
        for (var i = 0u; i < 4u; i++) { sums[i] += parts[i]; }
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        let row = first_row + thread / QUADS * 4u + i;
        for (var j = 0u; j < 4u; j++) {
            let col = first_col + thread % QUADS * 4u + j;
            if (row < rows && col < outer) { finish(row, col, sums[i][j]); }
        }
    }
}
