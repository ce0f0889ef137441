// Angles are counted in turns and kept in two parts, high and low, so that positions of a million
// are as exact as small ones. `parts` gives the turns of pair 0 at position 1, then the ratio of frequencies
// of pairs that are 1, 2, 4, 8, ... apart; `bits_of` at least the bits of the number of a pair; `magnitude` what sine
// and cosine are multiplied by.

// The upper half of the digits, so that products of halves are exact. By bits: what a compiler knows
// of sums it may simplify, and what it does not fuse in an `fma` would be lost.
fn upper(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
}

// The low part is what rounding took from the product of the high ones, and the mixed products.
fn product_of(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let p = a.x * b.x;
    let ah = upper(a.x);
    let bh = upper(b.x);
    let al = a.x - ah;
    let bl = b.x - bh;
    // Each product is exact, contracted or not.
    let lost = (((ah * bh - p) + ah * bl) + al * bh) + al * bl;
    return vec2<f32>(p, lost + fma(a.x, b.y, a.y * b.x));
}

// Sine and cosine of some turns, at most a few of them.
fn sin_cos_of(turns: f32) -> vec2<f32> {
    let quarters = round(turns * 4.0);
    let x = fma(quarters, -0.25, turns) * 6.2831855;
    let q = x * x;
    let s = fma(x * q, fma(q, fma(q, -1.9587387e-4, 0.008332746), -0.16666665), x);
    let c = fma(q * q, fma(q, fma(q, 2.4547437e-5, -0.00138883), 0.041666665), fma(q, -0.5, 1.0));
    let k = u32(i32(quarters)) & 3u;
    let swapped = select(vec2<f32>(s, c), vec2<f32>(c, s), (k & 1u) == 1u);
    return vec2<f32>(
        select(swapped.x, -swapped.x, k >= 2u),
        select(swapped.y, -swapped.y, k == 1u || k == 2u),
    );
}

// Turns at a position of at most 12 digits, without whole ones: products are exact.
fn turns_of(position: f32, frequency: vec2<f32>) -> f32 {
    let high = upper(frequency.x);
    let a = position * high;
    let b = position * (frequency.x - high);
    return fma(position, frequency.y, (a - round(a)) + (b - round(b)));
}

// Sine and cosine of a pair at a position, its frequency divided by a factor, times the magnitude.
fn angle_of(pair: u32, position: u32, factor: f32) -> vec2<f32> {
    var frequency = parts(0u);
    for (var k = 0u; k < bits_of(pair); k++) {
        if (((pair >> k) & 1u) == 1u) { frequency = product_of(frequency, parts(1u + k)); }
    }
    let q = frequency.x / factor;
    let back = product_of(vec2<f32>(q, 0.0), vec2<f32>(factor, 0.0));
    let rest = ((frequency.x - back.x) - back.y) + frequency.y;
    frequency = vec2<f32>(q, rest / factor);
    let turns = turns_of(f32(position & 0xfffu), frequency)
        + turns_of(f32(position & 0xfff000u), frequency)
        + turns_of(f32(position & 0xff000000u), frequency);
    return sin_cos_of(turns) * magnitude();
}
