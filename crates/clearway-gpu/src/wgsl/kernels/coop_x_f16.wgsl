// Activations of f16, 16 bytes at a time.
alias FetchedX = array<vec4<u32>, X_UNITS>;

fn fetch_x(at: array<u32, X_UNITS>, k: u32) -> FetchedX {
    var x: FetchedX;
    //# for e in X_UNITS
    x[$e] = b_x[(at[$e] + k) / 8u];
    //# end
    return x;
}

//# for e in X_UNITS
fn x_halves$e(x: FetchedX) -> vec4<u32> { return x[$e]; }
//# end
