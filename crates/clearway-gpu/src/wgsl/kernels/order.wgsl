// A key that rises with the value: both zeros are equal, and NaN is above all numbers.
const KEY_NAN = 0xfffffffeu;
const KEY_INFINITY = 0xff800000u;
const KEY_MINUS_INFINITY = 0x007fffffu;

fn key_of(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let size = bits & 0x7fffffffu;
    let key = select(bits | 0x80000000u, ~bits, bits > 0x80000000u);
    return select(key, KEY_NAN, size > 0x7f800000u);
}
