//! DeepSeek V2 and V3, as their papers have them: keys and values of each head are computed and looked at one by one.

use super::decoders::Decoder;
use super::math::*;
use super::tiny::*;
use Meta::{B, F, S, U};

const EPS: f64 = 1e-5;

const Q_RANK: usize = 12;
const KV_RANK: usize = 16;
/// Elements of a head of keys that do not turn, and that do; of values.
const PLAIN: usize = 8;
const TURNED: usize = 4;
const KEY: usize = PLAIN + TURNED;
const VALUE: usize = 6;

const EXPERTS: usize = 8;
const USED: usize = 3;
const EXPERT_FF: usize = 16;
const SHARED: usize = 2;
const GROUPS: usize = 4;
const GROUPS_USED: usize = 2;

const BASE: f32 = 10_000.0;
const FACTOR: f32 = 8.0;
const ORIGINAL: usize = 32;
const LOG_MULTIPLIER: f32 = 0.0707;
const SCALE: f32 = 2.5;

/// What the models differ in.
#[derive(Clone, Copy)]
struct Kind {
    q_rank: bool,
    yarn: bool,
    groups: bool,
    sigmoid: bool,
    /// Keys and values in tensors of their own, and sizes of heads under their own names.
    split: bool,
}

const LITE: Kind = Kind { q_rank: false, yarn: false, groups: false, sigmoid: false, split: false };
const V2: Kind = Kind { q_rank: true, yarn: true, groups: true, sigmoid: false, split: false };
const V3: Kind = Kind { q_rank: true, yarn: true, groups: true, sigmoid: true, split: true };
/// Sigmoids with a bias and without groups.
const MOONLIGHT: Kind =
    Kind { q_rank: false, yarn: false, groups: false, sigmoid: true, split: true };

/// llama.cpp takes a file of three layers for none of these models, and scores groups of V2 as those of V3.
pub fn all() -> Vec<Decoder> {
    let decoder =
        |name, kind, logits| Decoder { name, file: file(kind), logits, as_llama_cpp: false };
    vec![
        decoder("deepseek2_lite", LITE, |file, tokens| logits(file, tokens, LITE)),
        decoder("deepseek2_v2", V2, |file, tokens| logits(file, tokens, V2)),
        decoder("deepseek2_v3", V3, |file, tokens| logits(file, tokens, V3)),
        decoder("deepseek2_moonlight", MOONLIGHT, |file, tokens| logits(file, tokens, MOONLIGHT)),
    ]
}

fn file(kind: Kind) -> Tiny {
    let mut meta = vec![
        ("attention.layer_norm_rms_epsilon", F(1e-5)),
        ("attention.kv_lora_rank", U(KV_RANK)),
        ("rope.dimension_count", U(TURNED)),
        ("rope.freq_base", F(BASE)),
        ("leading_dense_block_count", U(1)),
        ("expert_count", U(EXPERTS)),
        ("expert_used_count", U(USED)),
        ("expert_feed_forward_length", U(EXPERT_FF)),
        ("expert_shared_count", U(SHARED)),
        ("expert_weights_scale", F(SCALE)),
        ("expert_weights_norm", B(kind.sigmoid)),
    ];
    if kind.q_rank {
        meta.push(("attention.q_lora_rank", U(Q_RANK)));
    }
    if kind.sigmoid {
        meta.push(("expert_gating_func", U(2)));
    }
    if kind.groups {
        meta.extend([
            ("expert_group_count", U(GROUPS)),
            ("expert_group_used_count", U(GROUPS_USED)),
        ]);
    }
    if kind.yarn {
        meta.extend([
            ("rope.scaling.type", S("yarn")),
            ("rope.scaling.factor", F(FACTOR)),
            ("rope.scaling.original_context_length", U(ORIGINAL)),
            ("rope.scaling.yarn_log_multiplier", F(LOG_MULTIPLIER)),
        ]);
    }
    meta.extend(match kind.split {
        true => vec![
            ("attention.head_count_kv", U(1)),
            ("attention.key_length", U(KV_RANK + TURNED)),
            ("attention.value_length", U(KV_RANK)),
            ("attention.key_length_mla", U(KEY)),
            ("attention.value_length_mla", U(VALUE)),
        ],
        false => vec![
            ("attention.head_count_kv", U(HEADS)),
            ("attention.key_length", U(KEY)),
            ("attention.value_length", U(VALUE)),
        ],
    });
    let mut file = Tiny::new("deepseek2", &meta);
    file.tensor("output.weight", &[EMBD, VOCAB]);
    file.tensor("output_norm.weight", &[EMBD]);
    file.layers(&[
        ("attn_norm.weight", &[EMBD]),
        ("attn_kv_a_mqa.weight", &[EMBD, KV_RANK + TURNED]),
        ("attn_kv_a_norm.weight", &[KV_RANK]),
        ("attn_output.weight", &[HEADS * VALUE, EMBD]),
        ("ffn_norm.weight", &[EMBD]),
    ]);
    match kind.q_rank {
        true => file.layers(&[
            ("attn_q_a.weight", &[EMBD, Q_RANK]),
            ("attn_q_a_norm.weight", &[Q_RANK]),
            ("attn_q_b.weight", &[Q_RANK, HEADS * KEY]),
        ]),
        false => file.layers(&[("attn_q.weight", &[EMBD, HEADS * KEY])]),
    }
    match kind.split {
        true => file.layers(&[
            ("attn_k_b.weight", &[PLAIN, KV_RANK, HEADS]),
            ("attn_v_b.weight", &[KV_RANK, VALUE, HEADS]),
        ]),
        false => file.layers(&[("attn_kv_b.weight", &[KV_RANK, HEADS * (PLAIN + VALUE)])]),
    }
    for layer in 0..LAYERS {
        let p = |part: &str| format!("blk.{layer}.{part}");
        let parts: &[(&str, &[usize])] = match layer {
            0 => &[
                ("ffn_gate.weight", &[EMBD, FF]),
                ("ffn_up.weight", &[EMBD, FF]),
                ("ffn_down.weight", &[FF, EMBD]),
            ],
            _ => &[
                ("ffn_gate_inp.weight", &[EMBD, EXPERTS]),
                ("ffn_gate_exps.weight", &[EMBD, EXPERT_FF, EXPERTS]),
                ("ffn_up_exps.weight", &[EMBD, EXPERT_FF, EXPERTS]),
                ("ffn_down_exps.weight", &[EXPERT_FF, EMBD, EXPERTS]),
                ("ffn_gate_shexp.weight", &[EMBD, SHARED * EXPERT_FF]),
                ("ffn_up_shexp.weight", &[EMBD, SHARED * EXPERT_FF]),
                ("ffn_down_shexp.weight", &[SHARED * EXPERT_FF, EMBD]),
            ],
        };
        for (part, dims) in parts {
            file.tensor(&p(part), dims);
        }
        if layer > 0 && kind.sigmoid {
            // So far apart that they change the choice.
            let bias = (0..EXPERTS).map(|i| 0.15 * ((3 * i + layer) % EXPERTS) as f32 - 0.4);
            file.values(&p("exp_probs_b.bias"), &[EXPERTS], bias.collect());
        }
    }
    file
}

