// Element-wise ops of dense operands: `apply` takes unit `c.w` of eight elements. Operands are seen by quads of 16 bytes.
//# piece load floats
fn eight_$name(u: u32) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(bitcast<vec4<f32>>(b_$array[2u * u]), bitcast<vec4<f32>>(b_$array[2u * u + 1u]));
}
//# piece load halves
// f16 in the bytes of 32 floats.
fn eight_$name(u: u32) -> array<vec4<f32>, 2> {
    let q = b_$array[u / 4u * 8u + u % 4u];
    return array<vec4<f32>, 2>(
        vec4<f32>(unpack2x16float(q.x), unpack2x16float(q.y)),
        vec4<f32>(unpack2x16float(q.z), unpack2x16float(q.w)),
    );
}
//# piece store floats
fn put_eight(u: u32, low: vec4<f32>, high: vec4<f32>) {
    b_$array[2u * u] = bitcast<vec4<u32>>(low);
    b_$array[2u * u + 1u] = bitcast<vec4<u32>>(high);
}
//# piece store halves
// Beyond f16 is the largest number of it.
fn put_eight(u: u32, low: vec4<f32>, high: vec4<f32>) {
    const MOST = vec4<f32>(65504.0);
    let a = clamp(low, -MOST, MOST);
    let b = clamp(high, -MOST, MOST);
    b_$array[u / 4u * 8u + u % 4u] =
        vec4<u32>(pack2x16float(a.xy), pack2x16float(a.zw), pack2x16float(b.xy), pack2x16float(b.zw));
}
//# piece two inputs
fn value(a: f32, b: f32) -> f32 { return $value; }
fn four(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(value(a.x, b.x), value(a.y, b.y), value(a.z, b.z), value(a.w, b.w));
}
fn extent() -> vec4<u32> {
    let s = P.y.shape;
    return vec4<u32>(1u, 1u, 1u, s.x * s.y * s.z * s.w / 8u);
}
fn apply(c: vec4<u32>) {
    let a = eight_a(c.w);
    let b = eight_b(c.w);
    put_eight(c.w, four(a[0], b[0]), four(a[1], b[1]));
}
//# piece one input
fn value(x: f32) -> f32 { return $value; }
fn four(x: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(value(x.x), value(x.y), value(x.z), value(x.w));
}
fn extent() -> vec4<u32> {
    let s = P.y.shape;
    return vec4<u32>(1u, 1u, 1u, s.x * s.y * s.z * s.w / 8u);
}
fn apply(c: vec4<u32>) {
    let x = eight_x(c.w);
    put_eight(c.w, four(x[0]), four(x[1]));
}
