//! Hyper-parameters that lie: each is refused before anything is recorded, with a message that names the field a
//! person would have to look at.
#![allow(clippy::unwrap_used)] // a test stops at the first surprise

use clearway::{DType, RouterGroups};
use clearway_llm::engine::{model_shape, tokenizer};
use clearway_llm::gguf::{ByteStr, Gguf, GgufWriter};
use clearway_llm::model::{
    self, Arch, Experts, HEADS, Latent, ModelShape, POSITIONS, ROPE_FACTORS, RecordOptions, TOKENS,
};

#[allow(dead_code)] // the shapes are all that is needed
mod tiny;
use tiny::shapes;

/// A change of a good file.
enum Edit {
    U32(u32),
    F32(f32),
    Text(&'static str),
    /// A list of so many empty strings.
    Strings(usize),
    /// A list of so many zeros.
    Floats(usize),
    Remove,
}
/// Changes by key.
type Edits = Vec<(&'static str, Edit)>;
use Edit::{F32, Floats, Remove, Strings, Text, U32};

/// A file of a shape with all weights zero, in which these keys are changed and this tensor has other dimensions (none:
/// is absent).
fn file(shape: &ModelShape, edits: &[(&str, Edit)], tensor: Option<(&str, &[usize])>) -> Gguf {
    let arch = match shape.arch {
        Arch::Llama => "llama",
        Arch::Qwen3Moe => "qwen3moe",
        Arch::DeepSeek2 => "deepseek2",
        _ => "gemma2",
    };
    let experts = shape.experts;
    let mut keys = vec![
        ("block_count", shape.layers),
        ("context_length", 64),
        ("embedding_length", shape.embd),
        ("feed_forward_length", shape.ff),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.cache_head()),
        ("attention.value_length", shape.latent.map_or(shape.head_dim, |latent| latent.kv_rank)),
        ("rope.dimension_count", shape.rope_dims),
        ("vocab_size", shape.vocab),
    ];
    keys.extend(shape.latent.iter().flat_map(|latent| {
        [
            ("attention.q_lora_rank", latent.q_rank.unwrap_or(0)),
            ("attention.kv_lora_rank", latent.kv_rank),
            ("attention.key_length_mla", shape.head_dim),
            ("attention.value_length_mla", latent.value),
            ("leading_dense_block_count", shape.dense_layers),
            ("expert_gating_func", 2),
            ("expert_group_count", 4),
            ("expert_group_used_count", 2),
        ]
    }));
    keys.extend(experts.iter().flat_map(|e| {
        let ff = ("expert_feed_forward_length", e.ff);
        [("expert_count", e.count), ("expert_used_count", e.used), ff]
    }));
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", arch).unwrap();
    let edited = |key: &str| edits.iter().any(|(name, _)| *name == key);
    for (key, value) in keys {
        if !edited(key) {
            writer.set(&format!("{arch}.{key}"), &(value as u32)).unwrap();
        }
    }
    let eps = "attention.layer_norm_rms_epsilon";
    if !edited(eps) {
        writer.set(&format!("{arch}.{eps}"), &1e-5_f32).unwrap();
    }
    for (key, edit) in edits {
        let key = match key.starts_with("tokenizer.") {
            true => (*key).to_owned(),
            false => format!("{arch}.{key}"),
        };
        match edit {
            U32(value) => writer.set(&key, value).unwrap(),
            F32(value) => writer.set(&key, value).unwrap(),
            Text(value) => writer.set(&key, *value).unwrap(),
            Strings(count) => writer.set(&key, &vec![ByteStr(b""); *count]).unwrap(),
            Floats(count) => writer.set(&key, &vec![0.0_f32; *count]).unwrap(),
            Remove => {}
        }
    }
    let record = RecordOptions { weight_dtype: &|_| DType::F32, ..RecordOptions::new(1, 4) };
    for external in model::record(shape, &record).unwrap().into_externals() {
        let name = &*external.name;
        if [TOKENS, POSITIONS, ROPE_FACTORS, HEADS].contains(&name) || name.starts_with("cache.") {
            continue;
        }
        let dims = external.view.layout.dims().iter().rev().map(|&dim| dim as usize);
        let mut dims: Vec<usize> = dims.collect();
        if let Some((changed, other)) = tensor
            && changed == name
        {
            dims = other.to_vec();
        }
        if !dims.is_empty() {
            let bytes = vec![0; 4 * dims.iter().product::<usize>()];
            writer.tensor(name, DType::F32, &dims, move |out| out.write_all(&bytes)).unwrap();
        }
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).unwrap();
    Gguf::from_bytes(bytes).unwrap()
}

fn shape(name: &str) -> ModelShape {
    let mut found = shapes().into_iter().filter(|(found, _)| *found == name);
    found.next().unwrap().1
}

#[test]
fn unchanged_files_are_accepted() {
    for name in ["llama", "llama_tied", "qwen3moe", "gemma2"] {
        let shape = shape(name);
        let found = model_shape(&file(&shape, &[], None)).unwrap();
        assert_eq!((found.layers, found.vocab, found.experts), (3, 96, shape.experts), "{name}");
    }
}

#[test]
fn what_is_wrong_is_the_field_that_is_named() {
    const HEADS: &str = "attention.head_count";
    const KV: &str = "attention.head_count_kv";
    const KEY: &str = "attention.key_length";
    const VALUE: &str = "attention.value_length";
    const ROPE: &str = "rope.dimension_count";
    const EPS: &str = "attention.layer_norm_rms_epsilon";
    let heads_only =
        |heads| vec![(HEADS, U32(heads)), (KEY, Remove), (VALUE, Remove), (ROPE, Remove)];
    let one = |key, edit| vec![(key, edit)];
    // The file has 3 layers, an embedding of 96 x 32, 4 heads of 8 over 2, and 48 inner elements.
    let cases: Vec<(Edits, &[&str])> = vec![
        (
            one("block_count", U32(1_000_000)),
            &["`llama.block_count` is 1000000", "3 layers", "blk.3."],
        ),
        (
            one("block_count", U32(u32::MAX)),
            &["`llama.block_count` is 4294967295", "1 to 16777216"],
        ),
        (one("block_count", U32(4)), &["`llama.block_count` is 4", "blk.3."]),
        (one("block_count", U32(2)), &["`llama.block_count` is 2", "blk.2."]),
        (one("block_count", U32(0)), &["`llama.block_count` is 0", "1 to 16777216"]),
        (one("block_count", Text("3")), &["llama.block_count", "u32", "string"]),
        (one("block_count", Remove), &["llama.block_count", "missing"]),
        (
            one("embedding_length", U32(64)),
            &["`llama.embedding_length` is 64", "token_embd.weight", "32"],
        ),
        (
            one("embedding_length", U32(1 << 24)),
            &["`llama.embedding_length`", "token_embd.weight", "32"],
        ),
        (
            one("feed_forward_length", U32(96)),
            &["`llama.feed_forward_length` is 96", "blk.0.ffn_up.weight", "48 rows"],
        ),
        (one("feed_forward_length", Remove), &["llama.feed_forward_length", "missing"]),
        (one(HEADS, U32(8)), &["`llama.attention.head_count` is 8", "attn_q", "32 rows"]),
        (
            one(HEADS, U32(3)),
            &["`llama.attention.head_count_kv` is 2", "`llama.attention.head_count`, 3"],
        ),
        (one(HEADS, U32(0)), &["`llama.attention.head_count` is 0"]),
        (one(KV, U32(4)), &["`llama.attention.head_count_kv` is 4", "attn_k", "16 rows"]),
        (
            one(KV, U32(3)),
            &["`llama.attention.head_count_kv` is 3", "`llama.attention.head_count`, 4"],
        ),
        (one(KEY, U32(7)), &["`llama.attention.key_length` is 7", "even"]),
        (
            one(KEY, U32(16)),
            &["`llama.attention.value_length` is 8", "16", "`llama.attention.key_length`"],
        ),
        (
            vec![(KEY, U32(16)), (VALUE, U32(16)), (ROPE, U32(16))],
            &["head_count` is 4 with heads of 16, 64 rows", "32 rows"],
        ),
        (one(VALUE, U32(16)), &["`llama.attention.value_length` is 16", "head size 8"]),
        (one(ROPE, U32(10)), &["`llama.rope.dimension_count` is 10", "head size 8"]),
        (one(ROPE, U32(3)), &["`llama.rope.dimension_count` is 3", "even"]),
        (one("rope.scaling.type", Text("su")), &["`llama.rope.scaling.type` is su", "yarn"]),
        (one("rope.scaling.type", Text("yarn")), &["llama.rope.scaling.factor", "missing"]),
        (
            heads_only(5),
            &["`llama.attention.head_count` is 5", "divisor of the embedding length 32"],
        ),
        (
            heads_only(64),
            &["`llama.attention.head_count` is 64", "divisor of the embedding length 32"],
        ),
        (heads_only(32), &["`llama.attention.head_count` is 32", "even", "not 1"]),
        (
            one("vocab_size", U32(100)),
            &["`llama.vocab_size` is 100", "token_embd.weight", "96 rows"],
        ),
        (one("context_length", U32(0)), &["`llama.context_length` is 0"]),
        (one("context_length", U32(u32::MAX)), &["`llama.context_length` is 4294967295"]),
        (one(EPS, F32(f32::NAN)), &["`llama.attention.layer_norm_rms_epsilon` is NaN", "finite"]),
        (one(EPS, F32(-1.0)), &["`llama.attention.layer_norm_rms_epsilon` is -1", "negative"]),
        (one("rope.freq_base", F32(0.0)), &["`llama.rope.freq_base` is 0", "above zero"]),
        (one("rope.freq_base", F32(f32::INFINITY)), &["`llama.rope.freq_base` is inf", "finite"]),
        (
            vec![("rope.scaling.type", Text("linear")), ("rope.scaling.factor", F32(0.0))],
            &["`llama.rope.scaling.factor` is 0", "above zero"],
        ),
        (one("rope.scaling.type", Text("linear")), &["llama.rope.scaling.factor", "missing"]),
        (one("attn_logit_softcapping", F32(f32::NAN)), &["`llama.attn_logit_softcapping` is NaN"]),
        (one("final_logit_softcapping", F32(-3.0)), &["`llama.final_logit_softcapping` is -3"]),
        (
            one("expert_count", U32(1 << 20)),
            &["`llama.expert_count` is 1048576", "have no experts"],
        ),
        (
            one("tokenizer.ggml.tokens", Strings(97)),
            &["`tokenizer.ggml.tokens` is a list of 97", "96 rows"],
        ),
    ];
    let llama = shape("llama");
    for (edits, words) in cases {
        let keys: Vec<&str> = edits.iter().map(|(key, _)| *key).collect();
        let error =
            model_shape(&file(&llama, &edits, None)).expect_err(&keys.join(" ")).to_string();
        println!("{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{keys:?}: {error}");
    }
    let cases: Vec<(Edits, &[&str])> = vec![
        (
            one("expert_count", U32(8)),
            &["`qwen3moe.expert_count` is 8", "blk.0.ffn_gate_inp.weight", "6 rows"],
        ),
        (
            one("expert_count", U32(1 << 24)),
            &["`qwen3moe.expert_count`", "blk.0.ffn_gate_inp.weight"],
        ),
        (one("expert_used_count", U32(7)), &["`qwen3moe.expert_used_count` is 7", "6 experts"]),
        (one("expert_used_count", U32(0)), &["`qwen3moe.expert_used_count` is 0"]),
        (
            one("expert_feed_forward_length", U32(32)),
            &["`qwen3moe.expert_feed_forward_length` is 32", "blk.0.ffn_up_exps.weight", "16 rows"],
        ),
    ];
    let experts = shape("qwen3moe");
    for (edits, words) in cases {
        let error = model_shape(&file(&experts, &edits, None)).expect_err(edits[0].0).to_string();
        println!("{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{}: {error}", edits[0].0);
    }
}

/// V3: 4 heads of 8 and 4 that turn over rows of 16, a layer without experts, then 8 of them in 4 groups.
fn deepseek() -> ModelShape {
    ModelShape {
        rope_dims: 4,
        latent: Some(Latent { q_rank: Some(24), kv_rank: 16, plain: 8, value: 6 }),
        experts: Some(Experts {
            renormalise: false,
            sigmoid: true,
            bias: true,
            groups: RouterGroups { count: 4, used: 2, best: 2 },
            ..Experts::new(8, 3, 16)
        }),
        dense_layers: 1,
        ..ModelShape::new("tiny", Arch::DeepSeek2, 3, 32, 48, 4, 1, 12, 96)
    }
}

#[test]
fn what_is_wrong_with_latent_attention_is_named() {
    let shape = deepseek();
    let found = model_shape(&file(&shape, &[], None)).unwrap();
    assert_eq!((found.latent, found.experts), (shape.latent, shape.experts));
    let cases: Vec<(&str, Edit, &[&str])> = vec![
        ("attention.kv_lora_rank", Remove, &["attention.kv_lora_rank", "missing"]),
        (
            "attention.kv_lora_rank",
            U32(32),
            &["`deepseek2.attention.key_length` is 20", "36 of `deepseek2.attention.kv_lora_rank`"],
        ),
        (
            "attention.q_lora_rank",
            U32(8),
            &["`deepseek2.attention.q_lora_rank` is 8", "blk.0.attn_q_a.weight", "24 rows"],
        ),
        ("attention.q_lora_rank", U32(0), &["blk.0.attn_q.weight"]),
        ("attention.value_length", U32(6), &["`deepseek2.attention.value_length` is 6", "16"]),
        ("attention.value_length_mla", Remove, &["attention.value_length_mla", "missing"]),
        ("attention.value_length_mla", U32(8), &["blk.0.attn_v_b.weight", "[4, 8, 16]"]),
        ("attention.key_length_mla", U32(4), &["`deepseek2.rope.dimension_count` is 4", "size 4"]),
        ("attention.key_length_mla", U32(14), &["blk.0.attn_q_b.weight", "[56, 24]"]),
        ("attention.head_count_kv", U32(2), &["`deepseek2.attention.head_count_kv` is 2", "1 or"]),
        ("leading_dense_block_count", U32(4), &["leading_dense_block_count` is 4", "3 layers"]),
        ("leading_dense_block_count", U32(0), &["blk.0.ffn_gate_inp.weight"]),
        ("leading_dense_block_count", U32(2), &["blk.1.ffn_up.weight"]),
        ("feed_forward_length", U32(64), &["`deepseek2.feed_forward_length` is 64", "48 rows"]),
        ("expert_gating_func", U32(3), &["`deepseek2.expert_gating_func` is 3", "softmax"]),
        ("expert_gating_func", U32(1), &["`deepseek2.expert_gating_func` is 1", "biases"]),
        ("expert_group_count", U32(3), &["`deepseek2.expert_group_count` is 3", "8 experts"]),
        ("expert_group_count", U32(8), &["`deepseek2.expert_group_count` is 8", "at least 2"]),
        ("expert_group_used_count", U32(5), &["expert_group_used_count` is 5", "4 groups"]),
        ("expert_group_used_count", U32(1), &["expert_group_used_count` is 1", "3 experts"]),
        ("expert_weights_scale", F32(f32::NAN), &["expert_weights_scale` is NaN"]),
        ("nextn_predict_layers", U32(1), &["`deepseek2.nextn_predict_layers` is 1", "convert"]),
        ("attention.temperature_scale", F32(0.1), &["attention.temperature_scale` is 0.1"]),
    ];
    for (key, edit, words) in cases {
        let error = model_shape(&file(&shape, &[(key, edit)], None)).expect_err(key).to_string();
        println!("{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{key}: {error}");
    }
}

#[test]
fn a_tensor_that_differs_from_those_of_other_layers_is_named() {
    let cases: [(&str, &[usize], &[&str]); 8] = [
        ("blk.1.attn_q.weight", &[], &["\"blk.1.attn_q.weight\" is missing"]),
        (
            "blk.2.ffn_down.weight",
            &[32, 48],
            &["`blk.2.ffn_down.weight` is f32 [48, 32]", "[32, 48]"],
        ),
        (
            "blk.0.attn_q.weight",
            &[31, 32],
            &["`blk.0.attn_q.weight` is f32 [32, 31]", "rows of 32"],
        ),
        ("blk.0.attn_q.weight", &[32], &["`blk.0.attn_q.weight` is f32 [32]", "matrix"]),
        ("token_embd.weight", &[32], &["`token_embd.weight` is f32 [32]", "matrix"]),
        ("token_embd.weight", &[], &["\"token_embd.weight\" is missing"]),
        ("output.weight", &[32, 97], &["`output.weight` is f32 [97, 32]", "[96, 32]"]),
        ("output_norm.weight", &[33], &["`output_norm.weight` is f32 [33]", "[32]"]),
    ];
    let llama = shape("llama");
    for (tensor, dims, words) in cases {
        let error = model_shape(&file(&llama, &[], Some((tensor, dims)))).expect_err(tensor);
        let error = error.to_string();
        println!("{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{tensor}: {error}");
    }
    let experts = shape("qwen3moe");
    let other = Some(("blk.2.ffn_up_exps.weight", &[32, 16, 5][..]));
    let error = model_shape(&file(&experts, &[], other)).unwrap_err().to_string();
    assert!(error.contains("`blk.2.ffn_up_exps.weight` is f32 [5, 16, 32]"), "{error}");
}

#[test]
fn a_file_of_more_layers_than_any_model_is_refused() {
    let deep = ModelShape { layers: 513, ..shape("llama_tied") };
    let error = model_shape(&file(&deep, &[], None)).unwrap_err().to_string();
    assert!(error.contains("`llama.block_count` is 513") && error.contains("512"), "{error}");
    let deep = ModelShape { layers: 512, ..deep };
    assert_eq!(model_shape(&file(&deep, &[], None)).unwrap().layers, 512);
}

#[test]
fn lists_of_a_vocabulary_are_bounded_before_they_are_copied() {
    let llama = shape("llama");
    let cases: [(Edits, &[&str]); 3] = [
        (
            vec![("tokenizer.ggml.tokens", Strings((1 << 19) + 1))],
            &["`tokenizer.ggml.tokens` is a list of 524289", "524288"],
        ),
        (
            vec![
                ("tokenizer.ggml.tokens", Strings(9)),
                ("tokenizer.ggml.merges", Strings(1 << 20)),
            ],
            &["`tokenizer.ggml.merges` is a list of 1048576", "524288"],
        ),
        (
            vec![("tokenizer.ggml.tokens", Strings(9)), ("tokenizer.ggml.scores", Floats(1 << 22))],
            &["9 tokens", "4194304 scores"],
        ),
    ];
    for (mut edits, words) in cases {
        edits.push(("tokenizer.ggml.model", Text("gpt2")));
        let error = tokenizer(&file(&llama, &edits, None)).unwrap_err().to_string();
        println!("{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}
