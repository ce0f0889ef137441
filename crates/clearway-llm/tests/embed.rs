//! Vectors of texts against a float reference that shares nothing with the engine, and against numpy's logits.
#![allow(clippy::unwrap_used, clippy::panic)] // a test stops at the first surprise

use std::sync::Arc;

use clearway::cpu::CpuDevice;
use clearway::{DType, Device};
use clearway_llm::engine::{Embedding, Engine, EngineError, EngineOptions};
use clearway_llm::gguf::Gguf;
use clearway_llm::model::{Arch, ModelShape};

mod tiny;
use tiny::{assert_close, file, golden, shapes, weight};

/// Cosine from which two vectors agree.
const CLOSE: f64 = 0.9999;

fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::with_threads(2))
}

/// The tiny Llama with its weights, computed one number after another in f64.
struct Reference {
    shape: ModelShape,
}

impl Reference {
    fn matrix(&self, name: &str, rows: usize, x: &[f64]) -> Vec<f64> {
        let weights = weight(name, rows * x.len(), x.len());
        let dot = |row: &[f32]| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
        weights.chunks_exact(x.len()).map(dot).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + f64::from(self.shape.norm_eps)).sqrt();
        let weights = weight(name, x.len(), x.len());
        x.iter().zip(weights).map(|(x, w)| x * scale * f64::from(w)).collect()
    }

    /// Turns neighbours of each head by the position.
    fn rope(&self, x: &mut [f64], position: usize) {
        let head = self.shape.head_dim;
        for values in x.chunks_exact_mut(head) {
            for pair in 0..head / 2 {
                let power = -2.0 * pair as f64 / head as f64;
                let angle = position as f64 * f64::from(self.shape.rope_base).powf(power);
                let (sin, cos) = angle.sin_cos();
                let (a, b) = (values[2 * pair], values[2 * pair + 1]);
                (values[2 * pair], values[2 * pair + 1]) = (a * cos - b * sin, a * sin + b * cos);
            }
        }
    }

    /// The last norm of every token.
    fn normed(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let ModelShape { layers, embd, ff, heads, kv_heads, head_dim, vocab, .. } = self.shape;
        let table = weight("token_embd.weight", vocab * embd, embd);
        let row = |&token: &u32| &table[token as usize * embd..][..embd];
        let mut xs: Vec<Vec<f64>> =
            tokens.iter().map(|token| row(token).iter().map(|&x| f64::from(x)).collect()).collect();
        for layer in 0..layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let (mut keys, mut values): (Vec<Vec<f64>>, Vec<Vec<f64>>) = (vec![], vec![]);
            for (position, x) in xs.iter_mut().enumerate() {
                let input = self.norm(&name("attn_norm"), x);
                let mut q = self.matrix(&name("attn_q"), heads * head_dim, &input);
                let mut k = self.matrix(&name("attn_k"), kv_heads * head_dim, &input);
                self.rope(&mut q, position);
                self.rope(&mut k, position);
                keys.push(k);
                values.push(self.matrix(&name("attn_v"), kv_heads * head_dim, &input));
                let mut attended = vec![0.0; heads * head_dim];
                for head in 0..heads {
                    let shared = head / (heads / kv_heads) * head_dim;
                    let q = &q[head * head_dim..][..head_dim];
                    let score = |k: &Vec<f64>| {
                        let dot: f64 = q.iter().zip(&k[shared..]).map(|(q, k)| q * k).sum();
                        (dot / (head_dim as f64).sqrt()).exp()
                    };
                    let scores: Vec<f64> = keys.iter().map(score).collect();
                    let total: f64 = scores.iter().sum();
                    for (score, value) in scores.iter().zip(&values) {
                        for dim in 0..head_dim {
                            attended[head * head_dim + dim] += score / total * value[shared + dim];
                        }
                    }
                }
                let attended = self.matrix(&name("attn_output"), embd, &attended);
                x.iter_mut().zip(attended).for_each(|(x, y)| *x += y);
                let input = self.norm(&name("ffn_norm"), x);
                let gate = self.matrix(&name("ffn_gate"), ff, &input);
                let up = self.matrix(&name("ffn_up"), ff, &input);
                let gated: Vec<f64> =
                    gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                let fed = self.matrix(&name("ffn_down"), embd, &gated);
                x.iter_mut().zip(fed).for_each(|(x, y)| *x += y);
            }
        }
        xs.iter().map(|x| self.norm("output_norm.weight", x)).collect()
    }
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}

/// The file of the tiny Llama, with a way to pool.
fn llama(pooling: Option<u32>) -> (Reference, Gguf) {
    let (_, shape) = shapes().remove(0);
    let bytes = file("llama", &shape, |writer| {
        if let Some(pooling) = pooling {
            writer.set("llama.pooling_type", &pooling).unwrap();
        }
    });
    (Reference { shape }, Gguf::from_bytes(bytes).unwrap())
}

#[test]
fn the_reference_gives_numpys_logits() {
    let (reference, _) = llama(None);
    let (tokens, expected) = golden("llama");
    let (vocab, last) = (reference.shape.vocab, tokens.len() - 1);
    let logits = reference.matrix("output.weight", vocab, &reference.normed(&tokens)[last]);
    let logits: Vec<f32> = logits.into_iter().map(|x| x as f32).collect();
    assert_close("llama", &logits, &expected[last]);
}

