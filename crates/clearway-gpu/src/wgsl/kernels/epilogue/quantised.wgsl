// The workgroup has SPAN elements of each row of the result, whole chunks. Eight lanes share a chunk, so that they stay
// together.
const RESULT_CHUNKS = P.y.shape.w / 32u;
var<workgroup> results: array<f32, COLS * SPAN>;
fn close_quad(place: u32, t: u32, quad: u32, weight: vec4<f32>) {
    let chunk = place * (SPAN / 32u) + quad / 8u;
    if (chunk < RESULT_CHUNKS) {
        let i = t * SPAN + 4u * quad;
        let v = vec4<f32>(results[i], results[i + 1u], results[i + 2u], results[i + 3u]);
        let part = part_of(v);
        let r = round_quad(v * weight);
        let to = t * 8u * RESULT_CHUNKS + chunk;
        b_y[to + (quad % 8u) / 4u * RESULT_CHUNKS][quad % 4u] = r.quants;
        if (quad % 8u == 0u) {
            b_y[to + 2u * RESULT_CHUNKS] = bitcast<vec4<u32>>(vec4<f32>(r.scales.xyz, part));
        }
    }
}