/// Angles of YaRN, and the factor on scores.
fn turn(kind: Kind) -> (Turn, f64) {
    let mut turn = Turn::plain(TURNED, f64::from(BASE), true);
    let plain = 1.0 / (KEY as f64).sqrt();
    if !kind.yarn {
        return (turn, plain);
    }
    let pair = |turns: f64| {
        let length = ORIGINAL as f64 / (turns * std::f64::consts::TAU);
        TURNED as f64 * length.ln() / (2.0 * f64::from(BASE).ln())
    };
    let (low, high) = (pair(32.0).floor().max(0.0), pair(1.0).ceil().min(TURNED as f64 - 1.0));
    for (pair, angle) in turn.angles.iter_mut().enumerate() {
        let ramp = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
        *angle = *angle * (1.0 - ramp) + *angle / f64::from(FACTOR) * ramp;
    }
    let length = 1.0 + f64::from(LOG_MULTIPLIER) * f64::from(FACTOR).ln();
    (turn, plain * length * length)
}

fn norm(file: &Tiny, name: &str, x: &Rows) -> Rows {
    rms_norm(x, &file.vector(name), EPS)
}

fn linear(file: &Tiny, name: &str, x: &Rows) -> Rows {
    product(x, &file.rows(&format!("{name}.weight")))
}

/// The matrices of a head that keys and values are products with.
fn matrices(file: &Tiny, layer: usize, head: usize, split: bool) -> [Rows; 2] {
    let p = |part: &str| format!("blk.{layer}.{part}.weight");
    if !split {
        let all = file.rows(&p("attn_kv_b"));
        let own = &all[head * (PLAIN + VALUE)..][..PLAIN + VALUE];
        return [own[..PLAIN].to_vec(), own[PLAIN..].to_vec()];
    }
    // The matrix of keys lies transposed.
    let keys = &file.rows(&p("attn_k_b"))[head * KV_RANK..][..KV_RANK];
    let keys = (0..PLAIN).map(|i| keys.iter().map(|row| row[i]).collect()).collect();
    [keys, file.rows(&p("attn_v_b"))[head * VALUE..][..VALUE].to_vec()]
}

