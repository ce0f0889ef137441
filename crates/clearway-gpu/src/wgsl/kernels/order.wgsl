// A key that rises with the value: both zeros are equal, and what is no number comes before the rest.
fn key_of(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let size = bits & 0x7fffffffu;
    let key = select(bits | 0x80000000u, ~bits, bits > 0x80000000u);
    return select(key, 0u, size > 0x7f800000u);
}
