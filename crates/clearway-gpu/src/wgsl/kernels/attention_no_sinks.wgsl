// Attention without sinks: a softmax of scores alone.

//# piece start
// Score and weight that a softmax starts with.
fn start_of(head: u32) -> vec2<f32> { return vec2<f32>(LEAST, 0.0); }

//# piece mean
// The weighted mean of values. A weight that is NaN stays what it is.
fn mean_of(total: f32, weight: f32, highest: f32, head: u32) -> f32 {
    return select(total / weight, 0.0, weight == 0.0);
}

//# piece factor
// What sums of values are multiplied by.
fn factor_of(weight: f32, reference: f32, head: u32) -> f32 {
    return select(1.0 / weight, 0.0, weight == 0.0);
}