#[test]
fn vectors_are_those_of_the_reference() {
    // Longer than one batch of the device, and in parts of any size.
    for (pooling, length) in
        [(None, 12), (Some(1), 12), (Some(3), 7), (Some(1), 600), (Some(3), 600)]
    {
        let (reference, gguf) = llama(pooling);
        let options = EngineOptions { context: Some(700), ..EngineOptions::default() };
        let mut engine = Engine::new(&gguf, cpu(), options).unwrap();
        let tokens: Vec<u32> = (0..length).map(|i| (i * 37 + i / 5) % 96).collect();
        let rows = reference.normed(&tokens);
        let expected = match pooling {
            Some(1) => (0..32).map(|dim| rows.iter().map(|row| row[dim]).sum::<f64>()).collect(),
            _ => rows[rows.len() - 1].clone(),
        };
        let found = wide(&engine.embed(&tokens).unwrap());
        let agreement = cosine(&found, &expected);
        assert!(agreement >= CLOSE, "{pooling:?}, {length} tokens: {agreement}");
        let norm = found.iter().map(|x| x * x).sum::<f64>().sqrt();
        assert!((norm - 1.0).abs() < 1e-5, "{norm}");
        let mut text = Embedding::new(tokens);
        let parts = loop {
            if let Some(vector) = engine.embed_part(&mut text, 50).unwrap() {
                break vector;
            }
        };
        let agreement = cosine(&wide(&parts), &expected);
        assert!(agreement >= CLOSE, "{pooling:?}, {length} tokens in parts: {agreement}");
    }
}

#[test]
fn every_family_gives_what_its_head_reads() {
    // The head of numpy's logits over our vector: both point the same way.
    let names = [
        (Arch::Llama, "llama"),
        (Arch::Qwen2, "qwen2"),
        (Arch::Qwen3, "qwen3"),
        (Arch::Qwen3Moe, "qwen3moe"),
    ];
    let mut tried = 0;
    for (name, shape) in shapes() {
        let Some((_, arch)) = names.iter().find(|(arch, _)| *arch == shape.arch) else { continue };
        tried += 1;
        let gguf = Gguf::from_bytes(file(arch, &shape, |_| ())).unwrap();
        let options = EngineOptions {
            context: Some(64),
            cache_dtype: DType::F32,
            ..EngineOptions::default()
        };
        let mut engine = Engine::new(&gguf, cpu(), options).unwrap();
        let (tokens, expected) = golden(name);
        let vector = wide(&engine.embed(&tokens).unwrap());
        let head = if shape.tied { "token_embd.weight" } else { "output.weight" };
        let weights = weight(head, shape.vocab * shape.embd, shape.embd);
        let dot = |row: &[f32]| wide(row).iter().zip(&vector).map(|(w, x)| w * x).sum();
        let logits: Vec<f64> = weights.chunks_exact(shape.embd).map(dot).collect();
        let agreement = cosine(&logits, &wide(&expected[tokens.len() - 1]));
        assert!(agreement >= CLOSE, "{name}: {agreement}");
    }
    assert_eq!(tried, 5);
}

#[test]
fn a_text_under_way_stays_as_it_is() {
    let (_, gguf) = llama(None);
    let options = EngineOptions { context: Some(64), ..EngineOptions::default() };
    let mut engine = Engine::new(&gguf, cpu(), options).unwrap();
    let (tokens, _) = golden("llama");
    let alone = engine.eval(&tokens).unwrap();
    engine.clear();
    engine.eval(&tokens[..4]).unwrap();
    let first = engine.embed(&[9, 8, 7, 6, 5]).unwrap();
    assert_eq!(engine.position(), 4);
    let rest = engine.eval(&tokens[4..]).unwrap();
    assert_close("llama", &rest, &alone);
    // A longer text in between takes a larger cache.
    engine.embed(&[3; 60]).unwrap();
    assert_eq!(engine.embed(&[9, 8, 7, 6, 5]).unwrap(), first);
}

#[test]
fn what_has_no_vector_is_refused() {
    let (_, gguf) = llama(None);
    let options = EngineOptions { context: Some(8), ..EngineOptions::default() };
    let mut engine = Engine::new(&gguf, cpu(), options).unwrap();
    assert!(matches!(engine.embed(&[]), Err(EngineError::Empty)));
    let long = engine.embed(&[1; 9]);
    assert!(matches!(long, Err(EngineError::ContextFull { wanted: 9, context: 8 })), "{long:?}");
    let unknown = engine.embed(&[96]);
    assert!(matches!(unknown, Err(EngineError::TokenOutOfRange { token: 96, .. })), "{unknown:?}");
    for pooling in [2, 4] {
        let (_, gguf) = llama(Some(pooling));
        let mut engine = Engine::new(&gguf, cpu(), options).unwrap();
        let error = engine.embed(&[1]).unwrap_err().to_string();
        assert!(error.contains("llama.pooling_type"), "{error}");
    }
}
