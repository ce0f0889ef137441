
// Many rows of activations times weights in planes: tiles of 64 by 64 results, 4 by 4 to an
// invocation, over chunks of 32 weights that are decoded into workgroup memory.
const EDGE = 64u;
var<workgroup> xs: array<f32, EDGE * 32u>;
var<workgroup> ws: array<f32, EDGE * 33u>;

@compute @workgroup_size(256)
fn main(
    @builtin(local_invocation_index) lid: u32,
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) size: vec3<u32>,
) {
    let inner = P.w.shape.w;
    let outer = P.w.shape.z;
    let rows = P.x.shape.x * P.x.shape.y * P.x.shape.z;
    let across = (outer + EDGE - 1u) / EDGE;
    let tile = group.x + size.x * (group.y + size.y * group.z);
    let t0 = tile / across * EDGE;
    let n0 = tile % across * EDGE;
    // Workgroups beyond the last tile exist where the grid was folded.
    if (t0 >= rows) {
        return;
    }
    let tx = lid % 16u;
    let ty = lid / 16u;
    var sums: array<f32, 16>;
    for (var i = 0u; i < 16u; i++) {
        sums[i] = 0.0;
    }
    for (var k = 0u; k < inner; k += 32u) {
        for (var i = lid; i < EDGE * 32u; i += 256u) {
            let t = min(t0 + i / 32u, rows - 1u);
            xs[i] = get_x(row_x(t) + k + i % 32u);
        }
        if (lid < EDGE) {
            let n = min(n0 + lid, outer - 1u);
            let c = load_chunk_w((n * inner + k) / 32u);
            for (var j = 0u; j < 16u; j++) {
                ws[lid * 33u + j] = c.d.x * quant(c.lo, j) + c.m.x;
                ws[lid * 33u + 16u + j] = c.d.y * quant(c.hi, j) + c.m.y;
            }
        }
        workgroupBarrier();
        for (var j = 0u; j < 32u; j++) {
            var a: vec4<f32>;
            var b: vec4<f32>;
            for (var i = 0u; i < 4u; i++) {
                a[i] = xs[(ty * 4u + i) * 32u + j];
                b[i] = ws[(tx + 16u * i) * 33u + j];
            }
            for (var i = 0u; i < 16u; i++) {
                sums[i] += a[i / 4u] * b[i % 4u];
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 16u; i++) {
        let t = t0 + ty * 4u + i / 4u;
        let n = n0 + tx + 16u * (i % 4u);
        if (t < rows && n < outer) {
            put_y(row_y(t) + n, sums[i] + addend(t, n));
        }
    }
}
