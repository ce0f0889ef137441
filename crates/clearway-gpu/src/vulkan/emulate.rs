//! Kernels on cooperative matrices for devices that have none: the same text with matrices as arrays.
//!
//! Only tests ask for it. Indexing, staging, barriers, edges and formats of a kernel are then those that a
//! card runs; what is replaced is the matrix itself. A matrix is spread over the 32 invocations of a wave:
//! invocation `l` has row `l / 2` of the left side, and of the right side and the sum the eight columns from
//! `l % 2 * 8` on. A use of matrices that is not replaced stays in the text, which naga then refuses.

use std::borrow::Cow;

const ENABLE: &str = "enable wgpu_cooperative_matrix;";

/// What stands in the text, and what takes its place.
const REPLACED: [(&str, &str); 10] = [
    (ENABLE, ""),
    ("coop_mat16x16<f32, C>()", "MatrixC()"),
    ("coopLoadT<coop_mat16x16<f16, A>>(&staged[", "load_a(lid, "),
    ("coopLoad<coop_mat16x16<f16, B>>(&staged[", "load_b(lid, "),
    ("coopMultiplyAdd(", "multiply_add("),
    ("], ROW)", ", ROW)"),
    ("coopStoreT(", "store_c(lid, "),
    // What is left are stores of results.
    ("&staged[", ""),
    ("], RESULT_ROW)", ", RESULT_ROW)"),
    ("subgroupBarrier()", "workgroupBarrier()"),
];

/// Loops end at a number from the uniform block, so that no driver unrolls them: it would compile for longer
/// than the kernel runs.
const MATRICES: &str = "
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
";

/// The text of a kernel, without cooperative matrices.
pub(super) fn without_matrices(source: &str) -> Cow<'_, str> {
    if !source.contains(ENABLE) {
        return Cow::Borrowed(source);
    }
    let text = source.to_owned();
    let text = REPLACED.into_iter().fold(text, |text, (from, to)| text.replace(from, to));
    Cow::Owned(text + MATRICES)
}
