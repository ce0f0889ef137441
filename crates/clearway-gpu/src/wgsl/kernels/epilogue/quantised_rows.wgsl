fn close_early(place: u32, lid: u32) -> vec4<f32> { return vec4<f32>(); }
fn close_group(place: u32, lid: u32, weight: vec4<f32>) {
    workgroupBarrier();
    for (var i = lid; i < COLS * SPAN / 4u; i += WG) {
        let quad = i % (SPAN / 4u);
        let n = min(place * SPAN + 4u * quad, P.y.shape.w - 4u);
        close_quad(place, i / (SPAN / 4u), quad, weight_of(n));
    }
}
