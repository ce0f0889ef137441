//! Kernels on cooperative matrices for devices that have none: the same text with matrices as arrays.
//!
//! Only tests ask for it. Indexing, staging, barriers, edges and formats of a kernel are then those that a
//! card runs; what is replaced is the matrix itself. A matrix is spread over the 32 invocations of a subgroup:
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
const MATRICES: &str = include_str!("emulate.wgsl");

/// The text of a kernel, without cooperative matrices.
pub(super) fn without_matrices(source: &str) -> Cow<'_, str> {
    if !source.contains(ENABLE) {
        return Cow::Borrowed(source);
    }
    let text = source.to_owned();
    let text = REPLACED.into_iter().fold(text, |text, (from, to)| text.replace(from, to));
    Cow::Owned(text + "\n" + MATRICES)
}
