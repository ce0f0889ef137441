fn q_four(i: u32) -> vec4<f32> {
    let words = select(b_q[i / 8u].xy, b_q[i / 8u].zw, i % 8u == 4u);
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}
