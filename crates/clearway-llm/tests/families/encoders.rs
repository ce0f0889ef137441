//! Encoders, each from the definition of its family: the tensors of its files, and the last norm of each token of a text.

use super::math::*;
use super::tiny::*;
use Meta::{B, F, U};

/// A tiny file of a family, and the vectors of a text's tokens.
pub struct Encoder {
    pub name: &'static str,
    pub file: Tiny,
    pub rows: fn(&Tiny, &[u32]) -> Rows,
    pub pooling: Pooling,
}

/// How a file pools.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    Mean,
    First,
    Last,
}

const EPS: f64 = 1e-5;

pub fn all() -> Vec<Encoder> {
    vec![
        Encoder { name: "bert", file: bert_file(1), rows: bert, pooling: Pooling::Mean },
        Encoder { name: "bert_first", file: bert_file(2), rows: bert, pooling: Pooling::First },
        Encoder { name: "nomic-bert", file: nomic_file(), rows: nomic, pooling: Pooling::Mean },
        Encoder {
            name: "qwen3",
            file: qwen3_file(&[("pooling_type", U(3))]),
            rows: |file, tokens| qwen3(file, tokens, causal),
            pooling: Pooling::Last,
        },
        // A decoder that was made an encoder: its files say so.
        Encoder {
            name: "qwen3_both_ways",
            file: qwen3_file(&[("pooling_type", U(1)), ("attention.causal", B(false))]),
            rows: |file, tokens| qwen3(file, tokens, all_see_all),
            pooling: Pooling::Mean,
        },
    ]
}

fn linear(file: &Tiny, name: &str, x: &Rows) -> Rows {
    product(x, &file.rows(&format!("{name}.weight")))
}

fn biased(file: &Tiny, name: &str, x: &Rows) -> Rows {
    add_row(&linear(file, name, x), &file.vector(&format!("{name}.bias")))
}

fn norm(file: &Tiny, name: &str, x: &Rows) -> Rows {
    let part = |part: &str| file.vector(&format!("{name}.{part}"));
    layer_norm(x, &part("weight"), &part("bias"), EPS)
}

/// Every token sees every other.
fn all_see_all(_: usize, _: usize) -> bool {
    true
}

const NORMS: [(&str, &[usize]); 4] = [
    ("attn_output_norm.weight", &[EMBD]),
    ("attn_output_norm.bias", &[EMBD]),
    ("layer_output_norm.weight", &[EMBD]),
    ("layer_output_norm.bias", &[EMBD]),
];

fn encoder_file(arch: &'static str, pooling: usize, more: &[(&'static str, Meta)]) -> Tiny {
    let meta = [
        ("attention.layer_norm_epsilon", F(1e-5)),
        ("attention.causal", B(false)),
        ("pooling_type", U(pooling)),
    ];
    let mut file = Tiny::new(arch, &[&meta[..], more].concat());
    file.tensor("token_types.weight", &[EMBD, 2]);
    file.tensor("token_embd_norm.weight", &[EMBD]);
    file.tensor("token_embd_norm.bias", &[EMBD]);
    file.layers(&NORMS);
    file
}

fn bert_file(pooling: usize) -> Tiny {
    let mut file = encoder_file("bert", pooling, &[]);
    file.tensor("position_embd.weight", &[EMBD, 64]);
    for (part, dims) in [
        ("attn_q", [EMBD, Q]),
        ("attn_k", [EMBD, Q]),
        ("attn_v", [EMBD, Q]),
        ("attn_output", [Q, EMBD]),
        ("ffn_up", [EMBD, FF]),
        ("ffn_down", [FF, EMBD]),
    ] {
        let (weight, bias) = (format!("{part}.weight"), format!("{part}.bias"));
        file.layers(&[(&weight, &dims), (&bias, &dims[1..])]);
    }
    file
}

fn bert(file: &Tiny, tokens: &[u32]) -> Rows {
    let types = file.rows("token_types.weight");
    let positions = file.rows("position_embd.weight")[..tokens.len()].to_vec();
    let x = add_row(&add(&file.embedded(tokens), &positions), &types[0]);
    let mut x = norm(file, "token_embd_norm", &x);
    for layer in 0..LAYERS {
        let p = |part: &str| format!("blk.{layer}.{part}");
        let [q, k, v] = ["attn_q", "attn_k", "attn_v"].map(|part| biased(file, &p(part), &x));
        let y = attention([&q, &k, &v], HEAD, 1.0 / (HEAD as f64).sqrt(), all_see_all);
        let y = biased(file, &p("attn_output"), &y);
        x = norm(file, &p("attn_output_norm"), &add(&x, &y));
        let y = map(&biased(file, &p("ffn_up"), &x), gelu);
        x = norm(file, &p("layer_output_norm"), &add(&x, &biased(file, &p("ffn_down"), &y)));
    }
    x
}

