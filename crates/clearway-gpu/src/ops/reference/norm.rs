//! Ops on whole rows: norms and softmax.

use super::RefTensor;

/// `x / sqrt(mean(x^2) + eps)`.
pub(super) fn rms(x: &RefTensor, eps: f64) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.data.len());
    for row in 0..x.rows() {
        let row = x.row(row);
        let mean_square = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
        let root = (mean_square + eps).sqrt();
        out.extend(row.iter().map(|v| v / root));
    }
    out
}

/// `(x - mean) / sqrt(variance + eps) * w + b`, with the variance of the row itself (divided by its
/// length).
pub(super) fn layer(x: &RefTensor, w: &RefTensor, b: &RefTensor, eps: f64) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.data.len());
    for row in 0..x.rows() {
        let row = x.row(row);
        let count = row.len() as f64;
        let mean = row.iter().sum::<f64>() / count;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
        let root = (variance + eps).sqrt();
        for (col, v) in row.iter().enumerate() {
            out.push((v - mean) / root * w.data[col] + b.data[col]);
        }
    }
    out
}

/// `softmax(x * scale + mask)` of each row; the mask is repeated over the outer dimensions. A row
/// that is masked altogether gives zeros.
pub(super) fn softmax(x: &RefTensor, mask: &RefTensor, scale: f64) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.data.len());
    for row in 0..x.rows() {
        let mask = mask.row(row % mask.rows());
        let scores: Vec<f64> =
            x.row(row).iter().zip(mask).map(|(x, mask)| x * scale + mask).collect();
        out.extend(normalised_exp(&scores));
    }
    out
}

/// Softmax of some scores; zeros if all are minus infinity.
pub(super) fn normalised_exp(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // Of numbers: the largest of nothing but NaN is negative infinity too.
    if scores.iter().all(|&score| score == f64::NEG_INFINITY) {
        return vec![0.0; scores.len()];
    }
    let exps: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|exp| exp / sum).collect()
}
