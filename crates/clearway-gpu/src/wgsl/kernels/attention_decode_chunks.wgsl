// Elements of a cache of 8 bits, eight to a lane: four lanes share a chunk, and the scales of two chunks a word.
fn eight(q: vec2<u32>) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(vec4<f32>(unpack4xI8(q.x)), vec4<f32>(unpack4xI8(q.y)));
}
fn scale_of(word: u32, lane: u32) -> f32 { return unpack2x16float(word >> (lane / 4u % 2u * 16u)).x; }
// The word with the scale of the chunk of an element.
fn scales_k(i: u32) -> u32 {
    let word = (P.k.place.y + i / 32u) / 2u;
    return b_k[word / 2u][word % 2u];
}
fn scales_v(i: u32) -> u32 {
    let word = (P.v.place.y + i / 32u) / 2u;
    return b_v[word / 2u][word % 2u];
}
