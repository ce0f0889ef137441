// Activations rounded to 8 bits: 32 quants, 16 to a half, with one scale.

// Four of the 32, and what only the first of the eight lanes that share them needs.
struct Rounded {
    quants: u32,
    // Scale, scale times the sum of the first half, of the second half.
    scales: vec4<f32>,
}

// Eight lanes side by side have four numbers each.
fn round_quad(v: vec4<f32>) -> Rounded {
    // As integers, magnitudes have the same order, with infinity and NaN above all. The largest of floats may leave a
    // NaN out, and rounded it would be 0; like this it makes the scale NaN, and every product with it.
    let a = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    var most = max(max(a.x, a.y), max(a.z, a.w));
    most = max(most, subgroupShuffleXor(most, 1u));
    most = max(most, subgroupShuffleXor(most, 2u));
    most = max(most, subgroupShuffleXor(most, 4u));
    let top = bitcast<f32>(most);
    let scale = top / 127.0;
    let inverse = select(0.0, 127.0 / top, top > 0.0);
    let q = vec4<i32>(round(v * inverse));
    let packed = u32(q.x & 255) | (u32(q.y & 255) << 8u) | (u32(q.z & 255) << 16u) | (u32(q.w & 255) << 24u);
    var sum = q.x + q.y + q.z + q.w;
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    let other = subgroupShuffleXor(sum, 4u);
    return Rounded(packed, vec4<f32>(scale, scale * f32(sum), scale * f32(other), 0.0));
}

fn dot16(a: vec4<u32>, b: vec4<u32>) -> i32 {
    return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

// A chunk of weights times 32 activations: both halves and the scales.
fn dot_rounded(w: Chunk, first: vec4<u32>, second: vec4<u32>, s: vec4<f32>) -> f32 {
    let lo = dot16(w.lo, first);
    let hi = dot16(w.hi, second);
    var sum: f32;
    if (HALVES) {
        sum = s.x * (w.d.x * f32(lo) + w.d.y * f32(hi));
    } else {
        sum = s.x * w.d.x * f32(lo + hi);
    }
    if (MINIMUM) {
        if (HALVES) {
            sum += w.m.x * s.y + w.m.y * s.z;
        } else {
            sum += w.m.x * (s.y + s.z);
        }
    }
    return sum;
}
