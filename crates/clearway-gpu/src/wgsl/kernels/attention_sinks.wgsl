// Attention with sinks: each head has one more score, which takes its share of the softmax and has no value.

//# piece start
// Score and weight that a softmax starts with: those of the sink.
fn start_of(head: u32) -> vec2<f32> {
    let sink = get_sinks(at_sinks(vec4<u32>(0u, 0u, 0u, head)));
    return select(vec2<f32>(sink, 1.0), vec2<f32>(LEAST, 0.0), sink <= LEAST);
}

//# piece mean
// The weighted mean of values, whose weights are powers of two relative to the highest score.
fn mean_of(total: f32, weight: f32, highest: f32, head: u32) -> f32 {
    let sink = get_sinks(at_sinks(vec4<u32>(0u, 0u, 0u, head))) * LOG2_E;
    let most = max(highest, sink);
    let factor = exp2(highest - most);
    let all = fma(weight, factor, exp2(sink - most));
    return select(total * factor / all, 0.0, all == 0.0);
}

//# piece factor
// What sums of values are multiplied by. Where the sink is far above the reference of the weights, nothing is left.
fn factor_of(weight: f32, reference: f32, head: u32) -> f32 {
    let sink = get_sinks(at_sinks(vec4<u32>(0u, 0u, 0u, head))) * LOG2_E;
    let all = weight + exp2(sink - reference);
    return select(1.0 / all, 0.0, all == 0.0);
}
