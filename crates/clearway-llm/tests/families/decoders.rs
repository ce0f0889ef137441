//! Decoders, each from the definition of its family: the tensors of its files, and its logits after each token of a text.

use super::math::*;
use super::tiny::*;
use Meta::{F, S, U};

/// A tiny file of a family, and its logits after each token of a text in a context of some size.
pub struct Decoder {
    pub name: &'static str,
    pub file: Tiny,
    pub logits: fn(&Tiny, &[u32]) -> Rows,
    /// Whether llama.cpp computes the same.
    pub as_llama_cpp: bool,
}

const EPS: f64 = 1e-5;

pub fn all() -> Vec<Decoder> {
    let decoder = |name, file, logits| Decoder { name, file, logits, as_llama_cpp: true };
    vec![
        decoder("phi3_short", phi3_file(8192, &[]), |file, tokens| phi3(file, tokens, SHORT, None)),
        decoder("phi3_long", phi3_file(16, &[]), |file, tokens| phi3(file, tokens, LONG, None)),
        // llama.cpp does not use the window of Phi 3.
        Decoder {
            as_llama_cpp: false,
            ..decoder(
                "phi3_window",
                phi3_file(8192, &[("attention.sliding_window", U(3))]),
                |file, tokens| phi3(file, tokens, SHORT, Some(3)),
            )
        },
        decoder("granite", granite_file(), granite),
        decoder("olmo2", olmo2_file(), olmo2),
        decoder("qwen2moe", qwen2moe_file(), qwen2moe),
        decoder("glm4", glm4_file(), glm4),
        decoder("qwen2_yarn", qwen2_yarn_file(), qwen2_yarn),
        decoder("gpt_oss", gpt_oss_file(), gpt_oss),
    ]
}

fn norm(file: &Tiny, name: &str, x: &Rows) -> Rows {
    rms_norm(x, &file.vector(name), EPS)
}

fn linear(file: &Tiny, name: &str, x: &Rows) -> Rows {
    product(x, &file.rows(&format!("{name}.weight")))
}

fn biased(file: &Tiny, name: &str, x: &Rows) -> Rows {
    add_row(&linear(file, name, x), &file.vector(&format!("{name}.bias")))
}

fn head(file: &Tiny, x: &Rows) -> Rows {
    linear(file, "output", &norm(file, "output_norm.weight", x))
}

fn usual_scale() -> f64 {
    1.0 / (HEAD as f64).sqrt()
}

// Phi 3 and 4.

const SHORT: &str = "rope_factors_short.weight";
const LONG: &str = "rope_factors_long.weight";
/// Three quarters of a head turn, as in Phi-4-mini.
const TURNED: usize = 6;
const ATTENTION_FACTOR: f32 = 1.19;