fn logits(file: &Tiny, tokens: &[u32], kind: Kind) -> Rows {
    let (turn, scale) = turn(kind);
    let mut x = file.embedded(tokens);
    for layer in 0..LAYERS {
        let p = |part: &str| format!("blk.{layer}.{part}");
        let y = norm(file, &p("attn_norm.weight"), &x);
        let q = match kind.q_rank {
            false => linear(file, &p("attn_q"), &y),
            true => {
                let row = linear(file, &p("attn_q_a"), &y);
                linear(file, &p("attn_q_b"), &norm(file, &p("attn_q_a_norm.weight"), &row))
            }
        };
        let both = linear(file, &p("attn_kv_a_mqa"), &y);
        let row = norm(file, &p("attn_kv_a_norm.weight"), &columns(&both, 0, KV_RANK));
        let shared = turn.turn(&columns(&both, KV_RANK, KV_RANK + TURNED), TURNED);
        let mut attended: Rows = vec![Vec::new(); tokens.len()];
        for head in 0..HEADS {
            let [of_keys, of_values] = matrices(file, layer, head, kind.split);
            let join = |a: &Rows, b: &Rows| -> Rows {
                a.iter().zip(b).map(|(a, b)| [&a[..], b].concat()).collect()
            };
            let q = columns(&q, head * KEY, (head + 1) * KEY);
            let turned = turn.turn(&columns(&q, PLAIN, KEY), TURNED);
            let q = join(&columns(&q, 0, PLAIN), &turned);
            let k = join(&product(&row, &of_keys), &shared);
            let v = product(&row, &of_values);
            for (token, attended) in attended.iter_mut().enumerate() {
                let scores: Vec<f64> = (0..=token)
                    .map(|other| q[token].iter().zip(&k[other]).map(|(q, k)| q * k).sum::<f64>())
                    .collect();
                let scores: Vec<f64> = scores.iter().map(|score| score * scale).collect();
                let weights = softmax(&scores);
                let mean = |i: usize| weights.iter().zip(&v).map(|(w, v)| w * v[i]).sum::<f64>();
                attended.extend((0..VALUE).map(mean));
            }
        }
        x = add(&x, &linear(file, &p("attn_output"), &attended));
        let y = norm(file, &p("ffn_norm.weight"), &x);
        let fed = match layer {
            0 => gated(file, &y, ["ffn_gate", "ffn_up", "ffn_down"].map(p)),
            _ => {
                let names = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"].map(p);
                let chosen = y.iter().map(|row| experts(file, layer, row, kind)).collect();
                add(&gated(file, &y, names), &chosen)
            }
        };
        x = add(&x, &fed);
    }
    linear(file, "output", &norm(file, "output_norm.weight", &x))
}

fn gated(file: &Tiny, x: &Rows, [gate, up, down]: [String; 3]) -> Rows {
    let (gate, up) = (linear(file, &gate, x), linear(file, &up, x));
    linear(file, &down, &zip(&gate, &up, |gate, up| silu(gate) * up))
}

/// The experts of a row: the best of the best groups.
fn experts(file: &Tiny, layer: usize, row: &[f64], kind: Kind) -> Vec<f64> {
    let p = |part: &str| format!("blk.{layer}.{part}");
    let row = vec![row.to_vec()];
    let logits = linear(file, &p("ffn_gate_inp"), &row).remove(0);
    let shares = match kind.sigmoid {
        true => logits.iter().map(|&logit| sigmoid(logit)).collect(),
        false => softmax(&logits),
    };
    let mut scores = shares.clone();
    if kind.sigmoid {
        let bias = file.vector(&p("exp_probs_b.bias"));
        scores.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
    }
    let falling = |of: &[f64]| {
        let mut order: Vec<usize> = (0..of.len()).collect();
        order.sort_by(|&a, &b| of[b].total_cmp(&of[a]));
        order
    };
    if kind.groups {
        let size = EXPERTS / GROUPS;
        let of_group = |group: &[f64]| {
            let best = falling(group);
            // The best expert of V2, the best two of V3.
            if kind.sigmoid { group[best[0]] + group[best[1]] } else { group[best[0]] }
        };
        let of_groups: Vec<f64> = scores.chunks(size).map(of_group).collect();
        for &group in &falling(&of_groups)[GROUPS_USED..] {
            scores[group * size..][..size].fill(f64::NEG_INFINITY);
        }
    }
    let chosen = &falling(&scores)[..USED];
    let sum: f64 = chosen.iter().map(|&expert| shares[expert]).sum();
    let whole = if kind.sigmoid { sum } else { 1.0 };
    let rows = |name: &str, expert: usize, size: usize| -> Rows {
        file.rows(&p(&format!("{name}.weight")))[expert * size..][..size].to_vec()
    };
    let mut out = vec![0.0; EMBD];
    for &expert in chosen {
        let gate = product(&row, &rows("ffn_gate_exps", expert, EXPERT_FF));
        let up = product(&row, &rows("ffn_up_exps", expert, EXPERT_FF));
        let inner = zip(&gate, &up, |gate, up| silu(gate) * up);
        let y = product(&inner, &rows("ffn_down_exps", expert, EMBD));
        let share = shares[expert] / whole * f64::from(SCALE);
        out.iter_mut().zip(&y[0]).for_each(|(out, y)| *out += share * y);
    }
    out
}
