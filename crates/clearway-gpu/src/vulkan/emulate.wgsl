alias MatrixA = array<f32, 16>;
alias MatrixB = array<f32, 128>;
alias MatrixC = array<f32, 8>;

fn times(count: u32) -> u32 { return min(count, P.w.shape.w * 4u); }

// Element k of a row of f16.
fn half_at(row: u32, k: u32) -> f32 {
    let word = bitcast<u32>(staged[row + k / 8u][k % 8u / 2u]);
    return unpack2x16float(word)[k % 2u];
}

// Rows lie one after another.
fn load_a(lid: u32, at: u32, stride: u32) -> MatrixA {
    var a: MatrixA;
    for (var k = 0u; k < times(16u); k++) {
        a[k] = half_at(at + lid % 32u / 2u * stride, k);
    }
    return a;
}

// Columns lie one after another.
fn load_b(lid: u32, at: u32, stride: u32) -> MatrixB {
    var b: MatrixB;
    for (var i = 0u; i < times(128u); i++) {
        b[i] = half_at(at + (lid % 2u * 8u + i / 16u) * stride, i % 16u);
    }
    return b;
}

fn multiply_add(a: MatrixA, b: MatrixB, c: MatrixC) -> MatrixC {
    var left = a;
    var right = b;
    var sums = c;
    for (var j = 0u; j < times(8u); j++) {
        var sum = sums[j];
        for (var k = 0u; k < times(16u); k++) {
            sum += left[k] * right[j * 16u + k];
        }
        sums[j] = sum;
    }
    return sums;
}

fn store_c(lid: u32, c: MatrixC, at: u32, stride: u32) {
    var sums = c;
    for (var j = 0u; j < times(8u); j++) {
        staged[at + lid % 32u / 2u * stride + lid % 2u * 2u + j / 4u][j % 4u] = sums[j];
    }
}
