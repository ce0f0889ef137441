//! Ops that pick: rows by index, the largest elements, the best experts.

use super::RefTensor;
use super::elementwise::sigmoid;
use super::norm::normalised_exp;
use crate::ops::NO_INDEX;

/// Rows of `table` picked by `ids`, times `scale`; zeros where there is no such row.
pub(super) fn gather(table: &RefTensor, ids: &RefTensor, scale: f64) -> Vec<f64> {
    let mut out = Vec::with_capacity(ids.data.len() * table.cols());
    for elem in 0..ids.data.len() {
        let id = ids.index(elem);
        if id < table.rows() {
            out.extend(table.row(id).iter().map(|v| v * scale));
        } else {
            out.extend(std::iter::repeat_n(0.0, table.cols()));
        }
    }
    out
}

/// Index of the largest element of each row; [`NO_INDEX`] where that is not finite, for which NaN counts as the largest.
pub(super) fn arg_max(x: &RefTensor) -> Vec<f64> {
    let (ids, values) = top(x, 1);
    let of = |(id, value): (f64, f64)| if value.is_finite() { id } else { f64::from(NO_INDEX) };
    ids.into_iter().zip(values).map(of).collect()
}

/// Indices and values of the `k` largest elements of each row, falling; NaN before all others, of equals the first.
pub(super) fn top(x: &RefTensor, k: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut ids, mut values) = (Vec::new(), Vec::new());
    for row in 0..x.rows() {
        for id in largest(x.row(row), k) {
            ids.push(id as f64);
            values.push(x.row(row)[id]);
        }
    }
    (ids, values)
}

/// Indices of the `k` best experts of each row, and their weights: the softmax over all experts
/// (mode 0), over the chosen ones (mode 1), or the sigmoid of each (mode 2); divided by their sum if
/// `renorm`; then times `scale`.
pub(super) fn router(
    logits: &RefTensor,
    k: usize,
    mode: u32,
    renorm: bool,
    scale: f64,
) -> (Vec<f64>, Vec<f64>) {
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for row in 0..logits.rows() {
        let logits = logits.row(row);
        let chosen = largest(logits, k);
        let picked = |from: &[f64]| chosen.iter().map(|&id| from[id]).collect::<Vec<_>>();
        let mut row_weights = match mode {
            0 => picked(&normalised_exp(logits)),
            1 => normalised_exp(&picked(logits)),
            _ => picked(&logits.iter().map(|&v| sigmoid(v)).collect::<Vec<_>>()),
        };
        let sum: f64 = row_weights.iter().sum();
        for weight in &mut row_weights {
            *weight = if renorm { *weight / sum } else { *weight } * scale;
        }
        ids.extend(chosen.iter().map(|&id| id as f64));
        weights.extend(row_weights);
    }
    (ids, weights)
}

/// The same among the experts of the best groups, whose score is the sum of their `best` largest. Scores are logits in mode 0 and
/// sigmoids plus bias in mode 2; weights are without bias.
pub(super) fn router_groups(
    logits: &RefTensor,
    bias: Option<&RefTensor>,
    k: usize,
    params: &[u32],
) -> (Vec<f64>, Vec<f64>) {
    let (mode, renorm, scale) = (params[0], params[1] == 1, f64::from(f32::from_bits(params[2])));
    let [groups, groups_used, best] = [3, 4, 5].map(|i| params[i] as usize);
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for row in 0..logits.rows() {
        let logits = logits.row(row);
        let of = |expert: usize| bias.map_or(0.0, |bias| bias.data[expert]);
        let score = |(expert, &logit): (usize, &f64)| match mode {
            0 => logit,
            _ => sigmoid(logit) + of(expert),
        };
        let scores: Vec<f64> = logits.iter().enumerate().map(score).collect();
        let size = scores.len() / groups;
        let of_group = |group: &[f64]| largest(group, best).iter().map(|&i| group[i]).sum();
        let of_groups: Vec<f64> = scores.chunks(size).map(of_group).collect();
        let mut kept = largest(&of_groups, groups_used);
        kept.sort_unstable();
        // Experts that can be chosen, in their order.
        let open: Vec<usize> = kept.iter().flat_map(|g| g * size..(g + 1) * size).collect();
        let of_open: Vec<f64> = open.iter().map(|&expert| scores[expert]).collect();
        let chosen: Vec<usize> = largest(&of_open, k).iter().map(|&i| open[i]).collect();
        let shares = match mode {
            0 => normalised_exp(logits),
            _ => logits.iter().map(|&logit| sigmoid(logit)).collect(),
        };
        let sum: f64 = chosen.iter().map(|&expert| shares[expert]).sum();
        let whole = if renorm { sum } else { 1.0 };
        ids.extend(chosen.iter().map(|&expert| expert as f64));
        weights.extend(chosen.iter().map(|&expert| shares[expert] / whole * scale));
    }
    (ids, weights)
}

/// Indices of the `k` largest, falling, NaN in front; a stable sort keeps the first of equals in front.
fn largest(row: &[f64], k: usize) -> Vec<usize> {
    // Both zeros are equal, which the total order denies; adding zero leaves the positive one.
    // So are all NaN, of either sign.
    let key = |id: usize| if row[id].is_nan() { f64::NAN } else { row[id] + 0.0 };
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| key(b).total_cmp(&key(a)));
    order.truncate(k);
    order
}

/// Where the pairs of each expert start among all by expert, of ids beyond the last, and where they end; then the
/// numbers of the pairs.
pub(super) fn expert_order(ids: &RefTensor, experts: usize) -> Vec<f64> {
    let expert_of = |pair: usize| ids.index(pair).min(experts);
    let mut pairs: Vec<usize> = (0..ids.data.len()).collect();
    pairs.sort_by_key(|&pair| expert_of(pair));
    let starts =
        (0..experts + 2).map(|e| pairs.iter().filter(|&&pair| expert_of(pair) < e).count());
    starts.chain(pairs.iter().copied()).map(|word| word as f64).collect()
}
