// The weight of the norm comes early: each lane has at most one quad.
fn close_early(place: u32, lid: u32) -> vec4<f32> {
    let n = place * SPAN + 4u * min(lid, SPAN / 4u - 1u);
    return weight_of(min(n, P.y.shape.w - 4u));
}
fn close_group(place: u32, lid: u32, weight: vec4<f32>) {
    workgroupBarrier();
    if (lid < SPAN / 4u) {
        close_quad(place, 0u, lid, weight);
    }
}
