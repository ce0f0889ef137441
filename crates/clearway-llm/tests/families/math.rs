//! What the references of all families are written with: f64, plain loops, one text without a cache.

/// Rows of numbers.
pub type Rows = Vec<Vec<f64>>;

/// Each row of `x` times each row of `w`.
pub fn product(x: &Rows, w: &Rows) -> Rows {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum();
    x.iter().map(|x| w.iter().map(|w| dot(x, w)).collect()).collect()
}

pub fn map(x: &Rows, f: impl Fn(f64) -> f64) -> Rows {
    x.iter().map(|row| row.iter().map(|&x| f(x)).collect()).collect()
}

pub fn zip(a: &Rows, b: &Rows, f: impl Fn(f64, f64) -> f64) -> Rows {
    let row = |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect();
    a.iter().zip(b).map(row).collect()
}

pub fn add(a: &Rows, b: &Rows) -> Rows {
    zip(a, b, |a, b| a + b)
}

/// The same row added to all.
pub fn add_row(a: &Rows, b: &[f64]) -> Rows {
    a.iter().map(|a| a.iter().zip(b).map(|(a, b)| a + b).collect()).collect()
}

/// Columns `from..to`.
pub fn columns(x: &Rows, from: usize, to: usize) -> Rows {
    x.iter().map(|row| row[from..to].to_vec()).collect()
}

pub fn rms_norm(x: &Rows, w: &[f64], eps: f64) -> Rows {
    let normed = |row: &Vec<f64>| {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        row.iter().zip(w).map(|(x, w)| x / (mean + eps).sqrt() * w).collect()
    };
    x.iter().map(normed).collect()
}

pub fn layer_norm(x: &Rows, w: &[f64], b: &[f64], eps: f64) -> Rows {
    let normed = |row: &Vec<f64>| {
        let n = row.len() as f64;
        let mean = row.iter().sum::<f64>() / n;
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
        let one = |x: &f64| (x - mean) / (variance + eps).sqrt();
        row.iter().map(one).zip(w.iter().zip(b)).map(|(x, (w, b))| x * w + b).collect()
    };
    x.iter().map(normed).collect()
}

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// GELU, tanh form.
pub fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

pub fn softmax(x: &[f64]) -> Vec<f64> {
    let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = x.iter().map(|x| (x - most).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|e| e / sum).collect()
}

/// How heads turn.
#[derive(Clone)]
pub struct Turn {
    /// Angle of each pair from one position to the next.
    pub angles: Vec<f64>,
    /// Pairs are neighbours; else the first half of what turns with the second.
    pub neighbours: bool,
    pub magnitude: f64,
}

impl Turn {
    /// `base^(-2i / dims)` for each pair.
    pub fn plain(dims: usize, base: f64, neighbours: bool) -> Self {
        let angle = |pair: usize| base.powf(-2.0 * pair as f64 / dims as f64);
        Self { angles: (0..dims / 2).map(angle).collect(), neighbours, magnitude: 1.0 }
    }

    /// Rows of heads of this size, turned by their positions.
    pub fn turn(&self, x: &Rows, head: usize) -> Rows {
        let pairs = self.angles.len();
        let mut out = x.clone();
        for (position, row) in out.iter_mut().enumerate() {
            for head in row.chunks_mut(head) {
                for (pair, angle) in self.angles.iter().enumerate() {
                    let (s, c) = (position as f64 * angle).sin_cos();
                    let (i, j) = match self.neighbours {
                        true => (2 * pair, 2 * pair + 1),
                        false => (pair, pair + pairs),
                    };
                    let (a, b) = (head[i], head[j]);
                    head[i] = self.magnitude * (a * c - b * s);
                    head[j] = self.magnitude * (a * s + b * c);
                }
            }
        }
        out
    }
}

/// Attention of heads of this size; `sees(token, other)` says who sees whom.
pub fn attention(
    qkv: [&Rows; 3],
    head: usize,
    scale: f64,
    sees: impl Fn(usize, usize) -> bool,
) -> Rows {
    attention_with_sinks(qkv, head, scale, &[], sees)
}

/// The same where heads have a score more, if there are any: a token without a value that all see.
pub fn attention_with_sinks(
    [q, k, v]: [&Rows; 3],
    head: usize,
    scale: f64,
    sinks: &[f64],
    sees: impl Fn(usize, usize) -> bool,
) -> Rows {
    let group = q[0].len() / k[0].len();
    let mut out: Rows = vec![vec![0.0; q[0].len()]; q.len()];
    for token in 0..q.len() {
        for h in 0..q[0].len() / head {
            let (at, kv) = (h * head, h / group * head);
            let seen: Vec<usize> = (0..q.len()).filter(|&other| sees(token, other)).collect();
            let score = |other: &usize| {
                (0..head).map(|i| q[token][at + i] * k[*other][kv + i]).sum::<f64>() * scale
            };
            let scores = seen.iter().map(score).chain(sinks.get(h).copied());
            let weights = softmax(&scores.collect::<Vec<_>>());
            for (weight, other) in weights.iter().zip(&seen) {
                for i in 0..head {
                    out[token][at + i] += weight * v[*other][kv + i];
                }
            }
        }
    }
    out
}

/// Who sees whom in a text that is read from front to back.
pub fn causal(token: usize, other: usize) -> bool {
    other <= token
}
