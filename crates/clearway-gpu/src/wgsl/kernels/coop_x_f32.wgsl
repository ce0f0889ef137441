// Activations of f32, 32 bytes at a time.
alias FetchedX = array<vec4<u32>, 2u * X_UNITS>;

fn fetch_x(at: array<u32, X_UNITS>, k: u32) -> FetchedX {
    var x: FetchedX;
    //# for e in X_UNITS
    x[2u * $eu] = b_x[(at[$e] + k) / 4u];
    x[2u * $eu + 1u] = b_x[(at[$e] + k) / 4u + 1u];
    //# end
    return x;
}

//# for e in X_UNITS
fn x_halves$e(x: FetchedX) -> vec4<u32> {
    return halves(bitcast<vec4<f32>>(x[2u * $eu]), bitcast<vec4<f32>>(x[2u * $eu + 1u]));
}
//# end
