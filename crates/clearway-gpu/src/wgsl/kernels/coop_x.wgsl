// Activations of any type, one at a time.
alias FetchedX = array<vec4<f32>, 2u * X_UNITS>;

fn x_four(i: u32) -> vec4<f32> {
    return vec4<f32>(get_x(i), get_x(i + 1u), get_x(i + 2u), get_x(i + 3u));
}

fn fetch_x(at: array<u32, X_UNITS>, k: u32) -> FetchedX {
    var x: FetchedX;
    //# for e in X_UNITS
    x[2u * $eu] = x_four(at[$e] + k);
    x[2u * $eu + 1u] = x_four(at[$e] + k + 4u);
    //# end
    return x;
}

//# for e in X_UNITS
fn x_halves$e(x: FetchedX) -> vec4<u32> { return halves(x[2u * $eu], x[2u * $eu + 1u]); }
//# end