fn phi3_file(original: usize, more: &[(&'static str, Meta)]) -> Tiny {
    let meta = [
        ("rope.dimension_count", U(TURNED)),
        ("rope.freq_base", F(10_000.0)),
        ("rope.scaling.original_context_length", U(original)),
        ("rope.scaling.attn_factor", F(ATTENTION_FACTOR)),
    ];
    let mut file = Tiny::decoder("phi3", &[&meta[..], more].concat());
    file.values(SHORT, &[TURNED / 2], vec![1.0, 1.25, 1.5]);
    file.values(LONG, &[TURNED / 2], vec![1.5, 3.0, 9.0]);
    file.layers(&[
        ("attn_norm.weight", &[EMBD]),
        ("attn_qkv.weight", &[EMBD, Q + 2 * KV]),
        ("attn_output.weight", &[Q, EMBD]),
        ("ffn_norm.weight", &[EMBD]),
        ("ffn_up.weight", &[EMBD, 2 * FF]),
        ("ffn_down.weight", &[FF, EMBD]),
    ]);
    file
}

fn phi3(file: &Tiny, tokens: &[u32], factors: &str, window: Option<usize>) -> Rows {
    let mut turn = Turn::plain(TURNED, 10_000.0, false);
    turn.angles.iter_mut().zip(file.vector(factors)).for_each(|(angle, factor)| *angle /= factor);
    turn.magnitude = f64::from(ATTENTION_FACTOR);
    let sees =
        |token, other| causal(token, other) && window.is_none_or(|rows| token - other < rows);
    let mut x = file.embedded(tokens);
    for layer in 0..LAYERS {
        let p = |part: &str| format!("blk.{layer}.{part}");
        let qkv = linear(file, &p("attn_qkv"), &norm(file, &p("attn_norm.weight"), &x));
        let q = turn.turn(&columns(&qkv, 0, Q), HEAD);
        let k = turn.turn(&columns(&qkv, Q, Q + KV), HEAD);
        let v = columns(&qkv, Q + KV, Q + 2 * KV);
        let y = attention([&q, &k, &v], HEAD, usual_scale(), sees);
        x = add(&x, &linear(file, &p("attn_output"), &y));
        let both = linear(file, &p("ffn_up"), &norm(file, &p("ffn_norm.weight"), &x));
        let (gate, up) = (columns(&both, 0, FF), columns(&both, FF, 2 * FF));
        let y = zip(&gate, &up, |gate, up| silu(gate) * up);
        x = add(&x, &linear(file, &p("ffn_down"), &y));
    }
    head(file, &x)
}

// Granite.

const EMBEDDING_SCALE: f32 = 12.0;
const RESIDUAL_SCALE: f32 = 0.22;
const LOGIT_SCALE: f32 = 8.0;
const ATTENTION_SCALE: f32 = 0.0625;

/// Matrices of attention and of the gated feed-forward part, one tensor each.
const APART: [(&str, &[usize]); 7] = [
    ("attn_q.weight", &[EMBD, Q]),
    ("attn_k.weight", &[EMBD, KV]),
    ("attn_v.weight", &[EMBD, KV]),
    ("attn_output.weight", &[Q, EMBD]),
    ("ffn_gate.weight", &[EMBD, FF]),
    ("ffn_up.weight", &[EMBD, FF]),
    ("ffn_down.weight", &[FF, EMBD]),
];
const QKV_BIASES: [(&str, &[usize]); 3] =
    [("attn_q.bias", &[Q]), ("attn_k.bias", &[KV]), ("attn_v.bias", &[KV])];
const NORMS_BEFORE: [(&str, &[usize]); 2] =
    [("attn_norm.weight", &[EMBD]), ("ffn_norm.weight", &[EMBD])];
const NORMS_AFTER: [(&str, &[usize]); 2] =
    [("post_attention_norm.weight", &[EMBD]), ("post_ffw_norm.weight", &[EMBD])];

fn gated(file: &Tiny, layer: usize, x: &Rows, [gate, up, down]: [&str; 3]) -> Rows {
    let p = |part: &str| format!("blk.{layer}.{part}");
    let (gate, up) = (linear(file, &p(gate), x), linear(file, &p(up), x));
    linear(file, &p(down), &zip(&gate, &up, |gate, up| silu(gate) * up))
}

const FFN: [&str; 3] = ["ffn_gate", "ffn_up", "ffn_down"];

fn granite_file() -> Tiny {
    let meta = [
        ("rope.dimension_count", U(HEAD)),
        ("rope.freq_base", F(10_000.0)),
        ("embedding_scale", F(EMBEDDING_SCALE)),
        ("residual_scale", F(RESIDUAL_SCALE)),
        ("logit_scale", F(LOGIT_SCALE)),
        ("attention.scale", F(ATTENTION_SCALE)),
    ];
    let mut file = Tiny::decoder("granite", &meta);
    file.layers(&APART);
    file.layers(&NORMS_BEFORE);
    file
}

fn granite(file: &Tiny, tokens: &[u32]) -> Rows {
    let turn = Turn::plain(HEAD, 10_000.0, true);
    let residual = |x: &Rows, y: &Rows| zip(x, y, |x, y| x + y * f64::from(RESIDUAL_SCALE));
    let mut x = map(&file.embedded(tokens), |x| x * f64::from(EMBEDDING_SCALE));
    for layer in 0..LAYERS {
        let p = |part: &str| format!("blk.{layer}.{part}");
        let y = norm(file, &p("attn_norm.weight"), &x);
        let q = turn.turn(&linear(file, &p("attn_q"), &y), HEAD);
        let k = turn.turn(&linear(file, &p("attn_k"), &y), HEAD);
        let v = linear(file, &p("attn_v"), &y);
        let y = attention([&q, &k, &v], HEAD, f64::from(ATTENTION_SCALE), causal);
        x = residual(&x, &linear(file, &p("attn_output"), &y));
        let y = gated(file, layer, &norm(file, &p("ffn_norm.weight"), &x), FFN);
        x = residual(&x, &y);
    }
    map(&head(file, &x), |logit| logit / f64::from(LOGIT_SCALE))
}

// OLMo 2.

fn olmo2_file() -> Tiny {
    let meta = [("rope.freq_base", F(500_000.0))];
    let mut file = Tiny::decoder("olmo2", &meta);
    file.layers(&APART);
    file.layers(&NORMS_AFTER);
    file.layers(&[("attn_q_norm.weight", &[Q]), ("attn_k_norm.weight", &[KV])]);
    file
}

fn olmo2(file: &Tiny, tokens: &[u32]) -> Rows {
    let turn = Turn::plain(HEAD, 500_000.0, false);
    let mut x = file.embedded(tokens);
    for layer in 0..LAYERS {
        let p = |part: &str| format!("blk.{layer}.{part}");
        let q = norm(file, &p("attn_q_norm.weight"), &linear(file, &p("attn_q"), &x));
        let k = norm(file, &p("attn_k_norm.weight"), &linear(file, &p("attn_k"), &x));
        let v = linear(file, &p("attn_v"), &x);
        let (q, k) = (turn.turn(&q, HEAD), turn.turn(&k, HEAD));
        let y = attention([&q, &k, &v], HEAD, usual_scale(), causal);
        let y = linear(file, &p("attn_output"), &y);
        x = add(&x, &norm(file, &p("post_attention_norm.weight"), &y));
        let y = gated(file, layer, &x, FFN);
        x = add(&x, &norm(file, &p("post_ffw_norm.weight"), &y));
    }
    head(file, &x)
}

// Qwen 2 with experts.

const EXPERTS: usize = 6;
const USED: usize = 3;
const EXPERT_FF: usize = 16;
const SHARED_FF: usize = 40;

fn qwen2moe_file() -> Tiny {
    let meta = [
        ("rope.freq_base", F(1_000_000.0)),
        ("expert_count", U(EXPERTS)),
        ("expert_used_count", U(USED)),
        ("expert_feed_forward_length", U(EXPERT_FF)),
        ("expert_shared_feed_forward_length", U(SHARED_FF)),
    ];
    let mut file = Tiny::decoder("qwen2moe", &meta);
    file.layers(&APART[..4]);
    file.layers(&QKV_BIASES);
    file.layers(&NORMS_BEFORE);
    file.layers(&[
        ("ffn_gate_inp.weight", &[EMBD, EXPERTS]),
        ("ffn_gate_exps.weight", &[EMBD, EXPERT_FF, EXPERTS]),
        ("ffn_up_exps.weight", &[EMBD, EXPERT_FF, EXPERTS]),
        ("ffn_down_exps.weight", &[EXPERT_FF, EMBD, EXPERTS]),
        ("ffn_gate_inp_shexp.weight", &[EMBD]),
        ("ffn_gate_shexp.weight", &[EMBD, SHARED_FF]),
        ("ffn_up_shexp.weight", &[EMBD, SHARED_FF]),
        ("ffn_down_shexp.weight", &[SHARED_FF, EMBD]),
    ]);
    file
}

fn qwen2moe(file: &Tiny, tokens: &[u32]) -> Rows {
    let turn = Turn::plain(HEAD, 1_000_000.0, false);
    let mut x = file.embedded(tokens);
    for layer in 0..LAYERS {
        let p = |part: &str| format!("blk.{layer}.{part}");
        let y = norm(file, &p("attn_norm.weight"), &x);
        let q = turn.turn(&biased(file, &p("attn_q"), &y), HEAD);
        let k = turn.turn(&biased(file, &p("attn_k"), &y), HEAD);
        let v = biased(file, &p("attn_v"), &y);
        let y = attention([&q, &k, &v], HEAD, usual_scale(), causal);
        x = add(&x, &linear(file, &p("attn_output"), &y));
        let y = norm(file, &p("ffn_norm.weight"), &x);
        let names = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"];
        let shared = gated(file, layer, &y, names);
        let share = linear(file, &p("ffn_gate_inp_shexp"), &y);
        let experts: Rows = y.iter().map(|row| chosen_experts(file, layer, row)).collect();
        for ((x, expert), (shared, share)) in
            x.iter_mut().zip(experts).zip(shared.iter().zip(share))
        {
            for ((x, expert), shared) in x.iter_mut().zip(expert).zip(shared) {
                *x += expert + shared * sigmoid(share[0]);
            }
        }
    }
    head(file, &x)
}

/// The best experts of a row by the softmax over all, whose shares are taken as they are.
fn chosen_experts(file: &Tiny, layer: usize, row: &[f64]) -> Vec<f64> {
    let p = |part: &str| format!("blk.{layer}.{part}");
    let row = vec![row.to_vec()];
    let shares = softmax(&linear(file, &p("ffn_gate_inp"), &row)[0]);
    let mut order: Vec<usize> = (0..EXPERTS).collect();
    order.sort_by(|&a, &b| shares[b].total_cmp(&shares[a]));
    let part = |name: &str, expert: usize, rows: usize| -> Rows {
        file.rows(&p(name))[expert * rows..(expert + 1) * rows].to_vec()
    };
    let mut sum = vec![0.0; EMBD];
    for &expert in &order[..USED] {
        let gate = product(&row, &part("ffn_gate_exps.weight", expert, EXPERT_FF));
        let up = product(&row, &part("ffn_up_exps.weight", expert, EXPERT_FF));
        let inner = zip(&gate, &up, |gate, up| silu(gate) * up);
        let y = product(&inner, &part("ffn_down_exps.weight", expert, EMBD));
        sum.iter_mut().zip(&y[0]).for_each(|(sum, y)| *sum += shares[expert] * y);
    }
    sum
}

// GLM 4.

fn glm4_file() -> Tiny {
    let meta = [("rope.dimension_count", U(HEAD / 2)), ("rope.freq_base", F(10_000.0))];
    let mut file = Tiny::decoder("glm4", &meta);
    file.layers(&APART[..4]);
    file.layers(&QKV_BIASES);
    file.layers(&NORMS_BEFORE);
    file.layers(&NORMS_AFTER);
    file.layers(&[("ffn_up.weight", &[EMBD, 2 * FF]), ("ffn_down.weight", &[FF, EMBD])]);
    file
}

fn glm4(file: &Tiny, tokens: &[u32]) -> Rows {
    let turn = Turn::plain(HEAD / 2, 10_000.0, true);
    let mut x = file.embedded(tokens);
    for layer in 0..LAYERS {
        let p = |part: &str| format!("blk.{layer}.{part}");
        let y = norm(file, &p("attn_norm.weight"), &x);
        let q = turn.turn(&biased(file, &p("attn_q"), &y), HEAD);
        let k = turn.turn(&biased(file, &p("attn_k"), &y), HEAD);
        let v = biased(file, &p("attn_v"), &y);
        let y = attention([&q, &k, &v], HEAD, usual_scale(), causal);
        let y = linear(file, &p("attn_output"), &y);
        x = add(&x, &norm(file, &p("post_attention_norm.weight"), &y));
        let both = linear(file, &p("ffn_up"), &norm(file, &p("ffn_norm.weight"), &x));
        let (gate, up) = (columns(&both, 0, FF), columns(&both, FF, 2 * FF));
        let y = linear(file, &p("ffn_down"), &zip(&gate, &up, |gate, up| silu(gate) * up));
        x = add(&x, &norm(file, &p("post_ffw_norm.weight"), &y));
    }
    head(file, &x)
}

// YaRN, in a family that has it on request.

const YARN_FACTOR: f32 = 4.0;
const YARN_BASE: f32 = 1_000.0;
const YARN_ORIGINAL: usize = 32;

fn qwen2_yarn_file() -> Tiny {
    let meta = [
        ("rope.freq_base", F(YARN_BASE)),
        ("rope.scaling.type", S("yarn")),
        ("rope.scaling.factor", F(YARN_FACTOR)),
        ("rope.scaling.original_context_length", U(YARN_ORIGINAL)),
    ];
    let mut file = Tiny::decoder("qwen2", &meta);
    file.layers(&APART);
    file.layers(&QKV_BIASES);
    file.layers(&NORMS_BEFORE);
    file
}

/// As the paper has it: pairs with wavelengths below the original context over 32 stay, those above the original context are
/// stretched, and between them both count by a ramp over the number of the pair.
fn yarn_turn() -> Turn {
    let mut turn = Turn::plain(HEAD, f64::from(YARN_BASE), false);
    let pair = |turns: f64| {
        let length = YARN_ORIGINAL as f64 / (turns * std::f64::consts::TAU);
        HEAD as f64 * length.ln() / (2.0 * f64::from(YARN_BASE).ln())
    };
    let (low, high) = (pair(32.0).floor().max(0.0), pair(1.0).ceil().min(HEAD as f64 - 1.0));
    for (pair, angle) in turn.angles.iter_mut().enumerate() {
        let ramp = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
        *angle = *angle * (1.0 - ramp) + *angle / f64::from(YARN_FACTOR) * ramp;
    }
    turn.magnitude = 0.1 * f64::from(YARN_FACTOR).ln() + 1.0;
    turn
}

fn qwen2_yarn(file: &Tiny, tokens: &[u32]) -> Rows {
    let turn = yarn_turn();
    let mut x = file.embedded(tokens);
    for layer in 0..LAYERS {
        let p = |part: &str| format!("blk.{layer}.{part}");
        let y = norm(file, &p("attn_norm.weight"), &x);
        let q = turn.turn(&biased(file, &p("attn_q"), &y), HEAD);
        let k = turn.turn(&biased(file, &p("attn_k"), &y), HEAD);
        let v = biased(file, &p("attn_v"), &y);
        let y = attention([&q, &k, &v], HEAD, usual_scale(), causal);
        x = add(&x, &linear(file, &p("attn_output"), &y));
        let y = gated(file, layer, &norm(file, &p("ffn_norm.weight"), &x), FFN);
        x = add(&x, &y);
    }
    head(file, &x)
}

// gpt-oss.

const OSS_WINDOW: usize = 3;
const GATE_LIMIT: f64 = 7.0;
const GATE_ALPHA: f64 = 1.702;

fn gpt_oss_file() -> Tiny {
    let meta = [
        ("rope.freq_base", F(YARN_BASE)),
        ("rope.dimension_count", U(HEAD)),
        ("rope.scaling.type", S("yarn")),
        ("rope.scaling.factor", F(YARN_FACTOR)),
        ("rope.scaling.original_context_length", U(YARN_ORIGINAL)),
        ("attention.key_length", U(HEAD)),
        ("attention.value_length", U(HEAD)),
        ("attention.sliding_window", U(OSS_WINDOW)),
        ("expert_count", U(EXPERTS)),
        ("expert_used_count", U(USED)),
        ("expert_feed_forward_length", U(EXPERT_FF)),
    ];
    let mut file = Tiny::decoder("gpt-oss", &meta);
    file.layers(&APART[..4]);
    file.layers(&QKV_BIASES);
    file.layers(&[
        ("attn_norm.weight", &[EMBD]),
        ("attn_output.bias", &[EMBD]),
        ("post_attention_norm.weight", &[EMBD]),
        ("ffn_gate_inp.weight", &[EMBD, EXPERTS]),
        ("ffn_gate_inp.bias", &[EXPERTS]),
        ("ffn_gate_exps.weight", &[EMBD, EXPERT_FF, EXPERTS]),
        ("ffn_up_exps.weight", &[EMBD, EXPERT_FF, EXPERTS]),
        ("ffn_down_exps.weight", &[EXPERT_FF, EMBD, EXPERTS]),
        ("ffn_down_exps.bias", &[EMBD, EXPERTS]),
    ]);
    for layer in 0..LAYERS {
        let p = |part: &str| format!("blk.{layer}.{part}");
        let sinks = (0..HEADS).map(|head| 0.6 * head as f32 - 0.7 + 0.3 * layer as f32).collect();
        file.values(&p("attn_sinks.weight"), &[HEADS], sinks);
        // Beyond the limits of the gate on both sides.
        for (part, step) in [("ffn_gate_exps.bias", 7), ("ffn_up_exps.bias", 5)] {
            let value = |i: usize| ((step * i + layer) % 23) as f32 * 0.8 - 9.0;
            let values = (0..EXPERTS * EXPERT_FF).map(value).collect();
            file.values(&p(part), &[EXPERT_FF, EXPERTS], values);
        }
    }
    file
}

fn gpt_oss(file: &Tiny, tokens: &[u32]) -> Rows {
    let turn = yarn_turn();
    let mut x = file.embedded(tokens);
    for layer in 0..LAYERS {
        let p = |part: &str| format!("blk.{layer}.{part}");
        // The first layer has a window, the second none, and so on.
        let window = if layer % 2 == 0 { OSS_WINDOW } else { usize::MAX };
        let sees = |token: usize, other: usize| causal(token, other) && token - other < window;
        let y = norm(file, &p("attn_norm.weight"), &x);
        let q = turn.turn(&biased(file, &p("attn_q"), &y), HEAD);
        let k = turn.turn(&biased(file, &p("attn_k"), &y), HEAD);
        let v = biased(file, &p("attn_v"), &y);
        let sinks = file.vector(&p("attn_sinks.weight"));
        let y = attention_with_sinks([&q, &k, &v], HEAD, usual_scale(), &sinks, sees);
        x = add(&x, &biased(file, &p("attn_output"), &y));
        let y = norm(file, &p("post_attention_norm.weight"), &x);
        let experts = y.iter().map(|row| oss_experts(file, layer, row)).collect();
        x = add(&x, &experts);
    }
    head(file, &x)
}

/// The best experts of a row by their logits, whose shares are the softmax over those that were chosen.
fn oss_experts(file: &Tiny, layer: usize, row: &[f64]) -> Vec<f64> {
    let p = |part: &str| format!("blk.{layer}.{part}");
    let row = vec![row.to_vec()];
    let logits = biased(file, &p("ffn_gate_inp"), &row).remove(0);
    let mut chosen: Vec<usize> = (0..EXPERTS).collect();
    chosen.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    chosen.truncate(USED);
    let shares = softmax(&chosen.iter().map(|&expert| logits[expert]).collect::<Vec<_>>());
    let expert_product = |name: &str, x: &Rows, expert: usize| -> Rows {
        let bias = &file.rows(&p(&format!("{name}.bias")))[expert];
        let rows = expert * bias.len()..(expert + 1) * bias.len();
        add_row(&product(x, &file.rows(&p(&format!("{name}.weight")))[rows].to_vec()), bias)
    };
    let mut sum = vec![0.0; EMBD];
    for (share, &expert) in shares.iter().zip(&chosen) {
        let gate = expert_product("ffn_gate_exps", &row, expert);
        let up = expert_product("ffn_up_exps", &row, expert);
        let inner = zip(&gate, &up, |gate, up| {
            let gate = gate.min(GATE_LIMIT);
            gate * sigmoid(GATE_ALPHA * gate) * (up.clamp(-GATE_LIMIT, GATE_LIMIT) + 1.0)
        });
        let y = expert_product("ffn_down_exps", &inner, expert);
        sum.iter_mut().zip(&y[0]).for_each(|(sum, y)| *sum += share * y);
    }
    sum
}
