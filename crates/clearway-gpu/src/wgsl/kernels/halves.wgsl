// Eight floats as the bits of f16.
fn halves(low: vec4<f32>, high: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(pack2x16float(low.xy), pack2x16float(low.zw), pack2x16float(high.xy), pack2x16float(high.zw));
}

// The same; what f16 cannot hold becomes its largest number.
fn bounded_halves(low: vec4<f32>, high: vec4<f32>) -> vec4<u32> {
    let most = vec4<f32>(65504.0);
    return halves(clamp(low, -most, most), clamp(high, -most, most));
}
