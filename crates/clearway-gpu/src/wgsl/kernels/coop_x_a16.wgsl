// Activations as f16 in the first half of the bytes of 32 floats, 16 bytes at a time. A step is one such run.
alias FetchedX = array<vec4<u32>, X_UNITS>;

fn fetch_x(at: array<u32, X_UNITS>, k: u32) -> FetchedX {
    var x: FetchedX;
    //# for e in X_UNITS
    x[$e] = b_x[(at[$e] + k) / 32u * 8u + at[$e] % 32u / 8u];
    //# end
    return x;
}

//# for e in X_UNITS
fn x_halves$e(x: FetchedX) -> vec4<u32> { return x[$e]; }
//# end
