//! Ops that know where a token stands: rotary embedding, the KV cache, attention.

use super::RefTensor;
use super::elementwise::soft_cap;
use super::norm::normalised_exp;

/// Pair `i` of the first `n_dims` elements of each head turns by
/// `position * scale * base^(-2i / n_dims) / factors[i]`; elements behind them stay. Mode 0 pairs
/// neighbours, mode 1 the first half with the second. What turns is multiplied by the magnitude.
pub(super) fn rope(
    x: &RefTensor,
    positions: &RefTensor,
    factors: &RefTensor,
    params: &[u32],
) -> Vec<f64> {
    let (n_dims, neighbours) = (params[0] as usize, params[1] == 0);
    let [base, scale, magnitude] = [2, 3, 4].map(|i| f64::from(f32::from_bits(params[i])));
    let (heads, head) = (x.shape[1], x.shape[2]);
    let mut out = x.data.clone();
    for row in 0..x.rows() {
        let position = positions.data[row / heads];
        for pair in 0..n_dims / 2 {
            let frequency = base.powf(-2.0 * pair as f64 / n_dims as f64) / factors.data[pair];
            let (sin, cos) = (position * scale * frequency).sin_cos();
            let (sin, cos) = (magnitude * sin, magnitude * cos);
            let (first, second) =
                if neighbours { (2 * pair, 2 * pair + 1) } else { (pair, pair + n_dims / 2) };
            let (a, b) = (x.row(row)[first], x.row(row)[second]);
            out[row * head + first] = a * cos - b * sin;
            out[row * head + second] = a * sin + b * cos;
        }
    }
    out
}

/// The cache after row `t` of `x` was written to row `positions[t]`, one after another; a position
/// beyond the cache is left out.
pub(super) fn kv_write(x: &RefTensor, positions: &RefTensor, cache: &RefTensor) -> Vec<f64> {
    let row_elems = x.shape[1] * x.shape[2];
    let mut out = cache.data.clone();
    for token in 0..x.shape[0] {
        let row = positions.index(token);
        if row < cache.shape[0] {
            out[row * row_elems..(row + 1) * row_elems]
                .copy_from_slice(&x.data[token * row_elems..(token + 1) * row_elems]);
        }
    }
    out
}

/// The cache rows that each token sees, in order. Token `t` at position `p` sees the rows `s <= p` of its sequence and, if
/// there is a window, only those with `p - s < window`. Without a table of blocks the cache is one sequence.
pub(super) fn seen(operands: &[RefTensor], window: usize, block: usize) -> Vec<Vec<usize>> {
    let (tokens, cache_rows) = (operands[0].shape[0], operands[1].shape[0]);
    let visible = |token: usize, rows: usize| {
        let position = operands[3].index(token);
        (0..rows).filter(move |&s| s <= position && (window == 0 || position - s < window))
    };
    let [_, _, _, _, sequences, blocks, _, ..] = operands else {
        return (0..tokens).map(|token| visible(token, cache_rows).collect()).collect();
    };
    let (known, entries) = (blocks.shape[0], blocks.shape[1]);
    let place = |sequence: usize, row: usize| {
        let found = blocks.index(sequence * entries + row / block);
        found.min(cache_rows / block - 1) * block + row % block
    };
    let of_token = |token: usize| match sequences.index(token) {
        unknown if unknown >= known => Vec::new(),
        sequence => visible(token, entries * block).map(|row| place(sequence, row)).collect(),
    };
    (0..tokens).map(of_token).collect()
}

/// Each token looks at the cache rows it sees. Head `h` uses head `h / (H / Hkv)` of the cache. A sink is one more score of its
/// head, which has no value.
pub(super) fn attention(
    q: &RefTensor,
    [k, v]: [&RefTensor; 2],
    sinks: Option<&RefTensor>,
    seen: &[Vec<usize>],
    scale: f64,
    cap: f64,
) -> Vec<f64> {
    let (tokens, heads) = (q.shape[0], q.shape[1]);
    let (kv_heads, head) = (k.shape[1], v.shape[2]);
    let mut out = vec![0.0; tokens * heads * head];
    for (token, visible) in seen.iter().enumerate() {
        for h in 0..heads {
            let q = q.row(token * heads + h);
            let kv_row = |s: usize| s * kv_heads + h / (heads / kv_heads);
            let mut scores: Vec<f64> = visible
                .iter()
                .map(|&s| {
                    let dot: f64 = q.iter().zip(k.row(kv_row(s))).map(|(q, k)| q * k).sum();
                    let score = scale * dot;
                    if cap > 0.0 { soft_cap(score, cap) } else { score }
                })
                .collect();
            scores.extend(sinks.map(|sinks| sinks.data[h]));
            let out = &mut out[(token * heads + h) * head..][..head];
            // The weight of a sink, which comes last, meets no row.
            for (weight, &s) in normalised_exp(&scores).into_iter().zip(visible) {
                for (out, v) in out.iter_mut().zip(v.row(kv_row(s))) {
                    *out += weight * v;
                }
            }
        }
    }
    out
}
