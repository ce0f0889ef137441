// Functions whose built-in forms may be as coarse as the driver likes. Every product that is added is
// an explicit `fma`, so that no compiler contracts one kernel and not another.

// Least number a score is compared with: below every finite one that matters, and no infinity, whose
// difference with itself is no number.
const LEAST = -3.4028234e38;

fn power_of_two(exponent: i32) -> f32 {
    return bitcast<f32>(u32(exponent + 127) << 23u);
}

// By its bits: a driver may take it for granted that no float is NaN, and leave comparisons of floats out.
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

// e^x for x up to 0, within 2 units in the last place; 0 far below. Polynomial by Remez exchange.
fn exp_of(x: f32) -> f32 {
    let v = select(x, -104.0, x < -104.0);
    let whole = round(v * 1.442695);
    // ln 2 in two parts; products of the first with exponents are exact.
    let r = fma(whole, 2.1219444e-4, fma(whole, -0.693359375, v));
    let p = fma(r, fma(r, fma(r, fma(r, 0.0013813145, 0.008369419), 0.041668456), 0.16666515), 0.49999994);
    let y = fma(r * r, p, r) + 1.0;
    let exponent = i32(whole);
    // In two steps, since the exponent alone may be beyond the normal numbers.
    let half = exponent >> 1u;
    return select(y * power_of_two(half) * power_of_two(exponent - half), x, is_nan(x));
}

fn sigmoid(x: f32) -> f32 {
    let e = exp_of(-abs(x));
    return select(1.0, e, x < 0.0) / (1.0 + e);
}

fn silu(x: f32) -> f32 {
    return x * sigmoid(x);
}

// The tanh form: (1 + tanh u) / 2 is the sigmoid of 2 u, which cancels nothing.
fn gelu(x: f32) -> f32 {
    let cube = x * x * x;
    return x * sigmoid(1.5957691 * fma(0.044715, cube, x));
}

fn relu_squared(x: f32) -> f32 {
    return select(x * x, 0.0, x < 0.0);
}

// The gate is limited above, what it gates on both sides. Comparisons leave NaN what it is.
fn clamped_gate(gate: f32, up: f32, limit: f32, alpha: f32) -> f32 {
    let g = select(gate, limit, gate > limit);
    let u = select(select(up, limit, up > limit), -limit, up < -limit);
    return g * sigmoid(alpha * g) * (u + 1.0);
}

fn tanh_of(x: f32) -> f32 {
    let a = abs(x);
    let q = a * a;
    let p = fma(q, fma(q, fma(q, fma(q, -0.005528634, 0.020483317), -0.053692967), 0.13330899), -0.33333263);
    let near = fma(a * q, p, a);
    let e = exp_of(-2.0 * a);
    let far = (1.0 - e) / (1.0 + e);
    let y = select(far, near, a < 0.625);
    return select(y, -y, x < 0.0);
}

fn soft_cap(x: f32, cap: f32) -> f32 {
    return cap * tanh_of(x / cap);
}