fn nomic_file() -> Tiny {
    let mut file = encoder_file("nomic-bert", 1, &[("rope.freq_base", F(1000.0))]);
    file.layers(&[
        ("attn_qkv.weight", &[EMBD, 3 * Q]),
        ("attn_output.weight", &[Q, EMBD]),
        ("ffn_gate.weight", &[EMBD, FF]),
        ("ffn_up.weight", &[EMBD, FF]),
        ("ffn_down.weight", &[FF, EMBD]),
    ]);
    file
}

fn nomic(file: &Tiny, tokens: &[u32]) -> Rows {
    let turn = Turn::plain(HEAD, 1000.0, false);
    let types = file.rows("token_types.weight");
    let mut x = norm(file, "token_embd_norm", &add_row(&file.embedded(tokens), &types[0]));
    for layer in 0..LAYERS {
        let p = |part: &str| format!("blk.{layer}.{part}");
        let qkv = linear(file, &p("attn_qkv"), &x);
        let q = turn.turn(&columns(&qkv, 0, Q), HEAD);
        let k = turn.turn(&columns(&qkv, Q, 2 * Q), HEAD);
        let v = columns(&qkv, 2 * Q, 3 * Q);
        let y = attention([&q, &k, &v], HEAD, 1.0 / (HEAD as f64).sqrt(), all_see_all);
        x = norm(file, &p("attn_output_norm"), &add(&x, &linear(file, &p("attn_output"), &y)));
        let gate = linear(file, &p("ffn_gate"), &x);
        let y = zip(&gate, &linear(file, &p("ffn_up"), &x), |gate, up| silu(gate) * up);
        x = norm(file, &p("layer_output_norm"), &add(&x, &linear(file, &p("ffn_down"), &y)));
    }
    x
}

/// A decoder whose files say how to pool.
fn qwen3_file(more: &[(&'static str, Meta)]) -> Tiny {
    let meta = [("rope.freq_base", F(1_000_000.0))];
    let mut file = Tiny::decoder("qwen3", &[&meta[..], more].concat());
    file.layers(&[
        ("attn_norm.weight", &[EMBD]),
        ("attn_q.weight", &[EMBD, Q]),
        ("attn_k.weight", &[EMBD, KV]),
        ("attn_v.weight", &[EMBD, KV]),
        ("attn_q_norm.weight", &[HEAD]),
        ("attn_k_norm.weight", &[HEAD]),
        ("attn_output.weight", &[Q, EMBD]),
        ("ffn_norm.weight", &[EMBD]),
        ("ffn_gate.weight", &[EMBD, FF]),
        ("ffn_up.weight", &[EMBD, FF]),
        ("ffn_down.weight", &[FF, EMBD]),
    ]);
    file
}

fn qwen3(file: &Tiny, tokens: &[u32], sees: fn(usize, usize) -> bool) -> Rows {
    let turn = Turn::plain(HEAD, 1_000_000.0, false);
    let rms = |name: &str, x: &Rows| rms_norm(x, &file.vector(&format!("{name}.weight")), EPS);
    let each_head = |name: &str, x: &Rows| -> Rows {
        let heads = |row: &Vec<f64>| {
            rms(name, &row.chunks(HEAD).map(<[f64]>::to_vec).collect::<Rows>()).concat()
        };
        x.iter().map(heads).collect()
    };
    let mut x = file.embedded(tokens);
    for layer in 0..LAYERS {
        let p = |part: &str| format!("blk.{layer}.{part}");
        let y = rms(&p("attn_norm"), &x);
        let q = turn.turn(&each_head(&p("attn_q_norm"), &linear(file, &p("attn_q"), &y)), HEAD);
        let k = turn.turn(&each_head(&p("attn_k_norm"), &linear(file, &p("attn_k"), &y)), HEAD);
        let v = linear(file, &p("attn_v"), &y);
        let y = attention([&q, &k, &v], HEAD, 1.0 / (HEAD as f64).sqrt(), sees);
        x = add(&x, &linear(file, &p("attn_output"), &y));
        let y = rms(&p("ffn_norm"), &x);
        let gate = linear(file, &p("ffn_gate"), &y);
        let y = zip(&gate, &linear(file, &p("ffn_up"), &y), |gate, up| silu(gate) * up);
        x = add(&x, &linear(file, &p("ffn_down"), &y));
    }
    rms("output_norm", &x)
}
